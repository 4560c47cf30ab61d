//! Stream capture, as far as it concerns contexts and streams: what takes part, what is refused
//! meanwhile, what spoils it, and the graph that comes out.

use green_ctx_sys::{
    CUgraph_st, CUgraphEdgeData, CUgraphNode, CUresult, CUstream_st, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};

use crate::clock::VectorClock;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::state::{State, thread};
use crate::stream::NON_BLOCKING;
use crate::work::Work;

/// A capture that was begun and not ended.
pub(crate) struct Capture {
    thread: u32,
    mode: CUstreamCaptureMode,
    /// Something happened that cannot be captured: only ending it is left.
    spoiled: bool,
    nodes: Vec<Node>,
    /// The streams that take part, the one that it was begun in first.
    branches: Vec<Branch>,
}

struct Branch {
    stream: usize,
    /// The number of operations captured in it.
    tick: u64,
    /// The operations of each branch, by its index, that come before the branch's next.
    seen: VectorClock,
    /// The nodes that the branch's next comes after directly.
    last: Vec<usize>,
}

/// What an event recorded in a capturing stream stands for.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) capture: usize,
    seen: VectorClock,
    last: Vec<usize>,
}

/// A graph.
pub(crate) struct Graph {
    #[expect(dead_code, reason = "what a graph is made of is asked for by functions yet to come")]
    nodes: Vec<Node>,
}

/// Work of a graph, in a context, after other work.
#[expect(dead_code, reason = "what a graph is made of is asked for by functions yet to come")]
pub(crate) struct Node {
    work: Work,
    context: usize,
    after: Vec<usize>,
}

impl Capture {
    fn branch(&mut self, stream: usize) -> Option<(u32, &mut Branch)> {
        let mut branches = (0..).zip(&mut self.branches);
        branches.find(|(_, branch)| branch.stream == stream)
    }
}

