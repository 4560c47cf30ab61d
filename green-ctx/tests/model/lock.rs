//! What the registry is made of, for the model checker: where threads share something, they may
//! change over.

use std::ops::Deref;

use shuttle::sync::MutexGuard;
pub(crate) use shuttle::thread;

/// Runs a test of the registry in every order that its threads can come in.
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    shuttle::check_dfs(test, None);
}

/// Threads may change over here.
pub(crate) fn pause() {
    // A failed run is unwound on its own: nobody else's turn comes any more.
    if !std::thread::panicking() {
        thread::yield_now();
    }
}

/// The checker's lock with the shipped one's interface. Taking it is where threads change over, and
/// taking it twice is a failure.
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics under the lock")
    }
}

/// Stands before a field whose drop others can notice.
#[derive(Debug, PartialEq)]
struct Pause;

impl Drop for Pause {
    fn drop(&mut self) {
        pause();
    }
}

/// The checker has no `Arc` of its own. Other threads can notice that the last one goes, and nothing
/// else of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Arc<T> {
    /// Dropped first.
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
        // Whether it succeeds depends on what other threads did before it.
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

/// Whether an upgrade succeeds depends on what other threads did before it.
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
