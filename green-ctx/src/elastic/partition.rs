//! One partition of a prepared plan.

use std::fmt;
use std::sync::Arc;

use super::failure::PlanError;
use super::shared::SharedContext;
use crate::context::Context;
use crate::error::Result;
use crate::group::SmGroup;
use crate::stream::{Stream, StreamOptions};

/// A partition of a prepared plan: a context on its SMs, with a stream.
pub struct Partition {
    name: Arc<str>,
    requested: Option<u32>,
    shared: Arc<SharedContext>,
}

impl Partition {
    pub(super) fn new(
        name: Arc<str>,
        requested: Option<u32>,
        shared: Arc<SharedContext>,
    ) -> Partition {
        Partition { name, requested, shared }
    }

    pub(super) fn shared(&self) -> &Arc<SharedContext> {
        &self.shared
    }

    /// The name in its plan.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SMs that were asked for; `None` for what remained.
    #[must_use]
    pub fn requested(&self) -> Option<u32> {
        self.requested
    }

    /// The SMs that it has.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.context().group().map_or(0, SmGroup::sm_count)
    }

    /// The context. Its streams take part in switches, whoever makes them, from the moment on when an
    /// object of this crate stands for them.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.shared.context()
    }

    /// The partition's first stream.
    #[must_use]
    #[inline]
    pub fn stream(&self) -> &Stream {
        self.shared.stream()
    }

    /// Makes one more stream. As all streams of the partition it waits for the work of former plans
    /// on its SMs, and later plans wait for its work.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.context().create_stream(options)
    }

    pub(super) fn refuse_capture(&self) -> Result<(), PlanError> {
        if self.shared.has_captures()? {
            return Err(PlanError::Capturing { partition: self.name.to_string() });
        }
        Ok(())
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("name", &self.name)
            .field("requested", &self.requested)
            .field("sm_count", &self.sm_count())
            .finish_non_exhaustive()
    }
}
