//! Tasks that share a thread, such as those of an event loop.
//!
//! What a task has entered is current on its thread while the task runs, and not while another does:
//! [`suspend`] suspends it when the task waits, [`resume`] makes it current again. Neither keeps an
//! order of work: tasks in different partitions run beside each other.

use green_ctx::Stream;

use super::torch_stream::TorchStream;
use super::{Frame, Mode, event, with_thread};
use crate::error::{Result, TorchError, check_process};
use crate::libtorch::Torch;

/// Marks the partition that this thread entered last as entered by the task that runs.
///
/// # Errors
///
/// [`TorchError::NotEntered`].
pub fn own_innermost() -> Result<()> {
    with_thread(|thread| {
        thread.frames.last_mut().map(|frame| frame.of_task = true).ok_or(TorchError::NotEntered)
    })?
}

/// Whether the partition that this thread entered last was entered by a task.
#[must_use]
pub fn is_innermost_of_task() -> bool {
    with_thread(|thread| thread.frames.last().is_some_and(|frame| frame.of_task)).unwrap_or(false)
}

/// Suspends what tasks have entered on this thread: what was current before the first of it is again.
/// What goes wrong goes to [the hook](Torch::on_cleanup_failure).
pub fn suspend() {
    while let Ok(Some(frame)) = with_thread(|thread| thread.frames.pop_if(|frame| frame.of_task)) {
        frame.undo();
    }
}

/// Makes current what a task has entered and not left, from the outermost to the innermost.
///
/// # Errors
///
/// As [`enter`](super::enter); nothing has changed then.
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
