//! Random operations over the public API of green-ctx on simulated drivers, checked by a model that
//! knows whose work may be on which SM at which time.
//!
//! A *seed* chooses a device, a driver version and a list of [operations](operation). An operation
//! names its operands by index modulo what exists when it runs, so that a list stays meaningful when
//! operations are removed from it. The [`World`](world) holds the objects and carries operations out;
//! the [`Model`](model) hears who owns what and which plan is active, reads the simulator's launch
//! trace, and says when the promise below is broken. A failing list is [shrunk](shrink) and printed as
//! a Rust program.
//!
//! # The promise
//!
//! Of open partitions, of plans those of the active one, in this process: each has the share that was
//! asked for; its work runs on its own SMs and on no other partition's floor; work that comes to a floor
//! waits for whoever was there, and work under a name that had other SMs in a former plan for what ran
//! under it. What partitions share they use at once. Exempt is work of the primary context, work of a
//! plan that was not active when it was submitted, and work that a switch without a fence leaves behind,
//! until a fence separates the partitions again. Work in foreign streams, for which no object of
//! green-ctx stands, waits for nobody, but the next owner of its SMs waits for it.

#![deny(unsafe_code)]

pub mod account;
pub mod machine;
pub mod model;
pub mod operation;
pub mod program;
#[expect(unsafe_code, reason = "calls the driver")]
mod raw;
pub mod run;
pub mod runner;
pub mod shrink;
pub mod table;
pub mod threads;
pub mod violation;
pub mod world;
