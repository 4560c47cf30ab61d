//! Tasks that share a thread, such as those of an event loop.
//!
//! A task's partitions are current on the thread only while the task runs. [`suspend`] suspends them when the task
//! waits, from the innermost to the outermost, and [`resume`] makes them current again in the reverse order. [`suspend`]
//! and [`resume`] do not order work, so the work of tasks in different partitions may run at the same time. If a task
//! makes other streams or another device current inside a partition, the caller must save them before it suspends that
//! partition: [`changed_inside`] says whether there are any.

use std::ffi::c_void;
use std::mem;

use green_ctx::{Device, Stream};

use super::torch_stream::{self, TorchStream};
use super::{Frame, Mode, Owner, event, with_thread};
use crate::error::{Result, TorchError, check_process};
use crate::libtorch::Torch;
use crate::stream::raw_stream;

/// Marks the partition that this thread entered last as entered by the running task.
///
/// # Errors
///
/// [`TorchError::NotEntered`] if the thread is in no partition.
pub fn own_innermost(owner: Owner) -> Result<()> {
    let (torch, device, is_first) = with_thread(|thread| {
        let [others @ .., frame] = &mut thread.frames[..] else {
            return Err(TorchError::NotEntered);
        };
        (frame.of_task, frame.owner) = (true, owner);
        let is_first = !others.last().is_some_and(|other| other.of_task);
        Ok((frame.switched.torch().clone(), frame.stream.context().device().clone(), is_first))
    })??;
    if is_first {
        note_outside(&torch, &device)?;
    }
    Ok(())
}

/// Notes PyTorch's current streams from before the running task. If the task is in its first partition already, the
/// stream of that partition's device is not noted, but the partition's guard restores it.
fn note_outside(torch: &Torch, device: &Device) -> Result<()> {
    let devices = device.driver().devices();
    let streams = devices.map(|device| torch.current_stream(device.ordinal()).unwrap_or_default());
    let streams = streams.collect();
    with_thread(|thread| thread.outside = streams)
}

/// Returns whether a task entered the partition that this thread entered last.
#[must_use]
pub fn is_innermost_of_task() -> bool {
    with_thread(|thread| thread.frames.last().is_some_and(|frame| frame.of_task)).unwrap_or(false)
}

/// Returns whether the program has made other streams or another device current inside the partition that the running
/// task entered last. If so, the result is a list of the devices that have another stream.
#[must_use]
pub fn changed_inside() -> Option<Vec<u32>> {
    let known = with_thread(|thread| {
        let frame = thread.frames.last()?;
        let mut expected = thread.outside.clone();
        for frame in thread.frames.iter().filter(|frame| frame.of_task && !frame.restored) {
            let device = frame.stream.context().device().ordinal() as usize;
            *expected.get_mut(device)? = raw_stream(&frame.stream);
        }
        Some((frame.switched.torch().clone(), raw_stream(&frame.stream), expected))
    });
    let (torch, innermost, expected) = known.ok().flatten()?;
    let devices = (0_u32..).zip(expected);
    let is_changed = |(device, stream): &(u32, *mut c_void)| {
        torch.current_stream(*device).is_ok_and(|now| now != *stream)
    };
    let changed: Vec<u32> = devices.filter(is_changed).map(|(device, _)| device).collect();
    let is_here = torch.current_stream_here().is_ok_and(|now| now == innermost);
    (!changed.is_empty() || !is_here).then_some(changed)
}

/// Suspends the partition that this thread entered last, if a task entered it. Returns the partition's stream. Restores
/// the thread's state from before the partition was entered and, with the task's first partition, PyTorch's current
/// streams of the other devices. Errors go to [the hook](Torch::on_cleanup_failure).
pub fn suspend() -> Option<Stream> {
    let frame = with_thread(|thread| thread.frames.pop_if(|frame| frame.of_task)).ok().flatten()?;
    let (stream, torch) = (frame.stream.clone(), frame.switched.torch().clone());
    frame.undo();
    if !is_innermost_of_task() {
        let outside = with_thread(|thread| mem::take(&mut thread.outside)).unwrap_or_default();
        for (device, outside) in (0_u32..).zip(outside) {
            let is_own = stream.context().device().ordinal() == device;
            if !is_own && torch.current_stream(device).is_ok_and(|now| now != outside) {
                torch.report(torch_stream::restore(&torch, outside, device));
            }
        }
    }
    Some(stream)
}

/// Resumes a task in one of its partitions: makes the partition current again.
///
/// # Errors
///
/// As for [`enter`](super::enter). If the call fails, nothing has changed.
pub fn resume(torch: &Torch, stream: &Stream, mode: Mode, owner: Owner) -> Result<()> {
    let device = stream.context().device();
    check_process(device)?;
    if !is_innermost_of_task() {
        note_outside(torch, device)?;
    }
    let (previous, event) = (TorchStream::find(torch, device)?, event(device)?);
    let mut frame = Frame::make_current(torch, stream, mode, previous, event)?;
    (frame.of_task, frame.owner) = (true, owner);
    with_thread(|thread| thread.frames.push(frame))
}
