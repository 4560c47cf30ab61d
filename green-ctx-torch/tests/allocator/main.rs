//! The allocator through its C functions, on the simulated driver.

mod accounting;
mod boundary;
mod faults;
mod graphs;
mod limits;
mod machine;
mod order;
mod pending;
mod threads;

#[path = "../raw/mod.rs"]
mod raw;
