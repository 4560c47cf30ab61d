//! The synchronisation primitives that the registry is built on, for the model checker: at every access to
//! shared state the checker may switch threads.

use std::ops::Deref;

use shuttle::sync::MutexGuard;
pub(crate) use shuttle::thread;

/// Runs a test of the registry in every possible order of its threads.
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    shuttle::check_dfs(test, None);
}

/// Lets the checker switch threads here.
pub(crate) fn pause() {
    // The unwinding of a failed run must not be scheduled: no other thread gets a turn.
    if !std::thread::panicking() {
        thread::yield_now();
    }
}

/// The checker's mutex with the interface of the registry's own. The checker may switch threads when a thread
/// locks it, and reports a second lock by the same thread.
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics under the lock")
    }
}

/// Pauses when it is dropped. Placed before a field whose drop other threads can notice.
#[derive(Debug, PartialEq)]
struct Pause;

impl Drop for Pause {
    fn drop(&mut self) {
        pause();
    }
}

/// A model of `Arc`, which the checker does not provide. Other threads can only notice when the last reference
/// is dropped.
#[derive(Debug, PartialEq)]
pub(crate) struct Arc<T> {
    /// The first field, so that it is dropped first.
    _pause: Pause,
    shared: std::sync::Arc<T>,
}

impl<T> Arc<T> {
    fn from_std(shared: std::sync::Arc<T>) -> Arc<T> {
        Arc { _pause: Pause, shared }
    }

    pub(crate) fn new(value: T) -> Arc<T> {
        Arc::from_std(std::sync::Arc::new(value))
    }

    pub(crate) fn downgrade(this: &Arc<T>) -> Weak<T> {
        Weak(std::sync::Arc::downgrade(&this.shared))
    }

    pub(crate) fn try_unwrap(this: Arc<T>) -> Result<T, Arc<T>> {
        // The result depends on what other threads did before.
        let Arc { _pause: pause, shared } = this;
        drop(pause);
        std::sync::Arc::try_unwrap(shared).map_err(Arc::from_std)
    }

    pub(crate) fn as_ptr(this: &Arc<T>) -> *const T {
        std::sync::Arc::as_ptr(&this.shared)
    }

    pub(crate) fn ptr_eq(this: &Arc<T>, other: &Arc<T>) -> bool {
        std::sync::Arc::ptr_eq(&this.shared, &other.shared)
    }

    pub(crate) fn strong_count(this: &Arc<T>) -> usize {
        pause();
        std::sync::Arc::strong_count(&this.shared)
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Arc<T> {
        Arc::from_std(std::sync::Arc::clone(&self.shared))
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.shared
    }
}

/// The result of an upgrade depends on what other threads did before it.
pub(crate) struct Weak<T>(std::sync::Weak<T>);

impl<T> Weak<T> {
    pub(crate) fn upgrade(&self) -> Option<Arc<T>> {
        pause();
        self.0.upgrade().map(Arc::from_std)
    }

    pub(crate) fn as_ptr(&self) -> *const T {
        self.0.as_ptr()
    }
}
