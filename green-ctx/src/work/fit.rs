//! How much of a kernel fits on a context's SMs at once, asked before anything is launched.

pub(crate) mod check;
mod foreign;
pub(crate) mod known;
pub(crate) mod occupancy;
mod question;

pub use crate::handle::fitting::{ClusterFit, DoesNotFit, Fit, RawKernel};
