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
#[allow(non_camel_case_types)]
type cuuint32_t = u32;
#[allow(non_camel_case_types)]
type cuuint64_t = u64;

/// The default stream of the current context, whatever a program's null stream means.
pub(super) const LEGACY: Handle = ptr::without_provenance_mut(1);
const WITHOUT_TIME: c_uint = 2;
const RELAXED: c_int = 2;

/// A stream that a program created as a blocking one.
struct Blocking {
    stream: Handle,
    priority: c_int,
    rest: &'static Rest,
    /// Whether the program has not destroyed the stream, and whether its device was reset.
    used: AtomicBool,
    ended: AtomicBool,
    /// Whether a capture of the stream has begun. It may have ended since.
    captured: AtomicBool,
    /// Records the stream for the default stream, and the default stream for this one.
    event: Handle,
    of_default: Handle,
    /// How many times work was put on the stream, and how many of these the default stream waits for.
    works: AtomicUsize,
    waited: AtomicUsize,
    /// How much work on the default stream this stream waits for.
    waits: AtomicUsize,
}

static STREAMS: [Published<Blocking>; 1024] = [const { Published::NONE }; 1024];
/// How many times work was put on a default stream.
static DEFAULT_WORKS: AtomicUsize = AtomicUsize::new(1);

impl Blocking {
    fn is_capturing(&self, real: &Real) -> bool {
        let mut status = 0;
        // SAFETY: the stream is never destroyed, and `status` is a live local.
        unsafe { (real.is_capturing)(self.stream, &raw mut status) != SUCCESS || status != 0 }
    }

    /// Returns whether all work of the stream is done.
    fn is_done(&self, real: &Real) -> bool {
        let mut mode = RELAXED;
        // A query ends captures of the program, unless the thread's mode allows it.
        // SAFETY: the stream is never destroyed, and `mode` is a live local.
        unsafe {
            (real.exchange_mode)(&raw mut mode);
            let status = (real.query)(self.stream);
            (real.exchange_mode)(&raw mut mode);
            status == SUCCESS
        }
    }

    /// Has the default stream of the current context wait for the work of this stream, or the reverse.
    fn order(&self, real: &Real, event: Handle, first: Handle, then: Handle) -> Result<(), Failed> {
        // SAFETY: the streams are this one and the default one. Both, and the event, exist until the device is reset.
        unsafe {
            check("cuEventRecord", (real.record_event)(event, first))?;
            check("cuStreamWaitEvent", (real.wait_event)(then, event, 0))
        }
    }
}

/// Returns the blocking streams of devices that were not reset since.
fn streams() -> impl Iterator<Item = &'static Blocking> {
    STREAMS.iter().map_while(Published::get).filter(|known| !known.ended.load(Acquire))
}

/// Returns the blocking stream that a handle means.
fn blocking(stream: Handle) -> Option<&'static Blocking> {
    streams().find(|known| known.stream == stream)
}

/// Creates a blocking stream, or gives out one that was destroyed.
pub(super) fn create(real: &Real, rest: &'static Rest, priority: c_int) -> Result<Handle, Failed> {
    let same = |known: &&Blocking| ptr::eq(known.rest, rest) && known.priority == priority;
    let is_free = |known: &&Blocking| !known.used.load(Relaxed) && known.is_done(real);
    for known in streams().filter(same).filter(is_free) {
        if known.used.compare_exchange(false, true, AcqRel, Relaxed).is_ok() {
            return Ok(known.stream);
        }
    }
    let (mut stream, mut event, mut of_default) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the pointers are to live locals.
    unsafe {
        check("cuStreamCreate", (real.create_stream)(&raw mut stream, NON_BLOCKING, priority))?;
        let created = check("cuEventCreate", (real.create_event)(&raw mut event, WITHOUT_TIME))
            .and_then(|()| {
                let second =
                    check("cuEventCreate", (real.create_event)(&raw mut of_default, WITHOUT_TIME));
                second.inspect_err(|_| _ = (real.destroy_event)(event))
            });
        created.inspect_err(|_| _ = (real.destroy_stream)(stream))?;
    }
    let made = || Blocking {
        stream,
        priority,
        rest,
        used: AtomicBool::new(true),
        ended: AtomicBool::new(false),
        captured: AtomicBool::new(false),
        event,
        of_default,
        works: AtomicUsize::new(0),
        waited: AtomicUsize::new(0),
        waits: AtomicUsize::new(0),
    };
    // A place is free if it had no stream, or one that the reset of a device has destroyed.
    let is_ended = |known: &Blocking| known.ended.load(Acquire);
    for place in STREAMS.iter().filter(|place| place.get().is_none_or(is_ended)) {
        if place.replace(place.get().filter(|known| is_ended(known)), made())? {
            return Ok(stream);
        }
    }
    // SAFETY: they were created above.
    unsafe {
        (real.destroy_event)(event);
        (real.destroy_event)(of_default);
        (real.destroy_stream)(stream);
    }
    Err((
        "more than 1024 streams that wait for the default stream, so cuStreamCreate",
        OUT_OF_MEMORY,
    ))
}

/// Destroys a stream, with the driver's function if it is not a blocking one.
pub(super) fn destroy(
    real: &Real,
    stream: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
) -> Status {
    let Some(known) = blocking(stream) else {
        // SAFETY: as for the driver's function.
        return unsafe { destroy(stream) };
    };
    if known.captured.swap(false, AcqRel) && known.is_capturing(real) {
        let mut graph = ptr::null_mut();
        // The driver ends the capture of a stream that is destroyed.
        // SAFETY: `graph` is a live local, and the captured graph, if there is one, has no other owner.
        unsafe {
            (real.end_capture)(stream, &raw mut graph);
            if !graph.is_null() {
                (real.destroy_graph)(graph);
            }
        }
    }
    // Work that was put on it still comes before that on the default stream.
    if known.used.swap(false, AcqRel) { SUCCESS } else { INVALID_HANDLE }
}

