//! Streams and the work in them.

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
/// The tokens that stand for a default stream: the null stream and `CU_STREAM_LEGACY`.
const LEGACY: [usize; 2] = [0, 1];
/// `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

thread_local! {
    /// The token that the null stream stands for in the call that the thread makes.
    static NULL: Cell<usize> = const { Cell::new(LEGACY[0]) };
}

/// Makes a call in which the null stream is the thread's default stream, or the legacy stream.
pub(crate) fn with_null<T>(per_thread: bool, call: impl FnOnce() -> T) -> T {
    // A kernel's closure may make a call of the other kind within this one.
    let outer = NULL.replace(if per_thread { PER_THREAD } else { LEGACY[0] });
    let answer = call();
    NULL.set(outer);
    answer
}

pub(crate) struct Stream {
    /// The handle of its context, and the id that the context had: a primary context has the same
    /// handle and another id when it comes up again.
    pub(crate) context: usize,
    pub(crate) context_id: u64,
    pub(crate) id: u64,
    /// The last operation in it.
    pub(crate) last: Tick,
    /// The last operations of the branches that graphs in it had beside the first.
    pub(crate) branches: Vec<Tick>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Whether it is a default stream, which nobody destroys.
    default: bool,
    /// Whether the program has to destroy it.
    pub(crate) counted: bool,
    /// When everything in it is done.
    pub(crate) tail: Moment,
    /// The capture that it takes part in.
    pub(crate) capture: Option<usize>,
}

impl Stream {
    /// A default stream, which belongs to its context and not to the program.
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

    /// Makes what comes into this stream, whose handle this is, wait for a moment. Whoever waits
    /// for the stream or its context waits for that too.
    pub(crate) fn hold(&mut self, handle: usize, contexts: &mut Table<Context>, moment: &Moment) {
        self.tail.join(moment);
        if let Some(context) = contexts.get_mut(&self.context) {
            context.submitted(self.flags, handle, moment);
        }
    }
}

/// An operation that was admitted to a stream: it can begin at `start`.
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

    /// Removes a stream. Its context stands for its operations from now on.
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
            // How a graph is covered whose stream is gone was not recorded.
            if let Some(covered) = covered {
                covered.clock.join(&busy.clock);
            }
        }
        Some(stream)
    }

    /// A stream that the program asked for, in a context that was looked up already.
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

    /// The handle of the stream that is meant, provided that it can be used: a default stream's
    /// token means one of the current context.
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
        // From 13.1 a stream that outlived its green context has its own error (its header).
        refuse_if(self.version >= 13_010 && context.green, CUresult::CUDA_ERROR_STREAM_DETACHED)?;
        Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// A thread has a default stream of its own in a primary context; a green context has only the
    /// one, and answers `CUDA_ERROR_INVALID_HANDLE` as recorded.
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

    /// When an operation that comes into a stream now can begin, leaving the host aside.
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

    /// When an operation that the calling thread submits to a stream now can begin.
    pub(crate) fn next_start(&mut self, handle: usize) -> Moment {
        let mut start = self.pending(handle);
        start.clock.join(&self.thread().clock);
        start.time = start.time.max(self.now + cost::LATENCY);
        start
    }

    /// Admits an operation to a stream that was looked up already.
    pub(crate) fn admit(&mut self, handle: usize) -> Admitted {
        let mut start = self.next_start(handle);
        let next = |stream: &mut Stream| stream.last.advance();
        let tick = self.streams.get_mut(&handle).map(next).unwrap_or_default();
        start.clock.note(&tick);
        Admitted { stream: handle, start, tick }
    }

    /// Notes when an admitted operation is over.
    pub(crate) fn conclude(&mut self, admitted: Admitted, end: u64) {
        self.conclude_as(admitted, end, Context::submitted);
    }

    /// Notes when a graph is over whose turn in a stream began at `admitted`.
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

    /// Makes what is submitted to the streams of a context from now on wait for a moment.
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

    /// Makes what is submitted to a stream that was looked up already wait for a moment.
    pub(crate) fn hold_stream(&mut self, handle: usize, moment: &Moment) {
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.hold(handle, &mut self.contexts, moment);
        }
    }

    /// Waits on the host for everything in a stream that was looked up already, and fails where
    /// something in it failed.
    pub(crate) fn finish_stream(&mut self, handle: usize) -> Answer {
        let pending = self.pending(handle);
        self.wait_on_host(&pending);
        self.unpoisoned(self.device_of_stream(handle))
    }

    /// The id of a stream; 0 for one that the closure of a kernel before has destroyed.
    pub(crate) fn stream_id(&self, handle: usize) -> u64 {
        self.streams.get(&handle).map_or(0, |stream| stream.id)
    }

    /// The device of a stream that was looked up already.
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

/// Destroys a stream; work in it goes on.
pub(crate) fn destroy(driver: &Driver, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let handle = stream.address();
    if LEGACY.contains(&handle) || handle == PER_THREAD {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    match state.stream(handle) {
        // The one call that a detached stream still answers (header of 13.1).
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
    // A graph's node that waits whenever the graph is launched is not simulated.
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

/// The form of 12.5 gives the primary context of a green stream beside the green context, as
/// recorded.
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

/// Streams answer for the SMs of their context and not for its workqueues (header of 13.1).
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
