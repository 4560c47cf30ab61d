//! The order between the default stream and the streams that wait for it.
//!
//! Work on the default stream waits for all earlier work of blocking streams, which `cudaStreamCreate` makes, and they
//! for its earlier work. In a green context all created streams are non-blocking (measured on driver 580.159.04), and
//! the rest is one. So the library makes the order: before work on one of the two sides, it has that side wait for the
//! other's work, with an event. Streams that were destroyed are kept, and given out again when their work is done, so
//! that no thread uses the handle of one that another thread destroys.

use core::ffi::{CStr, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use core::{mem, ptr};

use super::*;

type P = *mut c_void;

/// The default stream of the current context, whatever a program's null stream means.
const LEGACY: Handle = ptr::without_provenance_mut(1);
const RELAXED: c_int = 2;

/// A stream that a program created as a blocking one.
struct Blocking {
    stream: Handle,
    priority: c_int,
    rest: &'static Rest,
    /// Whether the program has not destroyed the stream.
    used: AtomicBool,
    /// How many times work or a capture was put on the stream, and how many of these the default stream waits for.
    works: AtomicUsize,
    waited: AtomicUsize,
    /// How much work on the default stream this stream waits for.
    waits: AtomicUsize,
}

static STREAMS: [Published<Blocking>; 1024] = [const { Published::NONE }; 1024];
/// The streams on which a capture has begun, and not joined them from another one.
static CAPTURED: [AtomicPtr<c_void>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];
/// How many threads make a call that would end a capture.
static BETWEEN_CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// How many times work was put on a default stream.
static DEFAULT_WORKS: AtomicUsize = AtomicUsize::new(1);

impl Blocking {
    /// Returns whether a reset of its device has destroyed the stream.
    fn has_ended(&self) -> bool {
        self.rest.ended.load(Acquire)
    }

    /// Returns whether all work of the stream is done.
    fn is_done(&self, real: &Real) -> bool {
        // SAFETY: the stream is never destroyed.
        relaxed(real, || unsafe { (real.query)(self.stream) }) == SUCCESS
    }
}

/// Returns the blocking streams of devices that were not reset since.
fn streams() -> impl Iterator<Item = &'static Blocking> {
    STREAMS.iter().map_while(Published::get).filter(|known| !known.has_ended())
}

/// Returns the blocking stream that a handle means.
fn blocking(stream: Handle) -> Option<&'static Blocking> {
    streams().find(|known| known.stream == stream)
}

/// Makes a call that ends captures of the program unless the thread's mode allows it.
pub(super) fn relaxed(real: &Real, call: impl FnOnce() -> Status) -> Status {
    let mut mode = RELAXED;
    // SAFETY: `mode` is a live local.
    unsafe {
        (real.exchange_mode)(&raw mut mode);
        let status = call();
        (real.exchange_mode)(&raw mut mode);
        status
    }
}

/// Returns whether a stream is being captured. The stream must not be destroyed during the call.
fn is_capturing(real: &Real, stream: Handle) -> Result<bool, Failed> {
    let mut capture = 0;
    // SAFETY: `capture` is a live local.
    let status = unsafe { (real.is_capturing)(stream, &raw mut capture) };
    check(c"cuStreamIsCapturing", status).map(|()| capture != 0)
}

/// Creates a blocking stream, or gives out one that was destroyed.
pub(super) fn create(real: &Real, rest: &'static Rest, priority: c_int) -> Result<Handle, Failed> {
    let same = |known: &&Blocking| ptr::eq(known.rest, rest) && known.priority == priority;
    // The query of a stream that is being captured would end the capture.
    let is_free = |known: &&Blocking| {
        !known.used.load(Relaxed)
            && is_capturing(real, known.stream) == Ok(false)
            && known.is_done(real)
    };
    let free = streams().filter(same).filter(is_free).find(|known| !known.used.swap(true, AcqRel));
    if let Some(known) = free {
        return Ok(known.stream);
    }
    let mut stream = ptr::null_mut();
    // SAFETY: `stream` is a live local.
    let created = unsafe { (real.create_stream)(&raw mut stream, NON_BLOCKING, priority) };
    check(c"cuStreamCreate", created)?;
    // A place is free if it had no stream, or one that the reset of a device has destroyed.
    for place in &STREAMS {
        let known = place.get();
        let (works, waited, waits) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let used = AtomicBool::new(true);
        let new = Blocking { stream, priority, rest, used, works, waited, waits };
        if known.is_none_or(Blocking::has_ended) && place.replace(known, new) == Ok(true) {
            return Ok(stream);
        }
    }
    // SAFETY: the stream was created above.
    unsafe { (real.destroy_stream)(stream) };
    Err((
        c"no memory, or more than 1024 streams that wait for the default stream, so cuStreamCreate",
        OUT_OF_MEMORY,
    ))
}

