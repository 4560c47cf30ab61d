//! Entering a partition: until the thread leaves it, PyTorch's work of this thread runs there.
//!
//! [`enter`] makes a partition's stream PyTorch's current stream, and its device PyTorch's current device. [`leave`]
//! restores both. Neither changes the thread's current context. The handle of a default stream means the stream of
//! the current context, so PyTorch's default stream is the same inside a partition and outside, and other libraries
//! find the context that they expect. Work submitted to other streams inside runs in the contexts of those streams.
//!
//! Both functions order the work. Work submitted before entering runs before the work submitted inside, which runs
//! before the work submitted after leaving. Events order it on the device. This also works while a stream is being
//! captured into a graph. The graph then contains the partition's work.
//!
//! - **Contexts.** [`enter_as`] with [`Mode::Context`] also makes the partition's context current, as PyTorch's
//!   `GreenContext.set_context` does.
//! - **Nesting.** A thread can enter several partitions, and the same partition several times. It leaves once for
//!   each enter, the innermost first. [`leave`] for another partition returns [`TorchError::NotInnermost`] and
//!   changes nothing. [`leave_when_innermost`] leaves that partition when the thread has left those that it entered
//!   later.
//! - **Captures.** [`enter`] makes the partition's stream part of a capture in its last step, because that cannot be
//!   undone.
//! - **Guards.** Scopes and the guards of [`Torch::guard`] must end in reverse order of creation, because each
//!   restores the stream that was current before it. [`leave`] out of that order returns [`TorchError::StreamOrder`].
//! - **After the last handle.** PyTorch uses streams after their last handle is dropped, because autograd and freed
//!   tensors remember them. Entering therefore calls [`Stream::keep_alive`], after which the driver's stream lives until
//!   the process ends.
//! - **Tasks.** For tasks that share a thread, such as those of an event loop, [suspend](task::suspend) and
//!   [resume](task::resume) make each task's partitions current only while it runs.
//! - **Without entering.** [`leave`] returns [`TorchError::NotEntered`] and changes nothing.
//! - **Threads.** Each thread enters and leaves for itself. A thread that ends leaves its partitions without ordering
//!   work.
//! - **Failures.** If [`enter`] fails, nothing has changed. If [`leave`] fails, the previous stream is current again
//!   if that was possible, and the order of work is not certain. Four errors change nothing:
//!   [`TorchError::NotEntered`], [`TorchError::NotInnermost`], [`TorchError::StreamOrder`] and
//!   [`TorchError::ContextOrder`].
//! - **Changing the device inside.** PyTorch then replaces the thread's current context, and [`leave`] handles this.
//!   If the previous stream was a default stream, its context is remembered with it, because the handle means a
//!   stream of the current context.
//!
//! A thread keeps one event per device for its next use. [`release_idle`] destroys these events.

mod slot;
pub mod task;
mod torch_stream;

use std::cell::RefCell;
use std::marker::PhantomData;

use green_ctx::{Device, Event, Stream, context::Context, event::EventOptions};

use crate::error::{Result, TorchError, check_process};
use crate::libtorch::Torch;
use crate::stream::{Switched, raw_stream};
use slot::Slot;
use torch_stream::TorchStream;

/// The state that entering a partition changes on the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// PyTorch's current stream, but not the current context.
    #[default]
    Stream,
    /// Also the current context, to the partition's. Inside, the handle of a default stream then means another
    /// stream.
    Context,
}

/// A partition that this thread has entered.
struct Frame {
    stream: Stream,
    previous: TorchStream,
    /// Orders the work: recorded in the previous stream on entering, and in the partition's stream on leaving.
    event: Event,
    /// With [`Mode::Context`], the partition's entry on the thread's context stack.
    slot: Option<Slot>,
    switched: Switched,
    /// True if the partition is left as soon as those that were entered later are left.
    ended: bool,
    /// True if a task entered the partition. It can be suspended inside.
    of_task: bool,
}

