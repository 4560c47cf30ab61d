//! Runs cudarc's kernels, cuBLAS and NVRTC in partitions of one GPU's SMs.
//!
//! Add these lines to the program's `Cargo.toml`. cudarc's own features choose the CUDA version of its headers and
//! how it loads the driver:
//!
//! ```toml
//! [dependencies]
//! cudarc = { version = "0.19.10", default-features = false, features = ["std", "cublas", "nvrtc", "cuda-13000", "dynamic-loading"] }
//! green-ctx = "0.1"
//! green-ctx-cudarc = "0.1"
//! ```
//!
//! # Using a partition's stream in cudarc
//!
//! [`CudarcStream::new`] takes a stream and a cudarc context of the same device. The result can be used as an
//! `Arc<CudaStream>`. Everything that cudarc copies, fills, allocates or launches on it runs in the partition. The
//! same holds for cuBLAS and other libraries that receive the stream.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::cublas::CudaBlas;
//! use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
//! use cudarc::nvrtc::compile_ptx;
//! use green_ctx::{Driver, SplitRequest};
//! use green_ctx_cudarc::{CudarcStream, device_of};
//!
//! // First: without a driver this is an error, and cudarc would panic.
//! let driver = Driver::load()?;
//! let cuda = CudaContext::new(0)?;
//! let device = device_of(&driver, &cuda)?;
//! let request = SplitRequest::new().group("products", 96).rest("others");
//! let parts = device.partition(request)?;
//!
//! // cuBLAS in one partition. It sizes its grids for the whole device unless it gets the SM count.
//! let stream = CudarcStream::new(parts["products"].stream(), &cuda)?;
//! let blas = CudaBlas::new(stream.cudarc())?;
//! let sm_count = i32::try_from(parts["products"].sm_count())?;
//! // SAFETY: the handle is alive.
//! unsafe { cudarc::cublas::sys::cublasSetSmCountTarget(*blas.handle(), sm_count) }.result()?;
//!
//! // A kernel in the other partition, compiled by NVRTC.
//! let source = "extern \"C\" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }";
//! let twice = cuda.load_module(compile_ptx(source)?)?.load_function("twice")?;
//! let stream = CudarcStream::new(parts["others"].stream(), &cuda)?;
//! let mut numbers = stream.clone_htod(&[1, 2, 3, 4])?;
//! let one_block = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (4, 1, 1), shared_mem_bytes: 0 };
//! // SAFETY: the kernel has one parameter, and there is one number per thread.
//! unsafe { stream.launch_builder(&twice).arg(&mut numbers).launch(one_block) }?;
//! assert_eq!(stream.clone_dtoh(&numbers)?, [2, 4, 6, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! The stream determines where work runs; the context that cudarc makes current does not matter. All partitions of a
//! device therefore share cudarc's memory, modules and events. Streams that cudarc creates itself, with
//! `CudaContext::new_stream` or `CudaStream::fork`, are outside all partitions.
//!
//! The partition lives until the [`CudarcStream`] and everything that cudarc created with it, such as memory, graphs
//! and cuBLAS handles, are dropped. Until then, [`Context::close`](green_ctx::context::Context::close) returns an
//! error.
//!
//! # Using cudarc's objects in green-ctx
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
//! // A stream of green-ctx that continues after the work of cudarc's own stream.
//! let before = stream_of(&driver, &cuda.new_stream()?)?;
//! # let partition = device.primary_context()?;
//! let stream = partition.create_stream(StreamOptions::default())?;
//! stream.wait_for(&before)?;
//! # Ok(())
//! # }
//! ```
//!
//! cudarc and the [`Driver`](green_ctx::Driver) must have loaded the same library. Every conversion checks this. A
//! driver from [`Driver::load`](green_ctx::Driver::load) meets this condition.
//!
//! The example `cudarc_gemm` runs a product of bf16 matrices through cuBLAS while a memory-bound addition runs in
//! another partition, and shows that each stays on the SMs of its own partition.
//!
//! # Capturing graphs
//!
//! cudarc makes a stream wait for the last work on each memory object, and such a wait within a capture fails with
//! `CUDA_ERROR_STREAM_CAPTURE_ISOLATION` and invalidates the capture. After a copy or memset, cudarc's first `end_capture`
//! returns this status without ending the capture; call it twice. Call
//! `CudaContext::disable_event_tracking` before the memory is allocated, and order work on several streams with events.
//! This includes the free: cudarc frees a `CudaSlice` on the stream that allocated it. [`graph_of`] has an example, and
//! converts the graph, so that it can move to another partition.
//!
//! # Checking where work ran
//!
//! [`Driver::check_launches`](green_ctx::Driver::check_launches) and
//! [`Watch::launches`](green_ctx::watch::Watch::launches) see launches of green-ctx alone, not cudarc's. On a GPU,
//! [`Watch::stream`](green_ctx::watch::Watch::stream) with [`stream_of`], and
//! [`Graph::audit`](green_ctx::graph::Graph::audit) with [`graph_of`] say where cudarc's work runs. On the simulated
//! `libcuda.so.1`, `GREEN_CTX_SIM_LAUNCHES=1` prints at the end which kernels each context had, and its number of SMs.
//!
//! # The current context
//!
//! Before most of its calls, cudarc makes its own context current on the thread, and leaves it current. For a context
//! from `CudaContext::new`, cudarc's context is the device's primary context, never the partition's. The stream still
//! determines where work runs: a function that was loaded while the primary context was current runs in the partition
//! if it is launched on the partition's stream. Events of both contexts can be recorded and waited for on that
//! stream. Both facts were recorded on an H200, driver 580.159.04. Functions of this crate leave the thread's current
//! context unchanged.
//!
//! Functions that use the *context* cover the whole device, not the partition:
//!
//! - `CudaContext::new_stream` and `CudaStream::fork` create streams outside all partitions.
//! - The SM count and occupancy that cudarc reports are the device's. A library that uses these values sizes its
//!   grids for all SMs. For cuBLAS, set the partition's SM count with `cublasSetSmCountTarget`.
//!
//! # Plans
//!
//! A [`CudarcStream`] belongs to one partition of one plan. Create one for each partition of each plan, and submit work
//! to those of [`PlanSet::active`](green_ctx::PlanSet::active). Later work on a stream of an earlier plan is not ordered
//! with the active plan's. This includes the free of a `CudaSlice`, so allocate what several plans use on a stream
//! outside of the set.
//!
//! # Jobs of the tuner
//!
//! After `disable_event_tracking`, a closure of `green_ctx_tune::Job::new` can submit cudarc's work:
//! `move |stream| { let stream = CudarcStream::new(stream, &cuda)?; … }`. `Job::graph` takes the graph of [`graph_of`].
//!
//! # Lifetimes
//!
//! A cudarc `CudaStream` cannot hold an owner, and nothing reports when its last `Arc` is dropped. A `CudaContext`
//! that was created from a raw handle destroys the context. Therefore a [`CudarcStream`] wraps the raw stream as a
//! borrowed stream of the *primary* context, and also holds the [`Stream`](green_ctx::Stream) of green-ctx. Other
//! objects, such as a `CudaSlice` or a `CudaBlas`, may hold the `Arc<CudaStream>` longer than the [`CudarcStream`]
//! exists. In that case the stream and its partition stay alive until those objects are dropped. The next call that
//! could need the partition's SMs then releases the stream: a [split](green_ctx::resource::SmResource::split) of the
//! device, [`Context::close`](green_ctx::context::Context::close), [`CudarcStream::new`], or [`reclaim`].
//!
//! cudarc orders accesses to a `CudaSlice` from several streams only while the slice's context has streams that
//! cudarc created itself. Borrowed streams are not among them. Therefore each [`CudarcStream`] keeps alive an unused
//! stream that cudarc created. As with cudarc's own streams, cudarc does not track memory that was allocated before
//! the first such stream, and it adds no waits after the last such stream is dropped.
#![deny(unsafe_code)]

mod foreign;
mod stream;

pub use foreign::{context_of, device_of, graph_of, stream_of};
pub use stream::{CudarcStream, reclaim};
