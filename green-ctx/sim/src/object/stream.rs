//! Streams and their work.

use std::cell::Cell;

use green_ctx_sys::{
    CUctx_st, CUdevResource, CUdevResourceType, CUevent_st, CUgreenCtx_st, CUresult, CUstream_st,
};

use crate::clock::{Moment, Tick, cost};
use crate::context::Context;
use crate::driver::Driver;
use crate::handle::{self, Table};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::{State, thread};

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// The handles of the legacy default stream: the null stream and `CU_STREAM_LEGACY`.
const LEGACY: [usize; 2] = [0, 1];
/// `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

thread_local! {
    /// The handle to which the null stream refers in the thread's current call.
    static NULL: Cell<usize> = const { Cell::new(LEGACY[0]) };
}

/// Makes a call in which the null stream refers to the per-thread default stream if `per_thread` is true, and
/// otherwise to the legacy stream.
pub(crate) fn with_null<T>(per_thread: bool, call: impl FnOnce() -> T) -> T {
    // The closure of a kernel may make a call of the other kind within this one.
    let outer = NULL.replace(if per_thread { PER_THREAD } else { LEGACY[0] });
    let answer = call();
    NULL.set(outer);
    answer
}

pub(crate) struct Stream {
    /// The handle of the stream's context, and the context's id. A primary context that is activated again keeps
    /// its handle but gets another id.
    pub(crate) context: usize,
    pub(crate) context_id: u64,
    pub(crate) id: u64,
    /// The last operation in the stream.
    pub(crate) last: Tick,
    /// The last operations in the other branches of graphs that were launched in the stream.
    pub(crate) branches: Vec<Tick>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Whether the stream is a default stream, which cannot be destroyed.
    default: bool,
    /// Whether the program still has to destroy the stream.
    pub(crate) counted: bool,
    /// The end of all work in the stream.
    pub(crate) tail: Moment,
    /// The capture in which the stream takes part.
    pub(crate) capture: Option<usize>,
}

impl Stream {
    /// Creates a default stream, which belongs to its context and not to the program.
    pub(crate) fn hidden(context: usize, context_id: u64, flags: u32) -> Stream {
        Stream {
            context,
            context_id,
            id: 0,
            last: Tick::default(),
            branches: Vec::new(),
            flags,
            priority: 0,
            default: true,
            counted: false,
            tail: Moment::default(),
            capture: None,
        }
    }

    /// Makes later work in this stream wait until `moment`. A wait for the stream or for its context also lasts
    /// until `moment`. `handle` is the stream's handle.
    pub(crate) fn hold(&mut self, handle: usize, contexts: &mut Table<Context>, moment: &Moment) {
        self.tail.join(moment);
        if let Some(context) = contexts.get_mut(&self.context) {
            context.submitted(self.flags, handle, moment);
        }
    }
}

/// An operation admitted to a stream, which can begin at `start`.
pub(crate) struct Admitted {
    pub(crate) stream: usize,
    pub(crate) start: Moment,
    pub(crate) tick: Tick,
}

impl State {
    pub(crate) fn add_stream(&mut self, mut stream: Stream) -> usize {
        stream.id = self.next_stream_id;
        self.next_stream_id += 1;
        let handle = handle::next();
        self.streams.insert(handle, stream);
        handle
    }

    /// Removes a stream. The stream's context takes over the stream's operations.
    pub(crate) fn remove_stream(&mut self, handle: usize) -> Option<Stream> {
        let stream = self.streams.remove(&handle)?;
        let Stream { context, context_id, last, branches, .. } = &stream;
        if let Some(context) = self.contexts.get_mut(context)
            && context.alive
            && context.id == *context_id
        {
            let Context { graveyard, busy, covered, .. } = context;
            for last in [last].into_iter().chain(branches) {
                graveyard.bury(last, &mut busy.clock);
            }
            // How waits cover a graph whose stream was destroyed was not recorded.
            if let Some(covered) = covered {
                covered.clock.join(&busy.clock);
            }
        }
        Some(stream)
    }

    /// Creates a stream for the program in an existing context.
    pub(crate) fn create_stream(
        &mut self,
        context: usize,
        flags: u32,
        priority: i32,
    ) -> Answer<usize> {
        invalid_if(flags & !NON_BLOCKING != 0)?;
        let (least, greatest) = self.profile.stream_priorities;
        let flags = flags | self.contexts[&context].stream_flags();
        let id = self.contexts[&context].id;
        let priority = priority.clamp(greatest, least);
        Ok(self.add_stream(Stream {
            priority,
            default: false,
            counted: true,
            ..Stream::hidden(context, id, flags)
        }))
    }

