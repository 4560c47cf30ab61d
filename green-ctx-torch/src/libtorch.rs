//! libtorch's stable C functions, found at run time and never linked.
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

/// The oldest PyTorch that has every function, as `torch/csrc/stable/c/shim.h` says.
const NEEDS: &str = "2.10";

/// What libtorch calls a `CUDAStreamGuardHandle`.
pub(crate) type RawGuard = *mut c_void;

type GetCurrent = unsafe extern "C" fn(device: i32, stream: *mut *mut c_void) -> i32;
type SetCurrent = unsafe extern "C" fn(stream: *mut c_void, device: i32) -> i32;
type FromPool = unsafe extern "C" fn(high: bool, device: i32, stream: *mut *mut c_void) -> i32;
type Synchronize = unsafe extern "C" fn(stream: *mut c_void, device: i32) -> i32;
type CreateGuard =
    unsafe extern "C" fn(stream: *mut c_void, device: i32, guard: *mut RawGuard) -> i32;
type DeleteGuard = unsafe extern "C" fn(guard: RawGuard) -> i32;

/// Makes the table of functions from their names and signatures, and an accessor each, which says
/// which PyTorch has what is missing.
macro_rules! functions {
    ($($function:ident: $signature:ty;)*) => {
        struct Functions {
            $($function: Option<$signature>,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// What `find` returns for a name must be null or libtorch's function of that name, which
            /// stays valid.
            unsafe fn resolve(find: impl Fn(&CStr) -> *mut c_void) -> Functions {
                $(
                    let name = concat!(stringify!($function), "\0");
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                    // SAFETY: `Option` of a function pointer has the null pointer for `None`, and the
                    // function has this signature (torch/csrc/inductor/aoti_torch/c/shim.h and
                    // torch/csrc/stable/c/shim.h of PyTorch 2.10 and newer).
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

/// Calls a function of libtorch by name and checks the answer.
///
/// Expands to a call of a foreign function, so it stands in an `unsafe` block at the call site.
macro_rules! call {
    ($torch:expr, $function:ident($($argument:expr),* $(,)?)) => {
        check(stringify!($function), $torch.inner.functions.$function()?($($argument),*))
    };
}

#[inline]
fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(TorchError::Call { call, code }) }
}

/// The PyTorch of this process. Clones share it.
///
/// Its functions are libtorch's stable C functions (PyTorch 2.10 and newer). Device numbers are the
/// driver's, as PyTorch counts too. Nothing of it holds or needs Python's lock.
#[derive(Clone)]
pub struct Torch {
    inner: Arc<Inner>,
}

/// The PyTorch that was found in this process.
static FOUND: OnceLock<Torch> = OnceLock::new();

type Hook = dyn Fn(&TorchError) + Send + Sync;

struct Inner {
    functions: Functions,
    /// The devices for which the streams of PyTorch's pool are there, a bit each.
    pools: AtomicU64,
    hook: RwLock<Arc<Hook>>,
}

impl Torch {
    /// Finds the PyTorch that is loaded in this process, by Python or by the program. The first
    /// success is kept for the process.
    ///
    /// # Errors
    ///
    /// [`TorchError::NotLoaded`], and [`TorchError::CpuBuild`] where there is a PyTorch without CUDA.
    /// Functions that it lacks are errors when they are needed.
    pub fn find() -> Result<Torch> {
        if let Some(torch) = Torch::found() {
            return Ok(torch);
        }
        let torch = load::find()?;
        Ok(FOUND.get_or_init(|| torch).clone())
    }

    /// What [`find`](Torch::find) has found before. Waits for nothing.
    #[must_use]
    pub fn found() -> Option<Torch> {
        FOUND.get().cloned()
    }

    /// Loads the libtorch in `folder`, or in the folder `lib` in it. It is never unloaded.
    ///
    /// # Errors
    ///
    /// [`TorchError::NotFound`], [`TorchError::NotALibrary`] and [`TorchError::CpuBuild`].
    ///
    /// # Safety
    ///
    /// The library there must be libtorch: opening it runs its code.
    pub unsafe fn load_from(folder: impl AsRef<Path>) -> Result<Torch> {
        // SAFETY: this function's own contract.
        unsafe { load::load_from(folder.as_ref()) }
    }

    /// Takes the functions from a lookup that the caller has, for a libtorch that is linked into the
    /// program, say. `find` is asked once for each name and answers null for what is not there.
    ///
    /// # Safety
    ///
    /// What `find` returns for a name must be null or libtorch's C function of that name, and stay
    /// valid for as long as the process runs.
    pub unsafe fn from_lookup(find: impl Fn(&CStr) -> *mut c_void) -> Torch {
        let hook = |error: &TorchError| {
            // Not `eprintln!`: it panics where there is no standard error to write to.
            let _ = writeln!(std::io::stderr(), "green-ctx-torch: a clean-up failed: {error}");
        };
        // SAFETY: as this function's own contract.
        let functions = unsafe { Functions::resolve(find) };
        let (pools, hook): (_, Arc<Hook>) = (AtomicU64::new(0), Arc::new(hook));
        Torch { inner: Arc::new(Inner { functions, pools, hook: RwLock::new(hook) }) }
    }

    /// The calling thread's current stream of a device: null for the default stream.
    ///
    /// # Errors
    ///
    /// [`TorchError::TooOld`]; [`TorchError::Call`], for a device that PyTorch does not have too.
    pub fn current_stream(&self, device: u32) -> Result<*mut c_void> {
        self.get_current(index(device)?)
    }

    /// The calling thread's current stream of PyTorch's current device: null for the default stream.
    ///
    /// # Errors
    ///
    /// As [`current_stream`](Torch::current_stream).
    pub fn current_stream_here(&self) -> Result<*mut c_void> {
        // The current device, for `getCurrentCUDAStream` (c10/cuda/CUDAStream.h).
        self.get_current(-1)
    }

    fn get_current(&self, device: i32) -> Result<*mut c_void> {
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        unsafe { call!(self, aoti_torch_get_current_cuda_stream(device, &raw mut stream)) }?;
        Ok(stream)
    }

    /// Makes a stream the calling thread's current one of a device; null for the default stream.
    ///
    /// PyTorch takes every handle for a stream that is not its own, so that a stream of its pool
    /// comes back as another object, which does not equal the first. [`guard`](Torch::guard) puts
    /// back the very stream that was current.
    ///
    /// # Errors
    ///
    /// As [`current_stream`](Torch::current_stream).
    ///
    /// # Safety
    ///
    /// `stream` must be null or a living stream of the device, and stay alive until it is no
    /// thread's current stream in PyTorch and nothing can make it one again.
    pub unsafe fn set_current_stream(&self, stream: *mut c_void, device: u32) -> Result<()> {
        let device = index(device)?;
        // SAFETY: as this function's own contract.
        unsafe { call!(self, torch_set_current_cuda_stream(stream, device)) }
    }

    /// One of the streams that PyTorch keeps for a device. It is PyTorch's, and others get the same
    /// one.
    ///
    /// # Errors
    ///
    /// As [`current_stream`](Torch::current_stream).
    pub fn stream_from_pool(&self, device: u32, high_priority: bool) -> Result<*mut c_void> {
        let device = index(device)?;
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        unsafe {
            call!(self, torch_get_cuda_stream_from_pool(high_priority, device, &raw mut stream))
        }?;
        Ok(stream)
    }

    /// Has PyTorch make the streams of its pool in the primary context. It makes all of them for the
    /// rest of the process when it is first asked for one, in whatever context is current then, a
    /// partition's too (seen with PyTorch 2.11).
    pub(crate) fn make_pool(&self, device: &Device) -> Result<()> {
        let ordinal = device.ordinal();
        // Of devices past the last bit it is asked each time.
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
    /// As [`current_stream`](Torch::current_stream), errors of the work included.
    ///
    /// # Safety
    ///
    /// `stream` must be null or a living stream of the device.
    pub unsafe fn synchronize_stream(&self, stream: *mut c_void, device: u32) -> Result<()> {
        let device = index(device)?;
        // SAFETY: as this function's own contract.
        unsafe { call!(self, torch_cuda_stream_synchronize(stream, device)) }
    }

    /// Makes a stream and its device the thread's current ones, until the result is deleted.
    ///
    /// # Safety
    ///
    /// As [`set_current_stream`](Torch::set_current_stream).
    pub(crate) unsafe fn create_guard(&self, stream: *mut c_void, device: u32) -> Result<RawGuard> {
        let device = index(device)?;
        // Not to be found missing when it is needed.
        self.inner.functions.aoti_torch_delete_cuda_stream_guard()?;
        let mut guard = ptr::null_mut();
        // SAFETY: as this function's own contract; the pointer is to a live handle.
        unsafe {
            call!(self, aoti_torch_create_cuda_stream_guard(stream, device, &raw mut guard))
        }?;
        Ok(guard)
    }

    /// Puts back what was current before the guard was made.
    ///
    /// # Safety
    ///
    /// The guard must be this thread's and not deleted, and the stream that it puts back alive.
    pub(crate) unsafe fn delete_guard(&self, guard: RawGuard) -> Result<()> {
        // SAFETY: as this function's own contract.
        unsafe { call!(self, aoti_torch_delete_cuda_stream_guard(guard)) }
    }

    /// Sets what happens when a clean-up fails: a guard ends and what was current cannot be put back.
    /// Without a hook such failures go to standard error. What fails in green-ctx goes to the
    /// driver's hook.
    pub fn on_cleanup_failure(&self, hook: impl Fn(&TorchError) + Send + Sync + 'static) {
        let former = std::mem::replace(&mut *self.inner.hook.write(), Arc::new(hook));
        // Outside of the lock: dropping a hook runs the caller's code.
        drop(former);
    }

    /// Reports a failed clean-up to the hook.
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

/// The device as libtorch takes it, where a negative number is the current device.
fn index(device: u32) -> Result<i32> {
    i32::try_from(device)
        .map_err(|_| TorchError::InvalidRequest(format!("there is no device {device}")))
}
