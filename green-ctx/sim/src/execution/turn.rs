//! Where and when one piece of work is done.

use crate::clock::{Moment, Tick};
use crate::stream::Admitted;

/// Where work is done, and what it comes after: the work of a turn comes before that of another
/// exactly if the other's `start.clock` knows its `tick`.
pub(crate) struct Turn {
    /// The handle of the stream that it was submitted to.
    pub(crate) stream: usize,
    /// The handle of the context on whose SMs it runs.
    pub(crate) context: usize,
    pub(crate) start: Moment,
    pub(crate) tick: Tick,
    /// The launch of a graph that it is part of.
    pub(crate) graph_launch: Option<u64>,
}

impl Turn {
    /// The turn of an operation that a stream admitted, on the SMs of a context.
    pub(crate) fn of(admitted: &Admitted, context: usize) -> Turn {
        let Admitted { stream, start, tick } = admitted;
        let (stream, start, tick) = (*stream, start.clone(), tick.clone());
        Turn { stream, context, start, tick, graph_launch: None }
    }
}
