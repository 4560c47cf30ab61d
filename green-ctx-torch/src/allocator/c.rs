//! The allocator's C functions, for `torch.cuda.memory.CUDAPluggableAllocator` and for programs that are not written in
//! Rust. Every shared library that links this crate exports the functions; `use green_ctx_torch as _;` is enough to
//! link the crate.
//!
//! | PyTorch's hook | function |
//! |---|---|
//! | `alloc_fn`, `free_fn` | [`green_ctx_torch_alloc`], [`green_ctx_torch_free`] |
//! | `set_record_stream_fn` | [`green_ctx_torch_record_stream`] |
//! | `set_base_alloc_fn` | [`green_ctx_torch_base_alloc`] |
//! | `set_reset_fn` | [`green_ctx_torch_reset`] |
//! | `set_memory_fraction_fn` | [`green_ctx_torch_memory_fraction`] |
//! | `set_init_fn` | [`green_ctx_torch_init`] |
//!
//! The signatures are those of torch/csrc/cuda/CUDAPluggableAllocator.h. In Python, each hook takes the address of a
//! function as an int. PyTorch always calls `alloc_fn` and `free_fn`. It calls the other functions only if this
//! allocator is PyTorch's current allocator. In a `MemPool`, PyTorch's caching allocator does the work of the other
//! functions itself, for each block of a segment. The hook `set_begin_allocate_to_pool` takes a C++ object, so this
//! module has no function for it. The hook and its two companions are not needed, because each allocation detects
//! whether its stream is being captured.
//!
//! No function lets a panic reach its caller, and no function calls Python. [`green_ctx_torch_last_error`] returns the
//! last error as text. An error that the return value cannot report also goes to the driver's clean-up hook
//! ([`Driver::on_cleanup_failure`](green_ctx::Driver::on_cleanup_failure)). In a process that was forked after the
//! first call, the functions do nothing.
#![allow(unsafe_code, reason = "C functions")]

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use green_ctx::sys::{CUdeviceptr, CUstream};

use super::global;
use super::{Allocator, AllocatorError, Result};

/// The return values of functions that report success (`DONE`) or failure (`FAILED`).
const DONE: c_int = 0;
const FAILED: c_int = -1;

/// Allocates device memory in stream order. See [`Allocator::allocate`]. Returns null if `size` is 0, or if the
/// allocation fails. If the result is null, a `MemPool` of PyTorch raises its own out-of-memory error.
///
/// # Safety
///
/// As for [`Allocator::allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_alloc(
    size: usize,
    device: c_int,
    stream: CUstream,
) -> *mut c_void {
    contained(ptr::null_mut(), || {
        if size == 0 {
            return Ok(ptr::null_mut());
        }
        // SAFETY: this function has the same contract as `Allocator::allocate`.
        let address = unsafe { global::of_ordinal(device)?.allocate(size, stream) }?;
        Ok(ptr::without_provenance_mut(address as usize))
    })
}

/// Frees memory from [`green_ctx_torch_alloc`] on the same device. See [`Allocator::free`]. Ignores the size. Does
/// nothing for null.
///
/// # Safety
///
/// As for [`Allocator::free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_free(
    block: *mut c_void,
    _size: usize,
    device: c_int,
    stream: CUstream,
) {
    contained((), || {
        if block.is_null() {
            return Ok(());
        }
        let freed = global::of_ordinal(device).and_then(|allocator| {
            // SAFETY: this function has the same contract as `Allocator::free`.
            unsafe { allocator.free(address(block), stream) }
        });
        report(freed)
    });
}

/// Records that a block is used on a stream. See [`Allocator::record_stream`].
///
/// # Safety
///
/// As for [`Allocator::record_stream`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_record_stream(block: *mut c_void, stream: CUstream) {
    contained((), || {
        if block.is_null() {
            return Ok(());
        }
        let recorded = owner(block).and_then(|allocator| {
            // SAFETY: this function has the same contract as `Allocator::record_stream`.
            unsafe { allocator.record_stream(address(block), stream) }
        });
        report(recorded)
    });
}

