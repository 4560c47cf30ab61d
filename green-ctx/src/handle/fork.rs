//! Detection of forks.
//!
//! CUDA does not survive a fork: the child has the parent's memory, but not its connection to the device. The system
//! calls a handler in each child, which increments a counter. A check compares two values of the counter.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::handle::error::{Error, Result};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The identity of a process, which changes at a fork. For crates that build on this one and have their own locks: in a
/// forked child, threads that no longer exist may hold these locks forever.
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
    /// Returns the identity of this process. From the first call on, forks are detected.
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

/// The id, plus one, of the process that is loading or has loaded a driver library; 0 if there is none.
static LOADER: AtomicU32 = AtomicU32::new(0);

/// Runs `load`, unless a parent of this process has started to load a driver library.
///
/// The system's loader and the library take locks, which threads that do not exist in a forked child may hold. The
/// process is therefore noted before it loads anything.
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
            // SAFETY: the handler may do what a signal handler may do (POSIX), and it only increments an atomic
            // number. The call fails only if there is no memory. Forks then go undetected here, and the driver's
            // own errors apply.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        });
    }

    extern "C" fn in_the_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}
