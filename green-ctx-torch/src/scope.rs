//! Entering a partition. Until the thread leaves the partition, PyTorch's work of this thread runs in it.
//!
//! [`enter`] makes a partition's stream PyTorch's current stream, and the partition's device PyTorch's current device.
//! [`leave`] restores the previous stream and device. [`enter`] and [`leave`] do not change the thread's current
//! context. A default-stream handle refers to the current context, so PyTorch's default stream is the same inside a
//! partition and outside, and other libraries find the context that they expect. Inside a partition, work that is
//! submitted to another stream runs in the context of that stream.
//!
//! [`enter`] and [`leave`] order the work with events on the device. Work submitted before entering runs before the
//! work submitted inside the partition. The work submitted inside runs before work submitted after leaving. This order
//! also holds if a stream is being captured into a graph, and the graph then contains the partition's work.
//!
//! - **Contexts.** [`enter_as`] with [`Mode::Context`] also makes the partition's context current, as PyTorch's
//!   `GreenContext.set_context` does.
//! - **Nesting.** A thread can enter several partitions, and the same partition several times. The thread leaves once
//!   for each enter, the innermost partition first. If [`leave`] is called for another partition, it returns
//!   [`TorchError::NotInnermost`] and changes nothing. [`leave_when_innermost`] leaves such a partition as soon as the
//!   thread has left the partitions of the same device that it entered later.
//! - **Captures.** If PyTorch's current stream is being captured, the last step of [`enter`] makes the partition's
//!   stream part of the capture, because this step cannot be undone.
//! - **Guards.** Scopes and the guards of [`Torch::guard`] must end in reverse order of creation, because each restores
//!   the stream that was current before it. If [`leave`] is called out of this order, it returns
//!   [`TorchError::StreamOrder`].
//! - **After the last handle.** PyTorch may use a stream after the stream's last handle is dropped, because autograd
//!   and freed tensors remember streams. Entering therefore calls [`Stream::keep_alive`], so that the driver's stream
//!   lives until the process ends.
//! - **Tasks.** For tasks that share a thread, such as those of an event loop, [suspend](task::suspend) and
//!   [resume](task::resume) make each task's partitions current only while that task runs.
//! - **Without entering.** If the thread has not entered the partition, [`leave`] returns [`TorchError::NotEntered`]
//!   and changes nothing.
//! - **Threads.** Each thread enters and leaves partitions for itself. If a thread ends inside partitions, it leaves
//!   them without ordering work.
//! - **Failures.** If [`enter`] fails, nothing has changed. If [`leave`] fails, it has restored the previous stream if
//!   that was possible, but the order of the work is not guaranteed. After four errors of [`leave`], nothing has
//!   changed: [`TorchError::NotEntered`], [`TorchError::NotInnermost`], [`TorchError::StreamOrder`] and
//!   [`TorchError::ContextOrder`].
//! - **Changing the device inside.** If the program changes PyTorch's device inside a partition, PyTorch replaces the
//!   thread's current context, and [`leave`] handles this. If the previous stream was a default stream, [`enter`]
//!   remembers the stream's context, because a default-stream handle refers to the current context.
//!
//! Each thread keeps one event per device for the next call of [`enter`]. [`release_idle`] destroys these events.

mod slot;
pub mod task;
mod torch_stream;

use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use green_ctx::{Device, Event, Stream, context::Context, event::EventOptions};
use parking_lot::Mutex;

use crate::error::{Result, TorchError, check_process};
use crate::libtorch::Torch;
use crate::stream::{Switched, raw_stream};
use slot::Slot;
use torch_stream::TorchStream;

/// The part of a thread's state that changes when the thread enters a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Entering changes PyTorch's current stream, but not the current context.
    #[default]
    Stream,
    /// Entering also makes the partition's context current. Inside the partition, a default-stream handle then refers
    /// to another stream.
    Context,
}