#[derive(Default)]
struct Thread {
    frames: Vec<Frame>,
    /// Events for later use, at most one per device.
    spares: Vec<Event>,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Uses the thread's state. `work` must not run foreign code, which could call this function again.
fn with_thread<R>(work: impl FnOnce(&mut Thread) -> R) -> Result<R> {
    THREAD
        .try_with(|thread| work(&mut thread.borrow_mut()))
        .map_err(|_| TorchError::InvalidRequest("the thread is ending".to_owned()))
}

/// Enters a stream's partition on this thread. PyTorch's work is submitted to the stream from now on. It runs after
/// the work submitted so far to PyTorch's current stream of the device.
///
/// # Errors
///
/// [`TorchError::TooOld`], [`TorchError::Call`] or [`TorchError::Driver`]. If it fails, nothing has changed.
pub fn enter(torch: &Torch, stream: &Stream) -> Result<()> {
    enter_as(torch, stream, Mode::Stream)
}

/// Enters a stream's partition on this thread, like [`enter`], in the given mode.
///
/// # Errors
///
/// As for [`enter`].
pub fn enter_as(torch: &Torch, stream: &Stream, mode: Mode) -> Result<()> {
    let device = stream.context().device();
    check_process(device)?;
    if mode == Mode::Context {
        // PyTorch creates its stream pool in the context that is current when it first needs one.
        torch.make_pool(device)?;
    }
    let previous = TorchStream::find(torch, device)?;
    let event = event(device)?;
    previous.record(&event)?;
    let frame = Frame::make_current(torch, stream, mode, previous, event)?;
    // If there is a capture, this step makes the stream part of it. No step that can fail may follow.
    if let Err(error) = stream.wait(&frame.event) {
        frame.undo();
        return Err(error.into());
    }
    with_thread(|thread| thread.frames.push(frame))
}

/// Leaves the partition that this thread entered last, which must be `context`. PyTorch's previous stream is current
/// again. Work submitted to it from now on runs after the work submitted so far to the partition's stream. If the
/// program made another stream of the device current inside, it also runs after that stream's work.
///
/// # Errors
///
/// If the partition is still entered: [`TorchError::NotEntered`], [`TorchError::NotInnermost`],
/// [`TorchError::StreamOrder`] or [`TorchError::ContextOrder`]. If it was left: [`TorchError::Call`] or
/// [`TorchError::Driver`].
pub fn leave(context: &Context) -> Result<()> {
    leave_innermost(|entered| entered == context).map(drop)
}

/// Leaves the partition that this thread entered last, like [`leave`]. `is_it` must return true for it. Returns
/// whether [a task](task) had entered it.
///
/// # Errors
///
/// As for [`leave`].
pub fn leave_innermost(is_it: impl Fn(&Context) -> bool) -> Result<bool> {
    // Not in the list while calls are made.
    let frame = with_thread(|thread| {
        let entered = |frame: &mut Frame| is_it(frame.stream.context());
        thread.frames.pop_if(entered).ok_or_else(|| {
            let outer = thread.frames.iter_mut().any(entered);
            if outer { TorchError::NotInnermost } else { TorchError::NotEntered }
        })
    })??;
    let of_task = frame.of_task;
    leave_frame(frame)?;
    Ok(of_task)
}

/// Leaves the last partition that this thread has entered and for which `is_it` returns true, like [`leave`]. If the
/// thread entered others later, the partition is left as soon as they are. This is for blocks that do not end in
/// reverse order, such as those of generators and tasks. Returns whether [a task](task) had entered it.
///
/// # Errors
///
/// As for [`leave`], except [`TorchError::NotInnermost`].
pub fn leave_when_innermost(is_it: impl Fn(&Context) -> bool) -> Result<bool> {
    let (of_task, frame) = with_thread(|thread| {
        let open = |frame: &Frame| !frame.ended && is_it(frame.stream.context());
        let place = thread.frames.iter().rposition(open);
        let place = place.ok_or(TorchError::NotEntered)?;
        let of_task = thread.frames[place].of_task;
        if place + 1 == thread.frames.len() {
            return Ok((of_task, thread.frames.pop()));
        }
        thread.frames[place].ended = true;
        Ok::<_, TorchError>((of_task, None))
    })??;
    frame.map_or(Ok(()), leave_frame)?;
    Ok(of_task)
}

/// Leaves a partition that was the innermost and is no longer in the thread's list.
fn leave_frame(mut frame: Frame) -> Result<()> {
    let ready = check_process(frame.stream.context().device())
        .and_then(|()| frame.switched.check_order())
        .and_then(|()| frame.check_context());
    let stays = matches!(
        ready,
        Err(TorchError::StreamOrder
            | TorchError::ContextOrder
            // In a forked child, nothing that the parent entered is current.
            | TorchError::Driver(green_ctx::Error::Forked))
    );
    if stays {
        with_thread(|thread| thread.frames.push(frame))?;
        return ready;
    }
    // If the driver failed to answer, the partition is left nevertheless.
    let torch = frame.switched.torch().clone();
    let left = frame.leave();
    // Partitions whose leaving was deferred are left too.
    let ended = leave_ended(&torch);
    let mut failures = [left, ended, ready].into_iter().filter(Result::is_err);
    let first = failures.next().unwrap_or(Ok(()));
    failures.for_each(|other| torch.report(other));
    first
}

/// Leaves the innermost partitions whose leaving was deferred.
fn leave_ended(torch: &Torch) -> Result<()> {
    let mut result = Ok(());
    loop {
        let ended = with_thread(|thread| thread.frames.pop_if(|frame| frame.ended))?;
        let Some(frame) = ended else { return result };
        let left = frame.leave();
        if result.is_ok() {
            result = left;
        } else {
            torch.report(left);
        }
    }
}

/// Enters a partition with [`enter`]. Dropping the result leaves it with [`leave`], also during a panic.
///
/// Errors of [`leave`] go to [the hook](Torch::on_cleanup_failure).
///
/// # Errors
///
/// As for [`enter`].
pub fn entered(torch: &Torch, stream: &Stream) -> Result<Entered> {
    enter(torch, stream)?;
    let (torch, context) = (torch.clone(), stream.context().clone());
    Ok(Entered { torch, context, _thread: PhantomData })
}

/// An entered partition, from [`entered`]. Dropping it leaves the partition.
#[derive(Debug)]
#[must_use = "the partition is left when this is dropped"]
pub struct Entered {
    torch: Torch,
    context: Context,
    /// Makes the type `!Send`, because the thread has entered the partition.
    _thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // In a forked child, the partition is the parent's to leave.
        if check_process(self.context.device()).is_ok() {
            let left = leave_when_innermost(|context| *context == self.context);
            self.torch.report(left.map(drop));
        }
    }
}

