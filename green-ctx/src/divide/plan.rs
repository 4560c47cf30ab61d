//! Plans: several divisions of the same SMs, one of which is active.
//!
//! A [`PlanSet`] owns the SMs of one group, and each [`Plan`] divides them in its own way. No ledger records
//! the partitions of plans, because plans use the same SMs at different times. Each partition keeps the group
//! alive.
//!
//! If partitions of two plans have the same SMs, the partitions share a context and its first stream, and a
//! switch between the plans does not affect the work in that context. A switch does not stop work. By
//! default, a partition of the next plan waits, on the device, for work of earlier plans on the partition's
//! floor, and for work of earlier partitions with the same name.

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
