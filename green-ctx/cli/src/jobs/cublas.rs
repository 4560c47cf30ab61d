//! The bf16 matrix product of cuBLAS.
//!
//! This module loads cuBLAS at run time and calls its C functions. The types and constants match those of
//! `cublas_api.h` and `library_types.h`.
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

/// The default size of a cuBLAS workspace on compute capability 9.0, in bytes (cuBLAS documentation, "cuBLAS Context").
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
    /// The driver is simulated, but cuBLAS needs a real driver.
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

/// The loaded cuBLAS library. Clones share the library. Dropping the last clone unloads the library.
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
    /// The libraries that contain the functions above. The libraries must stay loaded while the functions are used.
    _libraries: Vec<Library>,
}

impl Cublas {
    /// Loads version 13 or 12 of cuBLAS. `path` is the path of the library or of the folder that contains it. If `path`
    /// is `None`, the system's loader searches for the library. Loading runs code of the library, so `path` must come
    /// from a trusted source.
    ///
    /// # Errors
    ///
    /// [`CublasError::Simulated`] if the driver is simulated, because cuBLAS cannot use simulated handles.
    /// [`CublasError::Load`] if the library cannot be loaded.
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
        // If cublasLt is loaded first, cuBLAS finds it by name. If cublasLt cannot be loaded here, cuBLAS may still
        // find it.
        // SAFETY: `open` requires a trusted path. The initialisers of NVIDIA's cublasLt require nothing from the
        // caller.
        let lt = unsafe { Library::new(lt) }.ok();
        // SAFETY: `open` requires a trusted path. The initialisers of NVIDIA's cuBLAS require nothing from the caller.
        let library = unsafe { Library::new(cublas) }?;
        // SAFETY: `Create` matches the declaration of `cublasCreate_v2` in `cublas_api.h`.
        let create = *unsafe { library.get::<Create>(b"cublasCreate_v2\0") }?;
        // SAFETY: `Destroy` matches the declaration of `cublasDestroy_v2` in `cublas_api.h`.
        let destroy = *unsafe { library.get::<Destroy>(b"cublasDestroy_v2\0") }?;
        // SAFETY: `SetStream` matches the declaration of `cublasSetStream_v2` in `cublas_api.h`. The runtime's
        // `cudaStream_t` and the driver's `CUstream` are the same type.
        let set_stream = *unsafe { library.get::<SetStream>(b"cublasSetStream_v2\0") }?;
        // SAFETY: `SetWorkspace` matches the declaration of `cublasSetWorkspace_v2` in `cublas_api.h`. A device
        // address, which is a `u64` here, has the size of a pointer.
        let set_workspace = *unsafe { library.get::<SetWorkspace>(b"cublasSetWorkspace_v2\0") }?;
        // SAFETY: `GemmEx` matches the declaration of `cublasGemmEx` in `cublas_api.h`. A device address, which is a
        // `u64` here, has the size of a pointer.
        let gemm = *unsafe { library.get::<GemmEx>(b"cublasGemmEx\0") }?;
        // SAFETY: `GetProperty` matches the declaration of `cublasGetProperty` in `cublas_api.h`. The C enum
        // `libraryPropertyType` has the size of an `int`.
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
    /// [`CublasError::Call`] if cuBLAS does not report its version.
    pub fn version(&self) -> Result<String> {
        // The properties 0 to 2 are `MAJOR_VERSION`, `MINOR_VERSION` and `PATCH_LEVEL`.
        let mut parts = [0; 3];
        for (property, part) in (0..).zip(&mut parts) {
            // SAFETY: `cublasGetProperty` needs no handle and writes one `int` to `part`, which is a valid reference.
            let status = unsafe { (self.inner.get_property)(property, part) };
            check("cublasGetProperty", status)?;
        }
        let [major, minor, patch] = parts;
        Ok(format!("{major}.{minor}.{patch}"))
    }
}

