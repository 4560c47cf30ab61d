//! Making a context current on a thread: always scoped.

use std::marker::PhantomData;

use super::Context;
use crate::handle::current::{get, pop, push};
use crate::handle::driver::Driver;
use crate::handle::error::{Error, Result};

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

impl Context {
    /// Makes the context current on this thread while the guard lives.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxPushCurrent")]
    pub fn make_current(&self) -> Result<Current> {
        Current::enter(self)
    }

    /// The thread's current context, when it is one of this crate's.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxGetCurrent")]
    pub fn current(driver: &Driver) -> Result<Option<Context>> {
        Ok(driver.find_context(get(driver)?))
    }
}
