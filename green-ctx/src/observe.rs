//! Where work runs: watching what is submitted, and proving it with a kernel.

pub(crate) mod probe;
pub mod verify;
pub mod watch;
