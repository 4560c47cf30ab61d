//! Why a context was not closed.

use std::borrow::Cow;

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
    /// Something else keeps it.
    #[error("the context is still in use: {}", keepers(*.streams))]
    Shared {
        /// How many of its streams are alive. Where none is, another handle of the context keeps it,
        /// or a guard, a graph or a capture.
        streams: usize,
    },
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

fn keepers(streams: usize) -> Cow<'static, str> {
    match streams {
        0 => "another handle of it, a guard, a graph or a capture is alive".into(),
        1 => "a stream of it is alive".into(),
        _ => format!("{streams} streams of it are alive").into(),
    }
}
