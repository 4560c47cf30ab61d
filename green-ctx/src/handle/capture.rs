//! The capture mode of a thread, and driver calls that must not invalidate captures of other threads.
//!
//! While one thread captures in global mode, no thread may make calls that wait, query or allocate. Such a call
//! invalidates the capture (recorded on an H200, driver 580.159.04). Code that drops an object cannot find out whether
//! another thread is capturing. The clean-up of an object (`Driver::clean_up`) and this crate's own queries, waits and
//! allocations therefore run with the thread's mode relaxed. When the program queries or waits for a stream or an
//! event, the thread's own mode applies.
//!
//! A clean-up also runs if the mode cannot be changed, since the handle would leak otherwise. `clean_up` restores the
//! thread's own mode before it calls the clean-up hook, since the hook is the program's code.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::marker::PhantomData;

use green_ctx_sys::{Api, CUstreamCaptureMode};

use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::fork::Process;
use crate::handle::report::Reporter;

/// A guard that relaxes the thread's capture mode. Until the guard is dropped, this thread may query, allocate, free
/// and wait while other threads capture.
///
/// Without the guard, a query of any event, and every call that waits, invalidates a graph that another thread is
/// capturing in global mode (recorded on an H200, driver 580.159.04).
///
/// Dropping an object of this crate needs no guard. Buffers, libraries, graphs, partitions and plans relax the mode
/// themselves, so their methods need no guard. When the program queries or waits for a [`Stream`](crate::Stream) or an
/// [`Event`](crate::Event), the thread's own mode applies. A query of the captured stream itself invalidates the
/// capture in every mode.
///
/// # Examples
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
    /// The process whose thread is in relaxed mode.
    process: Process,
    /// Makes the guard `!Send`, because the mode belongs to the thread.
    _thread: PhantomData<*const ()>,
}

impl<'a> RelaxedCapture<'a> {
    /// Relaxes the capture mode of this thread. Dropping the result restores the previous mode.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`](crate::Error::Forked) or [`Error::Driver`](crate::Error::Driver).
    pub fn enter(driver: &'a Driver) -> Result<RelaxedCapture<'a>> {
        RelaxedCapture::of(driver.functions()?, driver.reporter())
    }

    /// Relaxes the mode without a `Driver`, for use while the driver is being dropped.
    pub(crate) fn of(api: &'a Api, reporter: &'a Reporter) -> Result<RelaxedCapture<'a>> {
        let former = exchange(api, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let process = Process::current();
        Ok(RelaxedCapture { api, reporter, former, process, _thread: PhantomData })
    }
}

impl Driver {
    /// Runs `act` with this thread's mode relaxed. Returns an error if the mode cannot be restored. The clean-up hook
    /// is never called, so the caller may hold locks.
    pub(crate) fn while_relaxed<R>(&self, act: impl FnOnce() -> Result<R>) -> Result<R> {
        let former =
            exchange(self.functions()?, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let done = act();
        exchange(self.functions()?, former)?;
        done
    }

    /// Runs the clean-up of an object and reports its failure. The clean-up runs in relaxed mode, so that it does not
    /// invalidate captures of other threads. Those threads cannot foresee when the last owner drops an object.
    pub(crate) fn clean_up(&self, end: impl FnOnce() -> Result<()>) {
        let relaxed = RelaxedCapture::enter(self);
        // Run it even if the mode could not be changed. The handle would certainly leak otherwise.
        let ended = end();
        // The hook is the program's code, so it runs after the thread's own mode is restored.
        self.report(relaxed.map(drop));
        self.report(ended);
    }
}

impl Drop for RelaxedCapture<'_> {
    fn drop(&mut self) {
        // In a forked child there is no mode to restore, and the driver must not be called.
        if self.process.is_forked() {
            return;
        }
        self.reporter.report(exchange(self.api, self.former).map(drop));
    }
}

impl fmt::Debug for RelaxedCapture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelaxedCapture").field("former", &self.former).finish_non_exhaustive()
    }
}

/// Sets the thread's mode and returns the previous one.
fn exchange(api: &Api, mut mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    // SAFETY: `mode` is a live local that the driver reads and writes.
    unsafe { call!(api, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
    Ok(mode)
}
