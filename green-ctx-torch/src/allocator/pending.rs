//! Frees that their streams may not have come to yet, and waiting for them where memory is short.
//!
//! The pool makes no stream wait for another, so memory that was freed behind running work is nobody
//! else's until that work is done. Waiting for it on the host is what is left before an allocation fails.
//!
//! The list remembers streams by their handles, since an object would keep its partition alive. A stream of
//! green-ctx is looked up again when memory is short, so a free on it needs no call. On any other stream an
//! event is recorded at each free, because nothing reports when that stream is destroyed.

use green_ctx::{Device, Driver, Event, Result};

use super::Inner;
use super::capture::Capture;
use super::place::{Place, PlaceId};
use super::source::Source;

/// How many streams are remembered, those that were freed on last. Frees of earlier ones are long ago.
const KEPT: usize = 64;

/// The streams that blocks were freed on.
#[derive(Default)]
pub(super) struct Pending {
    /// The one that was used last is the last.
    freed: Vec<Freed>,
}

/// A stream that blocks were freed on. It keeps neither the stream nor its partition.
#[derive(Clone)]
struct Freed {
    place: PlaceId,
    /// Recorded after the last free on a stream that cannot be found again.
    event: Option<Event>,
}

impl Pending {
    /// Notes a free. What is not needed any more is returned, to be dropped outside of locks.
    #[must_use]
    pub(super) fn note(&mut self, place: PlaceId, event: Option<Event>) -> Option<Event> {
        let freed = Freed { place, event };
        let known = self.freed.iter().rposition(|known| known.place == place);
        let oldest = (self.freed.len() == KEPT).then_some(0);
        let former = known.or(oldest).map(|index| self.freed.remove(index));
        self.freed.push(freed);
        former.and_then(|former| former.event)
    }

    /// The event of a stream that was freed on before.
    fn event(&self, place: PlaceId) -> Option<Event> {
        self.freed.iter().rev().find(|known| known.place == place)?.event.clone()
    }
}

impl Freed {
    /// An event that completes when the frees have happened; `None` where the stream is gone or takes
    /// part in a capture, which must not be waited for.
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
        // Of a capture that has begun meanwhile the event may be a part, and waiting would end it.
        Ok((capture()? == Capture::None).then_some(event))
    }
}

impl Inner {
    /// Notes that a block was freed on a stream. That is a call of the driver where the stream may be
    /// gone, or not be named, when memory is short; others are looked up then. After a failure that call is
    /// all that is missing.
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
        // Outside of the lock: it may be the last handle of its event.
        drop(unneeded);
        noted
    }

    /// Makes what was freed so far the device's again, by waiting for it on the host. Captures go on, so
    /// what is freed on a stream that is being captured is not waited for.
    pub(super) fn reclaim(&self, driver: &Driver, source: &Source) {
        self.give_back_waiting(false);
        // They stay in the list for other threads that run out of memory meanwhile.
        let freed = self.books.lock().pending.freed.clone();
        // All are recorded first, so that work which is submitted during a wait is not waited for.
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
