//! The thread's device and its current context.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use green_ctx_sys::{CUcontext, CUresult};

use crate::driver::{
    cuCtxGetCurrent, cuCtxGetDevice, cuCtxSetCurrent, cuDevicePrimaryCtxRetain, cuInit,
};
use crate::error;

thread_local! {
    /// The device of a thread that has no current context.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// Makes a call that needs a context. If the thread has none, it gets the primary context of its device first.
pub(crate) fn in_context(call: impl FnOnce() -> CUresult) -> CUresult {
    let entered = if current().is_null() { enter(DEVICE.get()) } else { Ok(()) };
    error::note(entered.map_or_else(|refused| refused, |()| call()))
}

/// Makes a call that needs an initialised driver but no context.
pub(crate) fn initialised(call: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: the function has no preconditions.
    error::note(match unsafe { cuInit(0) } {
        CUresult::CUDA_SUCCESS => call(),
        refused => refused,
    })
}

/// Returns the thread's current context. It is null if the thread has none, or if the driver is not initialised.
fn current() -> CUcontext {
    let mut context = null_mut();
    // SAFETY: the pointer is to a local variable.
    unsafe { cuCtxGetCurrent(&mut context) };
    context
}

/// Returns the device of the current context, or the thread's device if there is no context.
pub(crate) fn device() -> c_int {
    let mut device = DEVICE.get();
    if !current().is_null() {
        // SAFETY: the pointer is to a local variable.
        unsafe { cuCtxGetDevice(&mut device) };
    }
    device
}

/// Makes the primary context of a device current. The process retains the context once and never releases it.
fn enter(device: c_int) -> Result<(), CUresult> {
    /// The addresses of the retained contexts.
    static RETAINED: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());
    let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
    let context = match retained.get(&device) {
        Some(&context) => context as CUcontext,
        None => {
            let mut context = null_mut();
            // SAFETY: the pointer is to a local variable.
            error::of(initialised(|| unsafe { cuDevicePrimaryCtxRetain(&mut context, device) }))?;
            retained.insert(device, context as usize);
            context
        }
    };
    // SAFETY: the context is retained.
    error::of(unsafe { cuCtxSetCurrent(context) })
}

/// Makes the primary context current, even if another context of the same device is current (recorded on hardware).
fn set_device(device: c_int) -> CUresult {
    match enter(device) {
        Ok(()) => {
            DEVICE.set(device);
            CUresult::CUDA_SUCCESS
        }
        Err(refused) => refused,
    }
}

functions! { initialised:
    cudaSetDevice(device: c_int) => set_device(device);
    cudaGetDevice(out: *mut c_int) => { out.write(device()); CUresult::CUDA_SUCCESS };
}
