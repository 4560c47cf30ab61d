//! A library named `libcuda.so.1` in front of the real one, which confines work outside of partitions.
//!
//! It names the real library as its dependency, so each function that it does not define is the real one's. It defines
//! the functions through which a program makes a context current, and a few whose meaning depends on the context. In
//! place of a device's primary context, the program gets the *rest*: a green context on all SMs except the reserved
//! ones. The runtime obtains the primary context through a private table, and then makes it current with
//! `cuCtxSetCurrent` once per thread and device (measured on driver 580.159.04), so this is where it gets the rest.
//!
//! The library has no dependency on std, libc's versions or an unwinder, because it is loaded into any process. Its
//! loader calls `greenCtxReserveStart` once, before any other function.
#![no_std]
#![allow(non_snake_case)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

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
const NOT_INITIALIZED: Status = 3;
const INVALID_DEVICE: Status = 101;
const NOT_SUPPORTED: Status = 801;
const INVALID_RESOURCE_CONFIGURATION: Status = 914;
const SM_RESOURCE: c_int = 1;
const DEFAULT_STREAM: c_uint = 1;
const NON_BLOCKING: c_uint = 1;
const MULTIPROCESSOR_COUNT: c_int = 16;
/// The numbers of devices, and of units of one device, that the library can hold.
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
    attribute = c"cuDeviceGetAttribute", 2000: fn(*mut c_int, c_int, Device);
    resource = c"cuDeviceGetDevResource", 12040: fn(Device, *mut Resource, c_int);
    split = c"cuDevSmResourceSplitByCount", 12040: fn(*mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint);
    describe = c"cuDevResourceGenerateDesc", 12040: fn(*mut Handle, *mut Resource, c_uint);
    create = c"cuGreenCtxCreate", 12040: fn(*mut Handle, Handle, Device, c_uint);
    destroy = c"cuGreenCtxDestroy", 12040: fn(Handle);
    context_of = c"cuCtxFromGreenCtx", 12040: fn(*mut Context, Handle);
}

/// The division of a device, and its rest if it was made.
#[derive(Clone, Copy)]
struct Rest {
    /// The number of SMs of the rest; 0 until the device is divided.
    sms: c_uint,
    /// The first unit of the rest among the units that the driver cuts, and whether the last unit is reserved too.
    first: usize,
    odd_reserved: bool,
    primary: Context,
    green: Handle,
    context: Context,
}

const UNMADE: Rest = Rest {
    sms: 0,
    first: 0,
    odd_reserved: false,
    primary: ptr::null_mut(),
    green: ptr::null_mut(),
    context: ptr::null_mut(),
};

struct State {
    entry: Option<GetProcAddress>,
    real: Option<Real>,
    /// The reserve: a number of SMs, or a percentage if `percent` is true.
    amount: c_uint,
    percent: bool,
    rests: [Rest; MOST],
}

/// The state, behind a lock that spins. It is held only to read and write the state, and never during a driver call,
/// which could call the program back.
struct Shared {
    locked: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: `with` gives the state to one thread at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    locked: AtomicBool::new(false),
    state: UnsafeCell::new(State {
        entry: None,
        real: None,
        amount: 0,
        percent: false,
        rests: [UNMADE; MOST],
    }),
};

/// Calls `use_it` with the state. `use_it` must neither call this function again nor call the driver.
fn with<T>(use_it: impl FnOnce(&mut State) -> T) -> T {
    while SHARED.locked.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    // SAFETY: the lock is held.
    let result = use_it(unsafe { &mut *SHARED.state.get() });
    SHARED.locked.store(false, Ordering::Release);
    result
}

unsafe extern "C" {
    /// The C library's function, which every process has.
    fn write(file: c_int, from: *const c_void, length: usize) -> isize;
}

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
fn check(call: &'static str, status: Status) -> Result<(), (&'static str, Status)> {
    if status == SUCCESS { Ok(()) } else { Err((call, status)) }
}

