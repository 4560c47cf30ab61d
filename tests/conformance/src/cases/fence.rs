//! Coverage of recording and waiting on a whole context: its default stream, streams of every kind, their
//! waits, and streams that are being captured.

use green_ctx_sys::{CUcontext, CUevent, CUgreenCtx, CUresult, CUstream, CUstreamCaptureMode};

use super::Case;
use super::lifetime::Sent;
use crate::answer::{Answer, Failure, Outcome};
use crate::calls::Calls;
use crate::gpu::{Gpu, LONG, SHORT, token};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Default, Kind::Blocking, Kind::NonBlocking, Kind::Green] {
        for handle in Handle::ALL {
            cases.push(record_covers(handle, kind));
        }
        cases.push(synchronize_covers(kind));
    }
    for kind in [Kind::Default, Kind::Blocking, Kind::NonBlocking, Kind::Green] {
        cases.extend(Handle::ALL.map(|handle| wait_holds(handle, kind)));
    }
    for waiting in [Waiting::Default, Waiting::Green, Waiting::Destroyed, Waiting::Context] {
        cases.extend(Handle::ALL.map(|handle| record_covers_a_wait(handle, waiting)));
        cases.push(synchronize_covers_a_wait(waiting));
    }
    for (name, call) in CALLS {
        for (mode, mode_name) in MODES {
            for handle in Handle::ALL {
                let name = format!("{}-{name}-while-capturing-{mode_name}", handle.name());
                let call = move |gpu: &Gpu, side: &Side, event| call(handle, gpu, side, event);
                cases.push(while_capturing(name, Captures::Own, mode, call));
            }
            let name = format!("green-{name}-while-the-primary-captures-{mode_name}");
            let call = move |gpu: &Gpu, side: &Side, event| call(Handle::Green, gpu, side, event);
            cases.push(while_capturing(name, Captures::Primary, mode, call));
        }
        let (mode, _) = MODES[0];
        let relaxed = move |gpu: &Gpu, side: &Side, event| {
            let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            gpu.cuThreadExchangeStreamCaptureMode(relaxed)?.must()?;
            call(Handle::Green, gpu, side, event)
        };
        let full = format!("green-{name}-while-capturing-global-on-a-relaxed-thread");
        cases.push(while_capturing(full, Captures::Own, mode, relaxed));
        let elsewhere = move |gpu: &Gpu, side: &Side, event| {
            on_another_thread(gpu, side, event, |calls, side, event| {
                call(Handle::Green, calls, side, event)
            })
        };
        let full = format!("green-{name}-while-another-thread-captures");
        let (mode, _) = MODES[1];
        cases.push(while_capturing(full, Captures::Own, mode, elsewhere));
    }
    cases.extend(MODES.map(|(mode, name)| wait_for_a_captured_event(mode, name)));
    cases
}

type Status = Result<CUresult, Failure>;

/// A call with a context and an event.
type Call = fn(Handle, &Calls, &Side, CUevent) -> Status;

const CALLS: [(&str, Call); 2] = [("record", Handle::record), ("wait", Handle::wait)];

const MODES: [(CUstreamCaptureMode, &str); 3] = [
    (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, "global"),
    (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local"),
    (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, "relaxed"),
];

/// The function that is called, and its context: the green context, the context derived from it, or the primary
/// context, which also covers its green contexts (cuda.h, `cuCtxRecordEvent`).
#[derive(Clone, Copy)]
enum Handle {
    Green,
    Derived,
    Primary,
}

impl Handle {
    const ALL: [Handle; 3] = [Handle::Green, Handle::Derived, Handle::Primary];

    fn name(self) -> &'static str {
        match self {
            Handle::Green => "green",
            Handle::Derived => "derived",
            Handle::Primary => "primary",
        }
    }

    fn record(self, calls: &Calls, side: &Side, event: CUevent) -> Status {
        Ok(match self {
            Handle::Green => calls.cuGreenCtxRecordEvent(side.green, event)?,
            Handle::Derived => calls.cuCtxRecordEvent(side.context, event)?,
            Handle::Primary => calls.cuCtxRecordEvent(side.primary, event)?,
        }
        .status)
    }

    fn wait(self, calls: &Calls, side: &Side, event: CUevent) -> Status {
        Ok(match self {
            Handle::Green => calls.cuGreenCtxWaitEvent(side.green, event)?,
            Handle::Derived => calls.cuCtxWaitEvent(side.context, event)?,
            Handle::Primary => calls.cuCtxWaitEvent(side.primary, event)?,
        }
        .status)
    }
}

