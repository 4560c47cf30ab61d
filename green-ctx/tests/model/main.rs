//! The source of the registry under a model checker. It runs threads in every order in which they can
//! change over, or in thousands of random orders.
//!
//! `handles` has the scenarios, and shows with deliberate mistakes that its checks find them.

mod broken;
mod handles;
mod lock;
mod object;
#[path = "../../src/handle/registry.rs"]
mod registry;
