//! The thread's capture mode, and calls that must not disturb captures of other threads.
//!
//! On every thread, a capture in global mode forbids calls that wait, query or allocate, and such a call
//! invalidates the capture (recorded on an H200, driver 580.159.04). A handle cannot know whether another
//! thread captures. So the clean-up of a handle (`Driver::clean_up`) and the queries, waits and allocations
//! that this crate makes for itself run with the thread's mode relaxed. If a program queries or waits for one
//! of its streams or events, that call uses the thread's own mode.
//!
//! A clean-up also runs if the mode cannot be changed, since the handle would leak otherwise. `clean_up`
//! calls the clean-up hook in the thread's own mode, since the hook is code of the program.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::marker::PhantomData;

use green_ctx_sys::{Api, CUstreamCaptureMode};

use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::report::Reporter;

/// While it lives, captures forbid this thread nothing: it may ask what is done, allocate, free and
/// wait. Without it, a question about any event, and every call that waits, would invalidate the graph
/// that another thread captures in global mode (recorded on an H200, driver 580.159.04).
///
/// Dropping a handle of this crate needs no guard, nor do buffers, libraries, graphs, partitions and
/// plans: they relax the mode themselves. Queries and waits of a [`Stream`](crate::Stream) or an
/// [`Event`](crate::Event) use the thread's mode. A query of the captured stream itself invalidates its
/// capture in every mode.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim, event::EventOptions, graph::RelaxedCapture};
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
    api: &'a Api,
    reporter: &'a Reporter,
    former: CUstreamCaptureMode,
    /// The mode is the thread's.
    _thread: PhantomData<*const ()>,
}

impl<'a> RelaxedCapture<'a> {
    /// Relaxes this thread's mode until the result is dropped, which puts back what it was.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`](crate::Error::Forked), [`Error::Driver`](crate::Error::Driver).
    pub fn enter(driver: &'a Driver) -> Result<RelaxedCapture<'a>> {
        RelaxedCapture::of(driver.functions()?, driver.reporter())
    }

    /// The same for a driver that is ending, of which there is no handle any more.
    pub(crate) fn of(api: &'a Api, reporter: &'a Reporter) -> Result<RelaxedCapture<'a>> {
        let former = exchange(api, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(RelaxedCapture { api, reporter, former, _thread: PhantomData })
    }
}

impl Driver {
    /// Does something with this thread's mode relaxed. Where the mode cannot be put back, that is the
    /// error: the clean-up hook is not called, so that locks may be held.
    pub(crate) fn while_relaxed<R>(&self, act: impl FnOnce() -> Result<R>) -> Result<R> {
        let former =
            exchange(self.functions()?, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let done = act();
        exchange(self.functions()?, former)?;
        done
    }

    /// Runs the clean-up of a handle and reports its failure. It invalidates no capture of another
    /// thread, which cannot know when the last owner drops a handle.
    pub(crate) fn clean_up(&self, end: impl FnOnce() -> Result<()>) {
        let relaxed = RelaxedCapture::enter(self);
        // Also where the mode could not be changed: otherwise the handle would leak for certain.
        let ended = end();
        // The hook is the program's code and runs in the thread's own mode.
        self.report(relaxed.map(drop));
        self.report(ended);
    }
}

impl Drop for RelaxedCapture<'_> {
    fn drop(&mut self) {
        self.reporter.report(exchange(self.api, self.former).map(drop));
    }
}

impl fmt::Debug for RelaxedCapture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelaxedCapture").field("former", &self.former).finish_non_exhaustive()
    }
}

/// Sets the thread's mode and returns the former one.
fn exchange(api: &Api, mut mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    // SAFETY: the pointer is to a live value.
    unsafe { call!(api, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
    Ok(mode)
}
