//! The arguments of C functions, in the form in which handlers receive them.
//!
//! Handlers contain no unsafe code. The functions in `functions::entrances` convert the C arguments into
//! the types of this module. These types rely on the C caller's promises about pointers, and check for null
//! before every access.

use std::ffi::{CStr, c_char};

use green_ctx_sys::{CUlaunchAttribute, CUlaunchConfig, CUresult};

/// The result of a handler: a value, or the error status of the call.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// Returns the error `status` if `wrong` is true.
pub(crate) fn refuse_if(wrong: bool, status: CUresult) -> Answer {
    if wrong { Err(status) } else { Ok(()) }
}

/// Returns the error `CUDA_ERROR_INVALID_VALUE` if `wrong` is true.
pub(crate) fn invalid_if(wrong: bool) -> Answer {
    refuse_if(wrong, CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Returns the value; `CUDA_ERROR_INVALID_VALUE` if `value` is `None`.
pub(crate) fn valid<T>(value: Option<T>) -> Answer<T> {
    value.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// A pointer from a C caller. The pointer is null, a handle that is never dereferenced, or valid for the
/// accesses that cuda.h documents for the function.
pub(crate) struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// Returns the null pointer.
    pub(crate) fn null() -> Ptr<T> {
        Ptr(std::ptr::null_mut())
    }

    /// Returns the pointer for an address that a C caller passed as a number.
    pub(crate) fn at(address: u64) -> Ptr<T> {
        Ptr(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Returns the pointer unless it is null.
    pub(crate) fn not_null(self) -> Option<std::ptr::NonNull<T>> {
        std::ptr::NonNull::new(self.0)
    }

    /// Returns the address, which is the key for looking up a handle.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    /// Returns the raw pointer, which the simulator passes back to the program.
    pub(crate) fn raw(self) -> *mut T {
        self.0
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the pointer; `CUDA_ERROR_INVALID_VALUE` if the pointer is null.
    pub(crate) fn given(self) -> Answer<Self> {
        if self.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(self) }
    }

    /// Ends the process if the pointer is null, because the real driver dereferences such an argument
    /// without a check (recorded on hardware).
    pub(crate) fn followed(&self) -> &Self {
        if self.is_null() {
            crate::crash::segmentation_fault();
        }
        self
    }

    /// Writes a result; `CUDA_ERROR_INVALID_VALUE` if the pointer is null.
    pub(crate) fn write(self, value: T) -> Answer {
        self.given()?;
        // SAFETY: the pointer is not null, so it is valid for writing a `T` (see [`Ptr`]). The write is
        // unaligned, because a newer header may give the struct a larger alignment than the caller was
        // compiled with.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes a result, unless the pointer is null.
    pub(crate) fn write_if_given(self, value: T) {
        if !self.is_null() {
            // The pointer is not null, so `write` cannot fail.
            let _ = self.write(value);
        }
    }

    /// Reads a value; `CUDA_ERROR_INVALID_VALUE` if the pointer is null.
    pub(crate) fn read(self) -> Answer<T>
    where
        T: Copy,
    {
        self.given()?;
        // SAFETY: the pointer is not null, so it is valid for reading a `T` (see [`Ptr`]).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Returns a pointer to the `index`-th element of the caller's array.
    pub(crate) fn element(self, index: usize) -> Ptr<T> {
        Ptr(self.0.wrapping_add(index))
    }

    /// Converts a pointer that is stored in the struct at this address. The caller's promises about the
    /// struct also apply to the stored pointer.
    pub(crate) fn held<U>(self, pointer: *mut U) -> Ptr<U> {
        Ptr(pointer)
    }

    /// Casts the pointer to another type.
    pub(crate) fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }

    /// Copies `out.len()` bytes from this address.
    pub(crate) fn read_bytes(self, out: &mut [u8]) -> Answer {
        if out.is_empty() {
            return Ok(());
        }
        self.given()?;
        // SAFETY: the pointer is not null, so it is valid for reading `out.len()` bytes (see [`Ptr`]).
        // `out` is the simulator's own memory, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to this address.
    pub(crate) fn write_bytes(self, bytes: &[u8]) -> Answer {
        if bytes.is_empty() {
            return Ok(());
        }
        self.given()?;
        // SAFETY: the pointer is not null, so it is valid for writing `bytes.len()` bytes (see [`Ptr`]).
        // `bytes` is the simulator's own memory, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>(), bytes.len()) };
        Ok(())
    }
}

/// A pointer from the program that the driver still uses after the call returns: memory of an asynchronous
/// copy, or the argument of a callback.
pub(crate) struct Kept<T>(Ptr<T>);

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Kept<T> {}

// SAFETY: a program that passes such a pointer promises that any thread may use it until the work is done
// (cuda.h: asynchronous copies, `cuLaunchHostFunc`).
unsafe impl<T> Send for Kept<T> {}

// SAFETY: a shared reference only allows copying the pointer, and any thread may use the copy, because
// `Kept` is `Send`.
unsafe impl<T> Sync for Kept<T> {}

impl<T> Kept<T> {
    pub(crate) fn pointer(self) -> Ptr<T> {
        self.0
    }
}

impl<T> From<Ptr<T>> for Kept<T> {
    fn from(pointer: Ptr<T>) -> Kept<T> {
        Kept(pointer)
    }
}

impl Ptr<CUlaunchConfig> {
    /// Reads one of the attributes of a launch configuration.
    pub(crate) fn attribute(config: &CUlaunchConfig, index: usize) -> Answer<CUlaunchAttribute> {
        Ptr(config.attrs).element(index).read()
    }
}

impl<T> Ptr<*mut T> {
    /// Reads the pointer stored at this address. The caller's promises also cover the memory that the
    /// stored pointer points to.
    pub(crate) fn follow(self) -> Answer<Ptr<T>> {
        self.read().map(Ptr)
    }
}

impl Ptr<c_char> {
    /// Returns the C string at this address.
    pub(crate) fn c_str(&self) -> Answer<&CStr> {
        self.given()?;
        // SAFETY: the pointer is not null, so it points to a string with a terminating null byte that lives
        // until the call returns (see [`Ptr`]). The result borrows from `self`, which is local to the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    /// Writes `text` and a null byte into a buffer of `len` bytes. Truncates the text if the buffer is too
    /// small.
    pub(crate) fn write_str(self, text: &str, len: i32) -> Answer {
        let len = valid(usize::try_from(len).ok().filter(|&len| len > 0))?;
        let mut bytes = text.as_bytes()[..text.len().min(len - 1)].to_vec();
        bytes.push(0);
        self.write_bytes(&bytes)
    }
}

/// A C argument type, and the type that handlers receive instead.
pub(crate) trait Argument {
    /// The type that handlers receive.
    type Checked;

    /// Converts the argument.
    ///
    /// # Safety
    ///
    /// If the argument is a pointer, it must satisfy the requirements of [`Ptr`].
    unsafe fn take(self) -> Self::Checked;
}

impl<T> Argument for *mut T {
    type Checked = Ptr<T>;

    unsafe fn take(self) -> Ptr<T> {
        Ptr(self)
    }
}

impl<T> Argument for *const T {
    type Checked = Ptr<T>;

    unsafe fn take(self) -> Ptr<T> {
        Ptr(self.cast_mut())
    }
}

impl Argument for green_ctx_sys::CUmemLocation {
    /// The type and the id of the location.
    type Checked = (green_ctx_sys::CUmemLocationType, i32);

    unsafe fn take(self) -> Self::Checked {
        // SAFETY: both fields of the union are plain integers, and the C caller passes the whole struct by
        // value, so the field is initialised.
        (self.type_, unsafe { self.__bindgen_anon_1.id })
    }
}

macro_rules! plain {
    ($($ty:ty),* $(,)?) => {$(
        impl Argument for $ty {
            type Checked = $ty;

            unsafe fn take(self) -> $ty {
                self
            }
        }
    )*};
}

plain!(
    green_ctx_sys::CUmemAllocationHandleType,
    green_ctx_sys::CUmemAllocationType,
    u8,
    u16,
    u32,
    i32,
    u64,
    usize,
    CUresult,
    green_ctx_sys::CUdevice_attribute,
    green_ctx_sys::CUfunc_cache,
    green_ctx_sys::CUlaunchAttributeID,
    green_ctx_sys::CUipcEventHandle_st,
    green_ctx_sys::CUipcMemHandle_st,
    green_ctx_sys::CUlimit,
    green_ctx_sys::CUmemPool_attribute,
    green_ctx_sys::CUpointer_attribute,
    green_ctx_sys::CUdevResourceType,
    green_ctx_sys::CUfunction_attribute,
    green_ctx_sys::CUhostFn,
    green_ctx_sys::CUoccupancyB2DSize,
    green_ctx_sys::CUstreamCallback,
    green_ctx_sys::CUstreamCaptureMode,
);
