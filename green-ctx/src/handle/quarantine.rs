//! Contexts whose remaining work could not be recorded, and the SMs that stay unused until that work is recorded.
//!
//! When the last handle of a partition is dropped, this crate records the partition's work in an event, so that the
//! next owner of the SMs can wait for that work. The driver refuses the record while a foreign stream of the context is
//! being captured, and may refuse it for other reasons. While foreign code captures one of the context's kept streams,
//! this crate does not attempt the record. A context whose work is not recorded is neither destroyed nor reused, and
//! its SMs are not given out. Each split first tries to record the work again. If another thread is already trying, the
//! split waits for its result.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx_sys::Api;
use parking_lot::{Mutex, ReentrantMutex};

use crate::handle::device::Device;
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, Green};
use crate::handle::report;

/// The units of a device that are in quarantine, and the contexts whose work they wait for.
#[derive(Default)]
pub(crate) struct Quarantine {
    count: AtomicUsize,
    cases: Mutex<Vec<Arc<Case>>>,
    /// Held by the thread that tries to record the work. The lock is reentrant, because the simulated driver may run
    /// host functions during its calls, and these functions may split SMs.
    trying: ReentrantMutex<()>,
}

/// Units that become free together, once the work of all their contexts is recorded.
struct Case {
    /// The contexts whose work is not recorded.
    contexts: Mutex<Vec<Arc<Green>>>,
    /// The units, which are in quarantine in the device's ledger.
    members: Vec<usize>,
    /// Fences for the other work on the units.
    fences: Mutex<Fences>,
}

impl Quarantine {
    /// Adds units that the ledger has already quarantined.
    pub(crate) fn add(&self, contexts: Vec<Arc<Green>>, members: Vec<usize>, fences: Fences) {
        let (contexts, fences) = (Mutex::new(contexts), Mutex::new(fences));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.cases.lock().push(Arc::new(Case { contexts, members, fences }));
    }

    /// Tries again to record the work of every context. The units of a case become free in the ledger once the work of
    /// all its contexts is recorded.
    #[inline]
    pub(crate) fn retry(&self, device: &Device) {
        if self.count.load(Ordering::Relaxed) > 0 && !device.driver().is_forked() {
            self.retry_all(device);
        }
    }

    #[cold]
    fn retry_all(&self, device: &Device) {
        let _trying = report::hold(self.trying.lock());
        let cases = self.cases.lock().clone();
        for case in cases {
            let add = |fence| case.fences.lock().add(device.driver(), [fence]);
            retry(device, &case.contexts, add);
            if !case.contexts.lock().is_empty() {
                continue;
            }
            let is_case = |other: &mut Arc<Case>| Arc::ptr_eq(other, &case);
            let ended = self.cases.lock().extract_if(.., is_case).count();
            let fences = case.fences.lock().clone();
            if let Ok(mut ledger) = device.ledger()
                && ended == 1
            {
                ledger.end_quarantine(&case.members, fences.as_slice());
                drop(ledger);
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Destroys the contexts of a driver that is being dropped. Failures are ignored, because the failed record was
    /// already reported. Returns the fences, possibly with duplicates.
    pub(crate) fn end(&self, api: &Api) -> Vec<Arc<Fence>> {
        let cases = mem::take(&mut *self.cases.lock());
        for green in cases.iter().flat_map(|case| mem::take(&mut *case.contexts.lock())) {
            if !green.streams.are_kept() {
                let _ignored = green.destroy(api);
            }
        }
        cases.iter().flat_map(|case| case.fences.lock().as_slice().to_vec()).collect()
    }
}

/// Tries again to record the work of each context in a list. If that succeeds, passes the fence to `add`, removes the
/// context from the list, and makes it available for reuse. Each moment has the context or the fence, and the next
/// owner of the SMs checks both. If the device has failed, no work is running, and the context is destroyed. Only one
/// thread at a time may call this function for a list.
pub(crate) fn retry(device: &Device, contexts: &Mutex<Vec<Arc<Green>>>, add: impl Fn(Arc<Fence>)) {
    let all = contexts.lock().clone();
    for green in all {
        let is_captured = || green.streams.are_capturing(device.functions()?);
        let recorded = if device.has_failed() || matches!(is_captured(), Ok(true)) {
            None
        } else {
            green.fence(device).inspect_err(|error| device.note(error)).ok()
        };
        if recorded.is_none() && !device.has_failed() {
            continue;
        }
        recorded.flatten().into_iter().for_each(&add);
        let is_one = |other: &mut Arc<Green>| Arc::ptr_eq(other, &green);
        if contexts.lock().extract_if(.., is_one).count() == 1 {
            green::leave(device, green);
        }
    }
}