/// Returns the number of partitions that this thread has entered and not left.
#[must_use]
pub fn depth() -> usize {
    with_thread(|thread| thread.frames.len()).unwrap_or_default()
}

/// Returns whether this thread is in a partition for which `is_it` returns true.
#[must_use]
pub fn is_entered(is_it: impl Fn(&Context) -> bool) -> bool {
    let open = |frame: &Frame| !frame.ended && is_it(frame.stream.context());
    with_thread(|thread| thread.frames.iter().any(open)).unwrap_or(false)
}

/// Returns the partition that this thread entered last and has not left.
#[must_use]
pub fn innermost() -> Option<Context> {
    let context = |thread: &mut Thread| Some(thread.frames.last()?.stream.context().clone());
    with_thread(context).ok().flatten()
}

/// Destroys the events that this thread keeps for later use. Like every event, they hold references to
/// the driver and the device's primary context.
pub fn release_idle() {
    let spares = with_thread(|thread| std::mem::take(&mut thread.spares));
    // Dropped outside `with_thread`, because the driver's hook may run.
    drop(spares);
}

/// Returns an event of a device: the thread's spare one, or a new one.
fn event(device: &Device) -> Result<Event> {
    let spare = with_thread(|thread| {
        let of_device = |event: &Event| event.context().device() == device;
        let found = thread.spares.iter().position(of_device);
        found.map(|index| thread.spares.swap_remove(index))
    })?;
    spare.map_or_else(|| Ok(device.create_event(EventOptions::default())?), Ok)
}

