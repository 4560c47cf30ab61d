//! A library named `libcuda.so.1` in front of the real one, which confines work outside of partitions.
//!
//! It names the real library as its dependency, so each function that it does not define is the real one's. It defines
//! the functions through which a program makes a context current, and a few whose meaning depends on the context. In
//! place of a device's primary context, the program gets the *rest*: a green context on all SMs except the reserved
//! ones. The runtime obtains the primary context through a private table, and then makes it current with
//! `cuCtxSetCurrent` once per thread and device (measured on driver 580.159.04), so this is where it gets the rest.
//!
//! The library does not depend on std, on a version of libc or on an unwinder, because it is loaded into any process. It
//! starts when it is loaded, with the amount that is written in its file. It takes no lock, because a child that is forked
//! while another thread holds a lock would wait for it forever.
#![no_std]
#![allow(non_snake_case)]

#[macro_use]
mod functions;
mod order;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use core::{iter, mem, ptr};

use functions::{cuGetProcAddress_v2, cuStreamEndCapture, greenCtxReserveLookUp};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the code has no arithmetic or index that can fail.
    loop {
        core::hint::spin_loop();
    }
}

type Status = c_int;
type Device = c_int;
type Context = *mut c_void;
type Handle = *mut c_void;

const SUCCESS: Status = 0;
const OUT_OF_MEMORY: Status = 2;
const NOT_INITIALIZED: Status = 3;
const INVALID_DEVICE: Status = 101;
const INVALID_CONTEXT: Status = 201;
const INVALID_HANDLE: Status = 400;
const NOT_FOUND: Status = 500;
const NOT_PERMITTED: Status = 800;
const NOT_SUPPORTED: Status = 801;
const CAPTURE_UNSUPPORTED: Status = 900;
const CAPTURE_IMPLICIT: Status = 906;
const INVALID_RESOURCE_CONFIGURATION: Status = 915;
const SM_RESOURCE: c_int = 1;
const CONTEXT_OF_POINTER: c_int = 1;
const DEVICE_OF_POINTER: c_int = 9;
const DEFAULT_STREAM: c_uint = 1;
const NON_BLOCKING: c_uint = 1;
const WITHOUT_TIME: c_uint = 2;
const MULTIPROCESSOR_COUNT: c_int = 16;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;
/// The largest number of devices, and of units per device.
const MOST: usize = 64;
const UNITS: usize = 128;

/// `CUdevResource` of CUDA 12.4 to 13.5.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_int,
    padding: [u8; 92],
    sms: c_uint,
    rest: [u8; 36],
    next: Handle,
}

impl Resource {
    const EMPTY: Resource =
        Resource { kind: 0, padding: [0; 92], sms: 0, rest: [0; 36], next: ptr::null_mut() };
}

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;
type OnHandle = unsafe extern "C" fn(Handle) -> Status;

