//! A libtorch that has only its C functions for streams. As in PyTorch, each thread has a current stream per device,
//! and guards restore streams. `loading` also compiles this file alone, as a library.
#![allow(unsafe_code, reason = "these are C functions")]
#![allow(dead_code, reason = "a library needs the C functions alone")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::ptr;

const DEVICES: i32 = 2;

/// A stream as PyTorch knows it. PyTorch distinguishes its own stream from an external stream with the same handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TorchStream {
    pub(crate) raw: usize,
    pub(crate) from_outside: bool,
}

/// The default stream, which counts as PyTorch's own whether or not it was set from outside.
pub(crate) const DEFAULT: TorchStream = TorchStream { raw: 0, from_outside: false };

struct Guard {
    device: i32,
    original: TorchStream,
}

thread_local! {
    static CURRENT: RefCell<BTreeMap<i32, TorchStream>> = const { RefCell::new(BTreeMap::new()) };
    static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    /// The number of the call, from now on, that fails. 0 if none does.
    static FAIL: Cell<usize> = const { Cell::new(0) };
    static GUARDS: Cell<usize> = const { Cell::new(0) };
    static POOL_USES: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    static DEVICE_CHANGES: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Returns the thread's current stream of a device.
pub(crate) fn current(device: i32) -> TorchStream {
    CURRENT.with_borrow(|current| current.get(&device).copied().unwrap_or(DEFAULT))
}

/// Makes one of PyTorch's own streams current, as PyTorch does.
pub(crate) fn set_own(raw: *mut c_void, device: i32) {
    set(device, TorchStream { raw: raw.addr(), from_outside: false });
}

/// Makes the `n`-th call from now on fail, or none for 0.
pub(crate) fn fail(n: usize) {
    FAIL.set(n);
}

/// Returns the calls of this thread since the last time.
pub(crate) fn take_calls() -> Vec<&'static str> {
    CALLS.take()
}

/// Returns the number of guards that this thread has created and not deleted.
pub(crate) fn guards() -> usize {
    GUARDS.get()
}

/// Sets a function that runs when guards are created and deleted, since PyTorch's guards change the device.
pub(crate) fn on_device_change(change: impl Fn() + 'static) {
    DEVICE_CHANGES.set(Some(Box::new(change)));
}

/// Sets a function that runs when a stream of the pool is requested, which is when PyTorch may create the pool.
pub(crate) fn on_pool_use(asked: impl Fn() + 'static) {
    POOL_USES.set(Some(Box::new(asked)));
}

/// Returns the function with this name, or null.
pub(crate) fn lookup(name: &CStr) -> *mut c_void {
    match name.to_bytes() {
        b"aoti_torch_get_current_cuda_stream" => aoti_torch_get_current_cuda_stream as *mut c_void,
        b"torch_set_current_cuda_stream" => torch_set_current_cuda_stream as *mut c_void,
        b"torch_get_cuda_stream_from_pool" => torch_get_cuda_stream_from_pool as *mut c_void,
        b"torch_cuda_stream_synchronize" => torch_cuda_stream_synchronize as *mut c_void,
        b"aoti_torch_create_cuda_stream_guard" => {
            aoti_torch_create_cuda_stream_guard as *mut c_void
        }
        b"aoti_torch_delete_cuda_stream_guard" => {
            aoti_torch_delete_cuda_stream_guard as *mut c_void
        }
        _ => ptr::null_mut(),
    }
}

fn set(device: i32, stream: TorchStream) -> TorchStream {
    CURRENT.with_borrow_mut(|current| current.insert(device, stream)).unwrap_or(DEFAULT)
}

fn from_outside(raw: *mut c_void) -> TorchStream {
    TorchStream { raw: raw.addr(), from_outside: !raw.is_null() }
}

/// Returns 1 if the call is to fail or there is no such device, and 0 otherwise.
fn answer(call: &'static str, device: i32) -> i32 {
    CALLS.with_borrow_mut(|calls| calls.push(call));
    let left = FAIL.get();
    FAIL.set(left.saturating_sub(1));
    i32::from(left == 1 || !(0..DEVICES).contains(&device))
}

fn change_device() {
    DEVICE_CHANGES.with_borrow(|change| change.as_ref().map(|change| change()));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aoti_torch_get_current_cuda_stream(
    device: i32,
    stream: *mut *mut c_void,
) -> i32 {
    let code = answer("aoti_torch_get_current_cuda_stream", device);
    if code == 0 {
        let raw = ptr::with_exposed_provenance_mut(current(device).raw);
        // SAFETY: the caller passes a pointer to a live handle.
        unsafe { stream.write(raw) };
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn torch_set_current_cuda_stream(stream: *mut c_void, device: i32) -> i32 {
    let code = answer("torch_set_current_cuda_stream", device);
    if code == 0 {
        set(device, from_outside(stream));
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn torch_get_cuda_stream_from_pool(
    high_priority: bool,
    device: i32,
    stream: *mut *mut c_void,
) -> i32 {
    let code = answer("torch_get_cuda_stream_from_pool", device);
    if code == 0 {
        POOL_USES.with_borrow(|uses| uses.as_ref().map(|asked| asked()));
        // SAFETY: the caller passes a pointer to a live handle.
        unsafe { stream.write(ptr::without_provenance_mut(0x1000 + usize::from(high_priority))) };
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn torch_cuda_stream_synchronize(_stream: *mut c_void, device: i32) -> i32 {
    answer("torch_cuda_stream_synchronize", device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aoti_torch_create_cuda_stream_guard(
    stream: *mut c_void,
    device: i32,
    guard: *mut *mut c_void,
) -> i32 {
    let code = answer("aoti_torch_create_cuda_stream_guard", device);
    if code == 0 {
        change_device();
        let original = set(device, from_outside(stream));
        GUARDS.set(GUARDS.get() + 1);
        let made = Box::into_raw(Box::new(Guard { device, original })).cast();
        // SAFETY: the caller passes a pointer to a live handle.
        unsafe { guard.write(made) };
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aoti_torch_delete_cuda_stream_guard(guard: *mut c_void) -> i32 {
    let code = answer("aoti_torch_delete_cuda_stream_guard", 0);
    if code == 0 {
        // SAFETY: the function above created the guard with `Box::into_raw`, and the caller deletes it once.
        let guard = unsafe { Box::from_raw(guard.cast::<Guard>()) };
        set(guard.device, guard.original);
        GUARDS.set(GUARDS.get() - 1);
        change_device();
    }
    code
}