/// Keeps an event for later use. Returns it if the thread already has one.
fn keep(event: Event) -> Option<Event> {
    let kept = with_thread(|thread| {
        let device = event.context().device();
        if thread.spares.iter().any(|spare| spare.context().device() == device) {
            return Some(event);
        }
        thread.spares.push(event);
        None
    });
    kept.ok().flatten()
}

impl Frame {
    /// Makes a partition's stream current and, with [`Mode::Context`], its context.
    fn make_current(
        torch: &Torch,
        stream: &Stream,
        mode: Mode,
        previous: TorchStream,
        event: Event,
    ) -> Result<Frame> {
        let pushed =
            (mode == Mode::Context).then(|| Slot::push(stream.context(), previous.current));
        let mut slot = pushed.transpose()?;
        let switched = match Switched::to(torch, stream) {
            Ok(switched) => switched,
            Err(error) => {
                torch.report(slot.as_mut().map_or(Ok(()), Slot::pop));
                return Err(error);
            }
        };
        let stream = stream.clone();
        let (ended, of_task) = (false, false);
        let frame = Frame { stream, previous, event, slot, switched, ended, of_task };
        // PyTorch changes the current context when it changes its device.
        match frame.slot.as_ref().map_or(Ok(()), Slot::hold) {
            Ok(()) => Ok(frame),
            Err(error) => {
                frame.undo();
                Err(error)
            }
        }
    }

    /// Returns an error if the thread's context stack does not allow the partition to be left.
    fn check_context(&mut self) -> Result<()> {
        match &mut self.slot {
            Some(slot) => slot.check(),
            None => self.previous.check(self.stream.context().device().driver()),
        }
    }

    /// Restores the previous state without ordering work.
    fn undo(mut self) {
        let torch = self.switched.torch().clone();
        torch.report(self.switched.back());
        torch.report(self.slot.as_mut().map_or(Ok(()), Slot::pop));
        drop(keep(self.event));
    }

    /// Restores the previous state and orders the work. If a step fails, the other steps are still done.
    fn leave(mut self) -> Result<()> {
        let torch = self.switched.torch().clone();
        let recorded = self.stream.record(&self.event);
        let other = self.other(&torch);
        let restored = self.switched.back();
        let popped = self.slot.as_mut().map_or(Ok(()), Slot::pop);
        let waits =
            recorded.map_err(TorchError::from).and_then(|()| self.previous.wait(&self.event));
        let other_waits = other.and_then(|other| match other {
            Some(other) => self.previous.wait(&other),
            None => Ok(()),
        });
        let mut failures =
            [waits, other_waits, restored, popped].into_iter().filter(Result::is_err);
        if let Some(first) = failures.next() {
            failures.for_each(|other| torch.report(other));
            return first;
        }
        drop(keep(self.event));
        Ok(())
    }

    /// Records an event in the stream that the program made current inside, if there is one.
    fn other(&self, torch: &Torch) -> Result<Option<Event>> {
        let device = self.stream.context().device();
        if torch.current_stream(device.ordinal())? == raw_stream(&self.stream) {
            return Ok(None);
        }
        let current = TorchStream::find(torch, device)?;
        if current.is(&self.previous) {
            return Ok(None);
        }
        let other = event(device)?;
        current.record(&other)?;
        Ok(Some(other))
    }
}

impl Drop for Thread {
    /// Drops the partitions that were not left, the innermost first.
    fn drop(&mut self) {
        while let Some(frame) = self.frames.pop() {
            drop(frame);
        }
    }
}