impl State {
    /// Spoils captures; `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if there are any.
    pub(crate) fn spoil_captures(&mut self, captures: &[usize]) -> Answer {
        for id in captures {
            if let Some(capture) = self.captures.get_mut(id) {
                capture.spoiled = true;
            }
        }
        if captures.is_empty() {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }

    /// Refuses what cannot be asked of a stream that is capturing, and spoils the capture.
    pub(crate) fn not_captured(&mut self, stream: usize) -> Answer {
        match self.streams[&stream].capture {
            Some(capture) => self.spoil_captures(&[capture]),
            None => Ok(()),
        }
    }

    /// Refuses calls that may wait for the device while a capture forbids them.
    pub(crate) fn no_strict_capture(&mut self) -> Answer {
        if self.captures.is_empty() {
            return Ok(());
        }
        // The calling thread's own mode comes first (cuda.h, `cuThreadExchangeStreamCaptureMode`).
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
        self.spoil_captures(&strict)
    }

    /// Takes work into the capture of its stream; gives it back where there is none and it is to be
    /// done.
    pub(crate) fn capture(&mut self, stream: usize, work: Work) -> Answer<Option<Work>> {
        let Some(id) = self.capturing(stream)? else { return Ok(Some(work)) };
        let context = self.streams[&stream].context;
        let Some(capture) = self.captures.get_mut(&id) else { return Ok(Some(work)) };
        let number = capture.nodes.len();
        let mut after = Vec::new();
        if let Some((index, branch)) = capture.branch(stream) {
            branch.tick += 1;
            branch.seen.set(index, branch.tick);
            after = std::mem::replace(&mut branch.last, vec![number]);
        }
        capture.nodes.push(Node { work, context, after });
        Ok(None)
    }

    /// The capture that work in a stream would become part of, if there is one.
    pub(crate) fn capturing(&mut self, stream: usize) -> Answer<Option<usize>> {
        if self.captures.is_empty() {
            return Ok(None);
        }
        let Some(id) = self.streams[&stream].capture else {
            return self.no_implicit_wait(stream).map(|()| None);
        };
        match self.captures.get(&id) {
            Some(capture) if capture.spoiled => {
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            }
            Some(_) => Ok(Some(id)),
            None => Ok(None),
        }
    }

    /// Work in the legacy stream would wait for blocking streams, which a capturing one cannot be
    /// waited for.
    fn no_implicit_wait(&mut self, stream: usize) -> Answer {
        let context = self.streams[&stream].context;
        if self.contexts[&context].legacy != stream {
            return Ok(());
        }
        let blocking = self
            .streams
            .values()
            .filter(|other| other.context == context && other.flags & NON_BLOCKING == 0);
        let captures: Vec<usize> = blocking.filter_map(|stream| stream.capture).collect();
        self.spoil_captures(&captures).map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// What recording an event in a capturing stream records; `None` where it is not capturing.
    pub(crate) fn captured_event(&mut self, stream: usize) -> Option<Captured> {
        let id = self.streams[&stream].capture?;
        let (_, branch) = self.captures.get_mut(&id)?.branch(stream)?;
        Some(Captured { capture: id, seen: branch.seen.clone(), last: branch.last.clone() })
    }

    /// Waits within a capture; `false` where neither stream nor event take part in one.
    pub(crate) fn wait_in_capture(&mut self, stream: usize, event: usize) -> Answer<bool> {
        if self.captures.is_empty() {
            return Ok(false);
        }
        let into = self.streams[&stream].capture;
        let Some(captured) = self.events[&event].captured.clone() else {
            let Some(into) = into else { return Ok(false) };
            if self.events[&event].recorded.is_none() {
                return Ok(true);
            }
            self.spoil_captures(&[into])
                .map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)?;
            return Ok(true);
        };
        let Some(capture) = self.captures.get_mut(&captured.capture) else { return Ok(false) };
        match into {
            None => {
                let (seen, last) = (captured.seen, captured.last);
                let branch = Branch { stream, tick: 0, seen, last };
                capture.branches.push(branch);
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.capture = Some(captured.capture);
                }
            }
            Some(into) if into == captured.capture => {
                if let Some((_, branch)) = capture.branch(stream) {
                    branch.seen.join(&captured.seen);
                    let more = captured.last.into_iter().filter(|node| !branch.last.contains(node));
                    branch.last = branch.last.iter().copied().chain(more).collect();
                }
            }
            Some(into) => {
                self.spoil_captures(&[into, captured.capture])
                    .map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)?;
            }
        }
        Ok(true)
    }

    /// A stream that takes part in a capture was destroyed: without its first stream a capture is
    /// over, without another it is spoiled.
    pub(crate) fn leave_capture(&mut self, id: usize, stream: usize) {
        let Some(capture) = self.captures.get_mut(&id) else { return };
        capture.spoiled = true;
        if capture.branches.first().is_some_and(|branch| branch.stream == stream) {
            self.end_capture(id);
        }
    }

    fn end_capture(&mut self, id: usize) -> Option<Capture> {
        let capture = self.captures.remove(&id)?;
        for branch in &capture.branches {
            if let Some(stream) = self.streams.get_mut(&branch.stream) {
                stream.capture = None;
            }
        }
        Some(capture)
    }
}

