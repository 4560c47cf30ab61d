//! What can be done with a default stream.
#![allow(unsafe_code, reason = "calls the driver")]

use crate::handle::context::Context;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Result, check_done};
use crate::handle::event::Event;
use crate::handle::token::DefaultStream;

impl DefaultStream {
    /// The context that the token stands for a stream of now, on this thread; `None` where none is
    /// current, and where the one that is has no object of this crate.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    #[doc(alias = "cuCtxGetCurrent")]
    pub fn context(self, driver: &Driver) -> Result<Option<Context>> {
        Context::current(driver)
    }

    /// Records an event that completes when the work submitted to the stream so far has.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver): where no context is current, or one of another device
    /// than the event's.
    #[doc(alias = "cuEventRecord")]
    pub fn record(self, event: &Event) -> Result<()> {
        let api = event.context().device().functions()?;
        // SAFETY: the event is alive, and the driver looks the token up in the current context.
        unsafe { call!(api, cuEventRecord(event.raw(), self.as_raw())) }
    }

    /// Makes the work submitted to the stream from now on wait for an event.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver), where no context is current too.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(self, event: &Event) -> Result<()> {
        let api = event.context().device().functions()?;
        // SAFETY: as above; 0 is the only flag outside of capture.
        unsafe { call!(api, cuStreamWaitEvent(self.as_raw(), event.raw(), 0)) }
    }

    /// Whether all work submitted to the stream is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver), errors of the work included, and where no context is
    /// current.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(self, driver: &Driver) -> Result<bool> {
        // SAFETY: the driver looks the token up in the current context.
        check_done("cuStreamQuery", unsafe { driver.functions()?.cuStreamQuery()?(self.as_raw()) })
    }

    /// Waits until all work submitted to the stream is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver), errors of the work included, and where no context is
    /// current.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(self, driver: &Driver) -> Result<()> {
        // SAFETY: the driver looks the token up in the current context.
        unsafe { call!(driver.functions()?, cuStreamSynchronize(self.as_raw())) }
    }
}
