//! The allocator's C functions, for `torch.cuda.memory.CUDAPluggableAllocator` and for programs without
//! Rust. Every shared library that links this crate exports them (`use green_ctx_torch as _;` is enough).
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
//! The signatures are those of torch/csrc/cuda/CUDAPluggableAllocator.h; from Python the hooks take a
//! function's address as a number. PyTorch calls those other than the first two where the allocator is the
//! current one; in a `MemPool` its caching allocator does such things itself, per block of a segment.
//! `set_begin_allocate_to_pool` takes a C++ object and has no C function; neither it nor its two companions
//! are needed, since an allocation finds out by itself that its stream is being captured.
//!
//! No function panics into its caller, and none calls Python. What fails is kept as text
//! ([`green_ctx_torch_last_error`]); where nobody would otherwise hear of it, it also goes to the driver's
//! clean-up hook ([`Driver::on_cleanup_failure`](green_ctx::Driver::on_cleanup_failure)). In a process that
//! was forked after the first call they do nothing.
#![allow(unsafe_code, reason = "C functions")]

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use green_ctx::sys::{CUdeviceptr, CUstream};

use super::global;
use super::{Allocator, AllocatorError, Result};

/// What functions return that say whether they succeeded.
const DONE: c_int = 0;
const FAILED: c_int = -1;

/// Allocates device memory in the order of a stream; see [`Allocator::allocate`]. Null for no bytes, and
/// where it failed, which a `MemPool` of PyTorch raises as its own out-of-memory error.
///
/// # Safety
///
/// As [`Allocator::allocate`].
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
        // SAFETY: by this function's contract.
        let address = unsafe { global::of_ordinal(device)?.allocate(size, stream) }?;
        Ok(ptr::without_provenance_mut(address as usize))
    })
}

/// Frees what [`green_ctx_torch_alloc`] gave, on the same device; see [`Allocator::free`]. The size is not
/// looked at. Null is nothing.
///
/// # Safety
///
/// As [`Allocator::free`].
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
            // SAFETY: by this function's contract.
            unsafe { allocator.free(address(block), stream) }
        });
        report(freed)
    });
}

/// Notes that a block is used on a stream; see [`Allocator::record_stream`].
///
/// # Safety
///
/// As [`Allocator::record_stream`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_record_stream(block: *mut c_void, stream: CUstream) {
    contained((), || {
        if block.is_null() {
            return Ok(());
        }
        let recorded = owner(block).and_then(|allocator| {
            // SAFETY: by this function's contract.
            unsafe { allocator.record_stream(address(block), stream) }
        });
        report(recorded)
    });
}

/// The first address of the block that `address` is in, and its bytes in `size` where that is not null.
/// An address that is in no block is given back, and `size` left as it is.
///
/// # Safety
///
/// `size` must be null or point to a number that can be written.
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
            // SAFETY: by this function's contract.
            unsafe { size.write(usize::try_from(bytes).unwrap_or(usize::MAX)) };
        }
        Ok(ptr::without_provenance_mut(begin as usize))
    })
}

/// Gives back what the allocators of all devices keep; see [`Allocator::empty_cache`].
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_reset() {
    contained((), || report(global::all().iter().try_for_each(Allocator::empty_cache)));
}

/// Limits a device's allocator to a part of its memory; see [`Allocator::set_memory_fraction`].
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_memory_fraction(fraction: f64, device: c_int) {
    contained((), || {
        let set = global::of_ordinal(device);
        report(set.and_then(|allocator| allocator.set_memory_fraction(fraction)))
    });
}

/// Finds the driver. Everything else does that too; this says early that there is none.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_init(_device_count: c_int) {
    contained((), || global::of_ordinal(0).map(drop));
}

/// Limits the bytes that may be in use on a device; `UINT64_MAX` for no limit. 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_limit(device: c_int, bytes: u64) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_limit(limit(bytes));
        Ok(())
    })
}

/// Limits the bytes that may be in use on streams of partitions of a name; `UINT64_MAX` for no limit.
/// 0, or -1 on failure.
///
/// # Safety
///
/// `name` must be null, which fails, or a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_set_partition_limit(
    device: c_int,
    name: *const c_char,
    bytes: u64,
) -> c_int {
    done(|| {
        // SAFETY: by this function's contract.
        let name = unsafe { text(name) }?;
        global::of_ordinal(device)?.set_partition_limit(name, limit(bytes));
        Ok(())
    })
}

/// Limits the bytes that may be in use on streams that are in no partition; `UINT64_MAX` for no limit. 0,
/// or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_outside_limit(device: c_int, bytes: u64) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_outside_limit(limit(bytes));
        Ok(())
    })
}

