//! Frees that may still be queued behind work on their streams, and waiting for these frees when memory is short.
//!
//! The pool never makes one stream wait for another. If a free is queued behind running work, other streams therefore
//! cannot use the memory until that work is done. Before an allocation fails, the host waits for such work.
//!
//! The list stores the handles of streams, because a stream object would keep its partition alive. A stream of
//! green-ctx can be found by its handle when memory is short, so a free on such a stream needs no further driver call.
//! On any other stream, each free records an event, because nothing reports when such a stream is destroyed.

use green_ctx::{Device, Driver, Event, Result};

use super::Inner;
use super::capture::Capture;
use super::place::{Place, PlaceId};
use super::source::Source;

/// The maximum number of streams that are remembered. Frees on streams that were used earlier are assumed to have run.
const KEPT: usize = 64;

/// The streams on which blocks were freed.
#[derive(Default)]
pub(super) struct Pending {
    /// The streams in the order of their last use; the most recently used stream is at the end.
    freed: Vec<Freed>,
}

/// A stream on which blocks were freed. This entry keeps neither the stream nor the stream's partition alive.
#[derive(Clone)]
struct Freed {
    place: PlaceId,
    /// The event recorded after the last free. It exists only if the stream cannot be found by its handle.
    event: Option<Event>,
}

impl Pending {
    /// Notes a free. Returns an event that is no longer needed. The caller must drop this event outside locks.
    #[must_use]
    pub(super) fn note(&mut self, place: PlaceId, event: Option<Event>) -> Option<Event> {
        let freed = Freed { place, event };
        let known = self.freed.iter().rposition(|known| known.place == place);
        let oldest = (self.freed.len() == KEPT).then_some(0);
        let former = known.or(oldest).map(|index| self.freed.remove(index));
        self.freed.push(freed);
        former.and_then(|former| former.event)
    }

    /// Returns the event of an earlier free on a stream, if an event was recorded.
    fn event(&self, place: PlaceId) -> Option<Event> {
        self.freed.iter().rev().find(|known| known.place == place)?.event.clone()
    }
}

impl Freed {
    /// Returns an event that completes when the frees have run. Returns `None` if the stream no longer exists, or if
    /// it is in a capture, which must not be waited for.
    fn event(self, device: &Device) -> Result<Option<Event>> {
        if self.event.is_some() {
            return Ok(self.event);
        }
        let Some(place) = self.place.find(device) else { return Ok(None) };
        let capture = || place.capture(device.driver());
        if capture()? != Capture::None {
            return Ok(None);
        }
        let event = place.record(device)?;
        // If a capture began in the meantime, the event may be part of it, and waiting for it would invalidate the
        // capture.
        Ok((capture()? == Capture::None).then_some(event))
    }
}

impl Inner {
    /// Notes that a block was freed on a stream. Records an event if the stream cannot be found by its handle later. If
    /// recording fails, the free is noted without an event.
    pub(super) fn note_free(&self, place: &Place) -> Result<()> {
        let id = place.id();
        let recorded = if place.is_found_again() {
            Ok(None)
        } else {
            let known = self.books.lock().pending.event(id);
            match known {
                Some(event) => place.record_in(&event, &self.device).map(|()| Some(event)),
                None => place.record(&self.device).map(Some),
            }
        };
        let (event, noted) = match recorded {
            Ok(event) => (event, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let unneeded = self.books.lock().pending.note(id, event);
        // Dropped outside the lock, because it may be the last handle of its event.
        drop(unneeded);
        noted
    }

    /// Waits on the host until the frees so far have run, and returns the pool's unused memory to the device. Does not
    /// wait for frees on a stream that is being captured, so that captures stay valid.
    pub(super) fn reclaim(&self, driver: &Driver, source: &Source) {
        self.give_back_waiting(false);
        // The entries stay in the list for other threads that run out of memory in the meantime.
        let freed = self.books.lock().pending.freed.clone();
        // All events are recorded before the first wait, so that no work submitted during a wait is waited for.
        let recorded = freed.into_iter().map(|freed| freed.event(&self.device));
        let recorded: Vec<_> = recorded.collect();
        for event in recorded {
            let waited = event.and_then(|event| event.map_or(Ok(()), |event| event.synchronize()));
            driver.report(waited);
        }
        driver.report(source.finish());
        driver.report(source.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_used_last_are_remembered() {
        let mut pending = Pending::default();
        for number in 1..=KEPT + 10 {
            assert!(pending.note(PlaceId::of_stream(number), None).is_none());
            assert!(pending.note(PlaceId::of_stream(1), None).is_none());
        }
        let kept = |number| {
            let place = PlaceId::of_stream(number);
            pending.freed.iter().filter(|freed| freed.place == place).count()
        };
        assert_eq!(pending.freed.len(), KEPT);
        assert_eq!([1, 2, 11, 12, KEPT + 10].map(kept), [1, 0, 0, 1, 1]);
    }
}
