//! Giving blocks back: in order, and not while a graph needs them.
#![allow(unsafe_code, reason = "takes a raw stream and frees memory")]

use std::mem;
use std::sync::atomic::Ordering;

use green_ctx::sys::CUstream;
use green_ctx::{Driver, Error, Result, graph::RelaxedCapture};

use super::Inner;
use super::block::Waiting;
use super::capture::{Capture, Hold};
use super::place::Place;
use super::source::Source;

impl Inner {
    /// The hold of the graph that a stream is captured into: one that a block has, or a new one.
    pub(super) fn hold(&self, place: &Place) -> Result<Option<Hold>> {
        let known = |capture| {
            let books = self.books.lock();
            let living = books.blocks.values();
            let blocks = living.chain(books.waiting.iter().map(|waiting| &waiting.block));
            let mut holds = blocks.flat_map(|block| &block.holds);
            holds.find(|hold| hold.capture() == capture && !hold.is_over()).cloned()
        };
        place.hold(self.device.driver(), known)
    }

    /// Frees a block that was taken out of the books, on a stream. `false` where it has to wait.
    ///
    /// # Safety
    ///
    /// The stream must be alive, or a default-stream token.
    pub(super) unsafe fn free(
        &self,
        driver: &Driver,
        waiting: &mut Waiting,
        stream: CUstream,
    ) -> Result<bool> {
        let _relaxed = RelaxedCapture::enter(driver)?;
        let source = self.source()?;
        // SAFETY: the stream is alive by this function's contract.
        let (on, _) = unsafe { Place::find(source.primary(), stream) }?;
        waiting.on = Some(on);
        // A graph that is captured now may be using the block.
        let mut holds = Vec::new();
        let mut result = Ok(());
        for place in waiting.places() {
            if place.is_reachable(driver)? && place.capture(driver)? == Capture::Active {
                match self.hold(place) {
                    Ok(hold) => holds.extend(hold),
                    Err(error) => {
                        // Nothing reports when the graph is gone.
                        holds.push(Hold::for_ever());
                        result = Err(error);
                    }
                }
            }
        }
        holds.into_iter().for_each(|hold| waiting.block.hold(Some(hold)));
        result?;
        self.give_back(driver, source, waiting, false)
    }

    /// Keeps a block that cannot go back yet.
    pub(super) fn wait_for_later(&self, waiting: Waiting) {
        // Counted first, so that nobody takes one out that is not counted yet.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.books.lock().waiting.push_back(waiting);
    }

    /// Gives back what waits, as far as it is possible now, or possible at all: by waiting on the host for
    /// what nobody else can wait for.
    pub(super) fn give_back_waiting(&self, by_waiting: bool) {
        let count = self.waiting.load(Ordering::Relaxed);
        if count == 0 {
            return;
        }
        let driver = self.device.driver();
        let ready = self.source().and_then(|source| Ok((source, RelaxedCapture::enter(driver)?)));
        let (source, _relaxed) = match ready {
            Ok(ready) => ready,
            Err(error) => return driver.report(Err(error)),
        };
        // Each is looked at once; another thread may be doing the same with others.
        for _ in 0..count {
            let next = self.books.lock().waiting.pop_front();
            let Some(mut waiting) = next else { return };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let result = self.give_back(driver, source, &waiting, by_waiting);
            if matches!(result, Ok(true)) {
                continue;
            }
            let reported = mem::replace(&mut waiting.reported, result.is_err());
            // Back before the hook is called, whatever that does.
            self.wait_for_later(waiting);
            if !reported {
                driver.report(result.map(drop));
            }
        }
    }

    /// Gives a block back to the driver, unless it is still needed: `false` then.
    fn give_back(
        &self,
        driver: &Driver,
        source: &Source,
        waiting: &Waiting,
        by_waiting: bool,
    ) -> Result<bool> {
        let Waiting { address, block, on, .. } = waiting;
        if block.holds.iter().any(|hold| !hold.is_over()) {
            return Ok(false);
        }
        let mut reachable = true;
        for place in waiting.places() {
            if !place.is_reachable(driver)? {
                reachable = false;
            } else if place.capture(driver)? != Capture::None {
                return Ok(false);
            }
        }
        let on = on.as_ref().unwrap_or(&block.place);
        if !reachable {
            // No stream can wait for one that cannot be named. Waiting for the device invalidates
            // captures, so it is done only for callers that ask for it.
            if !by_waiting {
                return Ok(false);
            }
            source.synchronize()?;
        }
        if block.shareable {
            for place in waiting.places().filter(|_| reachable) {
                place.record(&self.device)?.synchronize()?;
            }
            source.free_shareable(*address)?;
        } else if reachable {
            for place in waiting.places().filter(|place| !place.is(on)) {
                on.wait(driver, &place.record(&self.device)?)?;
            }
            on.with(driver, |raw| {
                // SAFETY: the stream is alive and not captured, and waits for all that use the memory.
                unsafe { source.free(*address, raw) }
            })?;
        } else {
            source.free_quietly(*address)?;
        }
        // Known to those who run out of memory before a limit lets them ask for it.
        let noted = if !block.shareable && reachable { self.note_free(on) } else { Ok(()) };
        self.books.lock().accounts.give_back(&block.owner, block.bytes);
        // The block is freed all the same.
        driver.report(noted);
        Ok(true)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(driver) = self.checked_driver().cloned() else { return };
        self.give_back_waiting(true);
        let left = self.books.get_mut().accounts.total().current_blocks;
        if left > 0 {
            let (device, what) = (self.device.ordinal(), "blocks were never freed");
            let text = format!("the allocator of device {device} ends, and {left} {what}");
            driver.report(Err(Error::InvalidRequest(text)));
        }
    }
}

impl Waiting {
    /// The streams whose work may use the block, and the one that it was freed on; each once.
    fn places(&self) -> impl Iterator<Item = &Place> {
        let on = self.on.iter().filter(|on| !self.block.places().any(|place| place.is(on)));
        self.block.places().chain(on)
    }
}
