//! A library named `libcuda.so.1` in front of the real one, which confines work outside of partitions.
//!
//! It names the real library as its dependency, so each function that it does not define is the real one's. It defines
//! the functions through which a program makes a context current, and a few whose meaning depends on the context. In
//! place of a device's primary context, the program gets the *rest*: a green context on all SMs except the reserved
//! ones. The runtime obtains the primary context through a private table, and then makes it current with
//! `cuCtxSetCurrent` once per thread and device (measured on driver 580.159.04), so this is where it gets the rest.
//!
//! The library does not depend on std, on a version of libc or on an unwinder, because it is loaded into any process. It is
//! started once, before any other function: by `greenCtxReserveStart` if a program loads it from memory, or when it is
//! loaded from a file that has the amount written in it. It takes no lock, because a child that is forked while another
//! thread holds a lock would wait for it forever.
#![no_std]
#![allow(non_snake_case)]

mod functions;
mod order;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use functions::{
    cuGetProcAddress_v2, cuGreenCtxDestroy, cuStreamBeginCapture_v2, cuStreamDestroy_v2,
};

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
const INVALID_VALUE: Status = 1;
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
const DEFAULT_STREAM: c_uint = 1;
const NON_BLOCKING: c_uint = 1;
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

/// Defines the table of the real functions, and how it is filled.
macro_rules! real {
    ($($name:ident = $symbol:literal, $version:literal: fn($($kind:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct Real { $($name: unsafe extern "C" fn($($kind),*) -> Status,)* }

        impl Real {
            /// # Safety
            ///
            /// `entry` is `cuGetProcAddress_v2` of a driver.
            unsafe fn of(entry: GetProcAddress) -> Option<Real> {
                Some(Real { $($name: {
                    let mut found = ptr::null_mut();
                    // SAFETY: the name ends with a NUL, and `found` is a live local.
                    let status = unsafe {
                        entry($symbol.as_ptr(), &raw mut found, $version, 0, ptr::null_mut())
                    };
                    if status != SUCCESS || found.is_null() {
                        return None;
                    }
                    // SAFETY: the driver's function of this name and version has this signature (cudaTypedefs.h).
                    unsafe { core::mem::transmute::<Handle, unsafe extern "C" fn($($kind),*) -> Status>(found) }
                },)* })
            }
        }
    };
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
    capture = c"cuStreamBeginCapture", 10010: fn(Handle, c_int);
    create_event = c"cuEventCreate", 2000: fn(*mut Handle, c_uint);
    destroy_event = c"cuEventDestroy", 4000: fn(Handle);
    record_event = c"cuEventRecord", 2000: fn(Handle, Handle);
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
    fn write(file: c_int, from: *const c_void, length: usize) -> isize;
    fn malloc(length: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
    fn dlsym(from: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_NEXT`: the libraries after the caller's.
const NEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// A value that a thread publishes once, and that others then only read.
struct Published<T>(AtomicPtr<T>);

impl<T> Published<T> {
    const NONE: Published<T> = Published(AtomicPtr::new(ptr::null_mut()));

    fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or to a value that `offer` has published. Its memory is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Publishes a value in place of another one, unless another thread was first. Returns whether it is published.
    fn replace(&self, before: Option<&'static T>, value: T) -> Result<bool, Failed> {
        let before = before.map_or(ptr::null_mut(), |before| ptr::from_ref(before).cast_mut());
        self.exchange(before, value).map(|(_, is_this)| is_this)
    }

    /// Publishes a value, unless another thread was first. Returns the published value, and whether it is this one.
    fn offer(&self, value: T) -> Result<(&'static T, bool), Failed> {
        self.exchange(ptr::null_mut(), value)
    }

    fn exchange(&self, before: *mut T, value: T) -> Result<(&'static T, bool), Failed> {
        // SAFETY: `malloc` aligns memory for every type here, and nothing else uses the memory before the exchange.
        unsafe {
            let memory = malloc(size_of::<T>()).cast::<T>();
            if memory.is_null() {
                return Err(("malloc", OUT_OF_MEMORY));
            }
            memory.write(value);
            match self.0.compare_exchange(before, memory, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Ok((&*memory, true)),
                Err(first) => {
                    free(memory.cast());
                    Ok((&*first, false))
                }
            }
        }
    }

    /// Withdraws the published value. Its memory is kept, because another thread may read it.
    fn withdraw(&self) -> Option<&'static T> {
        // SAFETY: as in `get`.
        unsafe { self.0.swap(ptr::null_mut(), Ordering::AcqRel).as_ref() }
    }
}

/// An amount of SMs.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
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
    amount: Amount,
}

/// The division of a device into the reserve and the rest.
struct Division {
    /// The number of SMs of the rest.
    sms: c_uint,
    /// The number of reserved units among the units that the driver cuts. They are the first ones.
    first: usize,
    /// Whether the last unit, which has another size, is reserved too.
    odd_reserved: bool,
}

/// The context of a device's rest. It holds a reference to the primary context.
struct Rest {
    primary: Context,
    green: Handle,
    context: Context,
    /// The rest that was ended before this one was.
    earlier: AtomicPtr<Rest>,
}

struct Known {
    division: Published<Division>,
    rest: Published<Rest>,
    /// The rest that the last reset ended. Programs may still have its context, since a primary context stays valid when
    /// it is reset.
    ended: AtomicPtr<Rest>,
}

impl Known {
    const NONE: Known = Known {
        division: Published::NONE,
        rest: Published::NONE,
        ended: AtomicPtr::new(ptr::null_mut()),
    };
}

static STARTED: Published<Started> = Published::NONE;
static DEVICES: [Known; MOST] = [const { Known::NONE }; MOST];
/// The number of green contexts of programs and partitions. While there are some, the driver refuses to reset a device.
static GREENS: AtomicUsize = AtomicUsize::new(0);

/// Writes a line to standard error, because a program shows at most a status.
fn say(words: &[&str]) {
    let begin = ["green-ctx reserve: "];
    let mut line = [0_u8; 320];
    let mut length = 0;
    let bytes = begin.iter().chain(words).chain(&["\n"]).flat_map(|part| part.as_bytes());
    for (to, from) in line.iter_mut().zip(bytes) {
        *to = *from;
        length += 1;
    }
    // SAFETY: the buffer has `length` bytes.
    unsafe { write(2, line.as_ptr().cast(), length) };
}

/// Turns the status of a call into an error with the call's name.
fn check(call: &'static str, status: Status) -> Result<(), Failed> {
    if status == SUCCESS { Ok(()) } else { Err((call, status)) }
}

type Failed = (&'static str, Status);

fn started() -> Result<&'static Started, Failed> {
    STARTED.get().ok_or(("greenCtxReserveStart", NOT_INITIALIZED))
}

fn real() -> Result<&'static Real, Failed> {
    started().map(|started| &started.real)
}

/// Returns the entry of a device.
fn known(device: Device) -> Result<&'static Known, Failed> {
    let place = usize::try_from(device).ok().and_then(|place| DEVICES.get(place));
    place.ok_or(("device", INVALID_DEVICE))
}

/// Cuts a device into units, and decides which of them are reserved. Returns the division, the resources of the rest, and
/// their number. The cut is that of green-ctx's default granularity, so both number the units in the same way.
fn divide(device: Device) -> Result<(&'static Division, [Resource; UNITS], usize), Failed> {
    let Started { real, amount, .. } = started()?;
    let (mut whole, mut left) = (Resource::EMPTY, Resource::EMPTY);
    let mut units = [Resource::EMPTY; UNITS];
    let mut count = UNITS as c_uint - 1;
    // SAFETY: all pointers are to live locals, `units` has more than `count` elements, and `whole` comes from the
    // driver.
    unsafe {
        check("cuDeviceGetDevResource", (real.resource)(device, &raw mut whole, SM_RESOURCE))?;
        let (to, number, rest) = (units.as_mut_ptr(), &raw mut count, &raw mut left);
        let split = (real.split)(to, number, &raw const whole, rest, 0, 0);
        check("cuDevSmResourceSplitByCount", split)?;
    }
    let regular = (count as usize).min(UNITS - 1);
    let has_odd = left.kind == SM_RESOURCE && left.sms > 0;
    let unit = units.first().map_or(0, |unit| unit.sms).max(1);
    let part = u64::from(whole.sms) * u64::from(amount.number);
    let number = match amount {
        Amount { percent: false, number, .. } => *number.min(&whole.sms),
        Amount { of_rest: false, .. } => part.div_ceil(100) as c_uint,
        Amount { of_rest: true, .. } => (part / 100) as c_uint,
    };
    let (first, odd_reserved) = match amount.of_rest {
        // A floor takes the fewest SMs: whole units, with or without the unit of another size.
        false => {
            let alone = number.div_ceil(unit);
            let with_odd = number.saturating_sub(left.sms).div_ceil(unit);
            let odd = has_odd && left.sms + with_odd * unit < alone * unit;
            (if odd { with_odd } else { alone } as usize, odd)
        }
        // A ceiling takes the most.
        true => {
            let alone = ((number / unit) as usize).min(regular);
            let with_odd = ((number.saturating_sub(left.sms) / unit) as usize).min(regular);
            let is_better = left.sms + with_odd as c_uint * unit > alone as c_uint * unit;
            let odd = has_odd && left.sms <= number && is_better;
            (regular - if odd { with_odd } else { alone }, !odd)
        }
    };
    let mut kept = [Resource::EMPTY; UNITS];
    let rest = units.iter().take(regular).skip(first);
    let rest = rest.chain((has_odd && !odd_reserved).then_some(&left));
    let mut number = 0;
    for (to, from) in kept.iter_mut().zip(rest) {
        *to = *from;
        number += 1;
    }
    let sms = kept.iter().map(|unit| unit.sms).sum();
    if number == 0 || sms == 0 || first > regular {
        return Err(("the reserve leaves no SMs, so the division", INVALID_RESOURCE_CONFIGURATION));
    }
    let division = known(device)?.division.offer(Division { sms, first, odd_reserved })?.0;
    Ok((division, kept, number))
}

/// Returns the division of a device.
fn division(device: Device) -> Result<&'static Division, Failed> {
    match known(device)?.division.get() {
        Some(division) => Ok(division),
        None => divide(device).map(|(division, ..)| division),
    }
}

/// Returns the number of SMs of a device's rest.
fn sms(device: Device) -> Result<c_uint, Failed> {
    division(device).map(|division| division.sms)
}

/// Returns a device's rest, and makes it at the first use. If a call fails, everything is as before.
fn made(device: Device) -> Result<&'static Rest, Failed> {
    let (real, known) = (real()?, known(device)?);
    if let Some(rest) = known.rest.get() {
        return Ok(rest);
    }
    let (_, mut units, count) = divide(device)?;
    let (mut desc, none) = (ptr::null_mut(), ptr::null_mut());
    let earlier = AtomicPtr::new(ptr::null_mut());
    let mut rest = Rest { primary: none, green: none, context: none, earlier };
    // SAFETY: the pointers are to live locals, and `units` has `count` elements from the driver.
    let created = unsafe {
        check("cuDevicePrimaryCtxRetain", (real.retain)(&raw mut rest.primary, device))?;
        let described = (real.describe)(&raw mut desc, units.as_mut_ptr(), count as c_uint);
        check("cuDevResourceGenerateDesc", described)
            .and_then(|()| {
                let created = (real.create)(&raw mut rest.green, desc, device, DEFAULT_STREAM);
                check("cuGreenCtxCreate", created)
            })
            .and_then(|()| {
                let found = (real.context_of)(&raw mut rest.context, rest.green);
                check("cuCtxFromGreenCtx", found)
            })
    };
    let green = rest.green;
    let offered = created.and_then(|()| known.rest.offer(rest));
    // Another thread may have been first.
    if !matches!(offered, Ok((_, true))) {
        // SAFETY: the green context was created above, and the primary context was retained above.
        unsafe {
            if !green.is_null() {
                (real.destroy)(green);
            }
            (real.release)(device);
        }
    }
    offered.map(|(rest, _)| rest)
}

impl Known {
    /// Returns whether a context was the rest before a reset.
    fn has_ended(&self, context: Context) -> bool {
        let mut next = &self.ended;
        // SAFETY: the pointer is null or to a published rest, whose memory is never freed.
        while let Some(ended) = unsafe { next.load(Ordering::Acquire).as_ref() } {
            if ended.context == context {
                return true;
            }
            next = &ended.earlier;
        }
        false
    }
}

/// Returns the rest for which `is_it` is true.
fn find(is_it: impl Fn(&Rest) -> bool) -> Option<&'static Rest> {
    DEVICES.iter().filter_map(|known| known.rest.get()).find(|rest| is_it(rest))
}

/// Returns the rest that a context is.
fn rest_of(context: Context) -> Option<&'static Rest> {
    find(|rest| rest.context == context)
}

/// Returns the current context, if it is a rest.
fn current() -> Result<Option<&'static Rest>, Failed> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a live local.
    check("cuCtxGetCurrent", unsafe { (real()?.current)(&raw mut context) })?;
    Ok(rest_of(context))
}

/// Returns the context to use in place of `context`: the rest for a primary context, and otherwise itself.
fn in_place_of(context: Context) -> Result<Context, Failed> {
    if context.is_null() || rest_of(context).is_some() {
        return Ok(context);
    }
    if let Some(rest) = find(|rest| rest.primary == context) {
        return Ok(rest.context);
    }
    if let Some(device) = DEVICES.iter().position(|known| known.has_ended(context)) {
        return Ok(made(device as Device)?.context);
    }
    let real = real()?;
    let (mut device, mut other, mut primary) = (0, ptr::null_mut(), ptr::null_mut());
    // The runtime makes a primary context current before the driver calls it active, so its state tells nothing.
    // SAFETY: the pointers are to live locals, and a context that the driver does not know is an error.
    unsafe {
        check("cuCtxPushCurrent", (real.push)(context))?;
        let found = (real.device)(&raw mut device);
        let popped = (real.pop)(&raw mut other);
        if popped != SUCCESS {
            // The context must not stay current.
            (real.set_current)(ptr::null_mut());
        }
        check("cuCtxPopCurrent", popped)?;
        check("cuCtxGetDevice", found)?;
        check("cuDevicePrimaryCtxRetain", (real.retain)(&raw mut primary, device))?;
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
/// gets them from any driver: for a call before `cuInit`, for a device or a context that does not exist, for a function
/// that the driver lacks, and for work that would wait for a capture.
fn refused((call, status): Failed) -> Status {
    if ![NOT_INITIALIZED, INVALID_DEVICE, INVALID_CONTEXT, NOT_FOUND, CAPTURE_IMPLICIT]
        .contains(&status)
    {
        let digit = |by: Status| DIGITS.get((status / by % 10) as usize).copied().unwrap_or("?");
        let digits = [digit(100), digit(10), digit(1)];
        let words = ": work outside of partitions cannot be confined, so it does not run";
        say(&[call, " failed with ", digits[0], digits[1], digits[2], words]);
    }
    status
}

const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// Calls a real function.
fn on_real(call: impl FnOnce(&Real) -> Status) -> Status {
    real().map_or_else(refused, call)
}

/// Returns the context whose record and wait of events cover the work that those of `context` cover without a reserve:
/// for the rest, the primary context, which covers all contexts of the device.
fn covering(context: Context) -> Context {
    rest_of(context).map_or(context, |rest| rest.primary)
}

/// Calls a real function with a context in place of `context`.
fn replaced(context: Context, call: impl FnOnce(&Real, Context) -> Status) -> Status {
    match real().and_then(|real| Ok((real, in_place_of(context)?))) {
        Ok((real, context)) => call(real, context),
        Err(failed) => refused(failed),
    }
}

/// Starts the library. `entry` is the real `cuGetProcAddress_v2`. Returns 0, or `NOT_SUPPORTED` if the real driver lacks
/// a function. A second call changes nothing, and returns 0 if it asks for the same amount.
///
/// # Safety
///
/// `entry` must be `cuGetProcAddress_v2` of the driver that the library is in front of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn greenCtxReserveStart(entry: GetProcAddress, amount: Amount) -> Status {
    // SAFETY: by this function's contract.
    let Some(real) = (unsafe { Real::of(entry) }) else { return NOT_SUPPORTED };
    match STARTED.offer(Started { entry, real, amount }) {
        Ok((known, _)) if known.amount == amount => SUCCESS,
        Ok(_) => INVALID_RESOURCE_CONFIGURATION,
        Err((_, status)) => status,
    }
}

/// The amount, written after the mark into a copy of the library that becomes a file. It is 0 in memory.
#[repr(C)]
struct Written {
    mark: [u8; 16],
    number: c_uint,
    percent: u8,
    of_rest: u8,
}

#[used]
static WRITTEN: Written = Written { mark: *b"green-ctx amount", number: 0, percent: 0, of_rest: 0 };

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Starts a library that was loaded from a file. If that fails, every function fails, and nothing runs unconfined.
extern "C" fn at_load() {
    // SAFETY: the value is a live static. The file may have another one than the compiler knows.
    let written = unsafe { ptr::read_volatile(&raw const WRITTEN) };
    let Written { number, percent, of_rest, .. } = written;
    if number == 0 {
        return;
    }
    let amount = Amount { number, percent: percent != 0, of_rest: of_rest != 0 };
    // SAFETY: the name ends with a NUL. Among the libraries after this one, only the driver has this function.
    let started = unsafe {
        let entry = dlsym(NEXT, c"cuGetProcAddress_v2".as_ptr());
        let entry = core::mem::transmute::<*mut c_void, Option<GetProcAddress>>(entry);
        entry.map_or(NOT_SUPPORTED, |entry| greenCtxReserveStart(entry, amount))
    };
    if started != SUCCESS {
        say(&["the driver lacks a function of green contexts, so no CUDA work runs"]);
    }
}

/// The entry point for callers that know of partitions. It returns the real functions, and counts green contexts.
unsafe extern "C" fn partitions_entry(
    name: *const c_char,
    to: *mut Handle,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Status {
    let Ok(started) = started() else { return NOT_INITIALIZED };
    // SAFETY: as for the driver's function, which has read the name and written to `to` if it succeeds.
    unsafe {
        let status = (started.entry)(name, to, version, flags, found);
        if status == SUCCESS && !to.is_null() && !(*to).is_null() {
            match CStr::from_ptr(name).to_bytes() {
                b"cuGreenCtxCreate" => to.write(counted as *mut c_void),
                b"cuGreenCtxDestroy" => to.write(cuGreenCtxDestroy as *mut c_void),
                b"cuStreamDestroy" if version >= 4000 => {
                    to.write(cuStreamDestroy_v2 as *mut c_void)
                }
                b"cuStreamBeginCapture" => to.write(cuStreamBeginCapture_v2 as *mut c_void),
                _ => {
                    // Its work on the default stream and on streams of programs has the order, too.
                    let ours = order::ours(CStr::from_ptr(name), version, flags & PER_THREAD != 0);
                    if let Some(ours) = ours {
                        to.write(ours);
                    }
                }
            }
        }
        status
    }
}

/// Creates a green context, and counts it.
unsafe extern "C" fn counted(
    green: *mut Handle,
    desc: Handle,
    device: Device,
    flags: c_uint,
) -> Status {
    // SAFETY: as for the driver's function.
    let status = on_real(|real| unsafe { (real.create)(green, desc, device, flags) });
    if status == SUCCESS {
        GREENS.fetch_add(1, Ordering::AcqRel);
    }
    status
}

/// Returns the entry point for callers that know of partitions, if `entry` is an entry point of this library or of the
/// driver behind it. Returns null before the start, and if there is no reserve for partitions.
#[unsafe(no_mangle)]
pub extern "C" fn greenCtxReserveEntry(entry: GetProcAddress) -> *mut c_void {
    let reserving = STARTED.get().filter(|started| !started.amount.of_rest);
    let is_known = |started: &&Started| {
        let ours: [GetProcAddress; 3] = [started.entry, cuGetProcAddress_v2, partitions_entry];
        ours.iter().any(|known| ptr::fn_addr_eq(*known, entry))
    };
    let entry = partitions_entry as GetProcAddress;
    reserving.filter(is_known).map_or(ptr::null_mut(), |_| entry as *mut c_void)
}

/// A device's rest, for callers that know of partitions.
#[repr(C)]
pub struct Described {
    /// The number of SMs of the rest.
    pub sms: c_uint,
    /// The number of reserved units at the start of the device's units, and whether the last unit is reserved too.
    pub first: c_uint,
    pub odd_reserved: bool,
    /// The context of the rest, and the primary context, whose synchronise covers all contexts of the device.
    pub context: Context,
    pub primary: Context,
}

/// Describes a device's rest. If `make` is true, makes its context first, and otherwise returns no context.
///
/// # Safety
///
/// `to` must be valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn greenCtxReserveRest(
    device: Device,
    make: bool,
    to: *mut Described,
) -> Status {
    let described = division(device).and_then(|Division { sms, first, odd_reserved }| {
        let (context, primary) = match make {
            true => made(device).map(|rest| (rest.context, rest.primary))?,
            false => (ptr::null_mut(), ptr::null_mut()),
        };
        let (sms, first, odd_reserved) = (*sms, *first as c_uint, *odd_reserved);
        Ok(Described { sms, first, odd_reserved, context, primary })
    });
    match described {
        Ok(described) => {
            // SAFETY: by this function's contract.
            unsafe { to.write(described) };
            SUCCESS
        }
        Err((_, status)) => status,
    }
}