/// Returns the first address of the block that contains `address_in_it`, and writes the block's size in bytes to `size`
/// unless `size` is null. If no block contains the address, returns the address itself and leaves `size` unchanged.
///
/// # Safety
///
/// `size` must be null or point to a writable `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_base_alloc(
    address_in_it: *mut c_void,
    size: *mut usize,
) -> *mut c_void {
    contained(address_in_it, || {
        let blocks = global::all();
        let mut blocks = blocks.iter().filter_map(|a| a.block_of(address(address_in_it)));
        let Some((begin, bytes)) = blocks.next() else { return Ok(address_in_it) };
        if !size.is_null() {
            // SAFETY: `size` is not null, and the contract of this function says that it is writable.
            unsafe { size.write(usize::try_from(bytes).unwrap_or(usize::MAX)) };
        }
        Ok(ptr::without_provenance_mut(begin as usize))
    })
}

/// Returns the unused memory of every allocator to the allocator's device. See [`Allocator::empty_cache`].
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_reset() {
    contained((), || report(global::all().iter().try_for_each(Allocator::empty_cache)));
}

/// Limits a device's allocator to a fraction of the device's memory. See [`Allocator::set_memory_fraction`].
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_memory_fraction(fraction: f64, device: c_int) {
    contained((), || {
        let set = global::of_ordinal(device);
        report(set.and_then(|allocator| allocator.set_memory_fraction(fraction)))
    });
}

/// Loads the driver. The other functions also load the driver; this function reports early if there is no driver.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_init(_device_count: c_int) {
    contained((), || global::of_ordinal(0).map(drop));
}

/// Sets the maximum number of bytes in use on a device. `UINT64_MAX` removes the limit. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_limit(device: c_int, bytes: u64) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_limit(limit(bytes));
        Ok(())
    })
}

/// Sets the maximum number of bytes in use on streams of partitions with this name. `UINT64_MAX` removes the limit.
/// Returns 0, or -1 on failure.
///
/// # Safety
///
/// `name` must be null or point to a NUL-terminated string. The call fails if `name` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_set_partition_limit(
    device: c_int,
    name: *const c_char,
    bytes: u64,
) -> c_int {
    done(|| {
        // SAFETY: `name` is null or points to a NUL-terminated string, by this function's contract.
        let name = unsafe { text(name) }?;
        global::of_ordinal(device)?.set_partition_limit(name, limit(bytes));
        Ok(())
    })
}

/// Sets the maximum number of bytes in use on streams outside any partition. `UINT64_MAX` removes the limit. Returns
/// 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_outside_limit(device: c_int, bytes: u64) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_outside_limit(limit(bytes));
        Ok(())
    })
}

/// Sets the maximum number of bytes in use on streams of foreign green contexts. `UINT64_MAX` removes the limit.
/// Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_foreign_limit(device: c_int, bytes: u64) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_foreign_limit(limit(bytes));
        Ok(())
    })
}

/// Sets whether new blocks of a device have IPC handles. See [`Allocator::set_shareable`]. Returns 0, or -1 on
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_shareable(device: c_int, shareable: c_int) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_shareable(shareable != 0);
        Ok(())
    })
}

/// Sets the number of unused bytes that a device's pool keeps. See [`Allocator::set_release_threshold`]. Returns 0,
/// or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_release_threshold(device: c_int, bytes: u64) -> c_int {
    done(|| global::of_ordinal(device)?.set_release_threshold(bytes))
}

/// Returns the number of bytes in use on a device, or 0 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_current_bytes(device: c_int) -> u64 {
    contained(0, || Ok(global::of_ordinal(device)?.current_bytes()))
}

/// Returns the greatest number of bytes in use on a device since the last reset, or 0 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_peak_bytes(device: c_int) -> u64 {
    contained(0, || Ok(global::of_ordinal(device)?.peak_bytes()))
}

/// Resets the peaks of a device to the current usage. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_reset_peak(device: c_int) -> c_int {
    done(|| {
        global::of_ordinal(device)?.reset_peak();
        Ok(())
    })
}

/// Returns unused memory of a device's allocator to the device. See [`Allocator::empty_cache`]. Returns 0, or -1 on
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_empty_cache(device: c_int) -> c_int {
    done(|| global::of_ordinal(device)?.empty_cache())
}