pub(crate) fn begin(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    mode: CUstreamCaptureMode,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    if mode.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let context = state.streams[&handle].context;
    if state.contexts[&context].legacy == handle {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if state.streams[&handle].capture.is_some() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    let (seen, last) = (VectorClock::default(), Vec::new());
    let branch = Branch { stream: handle, tick: 0, seen, last };
    let capture = Capture {
        thread: thread(),
        mode,
        spoiled: false,
        nodes: Vec::new(),
        branches: vec![branch],
    };
    let id = handle::next();
    state.captures.insert(id, capture);
    if let Some(stream) = state.streams.get_mut(&handle) {
        stream.capture = Some(id);
    }
    Ok(())
}

pub(crate) fn end(driver: &Driver, stream: Ptr<CUstream_st>, out: Ptr<*mut CUgraph_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    out.write(std::ptr::null_mut())?;
    let id = state.streams[&handle].capture.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let capture = state.captures.get(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let origin = capture.branches.first();
    if origin.is_none_or(|origin| origin.stream != handle) {
        let _ = state.spoil_captures(&[id]);
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if capture.thread != thread()
        && capture.mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
    {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let seen = |index: u32| origin.map_or(0, |origin| origin.seen.get(index));
    let joined = (0..).zip(&capture.branches).all(|(index, branch)| seen(index) >= branch.tick);
    let status = if capture.spoiled {
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    } else if joined {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    };
    let ended = state.end_capture(id);
    status?;
    let graph = handle::next();
    let nodes = ended.map_or_else(Vec::new, |capture| capture.nodes);
    state.graphs.insert(graph, Graph { nodes });
    out.write(handle::pointer(graph))
}

/// Sets what captures may forbid the calling thread, and tells what it was.
pub(crate) fn exchange_mode(driver: &Driver, mode: Ptr<CUstreamCaptureMode>) -> Answer {
    let wanted = mode.read()?;
    if wanted.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut state = driver.state();
    let former = std::mem::replace(&mut state.thread().capture_mode, wanted.0);
    mode.write(CUstreamCaptureMode(former))
}

pub(crate) fn is_capturing(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    out: Ptr<CUstreamCaptureStatus>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    let capture = state.streams[&handle].capture.and_then(|id| state.captures.get(&id));
    out.write(match capture {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(capture) if capture.spoiled => {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED
        }
        Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
    })
}

/// The form of 10.1: whether a stream is capturing, and into which capture.
pub(crate) fn get_info(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    status: Ptr<CUstreamCaptureStatus>,
    id_out: Ptr<u64>,
) -> Answer {
    is_capturing(driver, stream, status)?;
    let mut state = driver.peek();
    let handle = state.stream(stream.address())?;
    if let Some(id) = state.streams[&handle].capture {
        id_out.write_if_given(id as u64);
    }
    Ok(())
}

/// The form of 11.3. The graph that a capture makes is not there before the capture ends, so that
/// who asks for it or its nodes meanwhile is refused.
pub(crate) fn get_info_v2(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    status: Ptr<CUstreamCaptureStatus>,
    id_out: Ptr<u64>,
    graph: Ptr<*mut CUgraph_st>,
    dependencies: Ptr<*const CUgraphNode>,
    count: Ptr<usize>,
) -> Answer {
    get_info(driver, stream, status, id_out)?;
    let mut state = driver.peek();
    let handle = state.stream(stream.address())?;
    let asked = !(graph.is_null() && dependencies.is_null() && count.is_null());
    if asked && state.streams[&handle].capture.is_some() {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(())
}

/// The form of 12.3, with data of the edges.
#[expect(clippy::too_many_arguments, reason = "the C function has them")]
pub(crate) fn get_info_v3(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    status: Ptr<CUstreamCaptureStatus>,
    id_out: Ptr<u64>,
    graph: Ptr<*mut CUgraph_st>,
    dependencies: Ptr<*const CUgraphNode>,
    _edges: Ptr<*const CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    get_info_v2(driver, stream, status, id_out, graph, dependencies, count)
}

pub(crate) fn graph_create(driver: &Driver, out: Ptr<*mut CUgraph_st>, flags: u32) -> Answer {
    let mut state = driver.state();
    out.given()?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let graph = handle::next();
    state.graphs.insert(graph, Graph { nodes: Vec::new() });
    out.write(handle::pointer(graph))
}

pub(crate) fn graph_destroy(driver: &Driver, graph: Ptr<CUgraph_st>) -> Answer {
    let removed = driver.state().graphs.remove(&graph.address());
    removed.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}