/// Destroys a stream. A blocking one is kept.
pub(super) fn destroy(real: &Real, stream: Handle, destroy: OnHandle) -> Status {
    let Some(known) = blocking(stream) else {
        let was_captured = is_captured(stream);
        // SAFETY: by the contract of the driver's function, whose caller this serves.
        let status = unsafe { destroy(stream) };
        // After the call, because it is what ends the capture. A new stream may have the same handle, and an entry of its own.
        if was_captured && status == SUCCESS {
            replace_captured(stream, ptr::null_mut());
        }
        return status;
    };
    if is_captured(stream) && is_capturing(real, stream) != Ok(false) {
        let mut graph = ptr::null_mut();
        // The driver ends the capture of a stream that is destroyed.
        // SAFETY: `graph` is a live local, and the captured graph, if there is one, has no other owner.
        let ended = unsafe {
            let ended = cuStreamEndCapture(stream, &raw mut graph);
            if !graph.is_null() {
                (real.destroy_graph)(graph);
            }
            ended
        };
        if is_captured(stream) {
            return ended;
        }
    }
    // Work that was put on it still comes before that on the default stream.
    if known.used.swap(false, AcqRel) { SUCCESS } else { INVALID_HANDLE }
}

/// Returns a stream that is to be captured. A green context's default stream can be captured, and the primary context's
/// cannot (measured on driver 580.159.04).
fn capturable(stream: Handle, per_thread: bool) -> Result<Handle, Failed> {
    if is_legacy(stream, per_thread) && current()?.is_some() {
        return Err((c"cuStreamBeginCapture", CAPTURE_UNSUPPORTED));
    }
    if !is_capturing(real()?, stream)? && !replace_captured(ptr::null_mut(), stream) {
        return Err((c"more than 256 captures, so cuStreamBeginCapture", OUT_OF_MEMORY));
    }
    // A forked child, in which the number may stay, does not come here: the driver's call above fails there.
    while BETWEEN_CAPTURES.load(SeqCst) > 0 {
        core::hint::spin_loop();
    }
    Ok(stream)
}

/// Replaces a stream among the captured ones, if it is there.
fn replace_captured(stream: Handle, by: Handle) -> bool {
    CAPTURED.iter().any(|place| place.compare_exchange(stream, by, SeqCst, SeqCst).is_ok())
}

fn is_captured(stream: Handle) -> bool {
    CAPTURED.iter().any(|place| place.load(Acquire) == stream)
}

/// Makes a short call that would end captures, unless a stream is being captured. Meanwhile, no capture begins.
pub(super) fn between_captures(call: impl FnOnce() -> Status) -> Status {
    BETWEEN_CAPTURES.fetch_add(1, SeqCst);
    let is_any = CAPTURED.iter().any(|place| !place.load(SeqCst).is_null());
    let status = if is_any { SUCCESS } else { call() };
    BETWEEN_CAPTURES.fetch_sub(1, SeqCst);
    status
}

/// Notes that the reset of a device has ended its captures.
pub(super) fn forget_captures() {
    CAPTURED.iter().for_each(|place| place.store(ptr::null_mut(), SeqCst));
}

/// Notes that a call may have ended a capture, or has not begun it.
pub(super) fn capture_may_have_ended(real: &Real, stream: Handle) {
    if is_captured(stream) && is_capturing(real, stream) != Ok(true) {
        replace_captured(stream, ptr::null_mut());
    }
}

fn is_legacy(stream: Handle, per_thread: bool) -> bool {
    stream == LEGACY || (stream.is_null() && !per_thread)
}

