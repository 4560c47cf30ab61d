//! A partition's context on the thread's stack of contexts.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem;
use std::ptr;

use green_ctx::sys::{CUcontext, CUctx_st};
use green_ctx::{Driver, context::Context};

use crate::error::{Result, TorchError, check_process};
use green_ctx::call;

/// A place on the thread's stack of contexts, for a partition's context.
///
/// Other code changes what is in the place: when PyTorch changes its device, the CUDA runtime puts a
/// primary context in the place of whatever is current (cuda.h, `cuCtxSetCurrent`). So what is taken
/// off is the place and not the context.
pub(super) struct Slot {
    /// `None` once the place is taken off.
    context: Option<Context>,
    /// What was current before; only compared.
    below: *mut CUctx_st,
}

impl Slot {
    /// `below` is what is current, where that is known.
    pub(super) fn push(context: &Context, below: Option<CUcontext>) -> Result<Slot> {
        let driver = context.device().driver();
        let below = below.map_or_else(|| get(driver), Ok)?;
        // SAFETY: the context is alive, and the result keeps it.
        unsafe { call!(driver.api(), cuCtxPushCurrent(context.as_raw())) }?;
        Ok(Slot { context: Some(context.clone()), below })
    }

    /// Makes the partition's context current again where something else was put in its place.
    pub(super) fn hold(&self) -> Result<()> {
        let Some(context) = &self.context else { return Ok(()) };
        let driver = context.device().driver();
        if get(driver)? != context.as_raw() {
            // SAFETY: the context is alive, and this object keeps it.
            unsafe { call!(driver.api(), cuCtxSetCurrent(context.as_raw())) }?;
        }
        Ok(())
    }

    /// Whether the place can be taken off: [`TorchError::ContextOrder`] where something lies on it. A
    /// place that somebody has taken off already is forgotten.
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
        // SAFETY: it was on the thread's stack a moment ago, put there by its owner.
        let back = unsafe { call!(driver.api(), cuCtxPushCurrent(top)) };
        let (beneath, below) = (beneath?, self.below);
        if beneath == below {
            // Another context is in the place, and has gone from it where it cannot be put back.
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

    /// Takes the place off, whatever context is in it.
    pub(super) fn pop(&mut self) -> Result<()> {
        let Some(context) = self.context.take() else { return Ok(()) };
        let (driver, ours) = (context.device().driver(), context.as_raw());
        let first = pop(driver);
        if first.is_ok() {
            return Ok(());
        }
        // The call may also report what earlier work did wrong (cuda.h): where it has not popped, it
        // is made again, and the error is returned all the same.
        let done = match get(driver) {
            Ok(now) if now == ours => ours != self.below && pop(driver).is_ok(),
            now => now.is_ok(),
        };
        if !done {
            // Nothing that is on a thread's stack may be destroyed.
            mem::forget(context);
        }
        first
    }
}

impl Drop for Slot {
    /// The thread ends. What is not certainly off its stack is kept for good.
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

/// The thread's current context, null for none.
pub(super) fn get(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    unsafe { call!(driver.api(), cuCtxGetCurrent(&raw mut raw)) }?;
    Ok(raw)
}

fn pop(driver: &Driver) -> Result<()> {
    let mut popped = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    unsafe { call!(driver.api(), cuCtxPopCurrent(&raw mut popped)) }?;
    Ok(())
}
