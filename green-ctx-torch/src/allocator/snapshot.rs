//! What an allocator has, as one picture.

use std::collections::BTreeMap;

use super::account::{Owner, Usage};
use super::block::Block;
use super::{Inner, global};

/// What an allocator has at one moment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The device's ordinal.
    pub device: u32,
    /// What is in use in total.
    pub total: Usage,
    /// What is in use on streams of each partition, by its name; see
    /// [`Allocator::partition`](super::Allocator::partition).
    pub partitions: BTreeMap<String, Usage>,
    /// What is in use on streams that are in no partition.
    pub outside: Usage,
    /// What is in use on streams of foreign green contexts.
    pub foreign: Usage,
    /// The bytes that the memory pool has of the device, in use or not; `None` where there is no pool
    /// yet, or the driver does not report it.
    pub pool_bytes: Option<u64>,
    /// Whether blocks are allocated so that they have IPC handles.
    pub shareable: bool,
    /// The blocks that are in use, by address.
    pub blocks: Vec<BlockInfo>,
    /// The blocks that were freed and wait, for a graph's end or for a driver that refused. They count
    /// as in use.
    pub waiting: Vec<BlockInfo>,
    /// What the C functions could not do last.
    pub last_error: Option<String>,
}

/// A block of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Its first address.
    pub address: u64,
    /// Its bytes, as they were asked for.
    pub bytes: u64,
    /// The name of the partition that it was allocated in; `None` for none.
    pub partition: Option<String>,
    /// Whether it was allocated in a foreign green context.
    pub foreign: bool,
    /// The handle of the stream that it was allocated on.
    pub stream: u64,
    /// The handles of the streams that were recorded for it.
    pub recorded: Vec<u64>,
    /// How many graphs may still use it.
    pub graphs: usize,
    /// Whether it has an IPC handle.
    pub shareable: bool,
}

impl Snapshot {
    /// The snapshot as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and numbers under text keys: there is nothing that JSON could not hold.
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
