//! Ways to divide a device: resources and their splits, partitions, and plans.

mod device;
pub mod partition;
pub mod plan;
pub mod resource;
