//! Making a context current on a thread: always scoped.
#![allow(unsafe_code, reason = "calls the driver")]

use std::marker::PhantomData;
use std::ptr;

use green_ctx_sys::CUcontext;

use crate::context::Context;
use crate::driver::Driver;
use crate::error::call;
use crate::error::{Error, Result};

/// Keeps a context current on this thread until it is dropped.
///
/// Nothing of this crate needs one: it is for other libraries, which look at the thread's current
/// context. Guards nest and end in reverse order; one that ends out of order leaves the thread as it
/// is and reports to the driver's clean-up hook.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim_0_1::Sim, context::Context};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let context = device.primary_context()?;
/// {
///     let _current = context.make_current()?;
///     assert_eq!(Context::current(&driver)?.as_ref(), Some(&context));
/// }
/// assert_eq!(Context::current(&driver)?, None);
/// # Ok(())
/// # }
/// ```
///
/// A guard cannot leave its thread, so this does not compile:
///
/// ```compile_fail,E0277
/// fn leave(guard: green_ctx::context::Current) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
#[must_use = "the context is current only while the guard lives"]
pub struct Current {
    /// Kept whole: a guard that is leaked keeps its context alive, so that the thread's stack never
    /// holds a destroyed context.
    context: Option<Context>,
    /// The driver's stack of contexts is the thread's.
    _thread: PhantomData<*const ()>,
}

impl Current {
    pub(crate) fn enter(context: &Context) -> Result<Current> {
        context.device().driver().check_process()?;
        context.expose()?;
        push(context.device().driver(), context.raw())?;
        Ok(Current { context: Some(context.clone()), _thread: PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        let driver = context.device().driver();
        if driver.is_forked() {
            return;
        }
        let result = pop(driver, context.raw());
        let stays = match &result {
            Ok(()) => false,
            // Below another context.
            Err(Error::GuardOrder) => true,
            Err(_) => get(driver).is_ok_and(|current| current == context.raw()),
        };
        driver.report(result);
        if stays {
            // Nothing that is on a thread's stack may be destroyed.
            std::mem::forget(context);
        }
    }
}

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

fn push(driver: &Driver, raw: CUcontext) -> Result<()> {
    // SAFETY: the callers hold the context, so it is not destroyed; pushing a destroyed one would
    // end the process (recorded on an H200).
    unsafe { call!(driver.functions()?, cuCtxPushCurrent(raw)) }
}

/// Pops `raw`, and nothing else: another context goes back to where it was.
fn pop(driver: &Driver, raw: CUcontext) -> Result<()> {
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
