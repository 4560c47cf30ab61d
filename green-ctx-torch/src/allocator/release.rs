//! Returning freed blocks to the driver in stream order, but not while a graph needs them.
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
    /// Returns the hold of the graph into which a stream is being captured: the hold that a block already has, or a new
    /// hold.
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

    /// Frees a block on a stream. The block must already be removed from the books. Returns `false` if the block has to
    /// wait.
    ///
    /// # Safety
    ///
    /// The stream must be alive, or the handle must be a default-stream token.
    pub(super) unsafe fn free(
        &self,
        driver: &Driver,
        waiting: &mut Waiting,
        stream: CUstream,
    ) -> Result<bool> {
        let _relaxed = RelaxedCapture::enter(driver)?;
        let source = self.source()?;
        // SAFETY: this function has the same contract as `Place::find`.
        let (on, _) = unsafe { Place::find(source.primary(), stream) }?;
        waiting.on = Some(on);
        // A graph that is being captured may use the block.
        let mut holds = Vec::new();
        let mut result = Ok(());
        for place in waiting.places() {
            if place.is_reachable(driver)? && place.capture(driver)? == Capture::Active {
                match self.hold(place) {
                    Ok(hold) => holds.extend(hold),
                    Err(error) => {
                        // Nothing would report the end of this graph.
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

    /// Adds a block to the list of freed blocks that wait.
    pub(super) fn wait_for_later(&self, waiting: Waiting) {
        // Count first, so that no thread takes a block from the list before it is counted.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.books.lock().waiting.push_back(waiting);
    }

    /// Returns the waiting blocks to the driver, except those that are still needed. If `by_waiting` is true, the host
    /// waits for streams that this thread cannot name.
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
        // Each block is tried once. Another thread may be trying others at the same time.
        for _ in 0..count {
            let next = self.books.lock().waiting.pop_front();
            let Some(mut waiting) = next else { return };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let result = self.give_back(driver, source, &waiting, by_waiting);
            if matches!(result, Ok(true)) {
                continue;
            }
            let reported = mem::replace(&mut waiting.reported, result.is_err());
            // Put back before the hook is called, which may do anything.
            self.wait_for_later(waiting);
            if !reported {
                driver.report(result.map(drop));
            }
        }
    }

    /// Returns a block to the driver. Returns `false` if the block is still needed.
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
            // No stream can wait for one that cannot be named. Waiting for the device invalidates captures, so it is
            // done only for callers that request it.
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
                // SAFETY: the block is from the pool, because it is not shareable. The stream is alive, see
                // `place::Kind`. The loops above checked that the stream is not being captured, and made it wait for
                // all other streams that use the memory.
                unsafe { source.free(*address, raw) }
            })?;
        } else {
            source.free_quietly(*address)?;
        }
        // Noted before the accounts change, so that an allocation that the limit now admits can wait for the free.
        let noted = if !block.shareable && reachable { self.note_free(on) } else { Ok(()) };
        self.books.lock().accounts.give_back(&block.owner, block.bytes);
        // Only the note failed: the block is freed.
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
            let (device, what) = (self.device.ordinal(), "blocks were not freed");
            let text = format!("the allocator of device {device} was dropped while {left} {what}");
            driver.report(Err(Error::InvalidRequest(text)));
        }
    }
}

impl Waiting {
    /// Returns the streams whose work may use the block and the stream on which the block was freed, each stream once.
    fn places(&self) -> impl Iterator<Item = &Place> {
        let on = self.on.iter().filter(|on| !self.block.places().any(|place| place.is(on)));
        self.block.places().chain(on)
    }
}
