//! Random operations on the public API of green-ctx, on simulated drivers, checked by a model that knows whose
//! work may run on which SM at which time.
//!
//! A *seed* chooses a device, a driver version and a list of [operations](operation). An operation names its
//! operands by index modulo what exists when it runs, so a list stays meaningful when operations are removed
//! from it. The [`World`](world) holds the objects and carries out the operations. The [`Model`](model) records
//! who owns which SMs and which plan is active, reads the simulator's launch trace, and reports a violation of
//! the promise below. A failing list is [shrunk](shrink) and printed as a Rust program.
//!
//! # The promise
//!
//! The promise covers open partitions of this process; for plans, those of the active plan. Each partition has the
//! share that was requested. Its work runs on its own SMs and on no other partition's floor. Work that comes to a
//! floor waits for the previous users of those SMs. Work under a name that had other SMs in a previous plan waits for
//! the earlier work under that name. Shared SMs are used by their partitions at the same time.
//!
//! The promise does not cover work of the primary context, work of a plan that was not active when the work was
//! submitted, and work that a switch without a fence leaves behind, until a fence separates the partitions again. Work
//! in foreign streams that no object of green-ctx wraps waits for nothing, but the next owner of its SMs waits for it.

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

/// The README's program, compiled and run with the doctests. No published package can include the file.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
