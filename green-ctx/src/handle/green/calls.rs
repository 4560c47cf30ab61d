//! A lock that serialises driver calls on one green context.
//!
//! cuda.h up to CUDA 13.4 allows one thread at a time to use a `CUgreenCtx`. The locked calls take about 4 µs. Putting
//! a thread to sleep and waking it takes longer than that, so `Calls` spins before it sleeps. With an ordinary mutex,
//! two threads that created streams in one context were slower than with the driver's own locks (seen on an H200's
//! host).
//!
//! - A thread releases the lock with a plain store. If the release also used an atomic read-modify-write operation,
//!   that operation would account for most of the cost of an uncontended lock.
//! - A waiting thread checks the lock at growing intervals, and finally sleeps between checks. The owner can therefore
//!   make several calls in a row while the driver's data stays in the caches of its core.
//! - Once two threads have contended for the lock, streams of the context are also destroyed under the lock.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The lock of one green context.
#[derive(Default)]
pub(crate) struct Calls {
    taken: AtomicBool,
    /// Set when two threads first contend for the lock. From then on, streams are destroyed under the lock.
    contended: AtomicBool,
}

/// Ownership of the lock, until this value is dropped.
pub(crate) struct Turn<'a>(&'a AtomicBool);

impl Calls {
    /// Waits for the lock and takes it.
    #[inline]
    pub(crate) fn turn(&self) -> Turn<'_> {
        if !self.take() {
            self.wait();
        }
        Turn(&self.taken)
    }

    /// Takes the lock if threads have ever contended for it. This method is for calls that several threads may make at
    /// the same time. The driver's own locks serialise such calls too, but threads wait longer for the driver's locks
    /// than for this one.
    #[inline]
    pub(crate) fn turn_if_contended(&self) -> Option<Turn<'_>> {
        self.contended.load(Ordering::Relaxed).then(|| self.turn())
    }

    #[inline]
    fn take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits for the lock, checking it at growing intervals. If two threads alternated after every call, each thread
    /// would have to fetch the driver's data from the caches of the other thread's core.
    #[cold]
    fn wait(&self) {
        const MOST: u32 = 1 << 10;
        const SPINS: u32 = 32;
        const PAUSE: Duration = Duration::from_micros(100);
        self.contended.store(true, Ordering::Relaxed);
        for tries in 4.. {
            if tries < SPINS {
                (0..MOST.min(1 << tries)).for_each(|_| hint::spin_loop());
            } else {
                // The owner's call waits for the device, or its thread was preempted.
                thread::sleep(PAUSE);
            }
            if !self.taken.load(Ordering::Relaxed) && self.take() {
                return;
            }
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn turns_exclude_each_other_and_end() {
        let (calls, inside, done) = (Calls::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        assert!(calls.turn_if_contended().is_none());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        let _turn = calls.turn();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        if round % 500 == 0 {
                            // Hold the lock as long as a call that waits for the device, so that the other threads
                            // sleep.
                            thread::sleep(Duration::from_millis(2));
                        }
                        inside.fetch_sub(1, Ordering::Relaxed);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 8000);
        assert!(calls.turn_if_contended().is_some());
    }
}
