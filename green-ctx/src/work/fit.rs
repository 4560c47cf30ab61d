//! Fit: the number of blocks and clusters of a kernel that a context's SMs hold at the same time.
//!
//! The driver answers while the context is current and the thread's capture mode is relaxed. For a launch, it also
//! gets the stream. SMs that a partition shares count in full, and `Fit::shared_sms` gives their number.
//!
//! `Stream::launch` checks cooperative and clustered launches only. The cost for any other launch is one branch.
//! The check comes before the launch, because the driver accepts a cooperative node in a graph that does not fit,
//! and the graph then never ends (recorded on an H200, driver 580.159.04). A kernel remembers up to 16 pairs of
//! context and configuration that fitted, so that a repeated launch is one driver call. It does not remember
//! refusals.
//!
//! The caller says which form a foreign handle has (`RawKernel`). Occupancy calls accept a kernel as a function
//! (recorded on an H200, driver 580.159.04), but the driver's answers about such a kernel's attributes are not
//! recorded.

pub(crate) mod check;
mod foreign;
pub(crate) mod known;
pub(crate) mod occupancy;
mod question;

pub use crate::handle::fitting::{ClusterFit, DoesNotFit, Fit, RawKernel};
