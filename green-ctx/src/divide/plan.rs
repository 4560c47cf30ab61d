//! Partitions that move: the same SMs divided in one way now and in another a moment later.

mod close;
mod contexts;
mod failure;
mod prepared;
mod set;
mod switch;

pub use close::CloseSetReason;
pub use failure::PlanError;
pub use prepared::{Plan, PlanRequest};
pub use set::{Active, PlanSet, SwitchOptions};
