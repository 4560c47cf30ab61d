//! Host functions, which run in stream order.
//!
//! The driver receives a number instead of a pointer to the function, because the driver may call the function more
//! than once. If a capture begins on another thread at the same moment, the function becomes part of a graph, and
//! every launch of the graph calls the function. The first call removes the function from a table and runs it. Later
//! calls do not find the function, and do nothing.
//!
//! A function that waits to run holds the clean-up hook's `Reporter`, not the `Driver`, because the driver's last
//! handle must not be dropped in a callback, where CUDA cannot be called. A panic does not unwind into the driver.
#![allow(unsafe_code, reason = "calls the driver")]

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use super::Stream;
use crate::handle::error::{Error, Result};
use crate::handle::report::Reporter;

impl Stream {
    /// Runs a function on the host when the work submitted to this stream so far is done. Work submitted later waits
    /// for the function. The function runs on a thread of the driver, and that thread runs such functions one after
    /// another.
    ///
    /// The function must not call CUDA, and must not drop handles of this crate: the driver forbids CUDA calls in
    /// host functions, and such a call may deadlock. The function should be short, and must not wait for other work
    /// of the device.
    ///
    /// If the function panics, [`Driver::on_cleanup_failure`](crate::Driver::on_cleanup_failure) receives an
    /// [`Error::HostPanic`]. If earlier work fails, the driver never runs the function, and the function is never
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] if the stream is being captured: a graph could run the function more than once.
    /// [`Error::Driver`] if the driver call fails. If this call fails, the function is dropped without running.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let stream =
    /// #     driver.device(0)?.primary_context()?.create_stream(StreamOptions::default())?;
    /// let (done, is_done) = std::sync::mpsc::channel();
    /// stream.launch_host(move || {
    ///     // The send fails only if the receiver is gone.
    ///     let _ = done.send("the work before this is done");
    /// })?;
    /// stream.synchronize()?;
    /// assert_eq!(is_done.recv()?, "the work before this is done");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuLaunchHostFunc")]
    pub fn launch_host(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let launch = self.driver().functions()?.cuLaunchHostFunc()?;
        if self.is_capturing()? {
            return Err(Error::Capturing);
        }
        let reporter = Arc::clone(self.driver().reporter());
        let key = wait_for_its_turn(Task { work: Box::new(work), reporter });
        // SAFETY: `self` keeps the stream alive. The pointer is a number that `run` looks up in `TASKS`, so the
        // driver may call `run` at any time and more than once.
        let status = unsafe { launch(self.raw(), Some(run), ptr::without_provenance_mut(key)) };
        crate::handle::error::check("cuLaunchHostFunc", status).inspect_err(|_| {
            // The function does not run, even if the driver still calls `run` with this number.
            drop(take(key));
        })
    }

    /// Returns whether the stream is being captured into a graph. A capture that was invalidated also counts.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails.
    #[doc(alias = "cuStreamIsCapturing")]
    pub fn is_capturing(&self) -> Result<bool> {
        self.raw_stream().is_capturing()
    }
}

/// A function that has not run yet.
struct Task {
    work: Box<dyn FnOnce() + Send>,
    /// This field is not the `Driver`, because the driver's last handle must not be dropped in a callback, where CUDA
    /// cannot be called.
    reporter: Arc<Reporter>,
}

/// The functions that have not run yet, by number.
static TASKS: Mutex<HashMap<usize, Task, FxBuildHasher>> =
    Mutex::new(HashMap::with_hasher(FxBuildHasher));

fn wait_for_its_turn(task: Task) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    // If the numbers have wrapped around, the replaced function is the oldest one.
    let former = TASKS.lock().insert(key, task);
    drop(former);
    key
}

fn take(key: usize) -> Option<Task> {
    TASKS.lock().remove(&key)
}

unsafe extern "C" fn run(key: *mut c_void) {
    let Some(Task { work, reporter }) = take(key.addr()) else { return };
    let reported = catch_unwind(AssertUnwindSafe(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            reporter.report_error_in_stream(Error::HostPanic { message: message(&*panic) });
        }
    }));
    if let Err(panic) = reported {
        // Dropping the panic's payload panicked as well, and so may dropping the second payload. No panic may
        // unwind into the driver.
        std::mem::forget(panic);
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is not text").to_owned()
}
