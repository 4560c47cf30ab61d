//! Work of another thread at the end of a capture, or during a close.

use std::sync::{Arc, LazyLock, mpsc};

use green_ctx::{Graph, Result, Stream, graph::CaptureMode, sim::Sim};
use parking_lot::Mutex;

/// The driver calls of the end of a capture that a number chooses from. On a real driver a thread that destroys
/// a stream waits while another thread queries it. Here the halted thread itself would destroy the stream, so
/// only the first query is interrupted: it is about the machine's clock, which was registered first.
const CALLS: [&str; 5] = [
    "cuStreamGetCaptureInfo",
    "cuStreamEndCapture",
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams",
];

/// Returns the call that a number chooses.
pub(super) fn call(number: u32) -> &'static str {
    CALLS[number as usize % CALLS.len()]
}

/// Captures `work`, and runs `other` before the driver call `call` at the end of the capture, or after the
/// capture if that call is not made. `other` runs on the halted thread, in place of another thread.
pub(super) fn interrupt<T: Send + 'static>(
    (sim, origin, call): (&Sim, &Stream, &str),
    work: impl FnOnce() -> Result<()>,
    other: impl FnOnce() -> T + Send + 'static,
) -> (Result<Graph>, T) {
    let answer = Arc::new(LazyLock::new(move || Mutex::new(Some(other()))));
    let captured = origin.capture(CaptureMode::Relaxed, || {
        work()?;
        let answer = Arc::clone(&answer);
        drop(sim.run_before(call, 1, move || drop(LazyLock::force(&answer).lock())));
        Ok(())
    });
    let Some(answer) = answer.lock().take() else { unreachable!("taken only here") };
    (captured, answer)
}

/// The driver calls of a close that a number chooses from, each with the number of such calls.
const CALLS_OF_CLOSE: [(&str, u64); 5] = [
    ("cuGreenCtxRecordEvent", 1),
    ("cuCtxGetCurrent", 3),
    ("cuStreamIsCapturing", 3),
    ("cuEventQuery", 1),
    ("cuEventSynchronize", 1),
];

/// Returns the driver call of a close that a number chooses, and the number of the call.
pub(super) fn call_of_close(number: u32) -> (&'static str, u64) {
    let (call, most) = CALLS_OF_CLOSE[number as usize % CALLS_OF_CLOSE.len()];
    (call, 1 + u64::from(number >> 8) % most)
}

/// Runs `close`, and `other` before one of its driver calls if it makes that call. `other` runs on the halted thread,
/// in place of another thread.
pub(super) fn beside<T, O: Send + 'static>(
    (sim, call, nth): (&Sim, &str, u64),
    close: impl FnOnce() -> T,
    other: impl FnOnce() -> O + Send + 'static,
) -> (T, Option<O>) {
    let (send, answer) = mpsc::channel();
    let other = Arc::new(Mutex::new(Some(other)));
    let there = Arc::clone(&other);
    drop(sim.run_before(call, nth, move || {
        let other = there.lock().take();
        other.into_iter().for_each(|other| drop(send.send(other())));
    }));
    let closed = close();
    // A later call must not run it.
    drop(other.lock().take());
    (closed, answer.try_recv().ok())
}
