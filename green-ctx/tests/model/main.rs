//! The very source of the registry and of the ledger under a model checker. It runs threads in every
//! order in which they can change over, or in thousands of random ones.
//!
//! `handles` has the registry's scenarios and `splits` the ledger's; `properties` calls the ledger at random. Each shows with mistakes made on
//! purpose that its checks find them.

mod broken;
mod handles;
mod ledger;
mod lock;
mod object;
mod properties;
#[path = "../../src/registry.rs"]
mod registry;
mod splits;
