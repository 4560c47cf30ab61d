//! Contexts that a program creates with `cuCtxCreate`. What they do follows from the header; nothing
//! here is recorded.
//!
//! Such a context has all that a device has for its primary one: limits, flags, memory, modules,
//! and a fault of its own. So it is kept as the primary context of a further entry in the list of
//! devices, which no ordinal leads to and which knows the device that it is based on.

use std::ffi::c_void;

use green_ctx_sys::{CUctx_st, CUresult};

use crate::clock::cost;
use crate::context::{Context, check_flags};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, refuse_if};
use crate::state::State;

/// `CUctxCreateParams`: a pointer to the parameters of execution affinity, their number, and a
/// pointer to those of graphics.
type CreateParams = [u64; 3];

impl State {
    /// The device that a context's own entry is based on, as ordinals count.
    pub(crate) fn physical(&self, device: usize) -> usize {
        self.devices[device].physical
    }

    /// How many contexts were created and not destroyed.
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

    /// An entry for a context: one whose context is destroyed, or a new one.
    fn entry_on(&mut self, physical: usize) -> usize {
        let mut entries = self.devices.iter().enumerate().skip(self.ordinals);
        let free = entries.find(|(_, entry)| entry.physical == physical && entry.retains == 0);
        match free {
            Some((index, _)) => index,
            None => self.add_device(physical),
        }
    }

    /// The entry of a context, provided that a program created it.
    fn entry_of(&self, context: usize) -> Answer<usize> {
        let entry = self.known_context(context)?.device;
        refuse_if(entry < self.ordinals, CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let alive = self.contexts[&context].alive;
        if alive { Ok(entry) } else { Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// Destroys a context and everything in it. On the calling thread it is current no longer; to
    /// others it stays current, and is of no use.
    fn destroy_created(&mut self, context: usize, entry: usize) {
        // Captures that began in its streams are over, as where a program destroys the streams;
        // others end in an error, and destroying is none.
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

/// The form of 11.4. Contexts of a limited number of SMs need MPS, which is not simulated.
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

/// The form of 12.5. Contexts that share a device with graphics need a graphics interface.
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
    // The number is an `int`, with whatever beside it.
    create_with_affinity(driver, out, Ptr::at(affinity), count as i32, flags, ordinal)
}

/// Neither a primary nor a green context can be destroyed this way, as recorded.
pub(crate) fn destroy(driver: &Driver, context: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    let entry = state.entry_of(context.given()?.address())?;
    state.destroy_created(context.address(), entry);
    Ok(())
}