type Failed = (&'static str, Status);

fn real() -> Result<Real, Failed> {
    with(|state| state.real).ok_or(("greenCtxReserveStart", NOT_INITIALIZED))
}

/// Returns the known part of a device's rest.
fn known(device: Device) -> Result<Rest, Failed> {
    let place = usize::try_from(device).unwrap_or(usize::MAX);
    with(|state| state.rests.get(place).copied()).ok_or(("device", INVALID_DEVICE))
}

/// Stores a device's rest, unless another thread has stored one with a context. Returns what is stored.
fn store(device: Device, rest: Rest) -> Result<Rest, Failed> {
    let place = usize::try_from(device).unwrap_or(usize::MAX);
    let stored = with(|state| {
        let known = state.rests.get_mut(place)?;
        if known.context.is_null() {
            *known = rest;
        }
        Some(*known)
    });
    stored.ok_or(("device", INVALID_DEVICE))
}

/// Cuts a device into units, and decides which of them are reserved. Returns the rest without a context, the resources
/// of the rest, and their number. The cut is that of green-ctx's default granularity, so both number the units in the
/// same way.
fn divide(device: Device) -> Result<(Rest, [Resource; UNITS], usize), Failed> {
    let real = real()?;
    let (amount, percent) = with(|state| (state.amount, state.percent));
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
    let amount = match percent {
        true => (u64::from(whole.sms) * u64::from(amount)).div_ceil(100) as c_uint,
        false => amount.min(whole.sms),
    };
    // A floor takes the fewest SMs: whole units, with or without the unit of another size.
    let alone = amount.div_ceil(unit);
    let with_odd = amount.saturating_sub(left.sms).div_ceil(unit);
    let odd_reserved = has_odd && left.sms + with_odd * unit < alone * unit;
    let first = if odd_reserved { with_odd } else { alone } as usize;
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
    Ok((Rest { sms, first, odd_reserved, ..UNMADE }, kept, number))
}

/// Returns the number of SMs of a device's rest.
fn sms(device: Device) -> Result<c_uint, Failed> {
    let rest = known(device)?;
    if rest.sms > 0 {
        return Ok(rest.sms);
    }
    Ok(store(device, divide(device)?.0)?.sms)
}

/// Returns a device's rest, and makes it at the first use. If a call fails, everything is as before.
fn made(device: Device) -> Result<Rest, Failed> {
    let (real, rest) = (real()?, known(device)?);
    if !rest.context.is_null() {
        return Ok(rest);
    }
    let (mut rest, mut units, count) = divide(device)?;
    let mut desc = ptr::null_mut();
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
    let stored = created.and_then(|()| store(device, rest));
    // Another thread may have been first.
    if stored.is_err() || stored.is_ok_and(|stored| stored.context != rest.context) {
        // SAFETY: the green context was created above, and the primary context was retained above.
        unsafe {
            if !rest.green.is_null() {
                (real.destroy)(rest.green);
            }
            (real.release)(device);
        }
    }
    stored
}

/// Returns the rest that a context is.
fn rest_of(context: Context) -> Option<Rest> {
    let is_it = |rest: &&Rest| !rest.context.is_null() && rest.context == context;
    with(|state| state.rests.iter().find(is_it).copied())
}

/// Returns the current context, if it is a rest.
fn current() -> Result<Option<Rest>, Failed> {
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
    if let Some(rest) =
        with(|state| state.rests.iter().find(|rest| rest.primary == context).copied())
    {
        return Ok(rest.context);
    }
    let real = real()?;
    let (mut device, mut other, mut primary) = (0, ptr::null_mut(), ptr::null_mut());
    // The runtime makes a primary context current before the driver calls it active, so its state tells nothing.
    // SAFETY: the pointers are to live locals, and a context that the driver does not know is an error.
    unsafe {
        if (real.push)(context) != SUCCESS {
            // The driver's own answer follows.
            return Ok(context);
        }
        let found = (real.device)(&raw mut device);
        (real.pop)(&raw mut other);
        check("cuCtxGetDevice", found)?;
        check("cuDevicePrimaryCtxRetain", (real.retain)(&raw mut primary, device))?;
        (real.release)(device);
    }
    if primary == context { made(device).map(|rest| rest.context) } else { Ok(context) }
}

/// Returns the status of a call that failed, after a line on standard error. `NOT_INITIALIZED` needs no line: a program
/// that calls a function before `cuInit` gets this status from any driver.
fn refused((call, status): Failed) -> Status {
    if status != NOT_INITIALIZED {
        let digit = |by: Status| DIGITS.get((status / by % 10) as usize).copied().unwrap_or("?");
        let digits = [digit(100), digit(10), digit(1)];
        let words = ": work outside of partitions cannot be confined, so it does not run";
        say(&[call, " failed with ", digits[0], digits[1], digits[2], words]);
    }
    status
}

const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// Calls a real function with a context in place of `context`.
fn replaced(context: Context, call: impl FnOnce(&Real, Context) -> Status) -> Status {
    match real().and_then(|real| Ok((real, in_place_of(context)?))) {
        Ok((real, context)) => call(&real, context),
        Err(failed) => refused(failed),
    }
}

/// Starts the library. `entry` is the real `cuGetProcAddress_v2`. Returns 0, or `NOT_SUPPORTED` if the real driver lacks
/// a function. A second call changes nothing, and returns whether it asks for the same reserve.
///
/// # Safety
///
/// `entry` must be `cuGetProcAddress_v2` of the driver that the library is in front of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn greenCtxReserveStart(
    entry: GetProcAddress,
    amount: c_uint,
    percent: bool,
) -> Status {
    // SAFETY: by this function's contract.
    let Some(real) = (unsafe { Real::of(entry) }) else { return NOT_SUPPORTED };
    with(|state| {
        if state.real.is_some() {
            let is_same = (state.amount, state.percent) == (amount, percent);
            return if is_same { SUCCESS } else { INVALID_RESOURCE_CONFIGURATION };
        }
        (state.entry, state.real) = (Some(entry), Some(real));
        (state.amount, state.percent) = (amount, percent);
        SUCCESS
    })
}

