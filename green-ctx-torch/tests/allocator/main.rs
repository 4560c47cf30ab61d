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

#[allow(dead_code, reason = "shared with tests that need more of it")]
#[path = "../../../green-ctx/tests/common/raw.rs"]
mod raw;
