//! Asking the driver what is done while somebody captures a stream.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::marker::PhantomData;

use green_ctx_sys::CUstreamCaptureMode;

use crate::driver::Driver;
use crate::error::{Result, call};

/// While it lives, captures of others forbid this thread nothing: it may ask what is done, allocate,
/// free and wait. Without it, a question about any event, and every call that waits, would spoil the
/// graph that another thread captures in global mode (recorded on an H200, driver 580.159.04).
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, EventOptions, RelaxedCapture, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let event = driver.device(0)?.create_event(EventOptions::default())?;
/// let _relaxed = RelaxedCapture::enter(&driver)?;
/// assert!(event.is_complete()?);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "cuThreadExchangeStreamCaptureMode")]
#[must_use = "captures forbid nothing only while it lives"]
pub struct RelaxedCapture<'a> {
    driver: &'a Driver,
    former: CUstreamCaptureMode,
    /// The mode is the thread's.
    _thread: PhantomData<*const ()>,
}

impl<'a> RelaxedCapture<'a> {
    /// Relaxes this thread's mode until the result is dropped, which puts back what it was.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn enter(driver: &'a Driver) -> Result<RelaxedCapture<'a>> {
        let former = exchange(driver, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(RelaxedCapture { driver, former, _thread: PhantomData })
    }
}

impl Drop for RelaxedCapture<'_> {
    fn drop(&mut self) {
        self.driver.report(exchange(self.driver, self.former).map(drop));
    }
}

impl fmt::Debug for RelaxedCapture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelaxedCapture").field("former", &self.former).finish_non_exhaustive()
    }
}

/// Sets the thread's mode and returns the former one.
fn exchange(driver: &Driver, mut mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    // SAFETY: the pointer is to a live value.
    unsafe { call!(driver.api(), cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
    Ok(mode)
}
