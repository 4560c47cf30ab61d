//! Partition one GPU's SMs: CUDA green contexts, safely and without cost.
//!
//! A GPU's streaming multiprocessors are cut into disjoint groups, each group becomes a context, and
//! what is submitted to a context's streams runs on its SMs and nowhere else:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions, sim::Sim};
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

mod capture;
mod context;
mod current;
mod dev_resource;
mod device;
mod driver;
mod elastic;
mod error;
mod event;
mod fence;
mod fit;
mod fork;
mod graph;
mod green;
mod group;
pub mod guide;
mod launch;
mod ledger;
mod library;
mod location;
mod lock;
mod memory;
mod owner;
mod partition;
mod primary;
mod probe;
mod quarantine;
mod raw;
mod reclaim;
mod registry;
mod report;
mod resource;
#[cfg(feature = "serde")]
mod serialize;
mod stream;
mod trace;
mod units;
pub mod verify;
mod watch;

pub use capture::RelaxedCapture;
pub use context::{CloseError, CloseReason, Context};
pub use current::Current;
pub use device::{ComputeCapability, Device, Uuid};
pub use driver::{Driver, DriverInfo};
pub use elastic::{Active, Plan, PlanError, PlanRequest, PlanSet, SetError, SwitchOptions};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventOptions};
pub use fit::{ClusterFit, DoesNotFit, Fit};
pub use graph::{
    Audit, CaptureMode, Graph, GraphCache, GraphExec, NodeAudit, NodeKind, RetargetError,
};
pub use group::SmGroup;
pub use launch::{Argument, Arguments, DevicePointer, LaunchConfig};
pub use ledger::{
    ContextCounts, DryRun, DryRunGroup, Granularity, Holder, LocalityDomain, NotEnoughSms,
    PerGroup, Share, ShareError, SplitRequest, WorkqueueScope,
};
pub use library::{Kernel, Library};
pub use location::Location;
pub use memory::{DeviceBuffer, Element};
pub use partition::{ClosePartitionError, Partition, Partitions};
pub use probe::Block;
pub use reclaim::ReclaimHook;
pub use report::CleanupHook;
pub use resource::{
    CreateContextError, LimitSource, Provision, Resources, SmResource, Split, SplitError,
    Workqueue, WorkqueueOptions, WorkqueueResource,
};
pub use stream::{DefaultStream, Stream, StreamOptions};
pub use watch::{Escape, EscapeKind, Watch, Watching};

/// The raw bindings, for what this crate does not wrap.
pub use green_ctx_sys as sys;
pub use green_ctx_sys::{CUresult, LoadError, Version};

/// The simulated driver.
#[cfg(feature = "sim")]
pub use green_ctx_sim as sim;