/// A partition that this thread has entered.
struct Frame {
    stream: Stream,
    previous: TorchStream,
    /// The event that orders the work. It is recorded in the previous stream on entering, and in the partition's stream
    /// on leaving.
    event: Event,
    /// With [`Mode::Context`], the partition's entry on the thread's context stack.
    slot: Option<Slot>,
    switched: Switched,
    /// True if the partition must be left as soon as the partitions that were entered later are left. Other threads can
    /// set this.
    ended: Arc<AtomicBool>,
    /// True if the stream that was current before the partition is current again, although the guard still exists.
    restored: bool,
    /// True if a task entered the partition. Such a task can be suspended while it is in the partition.
    of_task: bool,
    owner: Owner,
}

/// What entered a partition, such as a generator: a number that is unique in the process for as long as the partition is
/// entered, or 0 if that is unknown.
pub type Owner = usize;

/// The owners of partitions that threads have entered, from [`note_owner`], and the partitions' `ended`.
static OWNERS: Mutex<Vec<(Owner, Weak<AtomicBool>)>> = Mutex::new(Vec::new());

#[derive(Default)]
struct Thread {
    frames: Vec<Frame>,
    /// Events for later use, at most one per device.
    spares: Vec<Event>,
    /// PyTorch's current stream of each device from before the running task.
    outside: Vec<*mut c_void>,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Calls `work` with this thread's state. `work` must not run foreign code, because foreign code could call this
/// function again.
fn with_thread<R>(work: impl FnOnce(&mut Thread) -> R) -> Result<R> {
    THREAD
        .try_with(|thread| work(&mut thread.borrow_mut()))
        .map_err(|_| TorchError::InvalidRequest("the thread is ending".to_owned()))
}

/// Enters a stream's partition on this thread. From now on, PyTorch submits this thread's work to the stream. That work
/// runs after the work submitted so far to the stream that was PyTorch's current stream of the device.
///
/// # Errors
///
/// [`TorchError::TooOld`] if PyTorch lacks a function, [`TorchError::Call`] if a function of PyTorch fails, and
/// [`TorchError::Driver`] if an operation of green-ctx fails. In each case, nothing has changed.
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
    torch.report(leave_ended());
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
/// again. Work submitted to that stream from now on runs after the work submitted so far to the partition's stream. If
/// the program made a third stream of the device current inside the partition, new work also runs after the work of the
/// third stream.
///
/// # Errors
///
/// [`TorchError::NotEntered`], [`TorchError::NotInnermost`], [`TorchError::StreamOrder`] or
/// [`TorchError::ContextOrder`] if the thread cannot leave the partition now; in these cases, nothing has changed.
/// [`TorchError::Call`] or [`TorchError::Driver`] if a step failed; in these cases, the thread has left the partition.
pub fn leave(context: &Context) -> Result<()> {
    leave_innermost(|entered| entered.context() == context).map(drop)
}

/// Leaves the partition that this thread entered last, like [`leave`]. `is_it` must return true for the partition's
/// stream. Returns whether [a task](task) had entered the partition, and its owner.
///
/// # Errors
///
/// As for [`leave`].
pub fn leave_innermost(is_it: impl Fn(&Stream) -> bool) -> Result<(bool, Owner)> {
    let before = leave_ended();
    // Not in the list while calls are made.
    let frame = with_thread(|thread| {
        let entered = |frame: &mut Frame| is_it(&frame.stream);
        thread.frames.pop_if(entered).ok_or_else(|| {
            let outer = thread.frames.iter_mut().any(entered);
            if outer { TorchError::NotInnermost } else { TorchError::NotEntered }
        })
    })??;
    let of_task = (frame.of_task, frame.owner);
    leave_frame(frame).and(before)?;
    Ok(of_task)
}

/// Leaves the innermost partition for which `is_it` returns true, like [`leave`]. If the thread entered other
/// partitions of the same device later, leaving waits until the thread has left those partitions. If it entered only
/// partitions of other devices later, PyTorch's previous stream is current again immediately; with [`Mode::Context`],
/// leaving waits for these partitions too. This function is for blocks that do not end in reverse order, such as the
/// blocks of generators and tasks. Returns whether [a task](task) had entered the partition, and its owner.
///
/// # Errors
///
/// As for [`leave`], but never [`TorchError::NotInnermost`].
pub fn leave_when_innermost(is_it: impl Fn(&Stream) -> bool) -> Result<(bool, Owner)> {
    leave_where(|frame| is_it(&frame.stream))
}

/// Leaves the innermost partition of this owner for which `is_it` returns true, like [`leave_when_innermost`].
///
/// # Errors
///
/// As for [`leave_when_innermost`].
pub fn leave_of_owner(owner: Owner, is_it: impl Fn(&Stream) -> bool) -> Result<(bool, Owner)> {
    leave_where(|frame| frame.owner == owner && is_it(&frame.stream))
}

fn leave_where(is_it: impl Fn(&Frame) -> bool) -> Result<(bool, Owner)> {
    let before = leave_ended();
    // Not in the list while calls are made.
    let (of_task, taken) = with_thread(|thread| {
        let open = |frame: &Frame| !frame.has_ended() && is_it(frame);
        let place = thread.frames.iter().rposition(open).ok_or(TorchError::NotEntered)?;
        let frame = &thread.frames[place];
        let of_task = (frame.of_task, frame.owner);
        let mut later = thread.frames[place + 1..].iter();
        if frame.slot.is_some() && later.len() > 0 || later.any(|other| frame.has_device_of(other))
        {
            frame.end();
            return Ok((of_task, None));
        }
        Ok::<_, TorchError>((of_task, Some((place, thread.frames.remove(place)))))
    })??;
    let Some((place, mut frame)) = taken else { return before.map(|()| of_task) };
    if with_thread(|thread| thread.frames.len())? == place {
        leave_frame(frame)?;
    } else {
        let restored = frame.restore();
        frame.end();
        with_thread(|thread| thread.frames.insert(place, frame))?;
        restored?;
    }
    before.map(|()| of_task)
}

/// Leaves the innermost partition, whose frame the caller has removed from the thread's list.
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
    first(&torch, [left, leave_ended(), ready])
}

