//! cudarc: its kernels, cuBLAS and NVRTC in partitions.
//!
//! With the feature `cudarc` a stream of this crate is one of the crate `cudarc` as well. In a program's
//! `Cargo.toml`, beside the CUDA version that cudarc is to have the headers of:
//!
//! ```toml
//! [dependencies]
//! cudarc = { version = "0.19.10", default-features = false, features = ["std", "cublas", "nvrtc", "cuda-13000", "dynamic-loading"] }
//! green-ctx = { version = "0.1", features = ["cudarc"] }
//! ```
//!
//! # A partition's stream in cudarc
//!
//! [`Stream::to_cudarc`](crate::Stream::to_cudarc) takes cudarc's context of the same device, and what
//! it gives is used as an `Arc<CudaStream>`:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::cublas::CudaBlas;
//! use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
//! use cudarc::nvrtc::compile_ptx;
//! use green_ctx::{Device, Driver, SplitRequest, StreamOptions};
//!
//! let cuda = CudaContext::new(0)?;
//! let device = Device::from_cudarc(&Driver::load()?, &cuda)?;
//! let request = SplitRequest::new().group("products", 96).rest("others");
//! let split = device.resources().sm()?.split(request)?;
//! let products = device.create_context(split.groups.into_iter().next().expect("one group"))?;
//! let others = device.create_context(split.remainder.expect("132 SMs are more than 96"))?;
//!
//! // cuBLAS in one partition. It is told how many SMs there are: by itself it asks the device.
//! let stream = products.create_stream(StreamOptions::default())?.to_cudarc(&cuda)?;
//! let blas = CudaBlas::new(stream.cudarc())?;
//! let sm_count = i32::try_from(products.sm_count()?)?;
//! // SAFETY: the handle is alive.
//! unsafe { cudarc::cublas::sys::cublasSetSmCountTarget(*blas.handle(), sm_count) }.result()?;
//!
//! // A kernel in the other, which NVRTC has compiled, with a grid made for that partition's SMs.
//! let source = "extern \"C\" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }";
//! let twice = cuda.load_module(compile_ptx(source)?)?.load_function("twice")?;
//! let stream = others.create_stream(StreamOptions::default())?.to_cudarc(&cuda)?;
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
//! The partition lasts until the [`CudarcStream`](crate::cudarc::CudarcStream) is gone and whatever of
//! cudarc's was made with it: memory, graphs, handles of cuBLAS.
//! [`Context::close`](crate::Context::close) refuses while something is left.
//!
//! # cudarc's objects in this crate
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::driver::CudaContext;
//! use green_ctx::{Context, Device, Driver, Stream, StreamOptions};
//!
//! let driver = Driver::load()?;
//! let cuda = CudaContext::new(0)?;
//! // The device and its primary context.
//! let device = Device::from_cudarc(&driver, &cuda)?;
//! assert_eq!(Context::from_cudarc(&driver, &cuda)?, device.primary_context()?);
//!
//! // A partition that goes on where cudarc's own stream has come to.
//! let before = Stream::from_cudarc(&driver, &cuda.new_stream()?)?;
//! # let partition = device.primary_context()?;
//! let stream = partition.create_stream(StreamOptions::default())?;
//! stream.wait_for(&before)?;
//! # Ok(())
//! # }
//! ```
//!
//! cudarc and the [`Driver`](crate::Driver) must have loaded the same library, which is found out; with
//! [`Driver::load`](crate::Driver::load) they have. What holds in detail is on the
//! [module's page](crate::cudarc).
//!
//! The example `cudarc_gemm` runs a product of bf16 matrices through cuBLAS beside an addition that
//! memory bounds, and shows that each keeps to its SMs.
