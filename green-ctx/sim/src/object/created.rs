//! Contexts from `cuCtxCreate`. Their behaviour follows the header; none of it was recorded.
//!
//! Like a primary context, such a context has its own limits, flags, memory, modules and fault. The context is
//! therefore stored as the primary context of an additional entry in the list of devices. This entry has no
//! ordinal, and it refers to the entry of the physical device.

use std::ffi::c_void;

use green_ctx_sys::{CUctx_st, CUresult};

use crate::clock::cost;
use crate::context::{Context, check_flags};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, refuse_if};
use crate::state::State;

/// The layout of `CUctxCreateParams`: a pointer to the execution affinity parameters, the number of these
/// parameters, and a pointer to the graphics parameters.
type CreateParams = [u64; 3];

impl State {
    /// Returns the ordinal of the physical device behind an entry.
    pub(crate) fn physical(&self, device: usize) -> usize {
        self.devices[device].physical
    }

    /// Returns the number of contexts from `cuCtxCreate` that have not been destroyed.
    pub(crate) fn created(&self) -> usize {
        self.devices[self.ordinals..].iter().filter(|entry| entry.retains > 0).count()
    }

    fn create(&mut self, out: Ptr<*mut CUctx_st>, flags: u32, ordinal: i32) -> Answer {
        out.given()?;
        let physical = self.device(ordinal)?;
        check_flags(flags)?;
        if self.free_bytes(physical) < self.profile.primary_context_bytes {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let entry = self.entry_on(physical);
        let context = handle::next();
        self.contexts.insert(context, Context::primary(entry, self.profile));
        let device = &mut self.devices[entry];
        (device.primary, device.retains, device.flags) = (context, 1, flags);
        self.activate(context);
        self.now += cost::PRIMARY_CREATE;
        self.thread().stack.push(context);
        out.write(handle::pointer(context))
    }

    /// Returns an entry for a new context. An entry whose context was destroyed is used again if there is one.
    fn entry_on(&mut self, physical: usize) -> usize {
        let mut entries = self.devices.iter().enumerate().skip(self.ordinals);
        let free = entries.find(|(_, entry)| entry.physical == physical && entry.retains == 0);
        match free {
            Some((index, _)) => index,
            None => self.add_device(physical),
        }
    }

    /// Returns the entry of a context, if the context came from `cuCtxCreate`.
    fn entry_of(&self, context: usize) -> Answer<usize> {
        let entry = self.known_context(context)?.device;
        refuse_if(entry < self.ordinals, CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let alive = self.contexts[&context].alive;
        if alive { Ok(entry) } else { Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// Destroys a context and everything in it. The context stops being current on the calling thread. On
    /// other threads the context stays current but is unusable.
    fn destroy_created(&mut self, context: usize, entry: usize) {
        // Captures that began in the context's streams end, as when a program destroys the streams. Other
        // captures end in an error, but destroying the context still succeeds.
        let _ = self.not_capturing(context);
        let own = self.streams.iter().filter(|(_, stream)| stream.context == context);
        let own: Vec<_> = own.filter_map(|(&handle, own)| Some((own.capture?, handle))).collect();
        own.into_iter().for_each(|(capture, stream)| self.leave_capture(capture, stream));
        let stack = &mut self.thread().stack;
        if stack.last() == Some(&context) {
            stack.pop();
        }
        self.devices[entry].retains = 0;
        self.deactivate_primary(entry);
    }
}

pub(crate) fn create(driver: &Driver, out: Ptr<*mut CUctx_st>, flags: u32, ordinal: i32) -> Answer {
    driver.state().create(out, flags, ordinal)
}

/// Implements the CUDA 11.4 version of this function. Contexts with a limited number of SMs need MPS, which is
/// not simulated.
pub(crate) fn create_with_affinity(
    driver: &Driver,
    out: Ptr<*mut CUctx_st>,
    params: Ptr<c_void>,
    count: i32,
    flags: u32,
    ordinal: i32,
) -> Answer {
    let limited = !params.is_null() || count != 0;
    refuse_if(limited, CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)?;
    create(driver, out, flags, ordinal)
}

/// Implements the CUDA 12.5 version of this function. Contexts that share a device with graphics need a
/// graphics interface, which is not simulated.
pub(crate) fn create_with_params(
    driver: &Driver,
    out: Ptr<*mut CUctx_st>,
    params: Ptr<c_void>,
    flags: u32,
    ordinal: i32,
) -> Answer {
    if params.is_null() {
        return create(driver, out, flags, ordinal);
    }
    let [affinity, count, graphics]: CreateParams = params.cast().read()?;
    refuse_if(graphics != 0, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
    // The number is an `int`; the other half of the word is padding.
    create_with_affinity(driver, out, Ptr::at(affinity), count as i32, flags, ordinal)
}

/// Destroys a context from `cuCtxCreate`. Primary and green contexts are refused (recorded on hardware).
pub(crate) fn destroy(driver: &Driver, context: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    let entry = state.entry_of(context.given()?.address())?;
    state.destroy_created(context.address(), entry);
    Ok(())
}
