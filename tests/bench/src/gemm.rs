//! cuBLAS's matrix product, where the library is to be had. It is opened by its C interface: the
//! types and numbers are those of `cublas_api.h` and `library_types.h`.
#![allow(unsafe_code, reason = "calls cuBLAS")]

use std::ffi::{OsString, c_int, c_void};
use std::path::Path;
use std::ptr;

use green_ctx::sys_0_1::CUstream;
use green_ctx::{Device, DeviceBuffer, Stream, context::Current};
use libloading::Library;

use crate::setup::{Failure, Result};

/// `CUDA_R_16BF`.
const BF16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_F32: c_int = 68;
/// `CUBLAS_OP_N`.
const AS_IT_IS: c_int = 0;
/// `CUBLAS_GEMM_DEFAULT`.
const ANY_ALGORITHM: c_int = -1;

/// What cuBLAS has for itself on this architecture, in bytes (its documentation, "cuBLAS Context").
const WORKSPACE: usize = 32 << 20;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetWorkspace = unsafe extern "C" fn(Handle, u64, usize) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, CUstream) -> c_int;
type GemmEx = unsafe extern "C" fn(
    Handle,
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

/// The library.
pub(crate) struct Cublas {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    gemm: GemmEx,
    /// Never unloaded while it is in use: the functions are its.
    _libraries: Vec<Library>,
}

impl Cublas {
    /// Opens the library at a path or in a folder, or wherever the system finds it.
    pub(crate) fn open(path: Option<&Path>) -> Result<Cublas> {
        let mut failure = Failure::from("there is no cuBLAS");
        for version in ["13", "12"] {
            let in_folder = |name: &str| {
                let file = format!("lib{name}.so.{version}");
                match path {
                    Some(path) if path.is_dir() => path.join(file).into_os_string(),
                    Some(path) if name == "cublas" => path.as_os_str().to_owned(),
                    Some(path) => path.with_file_name(file).into_os_string(),
                    None => OsString::from(file),
                }
            };
            match Cublas::load(&in_folder("cublasLt"), &in_folder("cublas")) {
                Ok(cublas) => return Ok(cublas),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn load(lt: &OsString, cublas: &OsString) -> Result<Cublas> {
        // cuBLAS finds the other by its name once it is loaded; it may know where it is, too.
        // SAFETY: NVIDIA's library, whose initialisers ask nothing of their caller.
        let lt = unsafe { Library::new(lt) }.ok();
        // SAFETY: as above.
        let library = unsafe { Library::new(cublas) }?;
        // SAFETY: the function's type in `cublas_api.h`.
        let create = *unsafe { library.get::<Create>(b"cublasCreate_v2\0") }?;
        // SAFETY: as above.
        let destroy = *unsafe { library.get::<Destroy>(b"cublasDestroy_v2\0") }?;
        // SAFETY: as above; a runtime's stream is a driver's.
        let set_stream = *unsafe { library.get::<SetStream>(b"cublasSetStream_v2\0") }?;
        // SAFETY: as above; an address of the device is a pointer's size.
        let set_workspace = *unsafe { library.get::<SetWorkspace>(b"cublasSetWorkspace_v2\0") }?;
        // SAFETY: as above; an address of the device is a pointer's size.
        let gemm = *unsafe { library.get::<GemmEx>(b"cublasGemmEx\0") }?;
        let _libraries = lt.into_iter().chain([library]).collect();
        Ok(Cublas { create, destroy, set_stream, set_workspace, gemm, _libraries })
    }
}

/// A product of two matrices, in bf16.
pub(crate) struct Product<'a> {
    cublas: &'a Cublas,
    /// Rows of the first factor, which are the product's, columns of the second one, and what both share.
    sides: [usize; 3],
    workspace: DeviceBuffer<u8>,
    factors: [DeviceBuffer<u16>; 2],
    product: DeviceBuffer<u16>,
}

impl<'a> Product<'a> {
    /// A product of two square matrices.
    pub(crate) fn new(cublas: &'a Cublas, device: &Device, side: usize) -> Result<Product<'a>> {
        let factors = [numbers(1, side * side), numbers(2, side * side)];
        Product::of(cublas, device, [side; 3], &factors)
    }

    /// A product of such matrices and these factors.
    pub(crate) fn of(
        cublas: &'a Cublas,
        device: &Device,
        sides: [usize; 3],
        factors: &[Vec<u16>; 2],
    ) -> Result<Product<'a>> {
        let [first, second] =
            factors.each_ref().map(|factor| DeviceBuffer::from_slice(device, factor));
        let product = DeviceBuffer::zeroed(device, sides[0] * sides[1])?;
        let workspace = DeviceBuffer::zeroed(device, WORKSPACE)?;
        Ok(Product { cublas, sides, workspace, factors: [first?, second?], product })
    }

    /// What the last one gave.
    pub(crate) fn product(&self) -> &DeviceBuffer<u16> {
        &self.product
    }

    /// Makes it ready to run on a stream, from this thread.
    pub(crate) fn on<'b>(&'b self, stream: &Stream) -> Result<Runs<'b>> {
        let current = stream.context().make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        check("cublasCreate", unsafe { (self.cublas.create)(&raw mut handle) })?;
        let runs = Runs { product: self, handle, _stream: stream.clone(), _current: current };
        // SAFETY: the handle was made above, and the stream is of the context that is current.
        check("cublasSetStream", unsafe { (self.cublas.set_stream)(handle, stream.as_raw()) })?;
        let (workspace, bytes) = (self.workspace.as_raw(), self.workspace.len());
        // Its own would become nodes of a graph that allocate, which cannot be copied.
        // SAFETY: so many bytes, which outlive the work, since freeing them waits for it.
        let status = unsafe { (self.cublas.set_workspace)(handle, workspace, bytes) };
        check("cublasSetWorkspace", status)?;
        Ok(runs)
    }
}

/// A product that is ready to run on a stream.
pub(crate) struct Runs<'a> {
    product: &'a Product<'a>,
    handle: Handle,
    _stream: Stream,
    /// The context of the stream; last, since the handle is of it.
    _current: Current,
}

