//! The GPUs that can be simulated, and the layout of their SMs.

pub(crate) mod profile;
pub(crate) mod sm_set;
pub(crate) mod spec;
pub(crate) mod topology;
