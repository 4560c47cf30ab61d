//! libtorch's stable C functions, which are found at run time and never linked.
#![allow(unsafe_code, reason = "calls libtorch")]

mod load;

use std::ffi::{CStr, c_void};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use green_ctx::Device;
use parking_lot::RwLock;

use crate::error::{Result, TorchError};

/// The oldest PyTorch that has every function, according to `torch/csrc/stable/c/shim.h`.
const NEEDS: &str = "2.10";

/// A stream guard of libtorch (`CUDAStreamGuardHandle`).
pub(crate) type RawGuard = *mut c_void;

type GetCurrent = unsafe extern "C" fn(device: i32, stream: *mut *mut c_void) -> i32;
type SetCurrent = unsafe extern "C" fn(stream: *mut c_void, device: i32) -> i32;
type FromPool = unsafe extern "C" fn(high: bool, device: i32, stream: *mut *mut c_void) -> i32;
type Synchronize = unsafe extern "C" fn(stream: *mut c_void, device: i32) -> i32;
type CreateGuard =
    unsafe extern "C" fn(stream: *mut c_void, device: i32, guard: *mut RawGuard) -> i32;
type DeleteGuard = unsafe extern "C" fn(guard: RawGuard) -> i32;

/// Generates the table of functions from their names and signatures, with an accessor for each. If a function is
/// missing, the accessor's error names the first version of PyTorch that has the function.
macro_rules! functions {
    ($($function:ident: $signature:ty;)*) => {
        struct Functions {
            $($function: Option<$signature>,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// For each name, `find` must return null or libtorch's function of that name, which must stay valid.
            unsafe fn resolve(find: impl Fn(&CStr) -> *mut c_void) -> Functions {
                $(
                    let name = concat!(stringify!($function), "\0");
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                    // SAFETY: for an `Option` of a function pointer, null means `None`. By this function's contract
                    // the pointer is libtorch's function of that name, which has this signature in PyTorch 2.10 and
                    // newer (torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h).
                    let $function = unsafe {
                        std::mem::transmute::<*mut c_void, Option<$signature>>(find(name))
                    };
                )*
                Functions { $($function),* }
            }

            $(
                #[inline]
                fn $function(&self) -> Result<$signature> {
                    self.$function.ok_or(TorchError::TooOld {
                        function: stringify!($function),
                        needs: NEEDS,
                    })
                }
            )*
        }
    };
}

functions! {
    aoti_torch_get_current_cuda_stream: GetCurrent;
    torch_set_current_cuda_stream: SetCurrent;
    torch_get_cuda_stream_from_pool: FromPool;
    torch_cuda_stream_synchronize: Synchronize;
    aoti_torch_create_cuda_stream_guard: CreateGuard;
    aoti_torch_delete_cuda_stream_guard: DeleteGuard;
}

/// Calls a function of libtorch by name and checks the returned code.
///
/// The expansion calls a foreign function, so the caller writes the `unsafe` block.
macro_rules! call {
    ($torch:expr, $function:ident($($argument:expr),* $(,)?)) => {
        check(stringify!($function), $torch.inner.functions.$function()?($($argument),*))
    };
}

#[inline]
fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(TorchError::Call { call, code }) }
}

/// The PyTorch of this process. Clones share the same state.
///
/// This type uses libtorch's stable C functions (PyTorch 2.10 and newer). Device ordinals are those of the driver;
/// PyTorch uses the same numbers. No function holds or needs Python's interpreter lock.
#[derive(Clone)]
pub struct Torch {
    inner: Arc<Inner>,
}

/// The PyTorch that [`Torch::find`] found.
static FOUND: OnceLock<Torch> = OnceLock::new();

type Hook = dyn Fn(&TorchError) + Send + Sync;

struct Inner {
    functions: Functions,
    /// One bit per device. A bit is set if PyTorch has created its stream pool for the device.
    pools: AtomicU64,
    hook: RwLock<Arc<Hook>>,
}

