//! The safe layer's behaviour, on the simulated H200 and, with `GREEN_CTX_DRIVER=cuda`, on a real
//! GPU: the same tests hold on both.

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
