//! Closing a partition.

use std::sync::Arc;

use super::{Partition, SharedContext};
use crate::handle::context::CloseReason;
use crate::handle::error::Refused;
use crate::handle::group::SmGroup;

impl Partition {
    /// Waits for the partition's work and gives its SMs back as a group, to be divided again or dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the partition back: when another handle of it lives (a clone,
    /// a stream, the context), when it is a plan's, when its stream is being captured, when its context is
    /// current on this thread, and when the driver fails.
    ///
    /// # Panics
    ///
    /// Where a function of [`Driver::on_reclaim`](crate::Driver::on_reclaim) panics. The partition is dropped
    /// then.
    pub fn close(self) -> Result<SmGroup, Refused<Partition, CloseReason>> {
        match self.prepare_close() {
            Ok(()) => Ok(self.finish_close()),
            Err(reason) => Err(Refused { given: self, reason }),
        }
    }

    fn prepare_close(&self) -> Result<(), CloseReason> {
        let driver = self.device().driver();
        driver.check_process()?;
        driver.reclaim();
        if self.context().shares_sms() {
            return Err(CloseReason::InPlans);
        }
        let shared = &self.inner.shared;
        if !self.is_alone() || Arc::strong_count(shared) > 1 {
            return Err(CloseReason::Shared { streams: Some(0) });
        }
        shared.prepare_close()
    }

    /// Whether nobody has a clone of it.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    fn finish_close(self) -> SmGroup {
        let shared = Arc::into_inner(self.inner).and_then(|inner| Arc::into_inner(inner.shared));
        let group = shared.and_then(SharedContext::finish_close);
        group.unwrap_or_else(|| unreachable!("nobody else has a handle of the partition's context"))
    }
}
