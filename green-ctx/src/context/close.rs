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
        /// How many of a partition's streams are alive; where none is, another handle of its context, a
        /// guard, a graph or a capture keeps it. `None` for a primary context, which partitions, events
        /// and buffers keep too, and for a borrowed one: their streams are not counted.
        streams: Option<usize>,
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

fn keepers(streams: Option<usize>) -> Cow<'static, str> {
    match streams {
        None => "something else that needs it is alive".into(),
        Some(0) => "another handle of it, a guard, a graph, a capture or a context that shares its workqueues is alive".into(),
        Some(1) => "a stream of it is alive".into(),
        Some(streams) => format!("{streams} streams of it are alive").into(),
    }
}
