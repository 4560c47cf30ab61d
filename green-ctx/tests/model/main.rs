//! The registry's source under a model checker, which runs the threads in every possible order, or in thousands
//! of random orders.
//!
//! `handles` has the scenarios. Deliberate mistakes show that its checks work.

mod broken;
mod handles;
mod lock;
mod object;
#[path = "../../src/handle/registry.rs"]
mod registry;
