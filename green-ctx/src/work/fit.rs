//! Fit: the number of blocks and clusters of a kernel that a context's SMs hold at the same time.
//!
//! Queries to the driver are made while the context is current and the thread's capture mode is relaxed. For a
//! launch, the queries also contain the stream. SMs that a partition shares with other partitions count in full.
//! `Fit::shared_sms` is the number of shared SMs.
//!
//! `Stream::launch` checks cooperative and clustered launches only. The cost for any other launch is one branch. The
//! check comes before the launch, because the driver accepts a cooperative node in a graph that does not fit, and the
//! graph then never ends (recorded on an H200, driver 580.159.04). A kernel remembers up to 16 pairs of context and
//! configuration that fitted, so that a repeated launch is one driver call. A kernel does not remember refusals.
//!
//! For a foreign handle, the caller states whether the handle is a kernel or a function (`RawKernel`). Occupancy
//! calls accept a kernel as a function (recorded on an H200, driver 580.159.04), but it is not recorded what the
//! driver returns for attributes of a kernel that is passed as a function.

pub(crate) mod check;
mod foreign;
pub(crate) mod known;
pub(crate) mod occupancy;
mod question;

pub use crate::handle::fitting::{ClusterFit, DoesNotFit, Fit, RawKernel};
