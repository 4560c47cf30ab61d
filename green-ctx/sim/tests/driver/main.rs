//! Tests of the simulated driver beyond the conformance cases.

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
