//! One partition of a prepared plan.

use std::fmt;
use std::mem;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::plan::PlanError;
use crate::context::Context;
use crate::error::Result;
use crate::event::{Event, EventOptions};
use crate::recycle::Place;
use crate::resource::SmGroup;
use crate::stream::{self, Stream, StreamOptions};

/// A partition of a prepared plan: a context on its SMs, with a stream.
pub struct Partition {
    name: Arc<str>,
    requested: Option<u32>,
    lane: Arc<Lane>,
}

/// What runs on certain SMs. Plans that have a partition of the same SMs share one, so that switching
/// between them does not touch it.
pub(super) struct Lane {
    place: Place,
    context: Context,
    stream: Stream,
    /// Stands for the work up to the last switch away from here.
    done: Event,
    /// What new streams wait for.
    held_by: Mutex<Vec<Event>>,
    /// The streams that were made besides the first, as long as they live.
    more: Mutex<Vec<Weak<stream::Inner>>>,
}

impl Lane {
    pub(super) fn create(group: SmGroup) -> Result<Lane> {
        let device = group.device().clone();
        let place = group.place().clone();
        let context = device.create_context(group)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let done = device.create_event(EventOptions::default())?;
        let (held_by, more) = (Mutex::default(), Mutex::default());
        Ok(Lane { place, context, stream, done, held_by, more })
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Whether some SMs of one are SMs of the other too.
    pub(super) fn overlaps(&self, other: &Lane) -> bool {
        let (ours, theirs) = (&self.place.members, &other.place.members);
        ours.iter().any(|unit| theirs.binary_search(unit).is_ok())
    }

    /// Whether others have all of its SMs between them.
    pub(super) fn is_within(&self, others: &[&Arc<Lane>]) -> bool {
        let has = |unit| others.iter().any(|lane| lane.place.members.binary_search(unit).is_ok());
        self.place.members.iter().all(has)
    }

    /// The streams that live.
    fn streams(&self) -> Vec<Stream> {
        let mut more = self.more.lock();
        more.retain(|stream| stream.strong_count() > 0);
        let others = more.iter().filter_map(Weak::upgrade).map(Stream::from_inner);
        std::iter::once(self.stream.clone()).chain(others).collect()
    }

    /// Whether one of its streams is being captured.
    pub(super) fn is_capturing(&self) -> Result<bool> {
        for stream in self.streams() {
            if stream.is_capturing()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records the work up to now.
    pub(super) fn record(&self) -> Result<()> {
        self.context.record(&self.done)
    }

    /// Whether the work that was recorded last is done.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.done.is_complete()
    }

    /// Makes what is submitted here from now on, to streams that are there and to those that are
    /// made later, wait for what was recorded in others.
    pub(super) fn wait_for(&self, others: &[&Lane]) -> Result<()> {
        // First, so that a stream that is made too late to be held finds the events here.
        let events = others.iter().map(|other| other.done.clone()).collect();
        let former = mem::replace(&mut *self.held_by.lock(), events);
        drop(former);
        others.iter().try_for_each(|other| self.context.wait(&other.done))
    }
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

    /// The context. A stream that is made with it directly does not wait for the work of a former
    /// plan: use [`create_stream`](Partition::create_stream).
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

    /// Makes one more stream, which takes part in switches as the first one does.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        let stream = self.lane.context.create_stream(options)?;
        // Noted before it waits: a switch at this moment either holds it or has left its events.
        self.lane.more.lock().push(stream.downgrade());
        let held_by = self.lane.held_by.lock().clone();
        held_by.iter().try_for_each(|event| stream.wait(event))?;
        Ok(stream)
    }

    pub(super) fn refuse_capture(&self) -> Result<(), PlanError> {
        if self.lane.is_capturing()? {
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
