//! Observing where work runs: `watch` checks submitted work, and `verify` runs a kernel that reports its SMs.

pub(crate) mod probe;
pub mod verify;
pub mod watch;