/// Leaves the innermost partitions whose blocks have ended. Returns the first error, and reports the others.
fn leave_ended() -> Result<()> {
    let mut result = Ok(());
    while let Some(frame) = with_thread(|thread| thread.frames.pop_if(|it| it.has_ended()))? {
        let torch = frame.switched.torch().clone();
        result = first(&torch, [result, frame.leave()]);
    }
    result
}

/// Enters a partition with [`enter`]. Dropping the result leaves the partition, even during a panic.
///
/// Errors of leaving go to [the hook](Torch::on_cleanup_failure).
///
/// # Errors
///
/// As for [`enter`].
pub fn entered(torch: &Torch, stream: &Stream) -> Result<Entered> {
    enter(torch, stream)?;
    let (torch, context) = (torch.clone(), stream.context().clone());
    Ok(Entered { torch, context, _thread: PhantomData })
}

/// An entered partition, from [`entered`]. Dropping this object leaves the partition.
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
            let left = leave_when_innermost(|stream| *stream.context() == self.context);
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
    let open = |frame: &Frame| !frame.has_ended() && is_it(frame.stream.context());
    with_thread(|thread| thread.frames.iter().any(open)).unwrap_or(false)
}

/// Returns the partition that this thread entered last and has not left.
#[must_use]
pub fn innermost() -> Option<Context> {
    let context = |thread: &mut Thread| Some(thread.frames.last()?.stream.context().clone());
    with_thread(context).ok().flatten()
}

/// Notes the owner of the partition that this thread entered last, for [`leave_of_owner`] and [`end_of_owner`].
pub fn note_owner(owner: Owner) {
    let ended = with_thread(|thread| {
        let frame = thread.frames.last_mut()?;
        frame.owner = owner;
        Some(Arc::downgrade(&frame.ended))
    });
    OWNERS.lock().extend(ended.ok().flatten().map(|ended| (owner, ended)));
}

/// Returns whether a partition with an owner is entered on any thread, or was when its thread ended.
#[must_use]
pub fn has_owners() -> bool {
    !OWNERS.lock().is_empty()
}