impl Torch {
    /// Finds the PyTorch that Python or the program has loaded into this process. After the first success, all calls
    /// return the same PyTorch.
    ///
    /// # Errors
    ///
    /// [`TorchError::NotLoaded`] if there is no PyTorch, and [`TorchError::CpuBuild`] if it was built without CUDA. If
    /// PyTorch lacks a function, the error occurs only when the function is called.
    pub fn find() -> Result<Torch> {
        if let Some(torch) = Torch::found() {
            return Ok(torch);
        }
        let torch = load::find()?;
        Ok(FOUND.get_or_init(|| torch).clone())
    }

    /// Returns the PyTorch that an earlier [`find`](Torch::find) found. Never waits.
    #[must_use]
    pub fn found() -> Option<Torch> {
        FOUND.get().cloned()
    }

    /// Loads the libtorch in `folder`, or in its subfolder `lib`. The library is never unloaded.
    ///
    /// # Errors
    ///
    /// [`TorchError::NotFound`] if the folder has no libtorch, [`TorchError::NotALibrary`] if the library cannot be
    /// loaded, and [`TorchError::CpuBuild`] if PyTorch was built without CUDA.
    ///
    /// # Safety
    ///
    /// The library there must be libtorch, because opening it runs its code.
    pub unsafe fn load_from(folder: impl AsRef<Path>) -> Result<Torch> {
        // SAFETY: this function has the same contract as `load::load_from`.
        unsafe { load::load_from(folder.as_ref()) }
    }

    /// Creates a `Torch` from functions that the caller looks up, for example if libtorch is linked into the program.
    /// `find` is called once per name and returns null for a function that does not exist.
    ///
    /// # Safety
    ///
    /// For each name, `find` must return null or libtorch's C function of that name. The function must stay valid
    /// until the process ends.
    pub unsafe fn from_lookup(find: impl Fn(&CStr) -> *mut c_void) -> Torch {
        let hook = |error: &TorchError| {
            // `eprintln!` would panic if there is no standard error.
            let _ = writeln!(std::io::stderr(), "green-ctx-torch: a clean-up failed: {error}");
        };
        // SAFETY: this function has the same contract as `Functions::resolve`.
        let functions = unsafe { Functions::resolve(find) };
        let (pools, hook): (_, Arc<Hook>) = (AtomicU64::new(0), Arc::new(hook));
        Torch { inner: Arc::new(Inner { functions, pools, hook: RwLock::new(hook) }) }
    }

    /// Returns the calling thread's current stream of a device, or null for the default stream.
    ///
    /// # Errors
    ///
    /// [`TorchError::TooOld`] if PyTorch lacks the function. [`TorchError::Call`] if the function fails, for example
    /// because PyTorch does not have the device.
    pub fn current_stream(&self, device: u32) -> Result<*mut c_void> {
        self.get_current(index(device)?)
    }

    /// Returns the calling thread's current stream of PyTorch's current device, or null for the default stream.
    ///
    /// # Errors
    ///
    /// As for [`current_stream`](Torch::current_stream).
    pub fn current_stream_here(&self) -> Result<*mut c_void> {
        // `getCurrentCUDAStream` takes -1 for the current device (c10/cuda/CUDAStream.h).
        self.get_current(-1)
    }

    fn get_current(&self, device: i32) -> Result<*mut c_void> {
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is a live local.
        unsafe { call!(self, aoti_torch_get_current_cuda_stream(device, &raw mut stream)) }?;
        Ok(stream)
    }

    /// Makes a stream the calling thread's current stream of a device. Null means the default stream.
    ///
    /// PyTorch treats the handle as an external stream. If the stream is from PyTorch's pool, PyTorch therefore returns
    /// a stream object that does not compare equal to the original. [`guard`](Torch::guard) restores the original
    /// stream.
    ///
    /// # Errors
    ///
    /// As for [`current_stream`](Torch::current_stream).
    ///
    /// # Safety
    ///
    /// `stream` must be null or a live stream of the device. It must stay alive while it is the current stream of
    /// any thread in PyTorch, and while anything can make it current again.
    pub unsafe fn set_current_stream(&self, stream: *mut c_void, device: u32) -> Result<()> {
        let device = index(device)?;
        // SAFETY: the caller guarantees that `stream` is null or live, as this function's contract says.
        unsafe { call!(self, torch_set_current_cuda_stream(stream, device)) }
    }