impl Runs<'_> {
    /// Launches it. What was there before counts as often as is said.
    pub(crate) fn launch(&self, before: f32) -> Result<()> {
        self.launch_other(self.product, before)
    }

    /// Launches another product, with what this one works with.
    pub(crate) fn launch_other(&self, product: &Product<'_>, before: f32) -> Result<()> {
        let Product { cublas, sides, factors: [a, b], product, .. } = product;
        let [rows, columns, inner] = sides.map(c_int::try_from);
        let (rows, columns, inner) = (rows?, columns?, inner?);
        let one = 1f32;
        let (one, before) = (ptr::from_ref(&one).cast(), ptr::from_ref(&before).cast());
        let (a, b, product) = (a.as_raw(), b.as_raw(), product.as_raw());
        // SAFETY: three matrices of these sides in bf16, each column after the other, which outlive
        // the work, since freeing them waits for it; the factors are on the host, as cuBLAS expects
        // by default.
        let status = unsafe {
            (cublas.gemm)(
                self.handle,
                AS_IT_IS,
                AS_IT_IS,
                rows,
                columns,
                inner,
                one,
                a,
                BF16,
                rows,
                b,
                BF16,
                inner,
                before,
                product,
                BF16,
                rows,
                COMPUTE_F32,
                ANY_ALGORITHM,
            )
        };
        check("cublasGemmEx", status)
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `on`, and destroyed once, while its context is current.
        let status = unsafe { (self.product.cublas.destroy)(self.handle) };
        if let Err(failure) = check("cublasDestroy", status) {
            eprintln!("{failure}");
        }
    }
}

fn check(call: &str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        status => Err(format!("{call} failed: status {status}").into()),
    }
}

/// Numbers between -1 and 1, the same for each seed. Zeros would cost the GPU less power, and with
/// it less time.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<u16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..count)
        .map(|_| {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let number = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            // The upper half of a float is the same number in bf16, cut off.
            (number.to_bits() >> 16) as u16
        })
        .collect()
}
