//! Dividing a device: resources and their splits, partitions, plans.

mod device;
pub mod partition;
pub mod plan;
pub mod resource;
