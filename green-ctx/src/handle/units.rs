//! Units: the pieces that the driver cut a device into.

use green_ctx_sys::CUdevResource;

use crate::ledger::UnitCounts;

/// A device cut into pieces: the driver's resources, and what the ledger knows of them.
pub(crate) struct Units {
    resources: Box<[CUdevResource]>,
    counts: UnitCounts,
}

#[allow(unsafe_code, reason = "the bindings' structure has a pointer")]
// SAFETY: a resource is bytes that the driver wrote and reads. Its one pointer links resources of a
// kind that these are not, and nothing here follows it.
unsafe impl Send for Units {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: as above; nothing changes them after the cut.
unsafe impl Sync for Units {}

impl Units {
    /// There must be as many resources as counts.
    pub(crate) fn new(resources: Vec<CUdevResource>, counts: UnitCounts) -> Units {
        debug_assert_eq!(resources.len(), counts.counts().len());
        Units { resources: resources.into(), counts }
    }

    pub(crate) fn counts(&self) -> &UnitCounts {
        &self.counts
    }

    pub(crate) fn resource(&self, index: usize) -> CUdevResource {
        self.resources[index]
    }
}
