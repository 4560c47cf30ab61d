//! A guard that makes a context current on a thread.

use std::marker::PhantomData;

use super::Context;
use crate::handle::current::{get, pop, push};
use crate::handle::driver::Driver;
use crate::handle::error::{Error, Result};

/// A guard that makes a context current on its thread until it is dropped.
///
/// This crate itself never needs a guard. Guards are for other libraries, which use the current context of the thread.
/// Guards can be nested, and the newest guard must be dropped first. A guard that is dropped out of order leaves the
/// current context unchanged, and the error is passed to the driver's clean-up hook.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim, context::Context};
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
/// A guard cannot be sent to another thread. This does not compile:
///
/// ```compile_fail,E0277
/// fn leave(guard: green_ctx::context::Current) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
#[must_use = "the context is current only while the guard lives"]
pub struct Current {
    /// A strong handle, so that a leaked guard keeps its context alive. The thread's stack of contexts therefore never
    /// contains a destroyed context.
    context: Option<Context>,
    /// Makes the guard `!Send`, because each thread has its own stack of contexts.
    _thread: PhantomData<*const ()>,
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
            // The context is still on the stack, below another one.
            Err(Error::GuardOrder) => true,
            Err(_) => get(driver).is_ok_and(|current| current == context.raw()),
        };
        driver.report(result);
        if stays {
            // A context on a thread's stack must never be destroyed.
            std::mem::forget(context);
        }
    }
}

impl Context {
    /// Makes the context current on this thread until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuCtxPushCurrent")]
    pub fn make_current(&self) -> Result<Current> {
        let driver = self.device().driver();
        driver.check_process()?;
        self.expose()?;
        push(driver, self.raw())?;
        Ok(Current { context: Some(self.clone()), _thread: PhantomData })
    }

    /// Returns the thread's current context. Returns `None` if no context is current, or if this crate has no
    /// [`Context`] for the current context.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuCtxGetCurrent")]
    pub fn current(driver: &Driver) -> Result<Option<Context>> {
        Ok(driver.find_context(get(driver)?))
    }
}
