//! Partition one GPU's SMs: CUDA green contexts, safely and without cost.
//!
//! A GPU's streaming multiprocessors are cut into disjoint groups, each group becomes a context, and
//! what is submitted to a context's streams runs on its SMs and nowhere else:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions, sim_0_1::Sim};
//!
//! // With a GPU: `let driver = Driver::load()?;`
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//!
//! let request = SplitRequest::new().group("decode", 16).rest("prefill");
//! let split = device.resources().sm()?.split(request)?;
//! for group in split.groups.into_iter().chain(split.remainder) {
//!     let context = device.create_context(group)?;
//!     let stream = context.create_stream(StreamOptions::default())?;
//!     println!("{:?} runs on {} SMs", stream, context.sm_count()?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - **Partitions are disjoint.** Each device has one ledger. A [`SmGroup`] owns its SMs, moves into
//!   the context that uses them, and returns them when it goes. More than is free is an error.
//! - **Counts are never changed in silence.** A group says what was asked and what was given; fewer
//!   groups than asked is an error.
//! - **Nothing depends on the current context.** [`Context::make_current`] is there for other
//!   libraries.
//! - **A handle keeps what it stands on**: stream, context, primary context, driver.
//! - **Which CUDA is installed is found out at run time.** One binary runs on every driver from 12.4
//!   on; what a driver lacks is [`Error::Unsupported`], with the version that has it.
//!
//! The [manual](guide) explains each of these, a page a concept.
//!
//! Green contexts isolate SMs, not memory, caches or faults: an illegal address in one partition
//! ends the work of all.
//!
//! # Features
//!
//! - `sim`: `Driver::simulated`, for programs and tests without a GPU.
//! - `tracing`: spans for making, splitting and closing partitions, events for failed clean-ups and
//!   for contexts that are used again, for the crate `tracing`; the target is `green_ctx`.
//! - `serde`: [`verify::Report`] and its parts, [`DryRun`], [`NotEnoughSms`], [`ContextCounts`],
//!   [`DriverInfo`], [`Fit`], [`DoesNotFit`], [`Audit`], [`Escape`] and what they are made of can be
//!   written down and read again.
//!
//! The package `green-ctx-cudarc` has streams as those of the crate `cudarc`, for its kernels and cuBLAS in
//! partitions, `green-ctx-torch` those of PyTorch, and `green-ctx-cli` is the command `green-ctx`.

#![deny(unsafe_code)]

// What users begin with, from the driver to partitions and plans.
pub mod device;
pub mod driver;
pub mod partition;
pub mod plan;
pub mod resource;
// What runs in them.
pub mod context;
pub mod error;
pub mod event;
pub mod fit;
pub mod graph;
pub mod guide;
pub mod launch;
mod library;
pub mod memory;
pub mod stream;
pub mod verify;
pub mod watch;
// What divides a device, and what keeps partitions apart in time.
mod fence;
mod group;
mod ledger;
mod quarantine;
// What handles and contexts need.
mod capture;
mod current;
mod dev_resource;
mod fork;
mod green;
mod location;
mod lock;
mod owner;
mod primary;
mod probe;
mod raw;
mod reclaim;
mod registry;
mod report;
#[cfg(feature = "serde")]
mod serialize;
mod trace;
mod units;

pub use device::Device;
pub use driver::Driver;
pub use error::{Error, Result};
pub use event::Event;
pub use graph::Graph;
pub use launch::LaunchConfig;
pub use ledger::{Share, SplitRequest};
pub use library::{Kernel, Library};
pub use memory::DeviceBuffer;
pub use partition::{Partition, Partitions};
pub use plan::{Plan, PlanRequest, PlanSet};
pub use stream::{Stream, StreamOptions};

/// The raw bindings, for what this crate does not wrap. Another version of them comes under another name.
pub use green_ctx_sys as sys_0_1;
pub use green_ctx_sys::{CUresult, LoadError, Version};

/// The simulated driver. Another version of it comes under another name.
#[cfg(feature = "sim")]
pub use green_ctx_sim as sim_0_1;
