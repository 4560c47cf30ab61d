//! Partition one GPU's SMs with CUDA green contexts.
//!
//! A partition is a part of a GPU's streaming multiprocessors (SMs), with a context and a stream. Work
//! that is submitted to the streams of a partition runs only on the SMs of that partition. A partition
//! has a *share*: a floor, which is the SMs that no other partition may use, and a ceiling, which is the
//! maximum number of SMs that it may use itself.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, sim::Sim};
//!
//! // With a GPU: `let driver = Driver::load()?;`
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//!
//! // Decode has 32 SMs for itself. It also uses the other 100 while prefill leaves them idle.
//! let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
//! let parts = device.partition(request)?;
//!
//! let decode = parts["decode"].stream();
//! # let _ = decode;
//! for part in &parts {
//!     println!("{}: {} SMs guaranteed, at most {}", part.name(), part.floor(), part.sm_count());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Where to start
//!
//! | to | use |
//! |---|---|
//! | divide a device | [`Device::partition`], with a [`SplitRequest`] of [`Share`]s |
//! | submit work | [`Partition::stream`], [`Partition::create_stream`], [`Stream::launch`] |
//! | copy while the host continues | [`Stream::allocate`], [`PinnedBuffer`](memory::PinnedBuffer) |
//! | order work of two partitions | [`Stream::wait_for`], [`Event`] |
//! | divide the same SMs in several ways | [`PlanSet`] |
//! | move a captured graph to a partition | [`Graph::retarget`], [`GraphCache`](graph::GraphCache) |
//! | know how many blocks fit | [`Kernel::fit`] |
//! | find work outside its partition | [`Watch`](watch::Watch), [`Driver::check_launches`] |
//! | prove where partitions run | [`verify`] |
//! | find out how to divide, and whether to | the crate `green-ctx-tune` |
//! | work one layer below | [`SmResource::split`](resource::SmResource::split), [`SmGroup`](resource::SmGroup), [`Device::create_context`], [`Context`](context::Context) |
//!
//! The [manual](guide) explains each of these tasks. It has one page per concept.
//!
//! # What is promised
//!
//! - **Floors are owned.** Each device has one ledger, which records the holder of each SM. Among the
//!   open partitions of a process, no block runs on another partition's floor or outside its own
//!   partition's ceiling. A request that does not fit returns an error. The
//!   [exceptions](guide::shares#what-is-promised) are streams of the primary context, contexts of other
//!   libraries, switches without a fence, and plans that are not active.
//! - **Counts do not change silently.** A partition reports both the requested share and the number of
//!   SMs that it has. The crate never creates fewer partitions than requested, and returns an error
//!   instead; only a [`rest`](SplitRequest::rest) of 0 SMs is left out.
//! - **No work depends on the current context**, except that of a [`DefaultStream`](stream::DefaultStream).
//!   [`Context::make_current`](context::Context::make_current) exists for other libraries.
//! - **A handle keeps alive what it depends on.** A stream keeps its context alive, a context keeps the
//!   primary context alive, and all of them keep the driver alive.
//! - **One binary is for all drivers since CUDA 12.4.** A function that the driver lacks returns
//!   [`Error::Unsupported`], with the oldest CUDA version that has the function.
//!
//! Green contexts isolate SMs, not memory, caches or faults: an illegal address in one partition ends the
//! work of all partitions. Disjoint SMs do not guarantee concurrency.
//!
//! # Features
//!
//! - `sim`: `Driver::simulated`, for programs and tests without a GPU.
//! - `reserve` (Linux): `Driver::reserve`, SMs that work outside of partitions may not use. See [`guide::reserve`].
//! - `tracing`: events and spans of the crate `tracing`. Spans cover creating, splitting and closing
//!   partitions. Events report failed clean-ups and reused contexts. The `tracing` target is `green_ctx`.
//! - `serde`: serialisation, in both directions, of [`verify::Report`], [`DryRun`](resource::DryRun),
//!   [`NotEnoughSms`](resource::NotEnoughSms), [`ContextCounts`](resource::ContextCounts),
//!   [`DriverInfo`](driver::DriverInfo), [`Fit`](fit::Fit), [`DoesNotFit`](fit::DoesNotFit),
//!   [`Audit`](graph::Audit), [`Escape`](watch::Escape), and the types in them.
//!
//! # Other packages
//!
//! - `green-ctx-cudarc`: lets the crate `cudarc` run kernels and cuBLAS on a partition's stream.
//! - `green-ctx-cuda-core`: the same for `cuda-core`, NVIDIA's runtime for Rust.
//! - `green-ctx-torch`: PyTorch in partitions, from Python and Rust.
//! - `green-ctx-cli`: the command `green-ctx`, which also draws the results of [`verify`].

#![deny(unsafe_code)]

// The rooms of the crate are in this order: ledger, handle, work, divide, graph, observe. Each imports only earlier ones
// (`cargo xtask check-rooms`).
mod divide;
pub mod graph;
mod handle;
mod ledger;
mod observe;
mod work;

pub mod guide;

pub use divide::partition::{Partition, Partitions};
pub use divide::plan::{Plan, PlanRequest, PlanSet};
pub use divide::{partition, plan, resource};
pub use graph::Graph;
pub use handle::device::Device;
pub use handle::driver::Driver;
pub use handle::error::{Error, Result};
pub use handle::event::Event;
pub use handle::{context, device, driver, error, event};
pub use ledger::{Share, SplitRequest};
pub use observe::{verify, watch};
pub use work::launch::LaunchConfig;
pub use work::library::{Kernel, Library};
pub use work::memory::DeviceBuffer;
pub use work::stream::{Stream, StreamOptions};
pub use work::{fit, launch, memory, stream};

/// The raw bindings, for functions that this crate does not wrap.
pub use green_ctx_sys as sys;
pub use green_ctx_sys::{CUresult, LoadError, Version};

/// The simulated driver.
#[cfg(feature = "sim")]
pub use green_ctx_sim as sim;
