//! Contexts whose remaining work could not be recorded, and the SMs that stay unused until that work is recorded.
//!
//! When the last handle of a partition is dropped, this crate records the partition's work in an event, so that the
//! next owner of the SMs can wait for that work. The driver refuses the record while a foreign stream of the context is
//! being captured, and may refuse it for other reasons. While foreign code captures one of the context's kept streams,
//! this crate does not attempt the record. A context whose work is not recorded is neither destroyed nor reused, and
//! its SMs are not given out. Each split first tries to record the work again.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx_sys::Api;
use parking_lot::Mutex;

use crate::handle::device::Device;
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, RawGreen};
use crate::ledger::Idle;

/// A context whose last handle was dropped, and the SMs that the context was created for.
pub(crate) type Stuck = Idle<RawGreen>;

/// The units of a device that are in quarantine, and the contexts whose work they wait for.
#[derive(Default)]
pub(crate) struct Quarantine {
    /// The number of cases, including cases whose work a thread is trying to record.
    count: AtomicUsize,
    cases: Mutex<Vec<Case>>,
}

/// Units that become free together, once the work of all their contexts is recorded.
pub(crate) struct Case {
    pub(crate) contexts: Vec<Stuck>,
    /// The units, which are in quarantine in the device's ledger.
    pub(crate) members: Vec<usize>,
    /// Fences for other work on the units.
    pub(crate) fences: Fences,
}

impl Quarantine {
    /// Adds units that the ledger has already quarantined.
    pub(crate) fn add(&self, case: Case) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.cases.lock().push(case);
    }

    /// Tries again to record the work of every context. Each context whose work is recorded becomes available for
    /// reuse. The units of a case become free in the ledger once the work of all its contexts is recorded.
    #[inline]
    pub(crate) fn retry(&self, device: &Device) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.retry_all(device);
        }
    }

    #[cold]
    fn retry_all(&self, device: &Device) {
        // Take the cases out, so that no other thread tries them and no lock is held during driver calls. Their units
        // stay in quarantine in the ledger.
        let cases = mem::take(&mut *self.cases.lock());
        for mut case in cases {
            case.contexts.retain(|context| match record_again(device, context) {
                Ok(fence) => {
                    case.fences.add(device.driver(), fence);
                    false
                }
                Err(Unrecorded) => true,
            });
            if !case.contexts.is_empty() {
                self.cases.lock().push(case);
                continue;
            }
            let (members, fences) = (&case.members, case.fences.as_slice());
            let Ok(mut ledger) = device.ledger() else { return };
            ledger.end_quarantine(members, fences);
            drop(ledger);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Destroys the contexts of a driver that is being dropped. Failures are ignored, because the failed record was
    /// already reported. Returns the fences, possibly with duplicates.
    pub(crate) fn end(&self, api: &Api) -> Vec<Arc<Fence>> {
        let cases = mem::take(&mut *self.cases.lock());
        let contexts = cases.iter().flat_map(|case| &case.contexts);
        for context in contexts.filter(|context| !context.kept) {
            let _ignored = green::destroy_raw(api, context.raw.green);
        }
        cases.iter().flat_map(|case| case.fences.as_slice()).cloned().collect()
    }
}

/// The error for a context whose work could still not be recorded.
pub(crate) struct Unrecorded;

/// Tries to record a context's work. If that succeeds, the context becomes available for reuse. If the device has
/// failed, no work is running, and the context is destroyed.
pub(crate) fn record_again(
    device: &Device,
    context: &Stuck,
) -> Result<Option<Arc<Fence>>, Unrecorded> {
    let green = context.raw.green;
    let is_captured = || device.state().kept.are_capturing(device.functions()?, green);
    let recorded = if device.has_failed() || matches!(is_captured(), Ok(true)) {
        None
    } else {
        green::record(device, green).inspect_err(|error| device.note(error)).ok()
    };
    if recorded.is_none() && !device.has_failed() {
        return Err(Unrecorded);
    }
    let Stuck { placement, workqueue, sm_count, raw, kept: _ } = context;
    green::leave(device, *raw, placement, *workqueue, *sm_count);
    Ok(recorded.flatten())
}
