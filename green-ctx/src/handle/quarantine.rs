//! Contexts whose last work could not be recorded, and the SMs that wait for it.
//!
//! The last handle of a partition records its work, so that whoever gets the SMs next can wait for it.
//! The driver refuses that while a stream of the context that is not this crate's is being captured, and
//! may refuse it for other reasons; and nobody asks it to while foreign code captures a stream that is
//! kept. Such a context is neither destroyed nor used again, and its SMs are nobody's, until recording has
//! succeeded after all: it is tried again before each split.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx_sys::Api;
use parking_lot::Mutex;

use crate::handle::device::Device;
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, RawGreen};
use crate::ledger::Idle;

/// A context that is in use no more, and what it was made of.
pub(crate) type Stuck = Idle<RawGreen>;

/// A device's units in quarantine, and the contexts whose work they wait for.
#[derive(Default)]
pub(crate) struct Quarantine {
    /// How many cases there are, those that are being tried included.
    count: AtomicUsize,
    cases: Mutex<Vec<Case>>,
}

/// Units that are freed together, once the work of all contexts is recorded.
pub(crate) struct Case {
    pub(crate) contexts: Vec<Stuck>,
    /// The units, which the device's ledger has in quarantine.
    pub(crate) members: Vec<usize>,
    /// What else runs there.
    pub(crate) fences: Fences,
}

impl Quarantine {
    /// Adds units that are quarantined in the ledger already.
    pub(crate) fn add(&self, case: Case) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.cases.lock().push(case);
    }

    /// Tries again to record the work of every context. The ledger frees what no work is unknown of
    /// any more, and the contexts are kept to be used again.
    #[inline]
    pub(crate) fn retry(&self, device: &Device) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.retry_all(device);
        }
    }

    #[cold]
    fn retry_all(&self, device: &Device) {
        // Taken out while they are tried, so that no other thread tries the same ones and the driver is
        // called without the lock. The ledger keeps the units meanwhile.
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

    /// Destroys the contexts of a driver that is ending itself. That it fails, as recording did, is
    /// not reported again. Returns the fences, some perhaps more than once.
    pub(crate) fn end(&self, api: &Api) -> Vec<Arc<Fence>> {
        let cases = mem::take(&mut *self.cases.lock());
        let contexts = cases.iter().flat_map(|case| &case.contexts);
        for context in contexts.filter(|context| !context.kept) {
            let _ignored = green::destroy_raw(api, context.raw.green);
        }
        cases.iter().flat_map(|case| case.fences.as_slice()).cloned().collect()
    }
}

/// A context's work that could still not be recorded.
pub(crate) struct Unrecorded;

/// Tries to record a context's work, and leaves it to be used again where that succeeds. When the
/// device has failed nothing runs any more, and the context is destroyed.
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