/// A stream of a green context, by the way it was created.
#[derive(Clone, Copy)]
enum Kind {
    /// `CU_STREAM_LEGACY` while the context is current.
    Default,
    /// `cuStreamCreate` while the context is current.
    Blocking,
    NonBlocking,
    /// `cuGreenCtxStreamCreate`.
    Green,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Default => "the-default-stream",
            Kind::Blocking => "a-blocking-stream",
            Kind::NonBlocking => "a-non-blocking-stream",
            Kind::Green => "a-green-stream",
        }
    }
}

/// A green context with one stream, and memory for a probe of one block.
struct Side {
    green: CUgreenCtx,
    context: CUcontext,
    primary: CUcontext,
    stream: CUstream,
    memory: u64,
}

impl Side {
    fn new(gpu: &Gpu, green: CUgreenCtx, kind: Kind) -> Result<Side, Failure> {
        let (context, memory) = (gpu.context_of(green)?, gpu.probe_memory(1)?);
        gpu.push(context)?;
        let stream = match kind {
            Kind::Default => token(1),
            Kind::Blocking => gpu.cuStreamCreate(0)?.must()?,
            Kind::NonBlocking => gpu.stream()?,
            Kind::Green => gpu.stream_of(green)?,
        };
        // The first launch loads the kernel, which may wait for the device.
        gpu.sms_of(stream)?;
        gpu.pop()?;
        Ok(Side { green, context, primary: gpu.primary()?, stream, memory })
    }

    /// Creates a busy context and a waiting one, on separate SMs.
    fn pair(gpu: &Gpu, waiting: Kind) -> Result<[Side; 2], Failure> {
        let split = gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?;
        let greens = [gpu.green(&split.groups[..1])?, gpu.green(&split.groups[1..2])?];
        Ok([Side::new(gpu, greens[0], Kind::Green)?, Side::new(gpu, greens[1], waiting)?])
    }

    /// Calls a function while the context is current, which its default stream requires.
    fn current<T>(
        &self,
        gpu: &Gpu,
        call: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        gpu.push(self.context)?;
        let done = call()?;
        gpu.pop()?;
        Ok(done)
    }

    /// Launches a probe that runs for [`LONG`].
    fn start(&self, gpu: &Gpu) -> Status {
        self.current(gpu, || gpu.launch_probe(self.stream, 1, self.memory, LONG))
    }

    fn is_complete(&self, gpu: &Gpu) -> Result<bool, Failure> {
        gpu.probe_is_complete(self.memory, 1)
    }
}

/// Does an event of the whole context wait for work in one of its streams?
fn record_covers(handle: Handle, kind: Kind) -> Case {
    let name = format!("fence/{}-record-covers-{}", handle.name(), kind.name());
    Case::new(name, move |gpu, answer| {
        let (side, event) = (Side::new(gpu, gpu.green_with(32)?, kind)?, gpu.event()?);
        answer.add("launch", side.start(gpu)?);
        answer.add("record", handle.record(gpu, &side, event)?);
        answer.add("query", gpu.cuEventQuery(event)?);
        answer.add("event_synchronize", gpu.cuEventSynchronize(event)?);
        answer.add("complete", side.is_complete(gpu)?);
        finish(gpu)
    })
}

