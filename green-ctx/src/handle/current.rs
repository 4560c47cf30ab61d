//! The context that is current on a thread.
#![allow(unsafe_code, reason = "calls the driver")]

use std::marker::PhantomData;
use std::ptr;

use green_ctx_sys::CUcontext;

use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};

/// A guard that makes a context current for the rest of a function. The caller keeps the context alive.
pub(crate) struct Scope<'a> {
    driver: &'a Driver,
    raw: CUcontext,
    _thread: PhantomData<*const ()>,
}

impl<'a> Scope<'a> {
    pub(crate) fn enter(driver: &'a Driver, raw: CUcontext) -> Result<Scope<'a>> {
        push(driver, raw)?;
        Ok(Scope { driver, raw, _thread: PhantomData })
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.driver.report(pop(self.driver, self.raw));
    }
}

/// Returns the thread's current context, or null if there is none.
pub(crate) fn get(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` is a live local that the driver writes.
    unsafe { call!(driver.functions()?, cuCtxGetCurrent(&raw mut raw)) }?;
    Ok(raw)
}

/// If `raw` is this thread's current context, makes `by` current instead.
pub(crate) fn replace(driver: &Driver, raw: CUcontext, by: CUcontext) -> Result<()> {
    if get(driver)? != raw {
        return Ok(());
    }
    // SAFETY: the callers keep both contexts alive.
    unsafe { call!(driver.functions()?, cuCtxSetCurrent(by)) }
}

pub(crate) fn push(driver: &Driver, raw: CUcontext) -> Result<()> {
    // SAFETY: the callers keep the context alive during the call and until it is popped. Pushing a destroyed context
    // would abort the process (recorded on an H200).
    unsafe { call!(driver.functions()?, cuCtxPushCurrent(raw)) }
}

/// Pops the current context if it is `raw`. Otherwise leaves the stack unchanged and returns an error.
pub(crate) fn pop(driver: &Driver, raw: CUcontext) -> Result<()> {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` is a live local that the driver writes.
    let first = unsafe { call!(driver.functions()?, cuCtxPopCurrent(&raw mut popped)) };
    if let Err(error) = first {
        // `cuCtxPopCurrent` may also return errors of earlier work (cuda.h). If it has not popped the context, pop it
        // now. The error is returned in both cases.
        if get(driver)? == raw {
            // SAFETY: `popped` is a live local that the driver writes.
            unsafe { call!(driver.functions()?, cuCtxPopCurrent(&raw mut popped)) }?;
        }
        return Err(error);
    }
    if popped == raw {
        return Ok(());
    }
    // SAFETY: `popped` was on this thread's stack immediately before. The code that pushed this context keeps it alive.
    unsafe { call!(driver.functions()?, cuCtxPushCurrent(popped)) }?;
    Err(Error::GuardOrder)
}