/// Writes the IPC handle of the block that contains an address. See [`Allocator::ipc_handle`]. Returns 0, or -1 on
/// failure, in which case nothing is written.
///
/// # Safety
///
/// `handle` must be null or have room for 64 bytes. The call fails if `handle` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_ipc_handle(
    block: *const c_void,
    handle: *mut [u8; 64],
) -> c_int {
    done(|| {
        given(handle.cast_const())?;
        let found = owner(block)?.ipc_handle(address(block))?;
        // SAFETY: `given` has checked that `handle` is not null, and the contract of this function says that `handle`
        // has room for 64 bytes.
        unsafe { handle.write(found) };
        Ok(())
    })
}

/// Writes a device's [snapshot](Allocator::snapshot) as NUL-terminated JSON if the text fits into `len` bytes;
/// otherwise writes nothing. Returns the number of bytes needed, including the terminator, or 0 on failure. Between two
/// calls, another thread may make the snapshot longer.
///
/// # Safety
///
/// `buffer` must have room for `len` bytes, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_snapshot(
    device: c_int,
    buffer: *mut c_char,
    len: usize,
) -> usize {
    contained(0, || {
        let json = global::of_ordinal(device)?.snapshot().to_json();
        // SAFETY: this function has the same contract as `write`.
        Ok(unsafe { write(&json, buffer, len) })
    })
}

/// Writes the last error that any of these functions had, on any thread. Uses the buffer like
/// [`green_ctx_torch_snapshot`]. Returns 0 if there was no error.
///
/// # Safety
///
/// `buffer` must have room for `len` bytes, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_last_error(buffer: *mut c_char, len: usize) -> usize {
    contained(0, || {
        let Some(text) = global::last_error() else { return Ok(0) };
        // SAFETY: this function has the same contract as `write`.
        Ok(unsafe { write(&text, buffer, len) })
    })
}

/// Runs `work`. If `work` fails or panics, stores the error's text and returns `otherwise`.
fn contained<R>(otherwise: R, work: impl FnOnce() -> Result<R>) -> R {
    if global::is_forked() {
        return otherwise;
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            global::set_last_error(error.to_string());
            otherwise
        }
        Err(panic) => {
            global::set_last_error(format!("panicked: {}", message(&*panic)));
            // Dropping the payload could panic again, and no panic may leave this function.
            mem::forget(panic);
            otherwise
        }
    }
}

fn done(work: impl FnOnce() -> Result<()>) -> c_int {
    contained(FAILED, || work().map(|()| DONE))
}

/// Passes an error that the caller cannot see to the driver's clean-up hook.
fn report(result: Result<()>) -> Result<()> {
    let Err(error) = result else { return Ok(()) };
    global::set_last_error(error.to_string());
    if let Some(driver) = global::driver() {
        driver.report(Err(error.into_cleanup()));
    }
    Ok(())
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is not text")
}

/// Returns the allocator that a block belongs to.
fn owner(block: *const c_void) -> Result<Allocator> {
    let address = address(block);
    let allocators = global::all().into_iter();
    let mut owners = allocators.filter(|allocator| allocator.block_of(address).is_some());
    owners.next().ok_or(AllocatorError::UnknownBlock { address })
}

fn address(block: *const c_void) -> CUdeviceptr {
    block.addr() as CUdeviceptr
}

fn limit(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}

fn given<T>(pointer: *const T) -> Result<()> {
    let null = || AllocatorError::InvalidRequest("a required pointer is null".to_owned());
    if pointer.is_null() { Err(null()) } else { Ok(()) }
}

/// # Safety
///
/// The pointer must be null or point to a NUL-terminated string that lives as long as the result.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str> {
    given(pointer)?;
    // SAFETY: `given` has checked that `pointer` is not null, and this function's contract says that it is a
    // terminated string.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map_err(|_| AllocatorError::InvalidRequest("a name is not UTF-8".to_owned()))
}

/// Writes a string and its terminator if both fit into the buffer. Returns the number of bytes needed.
///
/// # Safety
///
/// The buffer must have room for `len` bytes, or be null.
unsafe fn write(text: &str, buffer: *mut c_char, len: usize) -> usize {
    let needed = text.len() + 1;
    if !buffer.is_null() && needed <= len {
        // SAFETY: `buffer` has room for `len` bytes, by this function's contract, and `needed` is at most `len`.
        // `text` is memory of this library and cannot overlap it.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len()) };
        // SAFETY: `text.len()` is less than `len`, so the result is in the buffer.
        let end = unsafe { buffer.add(text.len()) };
        // SAFETY: `end` is in the buffer, see above.
        unsafe { end.write(0) };
    }
    needed
}
