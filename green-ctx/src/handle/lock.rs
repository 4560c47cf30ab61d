//! The types that the registry is built from. The registry imports them from here, so that a model checker
//! (`tests/model`) can compile the registry with its own types, which switch threads at every access.

pub(crate) use std::sync::{Arc, Weak};
#[cfg(test)]
pub(crate) use std::thread;

pub(crate) use parking_lot::Mutex;

/// Runs a test of the registry 200 times with real threads, in whatever order the system schedules them. The model
/// checker's version of this function runs the test in every possible order.
#[cfg(test)]
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    for _ in 0..200 {
        test();
    }
}
