//! Whether this process was forked since a driver was initialised.
//!
//! CUDA does not survive a fork: the child has the parent's memory and none of its connection to the
//! device. The system calls a function in the child once, when it begins; everything else compares
//! two numbers.

use std::sync::atomic::{AtomicU32, Ordering};

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
