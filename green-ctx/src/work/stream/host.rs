//! Functions of the program that run in stream order.
//!
//! The driver gets a number instead of a pointer to the function, because it may call the function more than
//! once. If a capture begins on another thread at the same moment, the function becomes part of a graph, and
//! the graph calls it at every launch. The first call takes the function out of a table, and later calls find
//! nothing.
//!
//! A waiting function holds the clean-up hook's `Reporter` and no `Driver`: the driver's last handle must not
//! be dropped in a callback, where CUDA cannot be called. A panic does not unwind into the driver.
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
    /// Runs a function of the program when the work submitted so far is done. Later work waits for
    /// it. It runs on a thread of the driver's, one function after the other.
    ///
    /// The function must not call CUDA, not even by dropping a handle of this crate: the driver
    /// forbids that, and may wait for itself. It should be short, and must not wait for other work
    /// of the device.
    ///
    /// A panic does not leave the function: it goes to
    /// [`Driver::on_cleanup_failure`](crate::Driver::on_cleanup_failure) as [`Error::HostPanic`].
    /// Where the work before it fails, the driver never runs the function, which is then not dropped
    /// either.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] while the stream is captured: a graph may run often, the function once.
    /// [`Error::Driver`] otherwise. The function is dropped then, and does not run.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let stream =
    /// #     driver.device(0)?.primary_context()?.create_stream(StreamOptions::default())?;
    /// let (done, is_done) = std::sync::mpsc::channel();
    /// stream.launch_host(move || {
    ///     // Where nobody listens any more, nobody needs to know.
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
        // SAFETY: the stream is alive. The pointer is a number that the function looks up, so that
        // it may be called at any time and any number of times.
        let status = unsafe { launch(self.raw(), Some(run), ptr::without_provenance_mut(key)) };
        crate::handle::error::check("cuLaunchHostFunc", status).inspect_err(|_| {
            // It does not run any more, even if the driver has kept it.
            drop(take(key));
        })
    }

    /// Whether the stream is being captured into a graph, by a capture that has failed already too.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuStreamIsCapturing")]
    pub fn is_capturing(&self) -> Result<bool> {
        self.raw_stream().is_capturing()
    }
}

/// A function that waits for its turn.
struct Task {
    work: Box<dyn FnOnce() + Send>,
    /// Not the driver: its last handle must not be dropped where CUDA cannot be called.
    reporter: Arc<Reporter>,
}

/// The functions that have not run yet. The driver is given a number instead of a pointer: a capture
/// that began on another thread just now would make a function part of a graph, which calls it as
/// often as it runs.
static TASKS: Mutex<HashMap<usize, Task, FxBuildHasher>> =
    Mutex::new(HashMap::with_hasher(FxBuildHasher));

fn wait_for_its_turn(task: Task) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    // Where numbers have come round, the one whose place it takes has waited for all others.
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
            reporter.report_error_in_stream(&Error::HostPanic { message: message(&*panic) });
        }
    }));
    if let Err(panic) = reported {
        // Dropping what the function panicked with panicked, and dropping this may panic again. Nothing may
        // unwind into the driver.
        std::mem::forget(panic);
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is no text").to_owned()
}
