//! Observing where work runs: `watch` checks submitted work, and `verify` proves it with a kernel.

pub(crate) mod probe;
pub mod verify;
pub mod watch;