/// Has a stream wait for what must come before its next work. Returns the number of works on its side of the order, if
/// it is on one, for the caller to count this work.
#[inline(never)]
fn before(stream: Handle, per_thread: bool) -> Result<Option<&'static AtomicUsize>, Failed> {
    let is_default = is_legacy(stream, per_thread);
    // Work counts before its call too, because it may have begun, and have been noticed, before the call returns. And work
    // on the default stream counts before there is a blocking stream, because one may be created during the call.
    if is_default {
        DEFAULT_WORKS.fetch_add(1, AcqRel);
    }
    if STREAMS[0].get().is_none() {
        return Ok(is_default.then_some(&DEFAULT_WORKS));
    }
    let real = real()?;
    if let Some(known) = blocking(stream) {
        let works = DEFAULT_WORKS.load(Acquire);
        if known.waits.load(Acquire) != works && !is_capturing(real, stream)? {
            let order = || order(real, LEGACY, stream);
            within(real, known.rest.context, order)??;
            known.waits.store(works, Release);
        }
        known.works.fetch_add(1, AcqRel);
        return Ok(Some(&known.works));
    }
    let Some(rest) = (if is_default { current()? } else { None }) else { return Ok(None) };
    for known in streams().filter(|known| ptr::eq(known.rest, rest)) {
        let works = known.works.load(Acquire);
        if known.waited.load(Acquire) == works {
            continue;
        }
        if is_capturing(real, known.stream)? {
            let call = c"the default stream would wait for a capture, so the call";
            return Err((call, CAPTURE_IMPLICIT));
        }
        order(real, known.stream, LEGACY)?;
        known.waited.fetch_max(works, AcqRel);
    }
    Ok(Some(&DEFAULT_WORKS))
}

/// Has the default stream of the current context wait for the work of a blocking stream, or the reverse.
fn order(real: &Real, first: Handle, then: Handle) -> Result<(), Failed> {
    // SAFETY: the streams exist until the device is reset, and the event is alive.
    let record = |event| unsafe { (real.record_event)(event, first) };
    with_event(real, record, |event| unsafe { (real.wait_event)(then, event, 0) })
}

/// Records an event of its own, and waits for it.
pub(super) fn with_event(
    real: &Real,
    record: impl FnOnce(Handle) -> Status,
    wait: impl FnOnce(Handle) -> Status,
) -> Result<(), Failed> {
    let mut event = ptr::null_mut();
    // SAFETY: `event` is a live local. The driver keeps an event that is destroyed until its work is done.
    unsafe {
        check(c"cuEventCreate", (real.create_event)(&raw mut event, WITHOUT_TIME))?;
        let recorded = check(c"cuEventRecord", record(event));
        let waited = recorded.and_then(|()| check(c"cuStreamWaitEvent", wait(event)));
        (real.destroy_event)(event);
        waited
    }
}

/// The stream of a `CUlaunchConfig`, which is after seven numbers.
///
/// # Safety
///
/// The pointer must be null or to a `CUlaunchConfig`.
unsafe fn config_stream(config: P) -> Handle {
    // SAFETY: by this function's contract.
    if config.is_null() { ptr::null_mut() } else { unsafe { *config.cast::<Handle>().add(4) } }
}

/// Returns a function of the real driver, and keeps it.
#[inline(never)]
pub(super) fn real_function(
    kept: &AtomicPtr<c_void>,
    name: &CStr,
    version: c_int,
    per_thread: bool,
) -> Result<Handle, Failed> {
    let mut found = kept.load(Acquire);
    if found.is_null() {
        // The flags are CU_GET_PROC_ADDRESS_LEGACY_STREAM and _PER_THREAD_DEFAULT_STREAM.
        let (entry, flags) = (started()?.entry, 1 + u64::from(per_thread));
        found = look_up(entry, name, version, flags).ok_or((c"cuGetProcAddress", NOT_FOUND))?;
        kept.store(found, Release);
    }
    Ok(found)
}

/// Defines the functions that put work on a stream.
macro_rules! ordered {
    ($($export:ident: $name:literal $from:literal..$to:literal $per_thread:literal {$stream:expr} ($($argument:ident: $kind:ty),*);)*) => {
        functions! { real; $(
            $name $from..$to $per_thread = $export: ($($argument: $kind),*) {
                static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
                let stream = $stream;
                let works = before(stream, $per_thread).inspect_err(|_| capture_may_have_ended(real, stream))?;
                let found = real_function(&KEPT, $name, $from, $per_thread)?;
                // The driver's function of this name and version has this signature (cuda.h).
                let call = mem::transmute::<Handle, unsafe extern "C" fn($($kind),*) -> Status>(found);
                let status = call($($argument),*);
                if status != SUCCESS {
                    capture_may_have_ended(real, stream);
                }
                if let Some(works) = works {
                    works.fetch_add(1, AcqRel);
                }
                Ok(status)
            }
        )* }
    };
}

include!("ordered.rs");
