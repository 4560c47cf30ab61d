//! Closing a partition.

use std::sync::Arc;

use super::{Inner, Partition, SharedContext};
use crate::context::{CloseError, CloseReason};
use crate::group::SmGroup;

/// A partition that was not closed.
#[derive(Debug, thiserror::Error)]
#[error("partition {name} was not closed")]
pub struct ClosePartitionError {
    /// Its name.
    pub name: Arc<str>,
    /// The partition, as usable as before. `None` where it lost its stream and the driver made no other.
    pub partition: Option<Partition>,
    /// Why it was not closed.
    #[source]
    pub reason: CloseReason,
}

impl Partition {
    /// Waits for the partition's work and gives its SMs back as a group, to be divided again or dropped.
    ///
    /// # Errors
    ///
    /// [`ClosePartitionError`], which gives the partition back: when another handle of it lives (a clone,
    /// a stream, the context), when it is a plan's, when its context is current on this thread, and when
    /// the driver fails.
    pub fn close(self) -> Result<SmGroup, ClosePartitionError> {
        let name = Arc::clone(&self.inner.given.name);
        let failed = |partition, reason| Err(ClosePartitionError { name, partition, reason });
        if self.context().shares_sms() {
            return failed(Some(self), CloseReason::InPlans);
        }
        let in_use = CloseReason::Shared { streams: Some(0) };
        let Inner { given, beside, shared } = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => return failed(Some(Partition { inner }), in_use),
        };
        let shared = match Arc::try_unwrap(shared) {
            Ok(shared) => shared,
            Err(shared) => {
                let inner = Arc::new(Inner { given, beside, shared });
                return failed(Some(Partition { inner }), in_use);
            }
        };
        match shared.close() {
            Ok(Some(group)) => Ok(group),
            Ok(None) => failed(None, CloseReason::InPlans),
            Err((CloseError { context, reason }, priority)) => {
                let shared = SharedContext::of(context, priority).ok();
                failed(shared.map(|shared| Partition::new(given, beside, Arc::new(shared))), reason)
            }
        }
    }
}
