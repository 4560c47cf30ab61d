//! Green contexts.

use green_ctx_sys::{CUctx_st, CUdevResourceDesc_st, CUgreenCtx_st, CUresult, CUstream_st};

use crate::clock::cost;
use crate::context::Context;
use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::resource::Partition;
use crate::stream::NON_BLOCKING;

/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u32 = 1;

pub(crate) fn create(
    driver: &Driver,
    out: Ptr<*mut CUgreenCtx_st>,
    desc: Ptr<CUdevResourceDesc_st>,
    ordinal: i32,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let device = state.device(ordinal)?;
    // From 13.3 on, the default stream flag is optional (header of 13.3).
    invalid_if(flags != DEFAULT_STREAM && !(flags == 0 && state.version >= 13_030))?;
    let (sms, workqueue) = if desc.is_null() {
        (Partition::all(state.profile), None)
    } else if let Some(descriptor) = state.descriptors.get(&desc.address()) {
        refuse_if(descriptor.device != device, CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        (descriptor.sms.clone(), descriptor.workqueue)
    } else {
        // The driver follows a descriptor without a check (recorded on hardware).
        crash::segmentation_fault();
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    state.unpoisoned(device)?;
    if state.free_bytes(device) < state.profile.green_context_bytes {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    state.activate_primary(device)?;
    let busy = state.busy(state.devices[device].primary);
    state.wait_on_host(&busy);
    state.now += cost::GREEN_CREATE;
    let green = handle::next();
    let workqueue = workqueue.map(|workqueue| workqueue.provisioned_by(green));
    state.contexts.insert(green, Context { workqueue, ..Context::new(device, true, sms) });
    state.activate(green);
    let bytes = state.profile.green_context_bytes;
    let device = &mut state.devices[device];
    device.greens.push(green);
    device.green_bytes += bytes;
    out.write(handle::pointer(green))
}

/// Destroys a green context, even if it is in use. The context's streams continue to exist, submitted work
/// continues, and the context's memory stays in use. The call also succeeds on a poisoned device.
pub(crate) fn destroy(driver: &Driver, green: Ptr<CUgreenCtx_st>) -> Answer {
    let mut state = driver.state();
    state.now += 2 * cost::LAUNCH;
    let context = state.contexts.get_mut(&green.address()).filter(|context| context.green);
    let context = context.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    refuse_if(!context.alive, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
    context.alive = false;
    let device = context.device;
    // Captures on its streams end in an error, but destroying the context still succeeds.
    let _ = state.not_capturing(green.address());
    state.forget_green(device, green.address());
    state.deactivate_unheld_primary(device);
    Ok(())
}

/// The derived context has the same handle as the green context (recorded on hardware).
pub(crate) fn to_context(
    driver: &Driver,
    out: Ptr<*mut CUctx_st>,
    green: Ptr<CUgreenCtx_st>,
) -> Answer {
    let state = driver.state();
    state.green(green.address())?;
    out.write(handle::pointer(green.address()))
}

pub(crate) fn stream_create(
    driver: &Driver,
    out: Ptr<*mut CUstream_st>,
    green: Ptr<CUgreenCtx_st>,
    flags: u32,
    priority: i32,
) -> Answer {
    let mut state = driver.state();
    state.green(green.address())?;
    out.given()?;
    invalid_if(flags != NON_BLOCKING)?;
    let stream = state.create_stream(green.address(), flags, priority)?;
    out.write(handle::pointer(stream))
}

pub(crate) fn get_id(driver: &Driver, green: Ptr<CUgreenCtx_st>, out: Ptr<u64>) -> Answer {
    let mut state = driver.state();
    // A null handle means the current context if that is a green context (recorded on hardware).
    let current = state.current_handle().filter(|_| green.is_null());
    let id = state.green(current.unwrap_or(green.address()))?.id;
    out.write(id)
}

#[cfg(test)]
mod tests {
    use crate::context::Context;
    use crate::handle;
    use crate::resource::Partition;
    use crate::spec::Spec;
    use crate::state::State;

    /// Creating and destroying a green context leaves only its entry in the table of contexts.
    #[test]
    fn default_streams_go_with_their_context() {
        let mut state = State::new(Spec::default(), 1, 0);
        state.activate_primary(0).expect("there is room");
        let before = state.streams.len();
        let green = handle::next();
        let sms = Partition::all(state.profile);
        state.contexts.insert(green, Context::new(0, true, sms));
        state.activate(green);
        state.devices[0].greens.push(green);
        assert_eq!(state.streams.len(), before + 1);
        state.forget_green(0, green);
        assert_eq!(state.streams.len(), before);
    }
}