/// Returns the real `cuGetProcAddress_v2`, for callers that know of partitions. Null before the start.
#[unsafe(no_mangle)]
pub extern "C" fn greenCtxReserveEntry() -> *mut c_void {
    with(|state| state.entry).map_or(ptr::null_mut(), |entry| entry as *mut c_void)
}

/// A device's rest, for callers that know of partitions.
#[repr(C)]
pub struct Division {
    /// The number of SMs of the rest.
    pub sms: c_uint,
    /// The number of reserved units at the start of the device's units, and whether the last unit is reserved too.
    pub first: c_uint,
    pub odd_reserved: bool,
    /// The context of the rest, and the primary context, whose synchronise covers all contexts of the device.
    pub context: Context,
    pub primary: Context,
}

/// Makes a device's rest, and describes it.
///
/// # Safety
///
/// `to` must be valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn greenCtxReserveRest(device: Device, to: *mut Division) -> Status {
    match made(device) {
        Ok(Rest { sms, first, odd_reserved, context, primary, .. }) => {
            let first = first as c_uint;
            let division = Division { sms, first, odd_reserved, context, primary };
            // SAFETY: by this function's contract.
            unsafe { to.write(division) };
            SUCCESS
        }
        Err((_, status)) => status,
    }
}

/// Defines the functions that programs call, and the list in which `cuGetProcAddress` finds them.
macro_rules! functions {
    ($($symbol:literal $from:literal..$to:literal = $name:ident($($argument:ident: $kind:ty),*) $body:block)*) => {
        $(
            /// # Safety
            ///
            /// As for the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status $body
        )*

        /// Returns this library's function for a name and a version of CUDA.
        fn ours(name: &[u8], version: c_int) -> Option<Handle> {
            match name {
                $($symbol if ($from..$to).contains(&version) => Some($name as *mut c_void),)*
                _ => None,
            }
        }
    };
}

