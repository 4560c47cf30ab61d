//! What a test asks of a driver: kernels, failures, and what has happened.

pub(crate) mod calls;
pub(crate) mod fault;
pub(crate) mod kernel;
pub(crate) mod live;
pub(crate) mod race;
pub(crate) mod trace;
