//! The place and time of one piece of work.

use crate::clock::{Moment, Tick};
use crate::stream::Admitted;

/// The stream and the context in which a piece of work runs, and the operations that precede the work. The
/// work of turn A precedes the work of turn B if and only if the `start.clock` of B knows the `tick` of A.
pub(crate) struct Turn {
    /// The handle of the stream that the work was submitted to.
    pub(crate) stream: usize,
    /// The handle of the context whose SMs run the work.
    pub(crate) context: usize,
    pub(crate) start: Moment,
    pub(crate) tick: Tick,
    /// The number of the graph launch that the work belongs to; `None` outside graph launches.
    pub(crate) graph_launch: Option<u64>,
}

impl Turn {
    /// Returns the turn of an operation that a stream admitted, on the SMs of a context.
    pub(crate) fn of(admitted: &Admitted, context: usize) -> Turn {
        let Admitted { stream, start, tick } = admitted;
        let (stream, start, tick) = (*stream, start.clone(), tick.clone());
        Turn { stream, context, start, tick, graph_launch: None }
    }
}
