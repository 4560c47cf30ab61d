//! The tuner on a simulated device. Its tests take real time, so they have a process of their own.

mod blocks;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/jobs.rs"]
mod jobs;
mod search;