    /// Returns a stream of PyTorch's pool for a device. PyTorch owns the stream, and may return it to other callers
    /// too.
    ///
    /// # Errors
    ///
    /// As for [`current_stream`](Torch::current_stream).
    pub fn stream_from_pool(&self, device: u32, high_priority: bool) -> Result<*mut c_void> {
        let device = index(device)?;
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is a live local.
        unsafe {
            call!(self, torch_get_cuda_stream_from_pool(high_priority, device, &raw mut stream))
        }?;
        Ok(stream)
    }

    /// Makes PyTorch create its stream pool in the primary context. PyTorch creates all streams of the pool on the
    /// first request, in the context that is current at that moment, even if that is the context of a partition
    /// (observed with PyTorch 2.11). PyTorch keeps these streams until the process ends.
    pub(crate) fn make_pool(&self, device: &Device) -> Result<()> {
        let ordinal = device.ordinal();
        // Devices beyond the last bit request the streams every time.
        let bit = 1_u64.checked_shl(ordinal).unwrap_or(0);
        if self.inner.pools.load(Ordering::Relaxed) & bit != 0 {
            return Ok(());
        }
        let primary = device.primary_context()?;
        let _current = primary.make_current()?;
        for high_priority in [false, true] {
            self.stream_from_pool(ordinal, high_priority)?;
        }
        self.inner.pools.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all work submitted to a stream is done.
    ///
    /// # Errors
    ///
    /// As for [`current_stream`](Torch::current_stream). The call also returns errors from earlier work in the stream.
    ///
    /// # Safety
    ///
    /// `stream` must be null or a live stream of the device.
    pub unsafe fn synchronize_stream(&self, stream: *mut c_void, device: u32) -> Result<()> {
        let device = index(device)?;
        // SAFETY: the caller guarantees that `stream` is null or live, as this function's contract says.
        unsafe { call!(self, torch_cuda_stream_synchronize(stream, device)) }
    }

    /// Makes a stream and its device the thread's current ones until the result is deleted.
    ///
    /// # Safety
    ///
    /// As for [`set_current_stream`](Torch::set_current_stream).
    pub(crate) unsafe fn create_guard(&self, stream: *mut c_void, device: u32) -> Result<RawGuard> {
        let device = index(device)?;
        // Check now, so that the guard can be deleted later.
        self.inner.functions.aoti_torch_delete_cuda_stream_guard()?;
        let mut guard = ptr::null_mut();
        // SAFETY: the caller guarantees that `stream` is null or live, and `guard` is a live local.
        unsafe {
            call!(self, aoti_torch_create_cuda_stream_guard(stream, device, &raw mut guard))
        }?;
        Ok(guard)
    }

    /// Restores the stream and the device that were current before the guard was created.
    ///
    /// # Safety
    ///
    /// The guard must have been created on this thread and must not have been deleted yet. The stream that the guard
    /// restores must be alive.
    pub(crate) unsafe fn delete_guard(&self, guard: RawGuard) -> Result<()> {
        // SAFETY: the caller guarantees that the guard belongs to this thread, is not deleted yet, and restores a
        // live stream.
        unsafe { call!(self, aoti_torch_delete_cuda_stream_guard(guard)) }
    }

    /// Sets the hook that receives the errors of failed clean-ups, for example if dropping a guard cannot restore the
    /// previous stream. Without a hook, such errors go to standard error. Errors of green-ctx itself go to the driver's
    /// hook.
    pub fn on_cleanup_failure(&self, hook: impl Fn(&TorchError) + Send + Sync + 'static) {
        let former = std::mem::replace(&mut *self.inner.hook.write(), Arc::new(hook));
        // Dropped outside the lock, because dropping a hook runs the caller's code.
        drop(former);
    }

    /// Passes a failed clean-up to the hook.
    pub(crate) fn report(&self, result: Result<()>) {
        if let Err(error) = result {
            let hook = Arc::clone(&self.inner.hook.read());
            hook(&error);
        }
    }
}

impl PartialEq for Torch {
    fn eq(&self, other: &Torch) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Torch {}

impl fmt::Debug for Torch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Torch").finish_non_exhaustive()
    }
}

/// Converts a device ordinal for libtorch, where a negative number means the current device.
fn index(device: u32) -> Result<i32> {
    i32::try_from(device)
        .map_err(|_| TorchError::InvalidRequest(format!("there is no device {device}")))
}