/// Does `cuCtxSynchronize` wait for work in one of the context's streams?
fn synchronize_covers(kind: Kind) -> Case {
    Case::new(format!("fence/synchronize-covers-{}", kind.name()), move |gpu, answer| {
        let side = Side::new(gpu, gpu.green_with(32)?, kind)?;
        answer.add("launch", side.start(gpu)?);
        answer.add("synchronize", side.current(gpu, || Ok(gpu.cuCtxSynchronize()?))?);
        answer.add("complete", side.is_complete(gpu)?);
        finish(gpu)
    })
}

/// Does work in one of a context's streams start only after an event that the whole context waits for?
fn wait_holds(handle: Handle, kind: Kind) -> Case {
    let name = format!("fence/{}-wait-holds-{}", handle.name(), kind.name());
    Case::new(name, move |gpu, answer| {
        let [busy, waiting] = Side::pair(gpu, kind)?;
        let event = gpu.event()?;
        answer.add("launch_busy", busy.start(gpu)?);
        answer.add("record_busy", gpu.cuEventRecord(event, busy.stream)?);
        answer.add("wait", handle.wait(gpu, &waiting, event)?);
        waiting.current(gpu, || {
            let launch = gpu.launch_probe(waiting.stream, 1, waiting.memory, SHORT)?;
            answer.add("launch", launch);
            answer.add("synchronize", gpu.cuStreamSynchronize(waiting.stream)?);
            Ok(())
        })?;
        // Wait until both have written their times, whichever was first.
        finish(gpu)?;
        gpu.cuEventSynchronize(event)?.must()?;
        let (before, after) = (gpu.probed_span(busy.memory)?, gpu.probed_span(waiting.memory)?);
        answer.add("both_ran", before.1 != 0 && after.1 != 0);
        answer.add("begins_after_the_event", before.1 <= after.0);
        Ok(())
    })
}

/// The part of a context that waits for an event of another context, without its own work.
#[derive(Clone, Copy)]
enum Waiting {
    Default,
    Green,
    /// A stream that is destroyed after it was made to wait.
    Destroyed,
    /// All streams of the context, through a wait of the whole context.
    Context,
}

impl Waiting {
    fn name(self) -> &'static str {
        match self {
            Waiting::Default => "the-default-stream",
            Waiting::Green => "a-green-stream",
            Waiting::Destroyed => "a-destroyed-stream",
            Waiting::Context => "the-context",
        }
    }

    /// Makes one context busy and the other wait for it. Returns both and the event in between.
    fn start(self, gpu: &Gpu, answer: &mut Answer<'_>) -> Result<([Side; 2], CUevent), Failure> {
        let kind = match self {
            Waiting::Default => Kind::Default,
            _ => Kind::Green,
        };
        let [busy, waiting] = Side::pair(gpu, kind)?;
        let event = gpu.event()?;
        answer.add("launch", busy.start(gpu)?);
        answer.add("record_busy", gpu.cuEventRecord(event, busy.stream)?);
        let wait = match self {
            Waiting::Context => gpu.cuGreenCtxWaitEvent(waiting.green, event)?,
            _ => waiting.current(gpu, || Ok(gpu.cuStreamWaitEvent(waiting.stream, event, 0)?))?,
        };
        answer.add("wait", wait);
        if matches!(self, Waiting::Destroyed) {
            answer.add("stream_destroy", gpu.cuStreamDestroy(waiting.stream)?);
        }
        Ok(([busy, waiting], event))
    }
}

/// Does an event of the whole context wait until its streams' waits are over?
fn record_covers_a_wait(handle: Handle, waiting: Waiting) -> Case {
    let name = format!("fence/{}-record-covers-a-wait-of-{}", handle.name(), waiting.name());
    Case::new(name, move |gpu, answer| {
        let event = gpu.event()?;
        let ([busy, side], _) = waiting.start(gpu, answer)?;
        answer.add("record", handle.record(gpu, &side, event)?);
        answer.add("query", gpu.cuEventQuery(event)?);
        answer.add("event_synchronize", gpu.cuEventSynchronize(event)?);
        answer.add("busy_complete", busy.is_complete(gpu)?);
        finish(gpu)
    })
}

