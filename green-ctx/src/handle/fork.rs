//! Detection of forks.
//!
//! CUDA does not survive a fork: the child has the parent's memory, but not its connection to the device. In each
//! forked child, the system calls a handler that increments a counter. A process is a forked child if the counter
//! differs from a value that was stored earlier.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::handle::error::{Error, Result};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The identity of a process, which changes at a fork. This type is for crates that build on this one and have their
/// own locks. In a forked child, threads that no longer exist may hold these locks forever.
///
/// # Examples
///
/// ```
/// use green_ctx::driver::Process;
///
/// let process = Process::watched();
/// assert!(!process.is_forked(), "true only in a forked child");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the identity of this process. The first call starts the detection of forks.
    #[must_use]
    pub fn watched() -> Process {
        #[cfg(unix)]
        unix::watch();
        Process::current()
    }

    /// Returns whether this process is a forked child of the process that this value identifies.
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

/// The number of the process that is loading or has loaded a driver library, plus one. The value is 0 if there is no
/// such process.
static LOADER: AtomicU32 = AtomicU32::new(0);

/// Runs `load`. Returns [`Error::Forked`] instead if a parent of this process has started to load a driver library.
///
/// The system's loader and the driver library take locks. In a forked child, threads that no longer exist may hold
/// these locks. The process is therefore stored in `LOADER` before it loads a library.
pub(crate) fn load<T>(load: impl FnOnce() -> Result<T>) -> Result<T> {
    let number = Process::watched().0.wrapping_add(1);
    match LOADER.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != number => return Err(Error::Forked),
        _ => {}
    }
    load().inspect_err(|_| {
        // No driver was loaded, so a forked child may try to load one itself.
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
            // SAFETY: POSIX allows the handler only what a signal handler may do, and the handler only increments an
            // atomic number. The call fails only if memory is exhausted. This crate then detects no forks, and the
            // driver returns its own errors after a fork.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        });
    }

    extern "C" fn in_the_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}
