//! Stream capture: the participating streams, the calls that a capture forbids, the calls that invalidate a
//! capture, and the resulting graph.

pub(crate) mod info;

use green_ctx_sys::{CUgraph_st, CUresult, CUstream_st, CUstreamCaptureMode};

use crate::driver::Driver;
use crate::graph::memcpy::Memcpy;
use crate::graph::memset::Memset;
use crate::graph::{Action, Owner};
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::state::{State, thread};
use crate::stream::NON_BLOCKING;
use crate::work::Work;

/// A capture that has begun and not ended.
pub(crate) struct Capture {
    thread: u32,
    mode: CUstreamCaptureMode,
    /// Set by an operation that cannot be captured. An invalidated capture can only be ended.
    invalidated: bool,
    /// The graph that receives the captured nodes.
    pub(crate) graph: usize,
    /// The participating streams. The first is the stream in which the capture began.
    branches: Vec<Branch>,
}

struct Branch {
    stream: usize,
    /// The direct dependencies of the branch's next node.
    last: Vec<usize>,
    /// The dependencies and edge data that `cuStreamGetCaptureInfo` last returned, at stable addresses.
    lent: (Box<[usize]>, Box<[[u8; 8]]>),
}

/// The contents of an event recorded in a capturing stream.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) capture: usize,
    last: Vec<usize>,
}

impl Branch {
    fn new(stream: usize, last: Vec<usize>) -> Branch {
        Branch { stream, last, lent: Default::default() }
    }

    /// Adds dependencies to the branch's next node.
    fn join(&mut self, nodes: &[usize]) {
        for node in nodes {
            if !self.last.contains(node) {
                self.last.push(*node);
            }
        }
    }
}

impl Capture {
    fn branch(&mut self, stream: usize) -> Option<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.stream == stream)
    }

    /// Returns whether every captured node would precede the next node of the first stream.
    fn is_joined(&self, state: &State) -> bool {
        let Some((origin, others)) = self.branches.split_first() else { return true };
        let mut reached = handle::Table::default();
        let mut open = origin.last.clone();
        while let Some(node) = open.pop() {
            if reached.insert(node, ()).is_none() {
                let after = state.nodes.get(&node).map_or(&[][..], |node| &node.after[..]);
                open.extend(after);
            }
        }
        let mut left = others.iter().flat_map(|branch| &branch.last);
        left.all(|node| reached.contains_key(node))
    }
}