/// A matrix product in bf16, and the memory of its three matrices. Dropping the product waits until the device has
/// finished its work, and then frees the memory.
pub struct Product {
    device: Device,
    /// The dimensions m, n and k: the first factor is m × k, the second factor is k × n, and the product is m × n.
    sides: [c_int; 3],
    factors: [DeviceBuffer<u16>; 2],
    product: DeviceBuffer<u16>,
}

impl Product {
    /// Creates the product of two matrices, which are in device memory in column-major order. `sides` contains the
    /// dimensions m, n and k: the first factor is an m × k matrix, and the second factor is a k × n matrix.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`](green_ctx::Error::InvalidRequest) if the length of a factor does not match `sides`, or
    /// if a side is 0 or does not fit into an `int`. [`Error::Driver`](green_ctx::Error::Driver) if the driver fails.
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
            return Err(wrong("the lengths of the matrices do not match their dimensions"));
        }
        let sides = [side(rows)?, side(columns)?, side(inner)?];
        // The buffer rejects lengths that are zero or too large.
        let product = DeviceBuffer::zeroed(device, rows.saturating_mul(columns))?;
        Ok(Product { device: device.clone(), sides, factors, product })
    }

    /// Returns the buffer with the result of the last launch, in column-major order.
    #[must_use]
    pub fn product(&self) -> &DeviceBuffer<u16> {
        &self.product
    }
}

/// A cuBLAS handle for one stream, with its own workspace.
///
/// A captured launch uses the handle's workspace each time the graph runs, so the handle must live as long as the
/// graph. Dropping the handle waits until the device has finished its work.
pub struct Handle {
    cublas: Cublas,
    raw: RawHandle,
    stream: Stream,
    workspace: DeviceBuffer<u8>,
}

// SAFETY: any thread can use a cuBLAS handle, but only one thread at a time (cuBLAS documentation, "Thread Safety").
// `Handle` is not `Sync`, so only one thread at a time can use it. Each method makes the handle's context current
// first.
unsafe impl Send for Handle {}

impl Handle {
    /// Creates a handle for a stream.
    ///
    /// # Errors
    ///
    /// [`CublasError::Call`] if a cuBLAS function fails. [`CublasError::Driver`] if the driver fails.
    pub fn new(cublas: &Cublas, stream: &Stream) -> Result<Handle> {
        let functions = &cublas.inner;
        let workspace = DeviceBuffer::zeroed(stream.context().device(), WORKSPACE)?;
        let _current = stream.context().make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer to `raw` is valid for writing the new handle, and a context is current.
        check("cublasCreate", unsafe { (functions.create)(&raw mut raw) })?;
        let handle = Handle { cublas: cublas.clone(), raw, stream: stream.clone(), workspace };
        // SAFETY: `raw` was created above, and the stream belongs to the current context.
        check("cublasSetStream", unsafe { (functions.set_stream)(raw, stream.as_raw()) })?;
        let (address, bytes) = (handle.workspace.as_raw(), handle.workspace.len());
        // cuBLAS's own workspace would become memory nodes of a captured graph, and such graphs cannot be copied.
        // SAFETY: the workspace is a device buffer of `bytes` bytes at `address`. The handle owns this buffer, and
        // freeing the buffer waits until the device has finished its work.
        let status = unsafe { (functions.set_workspace)(raw, address, bytes) };
        check("cublasSetWorkspace", status)?;
        Ok(handle)
    }

    /// Launches a product. The new result is the product of the factors plus `before` times the previous result.
    /// Concurrent launches of the same product overwrite each other's results.
    ///
    /// # Errors
    ///
    /// [`CublasError::Call`] if cuBLAS fails. [`CublasError::Driver`] if the driver fails, or if the product and the
    /// stream are on different devices.
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
        // SAFETY: the three bf16 matrices have the dimensions `rows`, `columns` and `inner`, because `Product::new`
        // checked their lengths. The matrices outlive the launch, because freeing them waits until the device has
        // finished its work. The scalars `one` and `before` are on the host, as cuBLAS expects by default.
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
