//! The types that the registry is built from. The registry imports them from here, so that a model checker can compile
//! the same source with its own types, which switch threads at every access (`tests/model`).

pub(crate) use std::sync::{Arc, Weak};
#[cfg(test)]
pub(crate) use std::thread;

pub(crate) use parking_lot::Mutex;

/// Runs a test of the registry with the system's threads and their accidental order. The model checker's version runs
/// it in every order.
#[cfg(test)]
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    for _ in 0..200 {
        test();
    }
}
