//! Allocated blocks, and freed blocks that wait to be returned to the driver.

use green_ctx::sys::CUdeviceptr;

use super::Books;
use super::account::Owner;
use super::capture::Hold;
use super::place::Place;

/// An allocated block of memory.
pub(super) struct Block {
    pub(super) bytes: u64,
    /// The owner in whose account the block is counted.
    pub(super) owner: Owner,
    /// The stream on which the block was allocated.
    pub(super) place: Place,
    /// The other streams that were recorded for the block.
    pub(super) uses: Vec<Place>,
    /// The graphs that may use the block.
    pub(super) holds: Vec<Hold>,
    /// True if the block has an IPC handle and is not from the pool.
    pub(super) shareable: bool,
}

impl Block {
    /// Adds a stream that uses the block. Returns `place` if the stream was already added.
    pub(super) fn use_on(&mut self, place: Place) -> Option<Place> {
        if self.places().any(|known| known.is(&place)) {
            return Some(place);
        }
        self.uses.push(place);
        None
    }

    /// Records that a graph may use the block, unless this is already recorded.
    pub(super) fn hold(&mut self, hold: Option<Hold>) {
        let new = hold.filter(|hold| !self.holds.iter().any(|h| h.capture() == hold.capture()));
        self.holds.extend(new);
    }

    /// Returns the streams whose work may use the block.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.place).chain(&self.uses)
    }
}

/// A freed block that could not be returned to the driver yet.
pub(super) struct Waiting {
    pub(super) address: CUdeviceptr,
    pub(super) block: Block,
    /// The stream on which the block was freed. If this stream is unknown, the stream of the allocation is used
    /// instead.
    pub(super) on: Option<Place>,
    /// True if the error that prevents the return of the block has been reported.
    pub(super) reported: bool,
}

impl Books {
    /// Returns the block that contains an address, with the block's first address.
    pub(super) fn find_mut(&mut self, address: CUdeviceptr) -> Option<(CUdeviceptr, &mut Block)> {
        let (begin, block) = self.blocks.range_mut(..=address).next_back()?;
        (address - begin < block.bytes).then_some((*begin, block))
    }

    pub(super) fn has(&mut self, address: CUdeviceptr) -> bool {
        self.find_mut(address).is_some()
    }
}