    /// Returns the handle of the stream, if it is usable. The handle of a default stream refers to the default
    /// stream of the current context.
    pub(crate) fn stream(&mut self, handle: usize) -> Answer<usize> {
        let handle = if handle == LEGACY[0] { NULL.get() } else { handle };
        if LEGACY.contains(&handle) {
            let current = self.current()?;
            return Ok(self.contexts[&current].legacy);
        }
        if handle == PER_THREAD {
            return self.per_thread_stream();
        }
        let stream = self.streams.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let context = &self.contexts[&stream.context];
        self.unpoisoned(context.device)?;
        if context.alive && context.id == stream.context_id {
            return Ok(handle);
        }
        // From 13.1 on, a stream that outlived its green context has its own error (header of 13.1).
        refuse_if(self.version >= 13_010 && context.green, CUresult::CUDA_ERROR_STREAM_DETACHED)?;
        Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Returns the per-thread default stream of the current context. A green context has only one default
    /// stream and returns `CUDA_ERROR_INVALID_HANDLE` (recorded on hardware).
    fn per_thread_stream(&mut self) -> Answer<usize> {
        let current = self.current()?;
        let Context { green, id, per_thread, .. } = &self.contexts[&current];
        refuse_if(*green, CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(&(_, stream)) = per_thread.iter().find(|(number, _)| *number == thread()) {
            return Ok(stream);
        }
        let stream = self.add_stream(Stream::hidden(current, *id, 0));
        if let Some(context) = self.contexts.get_mut(&current) {
            context.per_thread.push((thread(), stream));
        }
        Ok(stream)
    }

    /// Returns the earliest start of an operation that is submitted to a stream now, without regard to the
    /// host's time.
    pub(crate) fn pending(&self, handle: usize) -> Moment {
        let stream = &self.streams[&handle];
        let context = &self.contexts[&stream.context];
        let mut pending = stream.tail.clone();
        // The legacy stream and the blocking streams of its context wait for each other.
        if handle == context.legacy {
            pending.join(&context.blocking);
        } else if stream.flags & NON_BLOCKING == 0 {
            pending.join(&self.streams[&context.legacy].tail);
        }
        pending
    }

    /// Returns the earliest start of an operation that the calling thread submits to a stream now.
    pub(crate) fn next_start(&mut self, handle: usize) -> Moment {
        let mut start = self.pending(handle);
        start.clock.join(&self.thread().clock);
        start.time = start.time.max(self.now + cost::LATENCY);
        start
    }

    /// Admits an operation to an existing stream.
    pub(crate) fn admit(&mut self, handle: usize) -> Admitted {
        let mut start = self.next_start(handle);
        let next = |stream: &mut Stream| stream.last.advance();
        let tick = self.streams.get_mut(&handle).map(next).unwrap_or_default();
        start.clock.note(&tick);
        Admitted { stream: handle, start, tick }
    }

    /// Records the end of an admitted operation.
    pub(crate) fn conclude(&mut self, admitted: Admitted, end: u64) {
        self.conclude_as(admitted, end, Context::submitted);
    }

    /// Records the end of a graph that was admitted to a stream.
    pub(crate) fn conclude_graph(&mut self, admitted: Admitted, end: u64) {
        self.conclude_as(admitted, end, Context::graph_submitted);
    }

    fn conclude_as(
        &mut self,
        admitted: Admitted,
        end: u64,
        note: fn(&mut Context, u32, usize, &Moment),
    ) {
        let Admitted { stream: handle, start: mut done, .. } = admitted;
        done.time = end;
        self.polling.interrupt();
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        if let Some(context) = self.contexts.get_mut(&stream.context) {
            note(context, stream.flags, handle, &done);
        }
        stream.tail.time = stream.tail.time.max(done.time);
        stream.tail.clock.join(&done.clock);
    }

    /// Makes later work in the streams of a context wait until `moment`.
    pub(crate) fn hold_context(&mut self, handle: usize, moment: &Moment) {
        let Context { device, green, .. } = self.contexts[&handle];
        let State { streams, contexts, .. } = self;
        for (&stream, waiting) in streams {
            let all = !green && contexts[&waiting.context].device == device;
            if waiting.context == handle || all {
                waiting.hold(stream, contexts, moment);
            }
        }
    }

    /// Makes later work in an existing stream wait until `moment`.
    pub(crate) fn hold_stream(&mut self, handle: usize, moment: &Moment) {
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.hold(handle, &mut self.contexts, moment);
        }
    }

    /// Makes the host wait for all work of an existing stream. Fails if any of this work failed.
    pub(crate) fn finish_stream(&mut self, handle: usize) -> Answer {
        let pending = self.pending(handle);
        self.wait_on_host(&pending);
        self.unpoisoned(self.device_of_stream(handle))
    }

    /// Returns the id of a stream; 0 if a kernel's closure has destroyed it.
    pub(crate) fn stream_id(&self, handle: usize) -> u64 {
        self.streams.get(&handle).map_or(0, |stream| stream.id)
    }

    /// Returns the device of an existing stream.
    pub(crate) fn device_of_stream(&self, handle: usize) -> usize {
        self.contexts[&self.streams[&handle].context].device
    }
}

pub(crate) fn create(
    driver: &Driver,
    out: Ptr<*mut CUstream_st>,
    flags: u32,
    priority: i32,
) -> Answer {
    let mut state = driver.state();
    let context = state.current()?;
    out.given()?;
    let stream = state.create_stream(context, flags, priority)?;
    out.write(handle::pointer(stream))
}

/// Destroys a stream. Its work continues.
pub(crate) fn destroy(driver: &Driver, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let handle = stream.address();
    if LEGACY.contains(&handle) || handle == PER_THREAD {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    match state.stream(handle) {
        // Destroying is the only call that a detached stream accepts (header of 13.1).
        Ok(_) | Err(CUresult::CUDA_ERROR_STREAM_DETACHED) => {}
        Err(status) => return Err(status),
    }
    if state.streams.get(&handle).is_none_or(|stream| stream.default) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let capture = state.remove_stream(handle).and_then(|stream| stream.capture);
    if let Some(capture) = capture {
        state.leave_capture(capture, handle);
    }
    Ok(())
}

pub(crate) fn query(driver: &Driver, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.not_captured(handle)?;
    let pending = state.pending(handle);
    if pending.time > state.now {
        state.poll(pending.time);
        return Err(CUresult::CUDA_ERROR_NOT_READY);
    }
    state.wait_on_host(&pending);
    Ok(())
}

pub(crate) fn synchronize(driver: &Driver, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.not_captured(handle)?;
    state.finish_stream(handle)
}

pub(crate) fn wait_event(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    event: Ptr<CUevent_st>,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    let state = &mut *state;
    let handle = state.stream(stream.address())?;
    state.event(event.address())?;
    state.capturing(handle)?;
    invalid_if(flags > EXTERNAL)?;
    // A graph node that waits for the event at each launch is not simulated.
    refuse_if(flags == EXTERNAL, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
    if state.wait_in_capture(handle, event.address())? {
        return Ok(());
    }
    let recorded = state.events.get(&event.address()).and_then(|event| event.recorded.as_ref());
    if let (Some(recorded), Some(stream)) = (recorded, state.streams.get_mut(&handle)) {
        stream.tail.join(recorded);
        if let Some(context) = state.contexts.get_mut(&stream.context) {
            context.awaited(stream.flags, handle, recorded);
        }
    }
    Ok(())
}

pub(crate) fn get_priority(driver: &Driver, stream: Ptr<CUstream_st>, out: Ptr<i32>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.capturing(handle)?;
    out.write(state.streams[&handle].priority)
}

pub(crate) fn get_flags(driver: &Driver, stream: Ptr<CUstream_st>, out: Ptr<u32>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.not_captured(handle)?;
    out.write(state.streams[&handle].flags)
}

pub(crate) fn get_id(driver: &Driver, stream: Ptr<CUstream_st>, out: Ptr<u64>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.not_captured(handle)?;
    out.write(state.streams[&handle].id)
}

pub(crate) fn get_ctx(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    out: Ptr<*mut CUctx_st>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.capturing(handle)?;
    out.write(handle::pointer(state.streams[&handle].context))
}

/// Implements the CUDA 12.5 version of this function. For a stream of a green context, this function returns the
/// primary context in addition to the green context (recorded on hardware).
pub(crate) fn get_ctx_v2(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    out: Ptr<*mut CUctx_st>,
    green_out: Ptr<*mut CUgreenCtx_st>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.capturing(handle)?;
    let context = state.streams[&handle].context;
    let Context { green, device, .. } = state.contexts[&context];
    out.write_if_given(handle::pointer(state.devices[device].primary));
    green_out.write_if_given(if green { handle::pointer(context) } else { std::ptr::null_mut() });
    Ok(())
}

pub(crate) fn get_green_ctx(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    out: Ptr<*mut CUgreenCtx_st>,
) -> Answer {
    let mut state = driver.state();
    let address = stream.address();
    if (LEGACY.contains(&address) || address == PER_THREAD) && state.current_handle().is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let handle = state.stream(address)?;
    state.own_capture(handle)?;
    let context = state.streams[&handle].context;
    let green = state.contexts[&context].green;
    out.write(if green { handle::pointer(context) } else { std::ptr::null_mut() })
}

/// A stream reports its context's SMs but not its workqueues (header of 13.1).
pub(crate) fn get_dev_resource(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    out: Ptr<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    let context = state.streams[&handle].context;
    state.write_context_sms(context, out, kind)
}
