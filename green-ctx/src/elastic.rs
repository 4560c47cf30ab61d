//! Partitions that move: the same SMs divided in one way now and in another a moment later.

mod partition;
mod plan;
mod set;
mod shared;
mod switch;

pub use partition::Partition;
pub use plan::{Plan, PlanError, PreparedPlan};
pub use set::{Active, PartitionSet, SwitchOptions};
