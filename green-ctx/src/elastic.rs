//! Partitions that move: the same SMs divided in one way now and in another a moment later.

mod failure;
mod partition;
mod plan;
mod set;
mod shared;
mod switch;

pub use failure::{PlanError, SetError};
pub use partition::Partition;
pub use plan::{Plan, PlanRequest};
pub use set::{Active, PlanSet, SwitchOptions};
