//! Tasks that share a thread, such as those of an event loop.
//!
//! A task's partitions are current on the thread only while the task runs. [`suspend`] suspends them when the task
//! waits, and [`resume`] makes them current again. [`suspend`] and [`resume`] do not order work, so the work of tasks
//! in different partitions may run at the same time.

use green_ctx::Stream;

use super::torch_stream::TorchStream;
use super::{Frame, Mode, event, with_thread};
use crate::error::{Result, TorchError, check_process};
use crate::libtorch::Torch;

/// Marks the partition that this thread entered last as entered by the running task.
///
/// # Errors
///
/// [`TorchError::NotEntered`] if the thread is in no partition.
pub fn own_innermost() -> Result<()> {
    with_thread(|thread| {
        thread.frames.last_mut().map(|frame| frame.of_task = true).ok_or(TorchError::NotEntered)
    })?
}

/// Returns whether a task entered the partition that this thread entered last.
#[must_use]
pub fn is_innermost_of_task() -> bool {
    with_thread(|thread| thread.frames.last().is_some_and(|frame| frame.of_task)).unwrap_or(false)
}

/// Suspends the innermost partitions that tasks have entered on this thread. Restores the thread's state from before
/// the first of these partitions was entered. Errors go to [the hook](Torch::on_cleanup_failure).
pub fn suspend() {
    while let Ok(Some(frame)) = with_thread(|thread| thread.frames.pop_if(|frame| frame.of_task)) {
        frame.undo();
    }
}

/// Resumes a task: makes each partition that the task has entered and not left current again, from the outermost to the
/// innermost.
///
/// # Errors
///
/// As for [`enter`](super::enter). If the call fails, nothing has changed.
pub fn resume<'a>(
    torch: &Torch,
    entered: impl IntoIterator<Item = (&'a Stream, Mode)>,
) -> Result<()> {
    for (stream, mode) in entered {
        if let Err(error) = resume_one(torch, stream, mode) {
            suspend();
            return Err(error);
        }
    }
    Ok(())
}

fn resume_one(torch: &Torch, stream: &Stream, mode: Mode) -> Result<()> {
    let device = stream.context().device();
    check_process(device)?;
    let (previous, event) = (TorchStream::find(torch, device)?, event(device)?);
    let mut frame = Frame::make_current(torch, stream, mode, previous, event)?;
    frame.of_task = true;
    with_thread(|thread| thread.frames.push(frame))
}
