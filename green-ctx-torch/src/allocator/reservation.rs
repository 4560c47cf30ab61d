//! Bytes that are reserved in the accounts while the driver allocates a block.

use green_ctx::sys::CUdeviceptr;

use super::block::Block;
use super::{Inner, Owner, Result};

/// Bytes that are reserved for a block. Dropping the reservation without [`take`](Reservation::take) releases the
/// bytes.
pub(super) struct Reservation<'a> {
    inner: &'a Inner,
    owner: &'a Owner,
    bytes: u64,
    open: bool,
}

impl<'a> Reservation<'a> {
    pub(super) fn new(inner: &'a Inner, owner: &'a Owner, bytes: u64) -> Result<Reservation<'a>> {
        inner.books.lock().accounts.reserve(owner, bytes)?;
        Ok(Reservation { inner, owner, bytes, open: true })
    }

    pub(super) fn take(mut self, address: CUdeviceptr, block: Block) {
        let mut books = self.inner.books.lock();
        books.accounts.take(self.owner, self.bytes);
        // The address cannot be in the map: the driver reuses an address only after its block was removed.
        books.blocks.insert(address, block);
        self.open = false;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.open {
            self.inner.books.lock().accounts.cancel(self.owner, self.bytes);
        }
    }
}