/// Limits the bytes that may be in use on streams of foreign green contexts; `UINT64_MAX` for no limit.
/// 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_foreign_limit(device: c_int, bytes: u64) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_foreign_limit(limit(bytes));
        Ok(())
    })
}

/// Whether blocks of a device are allocated from now on so that they have IPC handles; see
/// [`Allocator::set_shareable`]. 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_shareable(device: c_int, shareable: c_int) -> c_int {
    done(|| {
        global::of_ordinal(device)?.set_shareable(shareable != 0);
        Ok(())
    })
}

/// How many bytes that are not in use a device's pool keeps; see
/// [`Allocator::set_release_threshold`]. 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_set_release_threshold(device: c_int, bytes: u64) -> c_int {
    done(|| global::of_ordinal(device)?.set_release_threshold(bytes))
}

/// The bytes in use on a device. 0 on failure too.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_current_bytes(device: c_int) -> u64 {
    contained(0, || Ok(global::of_ordinal(device)?.current_bytes()))
}

/// The most bytes that were in use on a device. 0 on failure too.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_peak_bytes(device: c_int) -> u64 {
    contained(0, || Ok(global::of_ordinal(device)?.peak_bytes()))
}

/// Lets the peaks of a device begin again at what is in use. 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_reset_peak(device: c_int) -> c_int {
    done(|| {
        global::of_ordinal(device)?.reset_peak();
        Ok(())
    })
}

/// Gives back what a device's allocator keeps; see [`Allocator::empty_cache`]. 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn green_ctx_torch_empty_cache(device: c_int) -> c_int {
    done(|| global::of_ordinal(device)?.empty_cache())
}

/// Writes the IPC handle of the block that an address is in; see [`Allocator::ipc_handle`]. 0, or -1 on
/// failure, where nothing is written.
///
/// # Safety
///
/// `handle` must be null, which fails, or have room for 64 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_ipc_handle(
    block: *const c_void,
    handle: *mut [u8; 64],
) -> c_int {
    done(|| {
        given(handle.cast_const())?;
        let found = owner(block)?.ipc_handle(address(block))?;
        // SAFETY: by this function's contract.
        unsafe { handle.write(found) };
        Ok(())
    })
}

/// Writes a device's [snapshot](Allocator::snapshot) as JSON, terminated, where it fits into `len`
/// bytes, and nothing otherwise. Returns the bytes that it needs, the terminator included; 0 on failure.
/// Another thread may make it longer between two calls.
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
        // SAFETY: by this function's contract.
        Ok(unsafe { write(&json, buffer, len) })
    })
}

/// Writes what failed last in any of these functions, on any thread, as
/// [`green_ctx_torch_snapshot`] does; 0 where nothing has.
///
/// # Safety
///
/// `buffer` must have room for `len` bytes, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn green_ctx_torch_last_error(buffer: *mut c_char, len: usize) -> usize {
    contained(0, || {
        let Some(text) = global::last_error() else { return Ok(0) };
        // SAFETY: by this function's contract.
        Ok(unsafe { write(&text, buffer, len) })
    })
}

/// Runs a function whose errors and panics end here.
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
            // Dropping it may panic again, and nothing may unwind from here.
            mem::forget(panic);
            otherwise
        }
    }
}

fn done(work: impl FnOnce() -> Result<()>) -> c_int {
    contained(FAILED, || work().map(|()| DONE))
}

/// Reports a failure that the caller cannot see to the driver's clean-up hook.
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
    text.unwrap_or("something that is no text")
}

/// The allocator that a block is of.
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
    let null = || AllocatorError::InvalidRequest("a pointer is null".to_owned());
    if pointer.is_null() { Err(null()) } else { Ok(()) }
}

/// # Safety
///
/// The pointer must be null or to a terminated string, which lives as long as the result.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str> {
    given(pointer)?;
    // SAFETY: not null, and by this function's contract.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map_err(|_| AllocatorError::InvalidRequest("a name is not UTF-8".to_owned()))
}

/// Writes a text and its terminator where they fit; returns the bytes that they need.
///
/// # Safety
///
/// The buffer must have room for `len` bytes, or be null.
unsafe fn write(text: &str, buffer: *mut c_char, len: usize) -> usize {
    let needed = text.len() + 1;
    if !buffer.is_null() && needed <= len {
        // SAFETY: there is room for the text, which cannot overlap a buffer of the caller's.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len()) };
        // SAFETY: the terminator is within the buffer.
        let end = unsafe { buffer.add(text.len()) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    needed
}
