//! Snapshots of an allocator's state.

use std::collections::BTreeMap;

use super::account::{Owner, Usage};
use super::block::Block;
use super::{Inner, global};

/// The state of an allocator at one moment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The device's ordinal.
    pub device: u32,
    /// The usage of all memory of the allocator.
    pub total: Usage,
    /// The usage on streams of each partition, by name. See [`Allocator::partition`](super::Allocator::partition).
    pub partitions: BTreeMap<String, Usage>,
    /// The usage on streams outside any partition.
    pub outside: Usage,
    /// The usage on streams of foreign green contexts.
    pub foreign: Usage,
    /// The bytes of device memory that the pool holds, in use or not. `None` if there is no pool yet, or if the
    /// driver does not report the number.
    pub pool_bytes: Option<u64>,
    /// True if new blocks have IPC handles.
    pub shareable: bool,
    /// The blocks in use, by address.
    pub blocks: Vec<BlockInfo>,
    /// The freed blocks that wait for a graph or a stream, or that the driver failed to free. Waiting blocks still
    /// count as in use.
    pub waiting: Vec<BlockInfo>,
    /// The last error of the C functions.
    pub last_error: Option<String>,
}

/// A block of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BlockInfo {
    /// The block's first address.
    pub address: u64,
    /// The requested bytes.
    pub bytes: u64,
    /// The name of the partition in which the block was allocated, or `None` if the stream was outside any partition.
    pub partition: Option<String>,
    /// True if the block was allocated on a stream of a foreign green context.
    pub foreign: bool,
    /// The handle of the stream on which the block was allocated.
    pub stream: u64,
    /// The handles of the streams that were recorded for the block.
    pub recorded: Vec<u64>,
    /// The number of graphs that may still use the block.
    pub graphs: usize,
    /// True if the block has an IPC handle.
    pub shareable: bool,
}

impl Snapshot {
    /// Returns the snapshot as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and numbers under string keys can always be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl BlockInfo {
    fn new(address: u64, block: &Block) -> BlockInfo {
        BlockInfo {
            address,
            bytes: block.bytes,
            partition: block.owner.partition().map(str::to_owned),
            foreign: block.owner == Owner::Foreign,
            stream: block.place.address(),
            recorded: block.uses.iter().map(super::Place::address).collect(),
            graphs: block.holds.iter().filter(|hold| !hold.is_over()).count(),
            shareable: block.shareable,
        }
    }
}

impl Inner {
    pub(super) fn snapshot(&self) -> Snapshot {
        let pool_bytes = self.source.get().and_then(|source| source.reserved_bytes().ok());
        let last_error = global::last_error();
        let books = self.books.lock();
        let waiting = books.waiting.iter();
        Snapshot {
            device: self.device.ordinal(),
            total: books.accounts.total(),
            partitions: books.accounts.partitions(),
            outside: books.accounts.outside(),
            foreign: books.accounts.foreign(),
            pool_bytes,
            shareable: self.shareable.load(std::sync::atomic::Ordering::Relaxed),
            blocks: books.blocks.iter().map(|(at, block)| BlockInfo::new(*at, block)).collect(),
            waiting: waiting
                .map(|waiting| BlockInfo::new(waiting.address, &waiting.block))
                .collect(),
            last_error,
        }
    }
}
