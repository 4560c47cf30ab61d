//! The crate `cudarc` in partitions of `green-ctx`: its kernels, cuBLAS and NVRTC.
//!
//! In a program's `Cargo.toml`, where cudarc's own features choose the CUDA version of its headers and
//! how it loads the driver:
//!
//! ```toml
//! [dependencies]
//! cudarc = { version = "0.19.10", default-features = false, features = ["std", "cublas", "nvrtc", "cuda-13000", "dynamic-loading"] }
//! green-ctx = "0.1"
//! green-ctx-cudarc = "0.1"
//! ```
//!
//! # A partition's stream in cudarc
//!
//! [`CudarcStream::new`] takes a stream and cudarc's context of the same device, and what it gives is
//! used as an `Arc<CudaStream>`: what cudarc copies, fills, allocates and launches on it runs in the
//! partition, and so does what cuBLAS and other libraries do that are given it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::cublas::CudaBlas;
//! use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
//! use cudarc::nvrtc::compile_ptx;
//! use green_ctx::{Driver, SplitRequest};
//! use green_ctx_cudarc::{CudarcStream, device_of};
//!
//! let cuda = CudaContext::new(0)?;
//! let device = device_of(&Driver::load()?, &cuda)?;
//! let request = SplitRequest::new().group("products", 96).rest("others");
//! let parts = device.partition(request)?;
//!
//! // cuBLAS in one partition, with the number of SMs there: by itself it asks the device.
//! let stream = CudarcStream::new(parts["products"].stream(), &cuda)?;
//! let blas = CudaBlas::new(stream.cudarc())?;
//! let sm_count = i32::try_from(parts["products"].sm_count())?;
//! // SAFETY: the handle is alive.
//! unsafe { cudarc::cublas::sys::cublasSetSmCountTarget(*blas.handle(), sm_count) }.result()?;
//!
//! // A kernel in the other, which NVRTC has compiled, with a grid made for that partition's SMs.
//! let source = "extern \"C\" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }";
//! let twice = cuda.load_module(compile_ptx(source)?)?.load_function("twice")?;
//! let stream = CudarcStream::new(parts["others"].stream(), &cuda)?;
//! let mut numbers = stream.clone_htod(&[1, 2, 3, 4])?;
//! let one_block = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (4, 1, 1), shared_mem_bytes: 0 };
//! // SAFETY: the kernel's one parameter, with a number for each thread.
//! unsafe { stream.launch_builder(&twice).arg(&mut numbers).launch(one_block) }?;
//! assert_eq!(stream.clone_dtoh(&numbers)?, [2, 4, 6, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! The stream decides where work runs, not the context that cudarc makes current, so memory, modules
//! and events are shared by all partitions of the device. What cudarc makes from its *context* is
//! outside of partitions: `CudaContext::new_stream`, and `CudaStream::fork` too.
//!
//! The partition lasts until the [`CudarcStream`] is gone and whatever of cudarc's was made with it:
//! memory, graphs, handles of cuBLAS. [`Context::close`](green_ctx::context::Context::close) refuses while something is left.
//!
//! # cudarc's objects in green-ctx
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::driver::CudaContext;
//! use green_ctx::{Driver, StreamOptions};
//! use green_ctx_cudarc::{context_of, device_of, stream_of};
//!
//! let driver = Driver::load()?;
//! let cuda = CudaContext::new(0)?;
//! // The device and its primary context.
//! let device = device_of(&driver, &cuda)?;
//! assert_eq!(context_of(&driver, &cuda)?, device.primary_context()?);
//!
//! // A partition that goes on where cudarc's own stream has come to.
//! let before = stream_of(&driver, &cuda.new_stream()?)?;
//! # let partition = device.primary_context()?;
//! let stream = partition.create_stream(StreamOptions::default())?;
//! stream.wait_for(&before)?;
//! # Ok(())
//! # }
//! ```
//!
//! cudarc and the [`Driver`](green_ctx::Driver) must have loaded the same library, which is found out; with
//! [`Driver::load`](green_ctx::Driver::load) they have.
//!
//! The example `cudarc_gemm` runs a product of bf16 matrices through cuBLAS beside an addition that
//! memory bounds, and shows that each keeps to its SMs.
//!
//! # Which context is current
//!
//! Before most of its calls cudarc makes its own context current on the thread, and leaves it there.
//! For a context of `CudaContext::new` that is the device's primary one, never the partition's. The
//! stream decides all the same: a function that was loaded with the primary context current runs in
//! the partition when it is launched on the partition's stream, and events of either context record
//! and wait on it (recorded on an H200, driver 580.159.04). So memory, modules and events of cudarc are
//! good for all partitions of the device. What this crate calls of cudarc leaves the thread's current
//! context as it was.
//!
//! What is asked of the *context* is answered for the whole device:
//!
//! - `CudaContext::new_stream` and `CudaStream::fork` make streams that are in no partition.
//! - The number of SMs, and what cudarc says of occupancy, are the device's. A library that sizes its
//!   grids by them does so for all SMs; cuBLAS takes the number from `cublasSetSmCountTarget`.
//!
//! # Who keeps what
//!
//! cudarc's `CudaStream` has no place for an owner, nothing reports when the last `Arc` of one
//! goes, and a `CudaContext` of a raw handle destroys it. So a [`CudarcStream`] wraps the raw stream
//! as a borrowed one over the *primary* context, and keeps the [`Stream`](green_ctx::Stream) of
//! green-ctx beside it. Others may keep the `Arc<CudaStream>` for longer: a `CudaSlice` does, and a
//! `CudaBlas`. Then the stream waits, and goes, the partition with it, at the first call after they are gone that could want its SMs: a
//! [split](green_ctx::resource::SmResource::split) of the device's, [`Context::close`](green_ctx::context::Context::close),
//! [`CudarcStream::new`], or [`reclaim`].
//!
//! cudarc orders accesses to a `CudaSlice` from several streams while its context has made streams of
//! its own, and does not count those that it was given. [`CudarcStream`]s keep one of its own beside them,
//! unused, so that they are ordered; as with cudarc's own streams, memory that is allocated
//! before the first is not tracked, and waits end with the last.

#![deny(unsafe_code)]

mod foreign;
mod stream;

pub use foreign::{context_of, device_of, stream_of};
pub use stream::{CudarcStream, reclaim};
