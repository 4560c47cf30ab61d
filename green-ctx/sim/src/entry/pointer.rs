//! The arguments of C functions, as the handlers see them.
//!
//! Handlers are safe code. What a C caller promises about its pointers is taken on once, where a
//! trampoline turns the arguments into the types of this module, and checked for null where the
//! pointer is used.

use std::ffi::{CStr, c_char};

use green_ctx_sys::{CUlaunchAttribute, CUlaunchConfig, CUresult};

/// What a handler returns: the status of the call, or a part of its answer.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// Refuses with `status` where `wrong` says that there is reason to.
pub(crate) fn refuse_if(wrong: bool, status: CUresult) -> Answer {
    if wrong { Err(status) } else { Ok(()) }
}

/// Refuses with `CUDA_ERROR_INVALID_VALUE` where `wrong` says that there is reason to.
pub(crate) fn invalid_if(wrong: bool) -> Answer {
    refuse_if(wrong, CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// The value, or `CUDA_ERROR_INVALID_VALUE`.
pub(crate) fn valid<T>(value: Option<T>) -> Answer<T> {
    value.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// A pointer that a C caller gave: null, a handle that is never followed, or valid for what the
/// header says that the function reads and writes there.
pub(crate) struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// The null pointer.
    pub(crate) fn null() -> Ptr<T> {
        Ptr(std::ptr::null_mut())
    }

    /// The pointer that an address stands for, which a C caller gave.
    pub(crate) fn at(address: u64) -> Ptr<T> {
        Ptr(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// The pointer, unless it is null.
    pub(crate) fn not_null(self) -> Option<std::ptr::NonNull<T>> {
        std::ptr::NonNull::new(self.0)
    }

    /// The number by which a handle is looked up.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    /// The pointer itself, to be passed back to the program.
    pub(crate) fn raw(self) -> *mut T {
        self.0
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Refuses a null pointer with `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn given(self) -> Answer<Self> {
        if self.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(self) }
    }

    /// Ends the process where it is null: the driver follows it without a look, as recorded.
    pub(crate) fn followed(&self) -> &Self {
        if self.is_null() {
            crate::crash::segmentation_fault();
        }
        self
    }

    /// Writes an answer; `CUDA_ERROR_INVALID_VALUE` for a null pointer.
    pub(crate) fn write(self, value: T) -> Answer {
        self.given()?;
        // SAFETY: not null, and so the caller's promise holds that a value fits here. Unaligned,
        // since a struct may have grown its alignment after the caller was compiled.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes an answer that the caller may do without.
    pub(crate) fn write_if_given(self, value: T) {
        if !self.is_null() {
            // A pointer that was just seen not to be null cannot be refused.
            let _ = self.write(value);
        }
    }

    /// Reads what the caller put here; `CUDA_ERROR_INVALID_VALUE` for a null pointer.
    pub(crate) fn read(self) -> Answer<T>
    where
        T: Copy,
    {
        self.given()?;
        // SAFETY: not null, and so the caller's promise holds that a value is here.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The `index`-th element of an array that the caller gave.
    pub(crate) fn element(self, index: usize) -> Ptr<T> {
        Ptr(self.0.wrapping_add(index))
    }

    /// A pointer that stands in the struct here, for which the caller promises what it promises for
    /// the struct.
    pub(crate) fn held<U>(self, pointer: *mut U) -> Ptr<U> {
        Ptr(pointer)
    }

    /// The same place, seen as another type.
    pub(crate) fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }

    /// Copies `out.len()` bytes from here.
    pub(crate) fn read_bytes(self, out: &mut [u8]) -> Answer {
        if out.is_empty() {
            return Ok(());
        }
        self.given()?;
        // SAFETY: not null, and so the caller's promise holds that so many bytes are here; `out`
        // is the simulator's own memory, which the caller cannot have aliased.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to here.
    pub(crate) fn write_bytes(self, bytes: &[u8]) -> Answer {
        if bytes.is_empty() {
            return Ok(());
        }
        self.given()?;
        // SAFETY: as in `read_bytes`, with the direction reversed.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>(), bytes.len()) };
        Ok(())
    }
}

/// A pointer of the program that the driver uses after the call: memory that a copy reads or writes
/// later, or what a function of the program is called with.
pub(crate) struct Kept<T>(Ptr<T>);

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Kept<T> {}

// SAFETY: whoever gives such a pointer promises that it can be used on a thread of the driver's
// choosing until the work is done (cuda.h: asynchronous copies, `cuLaunchHostFunc`).
unsafe impl<T> Send for Kept<T> {}

// SAFETY: who can see one can copy it, and who has a copy may use it on any thread, as above.
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
    /// One of the attributes that a configuration, which was read already, points to.
    pub(crate) fn attribute(config: &CUlaunchConfig, index: usize) -> Answer<CUlaunchAttribute> {
        Ptr(config.attrs).element(index).read()
    }
}

impl<T> Ptr<*mut T> {
    /// The pointer that is stored here; the caller's promise is about where it points, too.
    pub(crate) fn follow(self) -> Answer<Ptr<T>> {
        self.read().map(Ptr)
    }
}

impl Ptr<c_char> {
    /// The C string here, without its end.
    pub(crate) fn c_str(&self) -> Answer<&CStr> {
        self.given()?;
        // SAFETY: not null, and so the caller's promise holds that a string ends with a null byte;
        // it outlives the call, and the result borrows from a local of the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    /// Writes `text` and its end into a buffer of `len` bytes, cut short where it does not fit.
    pub(crate) fn write_str(self, text: &str, len: i32) -> Answer {
        let len = valid(usize::try_from(len).ok().filter(|&len| len > 0))?;
        let mut bytes = text.as_bytes()[..text.len().min(len - 1)].to_vec();
        bytes.push(0);
        self.write_bytes(&bytes)
    }
}

/// A type of argument and what a handler gets for it.
pub(crate) trait Argument {
    /// What the handler gets.
    type Checked;

    /// # Safety
    ///
    /// A pointer must be what [`Ptr`] says.
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
    /// The type and the number.
    type Checked = (green_ctx_sys::CUmemLocationType, i32);

    unsafe fn take(self) -> Self::Checked {
        // SAFETY: both members of the union are plain numbers, and C passes the whole struct.
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
