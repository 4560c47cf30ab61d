//! The behaviour of the safe layer on the simulated H200 and, with `GREEN_CTX_DRIVER=cuda`, on a real GPU. The
//! same tests must pass on both.

#[path = "../common/mod.rs"]
mod common;

mod busy;
mod closing;
mod endurance;
mod fences;
mod fit;
mod graph;
mod memory;
mod plans;
mod shares;
mod split;
mod stream;
mod watch;