impl State {
    /// Invalidates captures. Returns `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if `captures` is not empty.
    pub(crate) fn invalidate_captures(&mut self, captures: &[usize]) -> Answer {
        for id in captures {
            if let Some(capture) = self.captures.get_mut(id) {
                capture.invalidated = true;
            }
        }
        refuse_if(!captures.is_empty(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call on a capturing stream, or on the legacy stream while blocking streams are capturing.
    /// Invalidates the captures of these streams.
    pub(crate) fn not_captured(&mut self, stream: usize) -> Answer {
        let capture = self.streams[&stream].capture;
        self.invalidate_captures(capture.as_slice())?;
        self.capturing(stream).map(drop)
    }

    /// Refuses a potentially unsafe call while a capture forbids such calls, and invalidates that capture.
    pub(crate) fn no_strict_capture(&mut self) -> Answer {
        if self.captures.is_empty() {
            return Ok(());
        }
        // The calling thread's own mode takes precedence (cuda.h, `cuThreadExchangeStreamCaptureMode`).
        let others = match CUstreamCaptureMode(self.thread().capture_mode) {
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED => return Ok(()),
            mode => mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        };
        let forbids = |capture: &Capture| match capture.mode {
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL => {
                others || capture.thread == thread()
            }
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => capture.thread == thread(),
            _ => false,
        };
        let strict = self.captures.iter().filter(|(_, capture)| forbids(capture));
        let strict: Vec<usize> = strict.map(|(id, _)| *id).collect();
        self.invalidate_captures(&strict)
    }

    /// Adds work to the capture of its stream. Returns the work if the stream is not capturing.
    pub(crate) fn capture(&mut self, stream: usize, work: Work) -> Answer<Option<Work>> {
        if self.capturing(stream)?.is_none() {
            return Ok(Some(work));
        }
        let (context, priority) = (self.streams[&stream].context, self.streams[&stream].priority);
        let device = self.contexts[&context].device;
        let (action, context) = match work {
            Work::Kernel(work) => {
                (Action::Kernel(self.captured_kernel(work, device, priority)?), context)
            }
            Work::Copy(copy) => (Action::Memcpy(Memcpy::captured(copy)), context),
            Work::Fill(fill) => (Action::Memset(Memset::captured(fill)), context),
            Work::Call(callback) => (Action::Host(callback), 0),
        };
        self.capture_action(stream, action, context)?;
        Ok(None)
    }

    /// Adds a node to the capture of a stream, after the stream's last captured nodes.
    pub(crate) fn capture_action(
        &mut self,
        stream: usize,
        action: Action,
        context: usize,
    ) -> Answer {
        let id = self.own_capture(stream)?.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let graph = capture.graph;
        let after = capture.branch(stream).map(|branch| std::mem::take(&mut branch.last));
        let node = self.add_node(graph, action, context, after.unwrap_or_default());
        let capture = self.captures.get_mut(&id);
        if let Some(branch) = capture.and_then(|capture| capture.branch(stream)) {
            branch.last = vec![node];
        }
        Ok(())
    }

    /// Returns the capture that work in the stream would join, if there is one.
    pub(crate) fn capturing(&mut self, stream: usize) -> Answer<Option<usize>> {
        if self.captures.is_empty() {
            return Ok(None);
        }
        let capture = self.own_capture(stream)?;
        if capture.is_none() {
            let implicit = self.implicit_captures(stream);
            self.invalidate_captures(&implicit)
                .map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)?;
        }
        Ok(capture)
    }

    /// Returns the same as [`capturing`](State::capturing). If work in the stream would not join a capture,
    /// also checks that a potentially unsafe call is allowed.
    pub(crate) fn capturing_or_safe(&mut self, stream: usize) -> Answer<Option<usize>> {
        let capture = self.capturing(stream)?;
        if capture.is_none() {
            self.no_strict_capture()?;
        }
        Ok(capture)
    }

    /// Returns the capture in which the stream takes part, if there is one. Fails if the capture was
    /// invalidated.
    pub(crate) fn own_capture(&self, stream: usize) -> Answer<Option<usize>> {
        let id = self.streams[&stream].capture;
        let capture = id.and_then(|id| self.captures.get(&id));
        let invalidated = capture.is_some_and(|capture| capture.invalidated);
        refuse_if(invalidated, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        Ok(id)
    }

    /// Returns the captures of the blocking streams for which work in this stream would wait implicitly.
    /// Only work in the legacy stream waits in this way.
    fn implicit_captures(&self, stream: usize) -> Vec<usize> {
        let context = self.streams[&stream].context;
        if self.contexts[&context].legacy != stream {
            return Vec::new();
        }
        let streams = self.streams.values().filter(|other| other.context == context);
        let blocking = streams.filter(|other| other.flags & NON_BLOCKING == 0);
        blocking.filter_map(|stream| stream.capture).collect()
    }

    /// Returns the contents of an event recorded in a capturing stream; `None` if the stream is not
    /// capturing.
    pub(crate) fn captured_event(&mut self, stream: usize) -> Answer<Option<Captured>> {
        let Some(id) = self.capturing(stream)? else { return Ok(None) };
        let branch = self.captures.get_mut(&id).and_then(|capture| capture.branch(stream));
        Ok(branch.map(|branch| Captured { capture: id, last: branch.last.clone() }))
    }

    /// Handles a wait for an event that involves a capture. Returns `false` if neither the stream nor the
    /// event is part of a capture.
    pub(crate) fn wait_in_capture(&mut self, stream: usize, event: usize) -> Answer<bool> {
        let into = self.own_capture(stream)?;
        let Some(captured) = self.events[&event].captured.clone() else {
            let Some(into) = into else { return Ok(false) };
            if self.events[&event].recorded.is_none() {
                return Ok(true);
            }
            self.invalidate_captures(&[into])
                .map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)?;
            return Ok(true);
        };
        // An event of an ended capture cannot be waited for (recorded on hardware).
        let capture = valid(self.captures.get_mut(&captured.capture))?;
        match into {
            None => {
                capture.branches.push(Branch::new(stream, captured.last));
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.capture = Some(captured.capture);
                }
            }
            Some(into) if into == captured.capture => {
                if let Some(branch) = capture.branch(stream) {
                    branch.join(&captured.last);
                }
            }
            Some(into) => {
                self.invalidate_captures(&[into, captured.capture])
                    .map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)?;
            }
        }
        Ok(true)
    }

