//! Whether this process was forked since a driver was initialised.
//!
//! CUDA does not survive a fork: the child has the parent's memory and none of its connection to the
//! device. The system calls a function in the child once, when it begins; everything else compares
//! two numbers.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::handle::error::{Error, Result};

/// How many forks lie between this process and the one that began.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that this one was when it was asked for; a fork makes another one. For code that builds on
/// this crate and has locks of its own, which threads that are gone in a forked child may hold for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process. From the first call on, forks are noticed.
    #[must_use]
    pub fn watched() -> Process {
        #[cfg(unix)]
        unix::watch();
        Process::current()
    }

    /// Whether this process was forked from it since.
    #[inline]
    #[must_use]
    pub fn is_forked(self) -> bool {
        self != Process::current()
    }

    #[inline]
    pub(crate) fn current() -> Process {
        Process(FORKS.load(Ordering::Relaxed))
    }
}

/// The process that loads a driver library, as one more than its number; 0 while no process has.
static LOADER: AtomicU32 = AtomicU32::new(0);

/// Loads a driver library, unless a process that this one was forked from has begun to load one.
///
/// The system's loader and the library take locks, and in a forked child threads that are gone may hold them. So the
/// process is noted before it loads anything.
pub(crate) fn load<T>(load: impl FnOnce() -> Result<T>) -> Result<T> {
    let number = Process::watched().0.wrapping_add(1);
    match LOADER.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != number => return Err(Error::Forked),
        _ => {}
    }
    load().inspect_err(|_| {
        // A child of a process that has no driver may look for one itself.
        let _other = LOADER.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed);
    })
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "asks the system to report forks")]
mod unix {
    use std::sync::Once;
    use std::sync::atomic::Ordering;

    use super::FORKS;

    pub(super) fn watch() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the child's handler may do what a signal handler may (POSIX), and it adds to
            // an atomic number. It fails only where there is no memory for it: a fork is then not
            // noticed here, and the driver answers for itself.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        });
    }

    extern "C" fn in_the_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}
