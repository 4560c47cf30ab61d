//! Closing a partition.

use std::sync::Arc;

use super::{Partition, SharedContext};
use crate::handle::context::CloseReason;
use crate::handle::error::Refused;
use crate::handle::group::SmGroup;

impl Partition {
    /// Waits for the partition's work and returns its SMs as a group, which can be divided again or dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which returns the partition, in these cases: another handle of the
    /// partition exists (a clone, a stream or the context), the partition belongs to a plan, its stream is
    /// being captured, its context is current on this thread, or the driver fails.
    ///
    /// # Panics
    ///
    /// If a hook of [`Driver::on_reclaim`](crate::Driver::on_reclaim) panics, this call panics too and drops
    /// the partition.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let part = device.create_partition(device.rest("all")?)?;
    /// let group = part.close()?;
    /// assert_eq!(group.sm_count(), 132);
    /// # Ok(())
    /// # }
    /// ```
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
        SharedContext::prepare_close(&[shared]).map_err(|(_, reason)| reason)
    }

    /// Returns whether this is the only handle of the partition.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    fn finish_close(self) -> SmGroup {
        let shared = Arc::into_inner(self.inner).and_then(|inner| Arc::into_inner(inner.shared));
        let group = shared.and_then(SharedContext::finish_close);
        group.unwrap_or_else(|| unreachable!("this is the only handle of the partition's context"))
    }
}
