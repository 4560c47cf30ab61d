//! Blocks: memory that somebody has, or that waits to go back.

use green_ctx::sys::CUdeviceptr;

use super::Books;
use super::account::Owner;
use super::capture::Hold;
use super::place::Place;

/// Memory that was given out.
pub(super) struct Block {
    pub(super) bytes: u64,
    /// Whose account it is in.
    pub(super) owner: Owner,
    /// Where it was allocated.
    pub(super) place: Place,
    /// The other streams that it was recorded for.
    pub(super) uses: Vec<Place>,
    /// The graphs that may use it.
    pub(super) holds: Vec<Hold>,
    /// Whether it is in no pool.
    pub(super) shareable: bool,
}

impl Block {
    /// Adds a stream, or gives it back where the block has it already.
    pub(super) fn use_on(&mut self, place: Place) -> Option<Place> {
        if self.places().any(|known| known.is(&place)) {
            return Some(place);
        }
        self.uses.push(place);
        None
    }

    /// Adds a graph.
    pub(super) fn hold(&mut self, hold: Option<Hold>) {
        let new = hold.filter(|hold| !self.holds.iter().any(|h| h.capture() == hold.capture()));
        self.holds.extend(new);
    }

    /// The streams whose work may use the block.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.place).chain(&self.uses)
    }
}

/// A block that was freed, and could not go back to the driver yet.
pub(super) struct Waiting {
    pub(super) address: CUdeviceptr,
    pub(super) block: Block,
    /// Where it was freed; where it was allocated, when that is not known.
    pub(super) on: Option<Place>,
    /// Whether the reason why it waits was reported, where that is an error.
    pub(super) reported: bool,
}

impl Books {
    /// The block that an address is in, and where it begins.
    pub(super) fn find_mut(&mut self, address: CUdeviceptr) -> Option<(CUdeviceptr, &mut Block)> {
        let (begin, block) = self.blocks.range_mut(..=address).next_back()?;
        (address - begin < block.bytes).then_some((*begin, block))
    }

    pub(super) fn has(&mut self, address: CUdeviceptr) -> bool {
        self.find_mut(address).is_some()
    }
}