/// Defines the table of the real functions, and how it is filled.
macro_rules! real {
    ($($name:ident = $symbol:literal, $version:literal: fn($($kind:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct Real { $($name: unsafe extern "C" fn($($kind),*) -> Status,)* }

        impl Real {
            fn of(entry: GetProcAddress) -> Option<Real> {
                // SAFETY: the driver's functions of these names and versions have these signatures (cudaTypedefs.h).
                Some(unsafe { Real { $($name: mem::transmute::<Handle, unsafe extern "C" fn($($kind),*) -> Status>(
                    look_up(entry, $symbol, $version, 0)?
                ),)* } })
            }
        }
    };
}

/// Returns a function of a driver. `entry` is the driver's `cuGetProcAddress_v2`.
fn look_up(entry: GetProcAddress, name: &CStr, version: c_int, flags: u64) -> Option<Handle> {
    let mut found = ptr::null_mut();
    // SAFETY: the name ends with a NUL, and `found` is a live local.
    let status = unsafe { entry(name.as_ptr(), &raw mut found, version, flags, ptr::null_mut()) };
    (status == SUCCESS && !found.is_null()).then_some(found)
}

real! {
    retain = c"cuDevicePrimaryCtxRetain", 7000: fn(*mut Context, Device);
    release = c"cuDevicePrimaryCtxRelease", 11000: fn(Device);
    reset = c"cuDevicePrimaryCtxReset", 11000: fn(Device);
    device = c"cuCtxGetDevice", 2000: fn(*mut Device);
    set_current = c"cuCtxSetCurrent", 4000: fn(Context);
    push = c"cuCtxPushCurrent", 4000: fn(Context);
    pop = c"cuCtxPopCurrent", 4000: fn(*mut Context);
    current = c"cuCtxGetCurrent", 4000: fn(*mut Context);
    synchronize = c"cuCtxSynchronize", 2000: fn();
    record = c"cuCtxRecordEvent", 12050: fn(Context, Handle);
    wait = c"cuCtxWaitEvent", 12050: fn(Context, Handle);
    create_stream = c"cuStreamCreateWithPriority", 5050: fn(*mut Handle, c_uint, c_int);
    destroy_stream = c"cuStreamDestroy", 4000: fn(Handle);
    query = c"cuStreamQuery", 2000: fn(Handle);
    exchange_mode = c"cuThreadExchangeStreamCaptureMode", 10010: fn(*mut c_int);
    end_capture = c"cuStreamEndCapture", 10000: fn(Handle, *mut Handle);
    destroy_graph = c"cuGraphDestroy", 10000: fn(Handle);
    is_capturing = c"cuStreamIsCapturing", 10000: fn(Handle, *mut c_int);
    create_event = c"cuEventCreate", 2000: fn(*mut Handle, c_uint);
    destroy_event = c"cuEventDestroy", 4000: fn(Handle);
    record_event = c"cuEventRecord", 2000: fn(Handle, Handle);
    wait_for_event = c"cuEventSynchronize", 2000: fn(Handle);
    wait_event = c"cuStreamWaitEvent", 3020: fn(Handle, Handle, c_uint);
    attribute = c"cuDeviceGetAttribute", 2000: fn(*mut c_int, c_int, Device);
    resource = c"cuDeviceGetDevResource", 12040: fn(Device, *mut Resource, c_int);
    split = c"cuDevSmResourceSplitByCount", 12040: fn(*mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint);
    describe = c"cuDevResourceGenerateDesc", 12040: fn(*mut Handle, *mut Resource, c_uint);
    create = c"cuGreenCtxCreate", 12040: fn(*mut Handle, Handle, Device, c_uint);
    destroy = c"cuGreenCtxDestroy", 12040: fn(Handle);
    context_of = c"cuCtxFromGreenCtx", 12040: fn(*mut Context, Handle);
    green_resource = c"cuGreenCtxGetDevResource", 12040: fn(Handle, *mut Resource, c_int);
    context_resource = c"cuCtxGetDevResource", 12040: fn(Context, *mut Resource, c_int);
    stream_context = c"cuStreamGetCtx", 9020: fn(Handle, *mut Context);
    stream_contexts = c"cuStreamGetCtx", 12050: fn(Handle, *mut Context, *mut Handle);
    pointer = c"cuPointerGetAttribute", 4000: fn(*mut c_void, c_int, u64);
    pointers = c"cuPointerGetAttributes", 7000: fn(c_uint, *mut c_int, *mut *mut c_void, u64);
}

unsafe extern "C" {
    // Functions of the C library, which every process has. No version is bound, so any version will do.
    fn dprintf(file: c_int, format: *const c_char, ...) -> c_int;
    fn malloc(length: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
    fn dlsym(from: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_NEXT`: the libraries after the caller's. Among them, only the driver has functions with its names.
const NEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// A value that a thread publishes once, and that others then only read.
struct Published<T>(AtomicPtr<T>);

impl<T> Published<T> {
    const NONE: Published<T> = Published(AtomicPtr::new(ptr::null_mut()));

    fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or to a value that `replace` has published. Its memory is never freed.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Publishes a value in place of another one, unless another thread was first. Returns whether it is published. The
    /// memory of the other one is kept, because another thread may read it.
    fn replace(&self, before: Option<&'static T>, value: T) -> Result<bool, Failed> {
        let before = before.map_or(ptr::null_mut(), |before| ptr::from_ref(before).cast_mut());
        // SAFETY: `malloc` aligns memory for every type here, and nothing else uses the memory before the exchange.
        unsafe {
            let memory = malloc(size_of::<T>()).cast::<T>();
            if memory.is_null() {
                return Err((c"malloc", OUT_OF_MEMORY));
            }
            memory.write(value);
            let is_first = self.0.compare_exchange(before, memory, AcqRel, Acquire).is_ok();
            if !is_first {
                free(memory.cast());
            }
            Ok(is_first)
        }
    }
}

/// An amount of SMs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Amount {
    pub number: c_uint,
    /// Whether the number is a percentage of the device's SMs.
    pub percent: bool,
    /// Whether this is the amount of the rest, and not of the reserve. In this case, the rest is the whole device for
    /// green-ctx too, so no partition uses the other SMs.
    pub of_rest: bool,
}

/// The real driver, and the amount of SMs.
struct Started {
    entry: GetProcAddress,
    real: Real,
    /// The forms of before CUDA 4, which only their symbols give.
    old_push: Option<OnHandle>,
    old_destroy_stream: Option<OnHandle>,
    amount: Amount,
}

/// The division of a device into the reserve and the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Division {
    /// The number of SMs of the rest.
    sms: c_uint,
    /// The number of reserved units among the units that the driver cuts. They are the first ones.
    first: c_uint,
    /// Whether the last unit, which has another size, is reserved too.
    odd_reserved: bool,
}

/// The context of a device's rest. It holds a reference to the primary context.
struct Rest {
    division: Division,
    primary: Context,
    green: Handle,
    context: Context,
    /// Whether a reset of the device has ended it. Programs may still have its context, since a primary context stays
    /// valid when it is reset.
    ended: AtomicBool,
    /// The device's rest before this one.
    earlier: Option<&'static Rest>,
}

static STARTED: Published<Started> = Published::NONE;
/// The newest rest of each device.
static DEVICES: [Published<Rest>; MOST] = [const { Published::NONE }; MOST];
/// The number of green contexts of programs and partitions. While there are some, the driver refuses to reset a device.
static GREENS: AtomicUsize = AtomicUsize::new(0);

/// Writes a line to standard error, because a program shows at most a status.
fn say(text: &CStr) {
    // SAFETY: the format takes one text, and both end with a NUL.
    unsafe { dprintf(2, c"green-ctx: %s\n".as_ptr(), text.as_ptr()) };
}

/// Turns the status of a call into an error with the call's name.
fn check(call: &'static CStr, status: Status) -> Result<(), Failed> {
    if status == SUCCESS { Ok(()) } else { Err((call, status)) }
}

type Failed = (&'static CStr, Status);

fn started() -> Result<&'static Started, Failed> {
    STARTED.get().ok_or((c"the start", NOT_INITIALIZED))
}

fn real() -> Result<&'static Real, Failed> {
    started().map(|started| &started.real)
}

/// Returns the entry of a device.
fn known(device: Device) -> Result<&'static Published<Rest>, Failed> {
    let place = usize::try_from(device).ok().and_then(|place| DEVICES.get(place));
    place.ok_or((c"device", INVALID_DEVICE))
}

/// Returns the rest in an entry, unless it has ended.
fn live(known: &Published<Rest>) -> Option<&'static Rest> {
    known.get().filter(|rest| !rest.ended.load(Acquire))
}

/// Cuts a device into units, and decides which of them are reserved. Returns the division, the units, and which of these
/// are the rest. The cut is that of green-ctx's default granularity, so both number the units in the same way.
fn divide(device: Device) -> Result<(Division, [Resource; UNITS], Range<usize>), Failed> {
    let Started { real, amount, .. } = started()?;
    let (mut whole, mut left) = (Resource::EMPTY, Resource::EMPTY);
    let mut units = [Resource::EMPTY; UNITS];
    let mut count = UNITS as c_uint - 1;
    // SAFETY: all pointers are to live locals, `units` has more than `count` elements, and `whole` comes from the
    // driver.
    unsafe {
        check(c"cuDeviceGetDevResource", (real.resource)(device, &raw mut whole, SM_RESOURCE))?;
        let (to, number, rest) = (units.as_mut_ptr(), &raw mut count, &raw mut left);
        let split = (real.split)(to, number, &raw const whole, rest, 0, 0);
        check(c"cuDevSmResourceSplitByCount", split)?;
    }
    let regular = (count as usize).min(UNITS - 1);
    let has_odd = left.kind == SM_RESOURCE && left.sms > 0;
    let unit = units.first().map_or(0, |unit| unit.sms).max(1);
    // The reserve gets at least its amount, and the rest at most its own.
    let all = if amount.percent { 100 } else { whole.sms.max(1) };
    let asked = amount.number.min(all);
    let asked = if amount.of_rest { all - asked } else { asked };
    let number = (whole.sms * asked).div_ceil(all);
    // The fewest SMs: whole units, with or without the unit of another size.
    let alone = number.div_ceil(unit);
    let with_odd = number.saturating_sub(left.sms).div_ceil(unit);
    let fits = alone as usize <= regular;
    let odd_reserved = has_odd && (!fits || left.sms + with_odd * unit < alone * unit);
    let first = if odd_reserved { with_odd } else { alone };
    if let Some(last) = units.get_mut(regular) {
        *last = left;
    }
    let rest = first as usize..regular + usize::from(has_odd && !odd_reserved);
    let sms = units.get(rest.clone()).unwrap_or_default().iter().map(|unit| unit.sms).sum();
    if sms == 0 {
        return Err((
            c"no SMs are left for work outside of partitions, so the division",
            INVALID_RESOURCE_CONFIGURATION,
        ));
    }
    Ok((Division { sms, first, odd_reserved }, units, rest))
}

/// Returns the division of a device.
fn division(device: Device) -> Result<Division, Failed> {
    match live(known(device)?) {
        Some(rest) => Ok(rest.division),
        None => divide(device).map(|(division, ..)| division),
    }
}

/// Returns a device's rest, and makes it at the first use. If a call fails, everything is as before.
fn made(device: Device) -> Result<&'static Rest, Failed> {
    let (real, known) = (real()?, known(device)?);
    let earlier = known.get();
    if let Some(rest) = live(known) {
        return Ok(rest);
    }
    let (division, mut units, rest) = divide(device)?;
    let (units, none) = (units.get_mut(rest).unwrap_or_default(), ptr::null_mut());
    let (mut desc, mut primary, mut green, mut context) = (none, none, none, none);
    // SAFETY: the pointers are to live locals, and the units come from the driver.
    let published = unsafe {
        check(c"cuDevicePrimaryCtxRetain", (real.retain)(&raw mut primary, device))?;
        let mut publish = || {
            let described =
                (real.describe)(&raw mut desc, units.as_mut_ptr(), units.len() as c_uint);
            check(c"cuDevResourceGenerateDesc", described)?;
            let created = (real.create)(&raw mut green, desc, device, DEFAULT_STREAM);
            check(c"cuGreenCtxCreate", created)?;
            check(c"cuCtxFromGreenCtx", (real.context_of)(&raw mut context, green))?;
            let ended = AtomicBool::new(false);
            known.replace(earlier, Rest { division, primary, green, context, ended, earlier })
        };
        publish()
    };
    // Another thread may have been first.
    if published != Ok(true) {
        // SAFETY: the green context was created above, and the primary context was retained above.
        unsafe {
            if !green.is_null() {
                (real.destroy)(green);
            }
            (real.release)(device);
        }
    }
    published?;
    made(device)
}

/// Returns the rest for which `is_it` is true.
fn find(is_it: impl Fn(&Rest) -> bool) -> Option<&'static Rest> {
    DEVICES.iter().filter_map(live).find(|rest| is_it(rest))
}

/// Returns the rest that a context is.
fn rest_of(context: Context) -> Option<&'static Rest> {
    find(|rest| rest.context == context)
}

/// Returns the current context, if it is a rest.
fn current() -> Result<Option<&'static Rest>, Failed> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a live local.
    check(c"cuCtxGetCurrent", unsafe { (real()?.current)(&raw mut context) })?;
    Ok(rest_of(context))
}

/// Calls a function with a context current.
fn within<T>(real: &Real, context: Context, call: impl FnOnce() -> T) -> Result<T, Failed> {
    let mut other = ptr::null_mut();
    // SAFETY: `other` is a live local, and a context that the driver does not know is an error.
    unsafe {
        check(c"cuCtxPushCurrent", (real.push)(context))?;
        let called = call();
        let popped = (real.pop)(&raw mut other);
        if popped != SUCCESS {
            // The context must not stay current.
            (real.set_current)(ptr::null_mut());
        }
        check(c"cuCtxPopCurrent", popped).map(|()| called)
    }
}

/// Returns the context to use in place of `context`: the rest for a primary context, and otherwise itself.
fn in_place_of(context: Context) -> Result<Context, Failed> {
    if context.is_null() {
        return Ok(context);
    }
    if let Some(rest) = find(|rest| [rest.context, rest.primary].contains(&context)) {
        return Ok(rest.context);
    }
    let has_ended = |known: &Published<Rest>| {
        iter::successors(known.get(), |rest| rest.earlier).any(|rest| rest.context == context)
    };
    if let Some(device) = DEVICES.iter().position(has_ended) {
        return Ok(made(device as Device)?.context);
    }
    let (real, mut device, mut primary) = (real()?, 0, ptr::null_mut());
    // The runtime makes a primary context current before the driver calls it active, so its state tells nothing.
    // SAFETY: the pointers are to live locals.
    unsafe {
        let found = within(real, context, || (real.device)(&raw mut device))?;
        check(c"cuCtxGetDevice", found)?;
        check(c"cuDevicePrimaryCtxRetain", (real.retain)(&raw mut primary, device))?;
        (real.release)(device);
    }
    if primary == context { made(device).map(|rest| rest.context) } else { Ok(context) }
}

/// Replaces a primary context by the rest, if the driver has written it to `context`. Returns the status of that call.
///
/// # Safety
///
/// If `status` is 0, `context` must be null or valid for reading and writing.
unsafe fn concealed(status: Status, context: *mut Context) -> Status {
    // SAFETY: by this function's contract.
    let written = if status == SUCCESS { unsafe { context.as_mut() } } else { None };
    if let Some(written) = written
        && let Some(rest) = find(|rest| rest.primary == *written)
    {
        *written = rest.context;
    }
    status
}

/// Returns the status of a call that failed, after a line on standard error. These statuses need no line, since a program
/// gets them from any driver: for a call before `cuInit`, for a device, context or stream that does not exist, for a
/// function that the driver lacks, for a capture of the default stream, and for work that would wait for a capture.
fn refused((call, status): Failed) -> Status {
    let usual = [
        NOT_INITIALIZED,
        INVALID_DEVICE,
        INVALID_CONTEXT,
        INVALID_HANDLE,
        NOT_FOUND,
        CAPTURE_UNSUPPORTED,
        CAPTURE_IMPLICIT,
    ];
    if !usual.contains(&status) {
        let line = c"green-ctx: %s failed with %d: work outside of partitions cannot be confined, so it does not run\n";
        // SAFETY: the format takes a text, which ends with a NUL, and a number.
        unsafe { dprintf(2, line.as_ptr(), call.as_ptr(), status) };
    }
    status
}

/// Waits for the work of the rest of the device whose memory this is, or of every device for another handle. While a stream
/// is captured, it waits for nothing, because the driver has no such wait that leaves a capture alone.
fn settle(real: &Real, memory: Handle) -> Result<(), Failed> {
    if memory.is_null() {
        return Ok(());
    }
    let mut device: Device = -1;
    // SAFETY: `device` is a live local.
    unsafe { (real.pointer)((&raw mut device).cast(), DEVICE_OF_POINTER, memory as u64) };
    let known = DEVICES.iter().zip(0..).filter(|(_, place)| device < 0 || *place == device);
    known.filter_map(|(known, _)| live(known)).try_for_each(|rest| {
        // SAFETY: the rest's context exists until the device is reset, and the event is alive. Without a record, the wait
        // ends at once.
        let record =
            |event| order::between_captures(|| unsafe { (real.record)(rest.context, event) });
        let wait = |event| order::relaxed(real, || unsafe { (real.wait_for_event)(event) });
        within(real, rest.context, || order::with_event(real, record, wait))?
    })
}

/// The amount, written after the mark into a copy of the library.
#[repr(C)]
struct Written {
    mark: [u8; 16],
    amount: Amount,
}

#[used]
static WRITTEN: Written = Written {
    mark: *b"green-ctx amount",
    amount: Amount { number: 0, percent: false, of_rest: false },
};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = start;

/// Starts the library when it is loaded. If that fails, every function fails, and nothing runs unconfined.
extern "C" fn start() {
    // SAFETY: the value is a live static. The file has another one than the compiler knows.
    let Written { amount, .. } = unsafe { ptr::read_volatile(&raw const WRITTEN) };
    // SAFETY: the names end with a NUL, the functions have these signatures (cuda.h), and null means none.
    let started = unsafe {
        let entry = dlsym(NEXT, c"cuGetProcAddress_v2".as_ptr());
        let entry = mem::transmute::<Handle, Option<GetProcAddress>>(entry);
        let [old_push, old_destroy_stream] = [c"cuCtxPushCurrent", c"cuStreamDestroy"]
            .map(|name| mem::transmute::<Handle, Option<OnHandle>>(dlsym(NEXT, name.as_ptr())));
        let real = entry.and_then(|entry| Some((entry, Real::of(entry)?)));
        real.map(|(entry, real)| Started { entry, real, old_push, old_destroy_stream, amount })
    };
    if !started.is_some_and(|started| STARTED.replace(None, started) == Ok(true)) {
        say(c"the driver lacks a function of green contexts, so no work runs through this library");
    }
}

/// Returns the amount with which the library has started; 0 if it has not.
#[unsafe(no_mangle)]
pub extern "C" fn greenCtxReserveAmount() -> Amount {
    let none = Amount { number: 0, percent: false, of_rest: false };
    STARTED.get().map_or(none, |started| started.amount)
}

/// Returns the entry point for callers that know of partitions, if `entry` is an entry point of this library or of the
/// driver behind it. Returns null before the start, and if there is no reserve for partitions.
#[unsafe(no_mangle)]
pub extern "C" fn greenCtxReserveEntry(entry: GetProcAddress) -> Option<GetProcAddress> {
    let started = STARTED.get().filter(|started| !started.amount.of_rest)?;
    let ours: [GetProcAddress; 3] = [started.entry, cuGetProcAddress_v2, greenCtxReserveLookUp];
    let is_known = ours.iter().any(|known| ptr::fn_addr_eq(*known, entry));
    is_known.then_some(greenCtxReserveLookUp)
}

/// A device's rest, for callers that know of partitions.
#[repr(C)]
pub struct Described {
    pub division: Division,
    /// The context of the rest.
    pub context: Context,
}
