//! Operations on default streams.
#![allow(unsafe_code, reason = "calls the driver")]

use crate::handle::context::Context;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Result, check_done};
use crate::handle::event::Event;
use crate::handle::token::DefaultStream;

impl DefaultStream {
    /// Returns the context to which this token refers on this thread, which is the current context. Returns `None` if
    /// no context is current, or if this crate has no [`Context`] for the current context.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if the driver call fails.
    #[doc(alias = "cuCtxGetCurrent")]
    pub fn context(self, driver: &Driver) -> Result<Option<Context>> {
        Context::current(driver)
    }

    /// Records an event. The event completes when the work submitted to the stream so far is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if no context is current, or if the current context and the event
    /// belong to different devices.
    #[doc(alias = "cuEventRecord")]
    pub fn record(self, event: &Event) -> Result<()> {
        let api = event.context().device().functions()?;
        // SAFETY: `event` is alive, and the driver resolves the token in the current context.
        unsafe { call!(api, cuEventRecord(event.raw(), self.as_raw())) }
    }

    /// Makes all work submitted to the stream from now on wait for an event.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if no context is current or the driver call fails.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(self, event: &Event) -> Result<()> {
        let api = event.context().device().functions()?;
        // SAFETY: `event` is alive, and the driver resolves the token in the current context. Outside captures, 0 is
        // the only valid value for the flags.
        unsafe { call!(api, cuStreamWaitEvent(self.as_raw(), event.raw(), 0)) }
    }

    /// Returns whether all work submitted to the stream is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if no context is current, or if work that was submitted earlier
    /// failed.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(self, driver: &Driver) -> Result<bool> {
        // SAFETY: the driver resolves the token in the current context.
        check_done("cuStreamQuery", unsafe { driver.functions()?.cuStreamQuery()?(self.as_raw()) })
    }

    /// Waits until all work submitted to the stream is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if no context is current, or if work that was submitted earlier
    /// failed.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(self, driver: &Driver) -> Result<()> {
        // SAFETY: the driver resolves the token in the current context.
        unsafe { call!(driver.functions()?, cuStreamSynchronize(self.as_raw())) }
    }
}