    /// Handles the destruction of a stream that takes part in a capture. If the stream is the first stream
    /// of the capture, the capture ends. Work captured in any other stream stays in the capture and must still be
    /// joined. This is not recorded on hardware. cuda.core destroys a stream only after joining it.
    pub(crate) fn leave_capture(&mut self, id: usize, stream: usize) {
        let Some(capture) = self.captures.get_mut(&id) else { return };
        if capture.branches.first().is_some_and(|branch| branch.stream == stream) {
            self.end_capture(id, false);
        }
    }

    /// Ends a capture. The program becomes the owner of a finished graph; an unfinished graph is removed.
    fn end_capture(&mut self, id: usize, finished: bool) {
        let Some(capture) = self.captures.remove(&id) else { return };
        for branch in &capture.branches {
            if let Some(stream) = self.streams.get_mut(&branch.stream) {
                stream.capture = None;
            }
        }
        if !finished {
            self.remove_graph(capture.graph);
            self.drop_unused_addresses();
        } else if let Some(graph) = self.graphs.get_mut(&capture.graph) {
            graph.owner = Owner::Program;
        }
    }

    /// Begins a capture in a stream, into a new graph.
    fn begin_capture(&mut self, stream: usize, mode: CUstreamCaptureMode) -> Answer {
        invalid_if(mode.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0)?;
        let context = &self.contexts[&self.streams[&stream].context];
        // A green context's default stream can be captured (seen on an H200 with driver 580.159.04).
        if context.legacy == stream && !context.green {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        refuse_if(self.streams[&stream].capture.is_some(), CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let graph = self.add_graph(Owner::Capture);
        let capture = Capture {
            thread: thread(),
            mode,
            invalidated: false,
            graph,
            branches: vec![Branch::new(stream, Vec::new())],
        };
        let id = handle::next();
        self.captures.insert(id, capture);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }
}

pub(crate) fn begin(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    mode: CUstreamCaptureMode,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    state.begin_capture(stream, mode)
}

pub(crate) fn end(driver: &Driver, stream: Ptr<CUstream_st>, out: Ptr<*mut CUgraph_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    out.write(std::ptr::null_mut())?;
    let id = state.streams[&handle].capture.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let capture = state.captures.get(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    if capture.branches.first().is_none_or(|origin| origin.stream != handle) {
        let _ = state.invalidate_captures(&[id]);
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if capture.thread != thread()
        && capture.mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
    {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let graph = capture.graph;
    let status = if capture.invalidated {
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    } else if capture.is_joined(&state) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    };
    state.end_capture(id, status.is_ok());
    status?;
    out.write(handle::pointer(graph))
}

/// Sets the calling thread's capture mode and returns the previous one. Numbers that do not represent a
/// mode are accepted (recorded on hardware).
pub(crate) fn exchange_mode(driver: &Driver, mode: Ptr<CUstreamCaptureMode>) -> Answer {
    let wanted = mode.followed().read()?;
    let mut state = driver.state();
    let former = std::mem::replace(&mut state.thread().capture_mode, wanted.0);
    mode.write(CUstreamCaptureMode(former))
}