/// Notes that a capture of a stream begins.
pub(super) fn capture_begins(stream: Handle) {
    if let Some(known) = blocking(stream) {
        known.captured.store(true, Release);
    }
}

/// Forgets the streams of a rest, which the reset of a device destroys.
pub(super) fn end(rest: &Rest) {
    for known in streams().filter(|known| ptr::eq(known.rest, rest)) {
        known.ended.store(true, Release);
    }
}

/// Returns whether a handle means the default stream of a rest that is current.
pub(super) fn is_default(
    stream: Handle,
    per_thread: bool,
) -> Result<Option<&'static Rest>, Failed> {
    if is_legacy(stream, per_thread) { current() } else { Ok(None) }
}

fn is_legacy(stream: Handle, per_thread: bool) -> bool {
    stream == LEGACY || (stream.is_null() && !per_thread)
}

/// The side of the order that work is on.
enum Side {
    Neither,
    Default,
    Blocking(&'static Blocking),
}

/// Has a stream wait for what must come before its next work. Returns its side.
fn before(stream: Handle, per_thread: bool) -> Result<Side, Failed> {
    // Work counts before its call too, because it may have begun, and have been noticed, before the call returns. And work
    // on the default stream counts before there is a blocking stream, because one may be created during the call.
    if is_legacy(stream, per_thread) {
        DEFAULT_WORKS.fetch_add(1, AcqRel);
    }
    match STREAMS[0].get() {
        Some(_) => made_to_wait(stream, per_thread),
        None if is_legacy(stream, per_thread) => Ok(Side::Default),
        None => Ok(Side::Neither),
    }
}

/// Counts work that was put on a side.
fn after(side: Side) {
    match side {
        Side::Neither => {}
        Side::Default => _ = DEFAULT_WORKS.fetch_add(1, AcqRel),
        Side::Blocking(known) => _ = known.works.fetch_add(1, AcqRel),
    }
}

#[inline(never)]
fn made_to_wait(stream: Handle, per_thread: bool) -> Result<Side, Failed> {
    let real = real()?;
    if let Some(known) = blocking(stream) {
        let works = DEFAULT_WORKS.load(Acquire);
        if known.waits.load(Acquire) != works && !known.is_capturing(real) {
            within(real, known.rest.context, || {
                known.order(real, known.of_default, LEGACY, stream)
            })?;
            known.waits.store(works, Release);
        }
        known.works.fetch_add(1, AcqRel);
        return Ok(Side::Blocking(known));
    }
    let Some(rest) = is_default(stream, per_thread)? else { return Ok(Side::Neither) };
    for known in streams().filter(|known| ptr::eq(known.rest, rest)) {
        if known.captured.load(Acquire) {
            if known.is_capturing(real) {
                return Err((
                    "the default stream would wait for a capture, so the call",
                    CAPTURE_IMPLICIT,
                ));
            }
            known.captured.store(false, Release);
        }
        if known.waited.load(Acquire) == known.works.load(Acquire) {
            continue;
        }
        let works = known.works.load(Acquire);
        known.order(real, known.event, known.stream, LEGACY)?;
        known.waited.fetch_max(works, AcqRel);
    }
    Ok(Side::Default)
}

/// Calls a function with a context current.
fn within(
    real: &Real,
    context: Context,
    call: impl FnOnce() -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut other = ptr::null_mut();
    // SAFETY: the context is a rest, which exists until the device is reset, and `other` is a live local.
    unsafe {
        check("cuCtxPushCurrent", (real.push)(context))?;
        let called = call();
        (real.pop)(&raw mut other);
        called
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
        // SAFETY: the name ends with a NUL, and `found` is a live local.
        let status =
            unsafe { entry(name.as_ptr(), &raw mut found, version, flags, ptr::null_mut()) };
        if status != SUCCESS || found.is_null() {
            return Err(("cuGetProcAddress", NOT_FOUND));
        }
        kept.store(found, Release);
    }
    Ok(found)
}

/// Defines the functions that put work on a stream, and the list in which `cuGetProcAddress` finds them.
macro_rules! ordered {
    ($($export:ident: $name:literal $from:literal..$to:literal $per_thread:literal {$stream:expr} ($($argument:ident: $kind:ty),*);)*) => {
        $(
            /// # Safety
            ///
            /// As for the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $export($($argument: $kind),*) -> Status {
                static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
                // SAFETY: the driver's function of this name and version has this signature (cuda.h). Otherwise as for
                // that function.
                unsafe {
                    let side = before($stream, $per_thread);
                    match side.and_then(|side| Ok((real_function(&KEPT, $name, $from, $per_thread)?, side))) {
                        Ok((real, side)) => {
                            let call: unsafe extern "C" fn($($kind),*) -> Status = mem::transmute(real);
                            let status = call($($argument),*);
                            after(side);
                            status
                        }
                        Err(failed) => refused(failed),
                    }
                }
            }
        )*

        /// Returns this library's function for a name, a version of CUDA, and a meaning of the null stream.
        pub(super) fn ours(name: &CStr, version: c_int, per_thread: bool) -> Option<Handle> {
            $(
                if name == $name && ($from..$to).contains(&version) && per_thread == $per_thread {
                    return Some($export as *mut c_void);
                }
            )*
            None
        }
    };
}

include!("ordered.rs");
