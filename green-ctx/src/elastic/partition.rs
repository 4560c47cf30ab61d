//! One partition of a prepared plan.

use std::fmt;
use std::sync::Arc;

use super::failure::PlanError;
use crate::context::Context;
use crate::error::Result;
use crate::group::SmGroup;
use crate::ledger::Location;
use crate::stream::{Stream, StreamOptions};
use crate::turns::Turns;

/// A partition of a prepared plan: a context on its SMs, with a stream.
pub struct Partition {
    name: Arc<str>,
    requested: Option<u32>,
    lane: Arc<Lane>,
}

/// What runs on certain SMs. Plans that have a partition of the same SMs share one, so that switching
/// between them does not touch it.
pub(super) struct Lane {
    location: Location,
    /// The location's units, a bit each: a switch asks for what overlaps.
    units: Vec<u64>,
    context: Context,
    stream: Stream,
    turns: Arc<Turns>,
}

impl Lane {
    pub(super) fn create(group: SmGroup) -> Result<Lane> {
        let device = group.device().clone();
        let location = group.location().clone();
        let context = device.create_context(group)?;
        let turns = Arc::<Turns>::default();
        context.take_turns(&turns);
        let stream = context.create_stream(StreamOptions::default())?;
        let units = bits(&location.members);
        Ok(Lane { location, units, context, stream, turns })
    }

    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    /// Whether some SMs of one are SMs of the other too.
    pub(super) fn overlaps(&self, other: &Lane) -> bool {
        self.units.iter().zip(&other.units).any(|(ours, theirs)| ours & theirs != 0)
    }

    /// Whether others have all of its SMs between them.
    pub(super) fn is_within(&self, others: &[Arc<Lane>]) -> bool {
        self.units.iter().enumerate().all(|(index, ours)| {
            let theirs = others.iter().filter_map(|other| other.units.get(index));
            ours & !theirs.fold(0, |all, units| all | units) == 0
        })
    }

    /// Records the work up to now.
    pub(super) fn record(&self) -> Result<()> {
        self.turns.record(&self.context)
    }

    /// Whether the work that was recorded last is done.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.turns.are_done()
    }

    /// Makes what is submitted here from now on wait for what was recorded in others. Only one thread
    /// at a time may call it, of all that share the SMs.
    pub(super) fn wait_for<'a>(&self, others: impl Iterator<Item = &'a Arc<Lane>>) -> Result<()> {
        self.turns.wait_for(others.map(|other| &*other.turns))
    }
}

/// Numbers as the bits of words.
fn bits(numbers: &[usize]) -> Vec<u64> {
    const WORD: usize = u64::BITS as usize;
    let mut words = vec![0; numbers.iter().max().map_or(0, |most| most / WORD + 1)];
    numbers.iter().for_each(|number| words[number / WORD] |= 1 << (number % WORD));
    words
}

impl Partition {
    pub(super) fn new(name: Arc<str>, requested: Option<u32>, lane: Arc<Lane>) -> Partition {
        Partition { name, requested, lane }
    }

    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.lane
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
        self.lane.context.group().map_or(0, SmGroup::sm_count)
    }

    /// The context. Its streams take part in switches, whoever makes them, from the moment on when an
    /// object of this crate stands for them.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.lane.context
    }

    /// The partition's first stream.
    #[must_use]
    #[inline]
    pub fn stream(&self) -> &Stream {
        &self.lane.stream
    }

    /// Makes one more stream. As all streams of the partition it waits for the work of former plans
    /// on its SMs, and later plans wait for its work.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.lane.context.create_stream(options)
    }

    pub(super) fn refuse_capture(&self) -> Result<(), PlanError> {
        if self.lane.turns.are_capturing()? {
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
