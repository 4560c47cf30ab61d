//! Which context is current on a thread.
#![allow(unsafe_code, reason = "calls the driver")]

use std::marker::PhantomData;
use std::ptr;

use green_ctx_sys::CUcontext;

use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};

/// A context made current for the length of one function of this crate, whose caller keeps it.
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

/// The thread's current context, null for none.
pub(crate) fn get(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    unsafe { call!(driver.functions()?, cuCtxGetCurrent(&raw mut raw)) }?;
    Ok(raw)
}

/// Puts another context in the place of this thread's current one, if that is `raw`.
pub(crate) fn replace(driver: &Driver, raw: CUcontext, by: CUcontext) -> Result<()> {
    if get(driver)? != raw {
        return Ok(());
    }
    // SAFETY: the callers hold both contexts.
    unsafe { call!(driver.functions()?, cuCtxSetCurrent(by)) }
}

pub(crate) fn push(driver: &Driver, raw: CUcontext) -> Result<()> {
    // SAFETY: the callers hold the context, so it is not destroyed; pushing a destroyed one would
    // end the process (recorded on an H200).
    unsafe { call!(driver.functions()?, cuCtxPushCurrent(raw)) }
}

/// Pops `raw`, and nothing else: another context goes back to where it was.
pub(crate) fn pop(driver: &Driver, raw: CUcontext) -> Result<()> {
    let mut popped = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    let first = unsafe { call!(driver.functions()?, cuCtxPopCurrent(&raw mut popped)) };
    if let Err(error) = first {
        // The call may also report what earlier work did wrong (cuda.h): where it has not popped, it
        // is made again, and the error is returned all the same.
        if get(driver)? == raw {
            // SAFETY: as above.
            unsafe { call!(driver.functions()?, cuCtxPopCurrent(&raw mut popped)) }?;
        }
        return Err(error);
    }
    if popped == raw {
        return Ok(());
    }
    // SAFETY: it was on the thread's stack a moment ago, put there by its owner.
    unsafe { call!(driver.functions()?, cuCtxPushCurrent(popped)) }?;
    Err(Error::GuardOrder)
}
