//! Work of another thread at the end of a capture.

use std::sync::{Arc, LazyLock};

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
