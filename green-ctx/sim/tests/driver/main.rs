//! Tests of the simulated driver for questions that no conformance case asks.

mod capture;
mod clock;
mod driver;
mod effect;
mod machine;
mod order;
mod profile;
mod race;
mod structured;
mod version;
mod workqueue;
