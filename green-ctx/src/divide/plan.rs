//! Plans: several divisions of the same SMs, one of which is active.
//!
//! A [`PlanSet`] owns the SMs of one group, and each [`Plan`] divides them in its own way. The partitions of
//! plans are in no ledger, because plans use the same SMs at different times. Each partition keeps the group
//! alive.
//!
//! If partitions of two plans have the same SMs, they share a context and its first stream, and a switch
//! between the plans leaves their work alone. A switch does not stop work. By default, the partitions of the
//! next plan wait, on the device, for work of earlier plans on their floors, and for work that was submitted
//! under their names.

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
