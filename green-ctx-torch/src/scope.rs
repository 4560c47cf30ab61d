//! Entering a partition: PyTorch's work of this thread runs there until the thread leaves it.
//!
//! [`enter`] makes a partition's stream PyTorch's current stream, and its device PyTorch's current device; [`leave`]
//! restores both. Neither changes the thread's current context: a default stream's handle means the stream of the
//! context that is current, so PyTorch's default stream is the same one inside of a partition and outside, and other
//! libraries find the context that they expect. Work that is submitted to other streams inside runs where those
//! streams are.
//!
//! Both keep the order: work submitted before comes before work submitted inside, and that before work submitted
//! afterwards. Events on the device keep it, also while a stream is captured into a graph, which then contains the
//! partition's work.
//!
//! - **Contexts.** [`enter_as`] with [`Mode::Context`] makes the partition's context current too, as
//!   `GreenContext.set_context` of PyTorch does.
//! - **Nesting.** A thread can enter several partitions, and one partition several times; it leaves each once, the
//!   innermost first. [`leave`] for another partition is [`TorchError::NotInnermost`] and changes nothing;
//!   [`leave_when_innermost`] leaves that partition together with those that were entered later.
//! - **Captures.** [`enter`] makes the partition's stream part of a capture in its last step, since that
//!   cannot be undone.
//! - **Guards.** Scopes and the guards of [`Torch::guard`] end in one common order, since each restores the
//!   stream that was current before it. [`leave`] out of that order is [`TorchError::StreamOrder`].
//! - **After the last handle.** PyTorch uses streams after their last handle is dropped: autograd and freed
//!   tensors remember them. So entering keeps the driver's stream for good ([`Stream::keep_alive`]).
//! - **Tasks.** Tasks that share a thread, such as those of an event loop, [suspend](task::suspend)
//!   and [resume](task::resume) what each has entered.
//! - **Without entering.** [`leave`] is [`TorchError::NotEntered`] and changes nothing.
//! - **Threads.** Each thread enters and leaves for itself. A thread that ends leaves what it has entered, without
//!   keeping the order.
//! - **Failures.** When [`enter`] fails, nothing has changed. When [`leave`] fails, the former stream is current
//!   again as far as possible, and the order is not certain. Four errors leave everything as it is:
//!   [`TorchError::NotEntered`], [`TorchError::NotInnermost`], [`TorchError::StreamOrder`] and
//!   [`TorchError::ContextOrder`].
//! - **Changing the device inside.** PyTorch then replaces the thread's current context. [`leave`] copes with
//!   that. If the former stream was a default stream, its context is remembered with it, since the handle of
//!   a default stream means a stream of the context that is current.
//!
//! A thread keeps one event a device for the next time; [`release_idle`] destroys them.

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

/// What entering a partition makes current on the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// PyTorch's current stream, and no context.
    #[default]
    Stream,
    /// The partition's context too. Default streams' handles mean other streams inside then.
    Context,
}

/// A partition that this thread has entered.
struct Frame {
    stream: Stream,
    previous: TorchStream,
    /// Recorded where the work comes from, on the way in and on the way back.
    event: Event,
    /// The place of the partition's context on the thread's stack, with [`Mode::Context`].
    slot: Option<Slot>,
    switched: Switched,
    /// Whether it is left as soon as those that were entered later are.
    ended: bool,
    /// Whether a task has entered it, which may be suspended inside.
    of_task: bool,
}

