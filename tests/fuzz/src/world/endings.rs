//! Work of another thread while a capture is being ended.

use std::sync::{Arc, LazyLock};

use green_ctx::{Graph, Result, Stream, graph::CaptureMode, sim::Sim};
use parking_lot::Mutex;

/// The driver calls of the end of a capture that a number chooses from. In the real world a question about a
/// stream makes a thread wait that destroys the stream. Here the halted thread itself would destroy it, so only
/// the first question is interrupted: it is about the machine's clock, which was registered first.
const CALLS: [&str; 5] = [
    "cuStreamGetCaptureInfo",
    "cuStreamEndCapture",
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams",
];

/// The call that a number chooses.
pub(super) fn call(number: u32) -> &'static str {
    CALLS[number as usize % CALLS.len()]
}

/// Captures work, and does something else before a driver call that ends the capture, or after the capture if
/// there is no such call. What the halted thread does, another thread could do.
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
    let Some(answer) = answer.lock().take() else { unreachable!("it is taken once") };
    (captured, answer)
}
