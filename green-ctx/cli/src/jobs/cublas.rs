//! cuBLAS's bf16 matrix product.
//!
//! The library is opened through its C interface. Types and constants are those of `cublas_api.h` and
//! `library_types.h`.
#![allow(unsafe_code, reason = "calls cuBLAS")]

use std::error::Error;
use std::ffi::{OsString, c_int, c_void};
use std::io::{self, Write};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use green_ctx::sys::CUstream;
use green_ctx::{Device, DeviceBuffer, Driver, Stream};
use libloading::Library;

/// `CUDA_R_16BF`.
const BF16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_F32: c_int = 68;
/// `CUBLAS_OP_N`.
const AS_IT_IS: c_int = 0;
/// `CUBLAS_GEMM_DEFAULT`.
const ANY_ALGORITHM: c_int = -1;

/// The size in bytes of the workspace that cuBLAS allocates by default on compute capability 9.0 (its documentation,
/// "cuBLAS Context").
const WORKSPACE: usize = 32 << 20;

type RawHandle = *mut c_void;
type Create = unsafe extern "C" fn(*mut RawHandle) -> c_int;
type Destroy = unsafe extern "C" fn(RawHandle) -> c_int;
type SetWorkspace = unsafe extern "C" fn(RawHandle, u64, usize) -> c_int;
type SetStream = unsafe extern "C" fn(RawHandle, CUstream) -> c_int;
type GetProperty = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type GemmEx = unsafe extern "C" fn(
    RawHandle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    u64,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The reason why cuBLAS could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CublasError {
    /// The library was not found, or the file is not cuBLAS.
    #[error("cuBLAS cannot be loaded")]
    Load(#[source] Box<dyn Error + Send + Sync>),
    /// The driver is simulated. cuBLAS needs a real one.
    #[error("cuBLAS cannot be used with a simulated driver")]
    Simulated,
    /// A cuBLAS function failed.
    #[error("{call} failed: status {status}")]
    Call {
        /// The function.
        call: &'static str,
        /// The `cublasStatus_t` that it returned.
        status: i32,
    },
    /// The driver failed, or the request was invalid.
    #[error(transparent)]
    Driver(#[from] green_ctx::Error),
}

type Result<T, E = CublasError> = std::result::Result<T, E>;

/// The loaded library. Clones share it, and the last clone unloads it.
#[derive(Clone)]
pub struct Cublas {
    inner: Arc<Functions>,
}

struct Functions {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    gemm: GemmEx,
    get_property: GetProperty,
    /// The functions above belong to these libraries, which must stay loaded.
    _libraries: Vec<Library>,
}

impl Cublas {
    /// Opens version 13 or 12 of the library, at a path, in a folder, or where the system finds it. This runs code of
    /// the library, so `path` must come from a trusted source.
    ///
    /// # Errors
    ///
    /// [`CublasError::Simulated`] for a simulated driver, whose handles cuBLAS cannot use, and [`CublasError::Load`].
    pub fn open(driver: &Driver, path: Option<&Path>) -> Result<Cublas> {
        if driver.is_simulated() {
            return Err(CublasError::Simulated);
        }
        let open = |version| {
            let in_folder = |name: &str| {
                let file = format!("lib{name}.so.{version}");
                match path {
                    Some(path) if path.is_dir() => path.join(file).into_os_string(),
                    Some(path) if name == "cublas" => path.as_os_str().to_owned(),
                    Some(path) => path.with_file_name(file).into_os_string(),
                    None => OsString::from(file),
                }
            };
            Cublas::load(&in_folder("cublasLt"), &in_folder("cublas"))
        };
        open("13").or_else(|_| open("12")).map_err(|error| CublasError::Load(error.into()))
    }

    fn load(lt: &OsString, cublas: &OsString) -> Result<Cublas, libloading::Error> {
        // Loading cublasLt first lets cuBLAS find it by name. If this fails, cuBLAS may still find it by itself.
        // SAFETY: NVIDIA's library. Its initialisers have no requirements for the caller.
        let lt = unsafe { Library::new(lt) }.ok();
        // SAFETY: as above.
        let library = unsafe { Library::new(cublas) }?;
        // SAFETY: `Create` is the function's type in `cublas_api.h`.
        let create = *unsafe { library.get::<Create>(b"cublasCreate_v2\0") }?;
        // SAFETY: `Destroy` is the function's type in `cublas_api.h`.
        let destroy = *unsafe { library.get::<Destroy>(b"cublasDestroy_v2\0") }?;
        // SAFETY: `SetStream` is the function's type in `cublas_api.h`. A `cudaStream_t` of the runtime is a
        // `CUstream`.
        let set_stream = *unsafe { library.get::<SetStream>(b"cublasSetStream_v2\0") }?;
        // SAFETY: `SetWorkspace` is the function's type in `cublas_api.h`. A device address has the size of a pointer.
        let set_workspace = *unsafe { library.get::<SetWorkspace>(b"cublasSetWorkspace_v2\0") }?;
        // SAFETY: `GemmEx` is the function's type in `cublas_api.h`. A device address has the size of a pointer.
        let gemm = *unsafe { library.get::<GemmEx>(b"cublasGemmEx\0") }?;
        // SAFETY: `GetProperty` is the function's type in `cublas_api.h`. The C enum `libraryPropertyType` has the size
        // of an `int`.
        let get_property = *unsafe { library.get::<GetProperty>(b"cublasGetProperty\0") }?;
        let _libraries = lt.into_iter().chain([library]).collect();
        let functions = Functions {
            create,
            destroy,
            set_stream,
            set_workspace,
            gemm,
            get_property,
            _libraries,
        };
        Ok(Cublas { inner: Arc::new(functions) })
    }

    /// Returns the library's version, such as `13.1.0`.
    ///
    /// # Errors
    ///
    /// [`CublasError::Call`].
    pub fn version(&self) -> Result<String> {
        // The properties 0 to 2 are `MAJOR_VERSION`, `MINOR_VERSION` and `PATCH_LEVEL`.
        let mut parts = [0; 3];
        for (property, part) in (0..).zip(&mut parts) {
            // SAFETY: the function writes one `int` to `part`, and needs no handle.
            let status = unsafe { (self.inner.get_property)(property, part) };
            check("cublasGetProperty", status)?;
        }
        let [major, minor, patch] = parts;
        Ok(format!("{major}.{minor}.{patch}"))
    }
}

/// A matrix product in bf16, with the memory of its three matrices. Dropping it waits for the device's work and frees
/// the memory.
pub struct Product {
    device: Device,
    /// The rows of the first factor and of the product, the columns of the second factor and of the product, and the
    /// dimension that the factors share.
    sides: [c_int; 3],
    factors: [DeviceBuffer<u16>; 2],
    product: DeviceBuffer<u16>,
}

impl Product {
    /// Creates a product of two factors in device memory, stored in column-major order. `sides` are the rows of the
    /// first factor, the columns of the second factor, and the dimension that they share.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`](green_ctx::Error::InvalidRequest) if the factors do not have these sides, or if a side
    /// is 0 or does not fit into an `int`; [`Error::Driver`](green_ctx::Error::Driver).
    pub fn new(
        device: &Device,
        sides: [usize; 3],
        factors: [DeviceBuffer<u16>; 2],
    ) -> green_ctx::Result<Product> {
        let wrong = |what: &str| green_ctx::Error::InvalidRequest(format!("{what}: {sides:?}"));
        let side = |side: usize| c_int::try_from(side).map_err(|_| wrong("a side is too long"));
        let [rows, columns, inner] = sides;
        let lens = [rows.checked_mul(inner), inner.checked_mul(columns)];
        if factors.each_ref().map(|factor| Some(factor.len())) != lens {
            return Err(wrong("the factors do not have these sides"));
        }
        let sides = [side(rows)?, side(columns)?, side(inner)?];
        // The buffer rejects lengths that are zero or too large.
        let product = DeviceBuffer::zeroed(device, rows.saturating_mul(columns))?;
        Ok(Product { device: device.clone(), sides, factors, product })
    }

    /// The result of the last launch, in column-major order.
    #[must_use]
    pub fn product(&self) -> &DeviceBuffer<u16> {
        &self.product
    }
}

/// A cuBLAS handle for one stream, with its own workspace.
///
/// A captured launch uses the handle's workspace each time the graph runs, so the handle must live as long as the
/// graph. Dropping it waits for the device's work.
pub struct Handle {
    cublas: Cublas,
    raw: RawHandle,
    stream: Stream,
    workspace: DeviceBuffer<u8>,
}

// SAFETY: cuBLAS functions can be called from any thread, if only one thread at a time uses a handle (its
// documentation, "Thread Safety"). `Handle` is not `Sync`. Each call makes the handle's context current first.
unsafe impl Send for Handle {}

impl Handle {
    /// Creates a handle for a stream.
    ///
    /// # Errors
    ///
    /// [`CublasError::Call`] and [`CublasError::Driver`].
    pub fn new(cublas: &Cublas, stream: &Stream) -> Result<Handle> {
        let functions = &cublas.inner;
        let workspace = DeviceBuffer::zeroed(stream.context().device(), WORKSPACE)?;
        let _current = stream.context().make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a valid pointer for the new handle, and a context is current.
        check("cublasCreate", unsafe { (functions.create)(&raw mut raw) })?;
        let handle = Handle { cublas: cublas.clone(), raw, stream: stream.clone(), workspace };
        // SAFETY: `raw` was created above, and the stream belongs to the current context.
        check("cublasSetStream", unsafe { (functions.set_stream)(raw, stream.as_raw()) })?;
        let (address, bytes) = (handle.workspace.as_raw(), handle.workspace.len());
        // cuBLAS's own workspace would become memory nodes of a captured graph, and such graphs cannot be copied.
        // SAFETY: the workspace has `bytes` bytes at `address`. Freeing it waits for the device's work.
        let status = unsafe { (functions.set_workspace)(raw, address, bytes) };
        check("cublasSetWorkspace", status)?;
        Ok(handle)
    }

    /// Launches a product. The result is the product of the factors plus `before` times the previous result. Launches
    /// of the same product that run at the same time overwrite each other's result.
    ///
    /// # Errors
    ///
    /// [`CublasError::Call`]. [`CublasError::Driver`], for example if the product and the stream are on different
    /// devices.
    pub fn launch(&self, product: &Product, before: f32) -> Result<()> {
        let Product { device, sides: [rows, columns, inner], factors: [a, b], product } = product;
        if device != self.stream.context().device() {
            let what = "the product and the stream";
            return Err(green_ctx::Error::DeviceMismatch { what }.into());
        }
        let _current = self.stream.context().make_current()?;
        let one = 1f32;
        let (one, before) = (ptr::from_ref(&one).cast(), ptr::from_ref(&before).cast());
        let (a, b, product) = (a.as_raw(), b.as_raw(), product.as_raw());
        // SAFETY: the three matrices have these sides, in bf16 and column-major order (checked in `Product::new`). They
        // outlive the work, because freeing them waits for it. The scalars `one` and `before` are on the host, as
        // cuBLAS expects by default.
        let status = unsafe {
            (self.cublas.inner.gemm)(
                self.raw,
                AS_IT_IS,
                AS_IT_IS,
                *rows,
                *columns,
                *inner,
                one,
                a,
                BF16,
                *rows,
                b,
                BF16,
                *inner,
                before,
                product,
                BF16,
                *rows,
                COMPUTE_F32,
                ANY_ALGORITHM,
            )
        };
        check("cublasGemmEx", status)
    }

    fn destroy(&self) -> Result<()> {
        let _current = self.stream.context().make_current()?;
        // SAFETY: `self.raw` was created by `new` and is destroyed only here, while its context is current.
        check("cublasDestroy", unsafe { (self.cublas.inner.destroy)(self.raw) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            // If standard error is closed, the error cannot be reported.
            let _ = writeln!(io::stderr(), "{error}");
        }
    }
}

fn check(call: &'static str, status: c_int) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(CublasError::Call { call, status }) }
}
