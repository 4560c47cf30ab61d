//! What the registry is made of. It names these things through here, so that its very source can
//! also be compiled for a model checker, which puts its own in their place and switches threads there
//! (`tests/model`).

pub(crate) use std::sync::{Arc, Weak};
#[cfg(test)]
pub(crate) use std::thread;

pub(crate) use parking_lot::Mutex;

/// Runs a test of the registry: here on the system's threads, in whatever order they come. The model
/// checker's form runs it in every order.
#[cfg(test)]
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    for _ in 0..200 {
        test();
    }
}
