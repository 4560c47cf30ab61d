//! Calls on one green context, one thread at a time.
//!
//! The header up to CUDA 13.4 requires this. `Calls` is a lock for calls of a few microseconds:
//!
//! - A thread releases it with a plain store. A second atomic operation would cost an uncontended thread most
//!   of what the lock adds to a call.
//! - A waiting thread checks less and less often, and finally sleeps between checks. So the other thread
//!   makes several calls in a row, with the driver's data in its caches.
//! - Once two threads have contended, streams of the context are also destroyed one at a time.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The turns of threads that call the driver with one green context: its header up to 13.4 allows one
/// at a time.
///
/// A turn is as long as one call, some 4 µs, and to sleep and to be woken takes longer: with a common
/// mutex, two threads that made streams in one context were slower than with the driver's own locks (seen on an
/// H200's host). Nor does such a mutex end with a plain store, which is what
/// a thread that is alone would notice most.
#[derive(Default)]
pub(super) struct Calls {
    taken: AtomicBool,
    /// Whether two threads ever came at once; streams are destroyed in turn from then on.
    contended: AtomicBool,
}

/// A thread's turn, until it is dropped.
pub(super) struct Turn<'a>(&'a AtomicBool);

impl Calls {
    /// Waits for this thread's turn.
    #[inline]
    pub(super) fn turn(&self) -> Turn<'_> {
        if !self.take() {
            self.wait();
        }
        Turn(&self.taken)
    }

    /// Waits where threads were seen to come at once, before a call that may come at any time: the
    /// driver's own locks keep such calls apart too, but take longer.
    #[inline]
    pub(super) fn turn_if_contended(&self) -> Option<Turn<'_>> {
        self.contended.load(Ordering::Relaxed).then(|| self.turn())
    }

    #[inline]
    fn take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Looks ever less often: a thread that has several turns in a row finds the driver's data in its
    /// caches, where threads that alternate fetch them from each other.
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
                // A call that waits for the device, or a thread that has lost its processor.
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
                            // As long as one call takes that waits for the device: the others sleep.
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
