//! Calls on a green context, one thread at a time.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The turns of threads that call the driver with one green context: its header up to 13.4 allows one
/// at a time.
#[derive(Default)]
pub(super) struct Calls {
    lock: Mutex<()>,
    /// Whether two threads ever came at once.
    contended: AtomicBool,
}

impl Calls {
    /// Waits for this thread's turn: another's is as long as one driver call.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.try_lock().unwrap_or_else(|| self.lock_spinning())
    }

    /// Waits where threads were seen to come at once, before a call that may come at any time: the
    /// driver's own locks keep such calls apart too, but take longer.
    #[inline]
    pub(super) fn lock_if_contended(&self) -> Option<MutexGuard<'_, ()>> {
        self.contended.load(Ordering::Relaxed).then(|| self.lock())
    }

    /// A call takes some 4 µs, and to sleep and to be woken takes longer: two threads that made streams
    /// in one context took 24 µs a stream, where the driver's own locks take 14 (seen on an H200's
    /// host).
    #[cold]
    fn lock_spinning(&self) -> MutexGuard<'_, ()> {
        const TRIES: u32 = 2000;
        self.contended.store(true, Ordering::Relaxed);
        for _ in 0..TRIES {
            hint::spin_loop();
            if let Some(guard) = self.lock.try_lock() {
                return guard;
            }
        }
        self.lock.lock()
    }
}
