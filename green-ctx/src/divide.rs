//! Dividing a device: resources and their splits, partitions, plans.

pub mod partition;
pub mod plan;
pub mod resource;
