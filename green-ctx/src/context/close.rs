//! Why a context was not closed.

use super::Context;
use crate::error::Error;

/// A context that could not be closed.
#[derive(Debug, thiserror::Error)]
#[error("the context was not closed")]
pub struct CloseError {
    /// The context, as usable as before.
    pub context: Context,
    /// Why it was not closed.
    #[source]
    pub reason: CloseReason,
}

/// Why a context was not closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Another handle keeps it: a clone, a stream, a guard.
    #[error("another handle of the context is alive")]
    Shared,
    /// It is one of a set of plans, whose other plans use its SMs too. Its last handle ends it.
    #[error("the context's SMs are those of a set of plans; drop the context instead")]
    InPlans,
    /// It is this thread's current context.
    #[error("the context is current on this thread")]
    Current,
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] Error),
}