functions! {
    b"cuDevicePrimaryCtxRetain" 0..99999 = cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) {
        // The caller's own reference to the primary context, which its release gives back.
        let retained = real().and_then(|real| {
            let mut primary = ptr::null_mut();
            // SAFETY: `primary` is a live local.
            check("cuDevicePrimaryCtxRetain", unsafe { (real.retain)(&raw mut primary, device) })?;
            made(device).inspect_err(|_| {
                // SAFETY: the reference was taken above.
                unsafe { (real.release)(device) };
            })
        });
        match retained {
            Ok(rest) => {
                // SAFETY: by the contract of the driver's function.
                unsafe { context.write(rest.context) };
                SUCCESS
            }
            Err(failed) => refused(failed),
        }
    }

    b"cuDevicePrimaryCtxReset" 0..99999 = cuDevicePrimaryCtxReset_v2(device: Device) {
        let ended = real().and_then(|real| {
            let rest = known(device)?;
            let place = usize::try_from(device).unwrap_or(usize::MAX);
            with(|state| state.rests.get_mut(place).map(|rest| *rest = UNMADE));
            if !rest.green.is_null() {
                // SAFETY: the rest was made here. The next use makes another.
                unsafe {
                    (real.destroy)(rest.green);
                    (real.release)(device);
                }
            }
            Ok(real)
        });
        // The runtime makes the primary context current again only on threads without a current context.
        // SAFETY: as for the driver's function.
        ended.map_or_else(refused, |real| unsafe {
            let status = (real.reset)(device);
            (real.set_current)(ptr::null_mut());
            status
        })
    }

    b"cuCtxSetCurrent" 0..99999 = cuCtxSetCurrent(context: Context) {
        // SAFETY: as for the driver's function.
        replaced(context, |real, context| unsafe { (real.set_current)(context) })
    }

    b"cuCtxPushCurrent" 0..99999 = cuCtxPushCurrent_v2(context: Context) {
        // SAFETY: as for the driver's function.
        replaced(context, |real, context| unsafe { (real.push)(context) })
    }

    b"cuCtxSynchronize" 0..13000 = cuCtxSynchronize() {
        match real().and_then(|real| Ok((real, current()?))) {
            // Only the primary context's synchronise waits for all contexts of the device.
            // SAFETY: the rest holds a reference to the primary context, and `other` is a live local.
            Ok((real, Some(rest))) => unsafe {
                let mut other = ptr::null_mut();
                match (real.push)(rest.primary) {
                    SUCCESS => {
                        let status = (real.synchronize)();
                        (real.pop)(&raw mut other);
                        status
                    }
                    status => status,
                }
            },
            // SAFETY: as for the driver's function.
            Ok((real, None)) => unsafe { (real.synchronize)() },
            Err(failed) => refused(failed),
        }
    }

    b"cuCtxSynchronize" 13000..99999 = cuCtxSynchronize_v2(context: Context) {
        // SAFETY: as for the driver's function.
        unsafe {
            match cuCtxPushCurrent_v2(context) {
                SUCCESS => {
                    let (status, mut other) = (cuCtxSynchronize(), ptr::null_mut());
                    let _ = real().map(|real| (real.pop)(&raw mut other));
                    status
                }
                status => status,
            }
        }
    }

    b"cuCtxRecordEvent" 0..99999 = cuCtxRecordEvent(context: Context, event: Handle) {
        // The primary context's record and wait cover all contexts of the device.
        match real().map(|real| (real, rest_of(context))) {
            // SAFETY: as for the driver's function.
            Ok((real, rest)) => unsafe { (real.record)(rest.map_or(context, |it| it.primary), event) },
            Err(failed) => refused(failed),
        }
    }

    b"cuCtxWaitEvent" 0..99999 = cuCtxWaitEvent(context: Context, event: Handle) {
        match real().map(|real| (real, rest_of(context))) {
            // SAFETY: as for the driver's function.
            Ok((real, rest)) => unsafe { (real.wait)(rest.map_or(context, |it| it.primary), event) },
            Err(failed) => refused(failed),
        }
    }

    b"cuStreamCreate" 0..99999 = cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        // SAFETY: as for the driver's function.
        unsafe { cuStreamCreateWithPriority(stream, flags, 0) }
    }

    b"cuStreamCreateWithPriority" 0..99999 = cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) {
        match real().and_then(|real| Ok((real, current()?))) {
            Ok((_, Some(_))) if flags & NON_BLOCKING == 0 => {
                say(&["a stream that waits for the default stream is not possible under a reserve: create it with \
                      cudaStreamNonBlocking (CuPy: Stream(non_blocking=True)), and order the work with events"]);
                NOT_SUPPORTED
            }
            // SAFETY: as for the driver's function.
            Ok((real, _)) => unsafe { (real.create_stream)(stream, flags, priority) },
            Err(failed) => refused(failed),
        }
    }

    b"cuDeviceGetAttribute" 0..99999 = cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, device: Device) {
        let told = real().and_then(|real| {
            let sms = if attribute == MULTIPROCESSOR_COUNT { sms(device) } else { Ok(0) };
            // SAFETY: as for the driver's function.
            check("cuDeviceGetAttribute", unsafe { (real.attribute)(to, attribute, device) })?;
            if attribute == MULTIPROCESSOR_COUNT {
                // SAFETY: the driver has just written to `to`.
                unsafe { to.write(sms? as c_int) };
            }
            Ok(())
        });
        match told {
            Ok(()) => SUCCESS,
            // The driver's own answer, for example to an unknown attribute.
            Err(("cuDeviceGetAttribute", status)) => status,
            Err(failed) => refused(failed),
        }
    }

    b"cuCtxCreate" 0..99999 = cuCtxCreate_v4() {
        say(&["cuCtxCreate is not possible under a reserve: use the device's primary context"]);
        NOT_SUPPORTED
    }

    b"cuGetProcAddress" 0..12000 = cuGetProcAddress(name: *const c_char, to: *mut Handle, version: c_int, flags: u64) {
        // SAFETY: as for the driver's function.
        unsafe { cuGetProcAddress_v2(name, to, version, flags, ptr::null_mut()) }
    }

    b"cuGetProcAddress" 12000..99999 = cuGetProcAddress_v2(name: *const c_char, to: *mut Handle, version: c_int, flags: u64, found: *mut c_int) {
        let Some(entry) = with(|state| state.entry) else { return NOT_INITIALIZED };
        // SAFETY: as for the driver's function.
        let status = unsafe { entry(name, to, version, flags, found) };
        // SAFETY: the driver has read the name and written to `to`.
        unsafe {
            if status == SUCCESS && !to.is_null() && !(*to).is_null()
                && let Some(ours) = ours(CStr::from_ptr(name).to_bytes(), version)
            {
                to.write(ours);
            }
        }
        status
    }
}

/// Defines other names of functions, which programs link.
macro_rules! also {
    ($($name:ident = $same:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// # Safety
        ///
        /// As for the driver's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status {
            // SAFETY: as for the driver's function.
            unsafe { $same($($argument),*) }
        }
    )*};
}

also! {
    cuCtxPushCurrent = cuCtxPushCurrent_v2(context: Context);
    cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2(device: Device);
    cuCtxCreate = cuCtxCreate_v4();
    cuCtxCreate_v2 = cuCtxCreate_v4();
    cuCtxCreate_v3 = cuCtxCreate_v4();
    cuGetProcAddress_v2_ptsz = cuGetProcAddress_v2(name: *const c_char, to: *mut Handle, version: c_int, flags: u64, found: *mut c_int);
}