/// Ends the block that an owner entered last on any thread. Returns whether there is such a block.
///
/// PyTorch's current stream belongs to a thread. So the thread that entered the partition leaves it when it next enters
/// or leaves a partition. If that thread has ended, nothing remains to be left.
pub fn end_of_owner(owner: Owner) -> bool {
    let owners = OWNERS.lock();
    let ends = |ended: &Weak<AtomicBool>| {
        ended.upgrade().is_none_or(|ended| !ended.swap(true, Ordering::Relaxed))
    };
    owners.iter().rev().any(|(other, ended)| *other == owner && ends(ended))
}

/// Destroys the events that this thread keeps for later use. Like every event, the kept events hold references to the
/// driver and the device's primary context.
pub fn release_idle() {
    let spares = with_thread(|thread| std::mem::take(&mut thread.spares));
    // Dropped outside `with_thread`, because the driver's hook may run.
    drop(spares);
}

/// Returns an event of a device: the event that the thread keeps for later use, or a new event.
fn event(device: &Device) -> Result<Event> {
    let spare = with_thread(|thread| {
        let of_device = |event: &Event| event.context().device() == device;
        let found = thread.spares.iter().position(of_device);
        found.map(|index| thread.spares.swap_remove(index))
    })?;
    spare.map_or_else(|| Ok(device.create_event(EventOptions::default())?), Ok)
}

/// Keeps an event for later use. Returns the event if the thread already keeps one for the device.
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
    /// Makes a partition's stream current and, with [`Mode::Context`], also the partition's context.
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
        let (ended, restored, of_task, owner) = (Arc::default(), false, false, 0);
        let frame =
            Frame { stream, previous, event, slot, switched, ended, restored, of_task, owner };
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
        if self.owner != 0 {
            let own = Arc::downgrade(&self.ended);
            OWNERS.lock().retain(|(_, ended)| !ended.ptr_eq(&own));
        }
        let torch = self.switched.torch().clone();
        let inside = (!self.restored).then(|| self.record(&torch));
        let restored = self.switched.back();
        let popped = self.slot.as_mut().map_or(Ok(()), Slot::pop);
        let waits =
            inside.map_or([Ok(()), Ok(())], |inside| inside.wait(&self.previous, &self.event));
        first(&torch, waits.into_iter().chain([restored, popped]))?;
        drop(keep(self.event));
        Ok(())
    }

    /// Makes the previous stream current again and orders the work. The guard still exists, because a guard of another
    /// device must end first.
    fn restore(&mut self) -> Result<()> {
        let torch = self.switched.torch().clone();
        self.restored = true;
        let inside = self.record(&torch);
        let restored = self.previous.restore(&torch, self.stream.context().device());
        let waits = inside.wait(&self.previous, &self.event);
        first(&torch, waits.into_iter().chain([restored]))
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn has_device_of(&self, other: &Frame) -> bool {
        self.stream.context().device() == other.stream.context().device()
    }

    /// Records the work submitted inside.
    fn record(&self, torch: &Torch) -> Recorded {
        let recorded = self.stream.record(&self.event).map_err(TorchError::from);
        Recorded { recorded, other: self.other(torch) }
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

/// The events of the work that was submitted inside a partition.
struct Recorded {
    /// Whether the frame's own event was recorded in the partition's stream.
    recorded: Result<()>,
    /// The event of another stream that the program made current inside.
    other: Result<Option<Event>>,
}

impl Recorded {
    /// Makes the previous stream wait for the work. `event` is the frame's own event.
    fn wait(self, previous: &TorchStream, event: &Event) -> [Result<()>; 2] {
        let other =
            self.other.and_then(|other| other.map_or(Ok(()), |other| previous.wait(&other)));
        [self.recorded.and_then(|()| previous.wait(event)), other]
    }
}

/// Returns the first error, and reports the others.
fn first(torch: &Torch, results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut failures = results.into_iter().filter(Result::is_err);
    let first = failures.next().unwrap_or(Ok(()));
    failures.for_each(|other| torch.report(other));
    first
}

impl Drop for Thread {
    /// Drops the partitions that were not left, the innermost first.
    fn drop(&mut self) {
        while let Some(frame) = self.frames.pop() {
            drop(frame);
        }
    }
}
