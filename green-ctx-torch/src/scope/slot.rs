//! A partition's entry on the thread's context stack.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem;
use std::ptr;

use green_ctx::sys::{CUcontext, CUctx_st};
use green_ctx::{Driver, context::Context};

use crate::error::{Result, TorchError, check_process};
use green_ctx::call;

/// An entry on the thread's context stack, for a partition's context.
///
/// Other code may replace the context in the entry: if PyTorch changes its device, the CUDA runtime replaces the
/// current context with a primary context (cuda.h, `cuCtxSetCurrent`). Leaving the partition therefore removes the
/// entry even if it contains another context.
pub(super) struct Slot {
    /// The partition's context, or `None` after the entry was removed.
    context: Option<Context>,
    /// The context below the entry. The handle is only compared.
    below: *mut CUctx_st,
}

impl Slot {
    /// Pushes the context. `below` is the current context, if the caller knows it.
    pub(super) fn push(context: &Context, below: Option<CUcontext>) -> Result<Slot> {
        let driver = context.device().driver();
        let below = below.map_or_else(|| get(driver), Ok)?;
        // SAFETY: `context` is alive, and the returned `Slot` keeps it alive while it is on the stack.
        unsafe { call!(driver.api(), cuCtxPushCurrent(context.as_raw())) }?;
        Ok(Slot { context: Some(context.clone()), below })
    }

    /// Makes the partition's context current again if another one has replaced it in the entry.
    pub(super) fn hold(&self) -> Result<()> {
        let Some(context) = &self.context else { return Ok(()) };
        let driver = context.device().driver();
        if get(driver)? != context.as_raw() {
            // SAFETY: `self.context` keeps the context alive.
            unsafe { call!(driver.api(), cuCtxSetCurrent(context.as_raw())) }?;
        }
        Ok(())
    }

    /// Returns [`TorchError::ContextOrder`] if another entry is above this one. If the entry is no longer on the stack,
    /// this slot forgets it.
    pub(super) fn check(&mut self) -> Result<()> {
        let Some(context) = &self.context else { return Ok(()) };
        let (driver, ours) = (context.device().driver(), context.as_raw());
        let top = get(driver)?;
        if top == ours {
            return Ok(());
        }
        if top.is_null() {
            // The stack is empty.
            self.context = None;
            return Ok(());
        }
        pop(driver)?;
        let beneath = get(driver);
        // SAFETY: `top` was on this thread's stack until the `pop` above, so the code that pushed it keeps it alive.
        let back = unsafe { call!(driver.api(), cuCtxPushCurrent(top)) };
        let (beneath, below) = (beneath?, self.below);
        if beneath == below {
            // Another context has replaced ours in the entry. If it could not be pushed back, the entry is gone.
            if back.is_err() {
                self.context = None;
            }
            return Ok(back?);
        }
        back?;
        if beneath == ours || top != below {
            return Err(TorchError::ContextOrder);
        }
        self.context = None;
        Ok(())
    }

    /// Removes the entry, even if it contains another context.
    pub(super) fn pop(&mut self) -> Result<()> {
        let Some(context) = self.context.take() else { return Ok(()) };
        let (driver, ours) = (context.device().driver(), context.as_raw());
        let first = pop(driver);
        if first.is_ok() {
            return Ok(());
        }
        // The call may also return the error of earlier work (cuda.h). If it did not pop, it is repeated. The error
        // is returned in both cases.
        let done = match get(driver) {
            Ok(now) if now == ours => ours != self.below && pop(driver).is_ok(),
            now => now.is_ok(),
        };
        if !done {
            // A context that may be on a thread's stack must not be destroyed.
            mem::forget(context);
        }
        first
    }
}

impl Drop for Slot {
    /// Removes the entry if the thread ends inside the partition. Leaks the context if it may still be on the stack.
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        if check_process(context.device()).is_err() {
            return mem::forget(context);
        }
        let driver = context.device().driver();
        let current = get(driver).is_ok_and(|current| current == context.as_raw());
        if !current || pop(driver).is_err() {
            mem::forget(context);
        }
    }
}

/// Returns the thread's current context, or null if there is none.
pub(super) fn get(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` is a live local.
    unsafe { call!(driver.api(), cuCtxGetCurrent(&raw mut raw)) }?;
    Ok(raw)
}

fn pop(driver: &Driver) -> Result<()> {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` is a live local.
    unsafe { call!(driver.api(), cuCtxPopCurrent(&raw mut popped)) }?;
    Ok(())
}
