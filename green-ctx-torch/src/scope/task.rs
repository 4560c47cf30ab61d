//! Tasks that share a thread, such as those of an event loop.
//!
//! A task's partitions are current on the thread only while the task runs. [`suspend`] suspends them when the task
//! waits, and [`resume`] makes them current again. [`suspend`] and [`resume`] do not order work, so the work of tasks
//! in different partitions may run at the same time. If a task makes another stream or device current inside a
//! partition, the caller must save and restore them: [`changed_inside`] says whether there are any.

use green_ctx::Stream;

use super::torch_stream::TorchStream;
use super::{Frame, Mode, event, with_thread};
use crate::error::{Result, TorchError, check_process};
use crate::libtorch::Torch;
use crate::stream::raw_stream;

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

/// Returns whether the program has made another stream or another device current inside the partitions that the running
/// task has entered. If so, the result is a list of the devices of these partitions that have another stream.
#[must_use]
pub fn changed_inside() -> Option<Vec<u32>> {
    let known = with_thread(|thread| {
        let torch = thread.frames.last()?.switched.torch().clone();
        let of_task = thread.frames.iter().rev().take_while(|frame| frame.of_task);
        let stream =
            |frame: &Frame| (frame.stream.context().device().ordinal(), raw_stream(&frame.stream));
        Some((torch, of_task.filter(|frame| !frame.restored).map(stream).collect::<Vec<_>>()))
    });
    let (torch, streams) = known.ok().flatten()?;
    let mut changed = Vec::new();
    for (place, (device, stream)) in streams.iter().enumerate() {
        let is_innermost = streams[..place].iter().all(|(other, _)| other != device);
        if is_innermost && torch.current_stream(*device).is_ok_and(|now| now != *stream) {
            changed.push(*device);
        }
    }
    let is_here =
        |(_, stream): &(u32, _)| torch.current_stream_here().is_ok_and(|now| now == *stream);
    (!changed.is_empty() || !streams.first().is_some_and(is_here)).then_some(changed)
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
