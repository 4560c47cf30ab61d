//! What GPUs there are, and how the SMs of each lie together.

pub(crate) mod profile;
pub(crate) mod sm_set;
pub(crate) mod spec;
pub(crate) mod topology;