/// Does `cuCtxSynchronize` wait until the waits of the context's streams are over?
fn synchronize_covers_a_wait(waiting: Waiting) -> Case {
    let name = format!("fence/synchronize-covers-a-wait-of-{}", waiting.name());
    Case::new(name, move |gpu, answer| {
        let ([busy, side], event) = waiting.start(gpu, answer)?;
        answer.add("synchronize", side.current(gpu, || Ok(gpu.cuCtxSynchronize()?))?);
        answer.add("event_query", gpu.cuEventQuery(event)?);
        answer.add("busy_complete", busy.is_complete(gpu)?);
        finish(gpu)
    })
}

/// Waits for the whole device, so that the next case finds it idle.
fn finish(gpu: &Gpu) -> Outcome {
    gpu.cuCtxSynchronize()?.must()
}

/// The owner of the captured stream.
#[derive(Clone, Copy)]
enum Captures {
    /// The green context.
    Own,
    /// The primary context.
    Primary,
}

/// Makes a call during a capture: its status, and the state of the capture afterwards.
fn while_capturing(
    name: String,
    captures: Captures,
    mode: CUstreamCaptureMode,
    call: impl Fn(&Gpu, &Side, CUevent) -> Status + 'static,
) -> Case {
    Case::new(format!("fence/{name}"), move |gpu, answer| {
        let side = Side::new(gpu, gpu.green_with(32)?, Kind::Green)?;
        let captured = match captures {
            Captures::Own => side.stream,
            Captures::Primary => gpu.stream()?,
        };
        let (event, other) = (gpu.event()?, gpu.stream_of(side.green)?);
        gpu.cuEventRecord(event, other)?.must()?;
        gpu.cuStreamSynchronize(other)?.must()?;
        answer.add("begin", gpu.cuStreamBeginCapture(captured, mode)?);
        answer.add("call", call(gpu, &side, event)?);
        capture_after(gpu, answer, captured)
    })
    .alone()
}

/// Makes a green context wait for an event that another context's stream recorded in its capture.
fn wait_for_a_captured_event(mode: CUstreamCaptureMode, name: &str) -> Case {
    Case::new(format!("fence/green-wait-for-a-captured-event-{name}"), move |gpu, answer| {
        let [captures, waiting] = Side::pair(gpu, Kind::Green)?;
        let event = gpu.event()?;
        answer.add("begin", gpu.cuStreamBeginCapture(captures.stream, mode)?);
        answer.add("record", gpu.cuEventRecord(event, captures.stream)?);
        answer.add("call", gpu.cuGreenCtxWaitEvent(waiting.green, event)?);
        answer.add("waiting_capture", gpu.cuStreamIsCapturing(waiting.stream)?.out.to_string());
        capture_after(gpu, answer, captures.stream)
    })
    .alone()
}

/// Adds whether a stream is still being captured, and how its capture ends.
fn capture_after(gpu: &Gpu, answer: &mut Answer<'_>, captured: CUstream) -> Outcome {
    let capture = gpu.cuStreamIsCapturing(captured)?;
    answer.add("is_capturing", capture);
    answer.add("capture", capture.out.to_string());
    let end = gpu.cuStreamEndCapture(captured)?;
    answer.add("end", end);
    answer.add("no_graph", end.out.is_null());
    Ok(())
}

/// Makes a call on a thread that has no context and has begun no capture.
fn on_another_thread(
    gpu: &Gpu,
    side: &Side,
    event: CUevent,
    call: impl FnOnce(&Calls, &Side, CUevent) -> Status + Send,
) -> Status {
    let (calls, sent): (&Calls, _) = (gpu, Sent((side, event)));
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let Sent((side, event)) = { sent };
            call(calls, side, event)
        });
        thread.join().unwrap_or_else(|_| Err(Failure::Other("the thread panicked".to_owned())))
    })
}