#[derive(Default)]
struct Thread {
    frames: Vec<Frame>,
    /// Events for the next partition that is entered, at most one a device.
    spares: Vec<Event>,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Uses what the thread has. No foreign code may run in `work`, since it could come back here.
fn with_thread<R>(work: impl FnOnce(&mut Thread) -> R) -> Result<R> {
    THREAD
        .try_with(|thread| work(&mut thread.borrow_mut()))
        .map_err(|_| TorchError::InvalidRequest("the thread is ending".to_owned()))
}

/// Enters a stream's partition on this thread: from now on PyTorch's work is submitted to the stream, and comes after
/// the work submitted so far to PyTorch's current stream of the device.
///
/// # Errors
///
/// [`TorchError::TooOld`], [`TorchError::Call`] and [`TorchError::Driver`]. Nothing has changed then.
pub fn enter(torch: &Torch, stream: &Stream) -> Result<()> {
    enter_as(torch, stream, Mode::Stream)
}

/// Enters a stream's partition on this thread, as [`enter`] does, in one of two modes.
///
/// # Errors
///
/// As [`enter`].
pub fn enter_as(torch: &Torch, stream: &Stream, mode: Mode) -> Result<()> {
    let device = stream.context().device();
    check_process(device)?;
    if mode == Mode::Context {
        // PyTorch makes the streams of its pool in the context that is current when it first needs one.
        torch.make_pool(device)?;
    }
    let previous = TorchStream::find(torch, device)?;
    let event = event(device)?;
    previous.record(&event)?;
    let frame = Frame::make_current(torch, stream, mode, previous, event)?;
    // The last step makes the stream part of a capture, if there is one: nothing can fail after it.
    if let Err(error) = stream.wait(&frame.event) {
        frame.undo();
        return Err(error.into());
    }
    with_thread(|thread| thread.frames.push(frame))
}

/// Leaves the partition that this thread entered last, which must be `context`: PyTorch's former stream is current
/// again, and work submitted to it from now on comes after the work submitted to the partition's stream so far. If
/// the program made another stream of the device current inside, it comes after that stream's work too.
///
/// # Errors
///
/// [`TorchError::NotEntered`], [`TorchError::NotInnermost`], [`TorchError::StreamOrder`] and
/// [`TorchError::ContextOrder`], after which the partition is still entered; [`TorchError::Call`] and
/// [`TorchError::Driver`], after which it is left.
pub fn leave(context: &Context) -> Result<()> {
    leave_innermost(|entered| entered == context).map(drop)
}

/// Leaves the partition that this thread entered last, for which `is_it` must hold, as [`leave`] does. Returns
/// whether [a task](task) had entered it.
///
/// # Errors
///
/// As [`leave`].
pub fn leave_innermost(is_it: impl Fn(&Context) -> bool) -> Result<bool> {
    // Out of the list while calls are made.
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

/// Leaves the last of the partitions that this thread has entered for which `is_it` holds, as [`leave`] does or,
/// where the thread entered others later, as soon as it has left those: for what ends in another order than
/// it began, such as generators and tasks. Returns whether [a task](task) had entered it.
///
/// # Errors
///
/// As [`leave`], without [`TorchError::NotInnermost`].
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

/// Leaves what was innermost and is in the thread's list no more.
fn leave_frame(mut frame: Frame) -> Result<()> {
    let ready = check_process(frame.stream.context().device())
        .and_then(|()| frame.switched.check_order())
        .and_then(|()| frame.check_context());
    let stays = matches!(
        ready,
        Err(TorchError::StreamOrder
            | TorchError::ContextOrder
            // Nothing of the parent process is current here, to be put back.
            | TorchError::Driver(green_ctx::Error::Forked))
    );
    if stays {
        with_thread(|thread| thread.frames.push(frame))?;
        return ready;
    }
    // Where the driver could not answer, the partition is left all the same.
    let torch = frame.switched.torch().clone();
    let left = frame.leave();
    // Those that were to be left earlier go with it.
    let ended = leave_ended(&torch);
    let mut failures = [left, ended, ready].into_iter().filter(Result::is_err);
    let first = failures.next().unwrap_or(Ok(()));
    failures.for_each(|other| torch.report(other));
    first
}

/// Leaves what is innermost now and was to be left earlier.
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

/// Enters a partition until the result is dropped, a panic or not: [`enter`] and [`leave`].
///
/// What [`leave`] returns goes to [the hook](Torch::on_cleanup_failure) then.
///
/// # Errors
///
/// As [`enter`].
pub fn entered(torch: &Torch, stream: &Stream) -> Result<Entered> {
    enter(torch, stream)?;
    let (torch, context) = (torch.clone(), stream.context().clone());
    Ok(Entered { torch, context, _thread: PhantomData })
}

/// Leaves a partition when it is dropped; made by [`entered`].
#[derive(Debug)]
#[must_use = "the partition is left when this is dropped"]
pub struct Entered {
    torch: Torch,
    context: Context,
    /// What is entered is the thread's.
    _thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // What the parent has entered is not the child's to leave.
        if check_process(self.context.device()).is_ok() {
            let left = leave_when_innermost(|context| *context == self.context);
            self.torch.report(left.map(drop));
        }
    }
}

/// How many partitions this thread has entered and not left.
#[must_use]
pub fn depth() -> usize {
    with_thread(|thread| thread.frames.len()).unwrap_or_default()
}

/// Whether this thread has entered a partition for which `is_it` holds, and not left it.
#[must_use]
pub fn is_entered(is_it: impl Fn(&Context) -> bool) -> bool {
    let open = |frame: &Frame| !frame.ended && is_it(frame.stream.context());
    with_thread(|thread| thread.frames.iter().any(open)).unwrap_or(false)
}

/// The partition that this thread entered last and has not left.
#[must_use]
pub fn innermost() -> Option<Context> {
    let context = |thread: &mut Thread| Some(thread.frames.last()?.stream.context().clone());
    with_thread(context).ok().flatten()
}

/// Destroys the events that this thread keeps for the next partition that it enters. They keep the
/// driver and the device's primary context, as every event does.
pub fn release_idle() {
    let spares = with_thread(|thread| std::mem::take(&mut thread.spares));
    // Outside of the thread's list: the driver's hook may hear of it.
    drop(spares);
}

/// An event of a device: the one that the thread has, or a new one.
fn event(device: &Device) -> Result<Event> {
    let spare = with_thread(|thread| {
        let of_device = |event: &Event| event.context().device() == device;
        let found = thread.spares.iter().position(of_device);
        found.map(|index| thread.spares.swap_remove(index))
    })?;
    spare.map_or_else(|| Ok(device.create_event(EventOptions::default())?), Ok)
}

/// Keeps an event for the next time; gives back one too many.
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
    /// Makes a partition's stream current and, if the mode says so, its context.
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
        // PyTorch changes the current context where it changes its device.
        match frame.slot.as_ref().map_or(Ok(()), Slot::hold) {
            Ok(()) => Ok(frame),
            Err(error) => {
                frame.undo();
                Err(error)
            }
        }
    }

    /// Whether the thread's contexts are such that the partition can be left.
    fn check_context(&mut self) -> Result<()> {
        match &mut self.slot {
            Some(slot) => slot.check(),
            None => self.previous.check(self.stream.context().device().driver()),
        }
    }

    /// Restores what was current, and keeps no order.
    fn undo(mut self) {
        let torch = self.switched.torch().clone();
        torch.report(self.switched.back());
        torch.report(self.slot.as_mut().map_or(Ok(()), Slot::pop));
        drop(keep(self.event));
    }

    /// Restores what was current and keeps the order. Whatever fails, the rest is done.
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

    /// An event of the work in the stream that the program made current inside, if it did.
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
    /// What the thread has not left, the innermost first.
    fn drop(&mut self) {
        while let Some(frame) = self.frames.pop() {
            drop(frame);
        }
    }
}
