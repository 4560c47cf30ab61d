//! Memory that a driver knows: device memory and page-locked host memory. Every access is checked.
//!
//! Device memory has addresses from a range that the process reserves and cannot access. Its bytes are
//! elsewhere (`memory/backing.rs`). So an address alone tells whether it belongs to a device, and a copy from
//! freed device memory is refused instead of reading other memory. A program that follows a device pointer
//! crashes, as it does with a GPU. If no range can be reserved, the addresses are numbers that no allocator
//! gives out. Host memory has its own addresses.

mod backing;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod fill;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod pointer;
pub(crate) mod pool;

use std::ops::Range;

use green_ctx_sys::CUresult;

use crate::effects::Effect;
use crate::memory::backing::Memory;
use crate::pointer::{Answer, invalid_if, refuse_if, valid};
use crate::race::{Accessor, History};
use crate::state::State;
use crate::turn::Turn;

/// One allocation, or memory of the program that was registered.
pub(crate) struct Allocation {
    /// The device that it is of, or whose context was current when it was made.
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// Whether the program freed it in stream order, and the stream is not there yet, or it is a
    /// graph's and not allocated at present.
    pub(crate) freed: bool,
    /// The pool that it is from. It was made in stream order then, and freeing it waits for nothing.
    pub(crate) pool: Option<usize>,
    /// Whether a node of a graph allocates it, which keeps its address.
    of_graph: bool,
    /// Unlike every other allocation's.
    id: u64,
    /// Who touched it.
    pub(crate) history: History,
    memory: Memory,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On a device, whose address the host cannot follow.
    Device,
    /// On the host, page-locked, made by the driver.
    Pinned,
    /// On the host, page-locked, made by the program.
    Registered,
}

impl Allocation {
    fn new(device: usize, kind: Kind, memory: Memory) -> Allocation {
        Allocation {
            device,
            kind,
            freed: false,
            pool: None,
            of_graph: false,
            id: 0,
            history: History::default(),
            memory,
        }
    }

    pub(crate) fn on_host(&self) -> bool {
        matches!(self.kind, Kind::Pinned | Kind::Registered)
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl State {
    /// Device memory that nothing takes, in bytes.
    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        let physical = self.physical(device);
        let entries = self.devices.iter().filter(|entry| entry.physical == physical);
        let taken: u64 = entries
            .map(|entry| {
                let active = self.contexts[&entry.primary].alive;
                let context = if active { self.profile.primary_context_bytes } else { 0 };
                context + entry.green_bytes + entry.allocated
            })
            .sum();
        let taken = taken + self.pools.pending_bytes(physical);
        self.profile.memory_bytes.saturating_sub(taken)
    }

    fn add_memory(&mut self, allocation: Allocation) -> u64 {
        let address = allocation.memory.address();
        self.buffers += 1;
        self.memory.insert(address, Allocation { id: self.buffers, ..allocation });
        address
    }

    fn allocate(&mut self, device: usize, len: usize, pool: Option<usize>) -> Answer<u64> {
        let memory = self.fitting(device, len)?;
        self.devices[device].allocated += len as u64;
        let allocation = Allocation::new(device, Kind::Device, memory);
        Ok(self.add_memory(Allocation { pool, ..allocation }))
    }

    /// Memory that a device has room for.
    fn fitting(&self, device: usize, len: usize) -> Answer<Memory> {
        invalid_if(len == 0)?;
        refuse_if(len as u64 > self.free_bytes(device), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Memory::device(len).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// An address for memory that a node of a graph allocates whenever it is launched. Nobody can
    /// use or free it before. The one that was given up last is given out again first, as recorded.
    pub(crate) fn reserve(&mut self, device: usize, len: usize) -> Answer<u64> {
        let fits = |it: &Allocation| it.device == device && it.len() >= len;
        let memory = match self.spare.iter().rposition(fits) {
            Some(index) => self.spare.remove(index).memory,
            None => self.fitting(device, len)?,
        };
        let allocation = Allocation::new(device, Kind::Device, memory);
        Ok(self.add_memory(Allocation { freed: true, of_graph: true, ..allocation }))
    }

    /// Whether memory that a node allocates is there at present; `None` where no node allocates it.
    pub(crate) fn is_reserved_memory_there(&self, address: u64) -> Option<bool> {
        let allocation = self.memory.get(&address).filter(|allocation| allocation.of_graph);
        allocation.map(|allocation| !allocation.freed)
    }

    /// Brings memory that a node allocates to its address, or takes it away, in its turn of a launch
    /// that was found to be possible.
    pub(crate) fn set_reserved_memory(&mut self, turn: &Turn, address: u64, there: bool) {
        if self.is_reserved_memory_there(address) == Some(true) {
            // An executable that frees by itself does so before it allocates.
            let _ = self.release(address);
        }
        let what = if there { Accessor::Allocation } else { Accessor::Free };
        let time = turn.start.time;
        let operation = self.operation(turn, self.stream_id(turn.stream), what, time);
        self.touch(&operation, self.extent(address), true);
        let Some(allocation) = self.memory.get_mut(&address) else { return };
        let device = allocation.device;
        if there {
            allocation.freed = false;
            self.devices[device].allocated += allocation.memory.len() as u64;
        } else {
            self.drop_later(time, device, address);
        }
    }

    /// Drops what was released, when that has come to pass. The address of a node stays its own.
    fn drop_later(&mut self, time: u64, device: usize, address: u64) {
        let of_graph = self.memory.get_mut(&address).is_some_and(|allocation| allocation.of_graph);
        if of_graph && self.is_of_node(address) {
            return;
        }
        if let Some(allocation) = self.memory.get_mut(&address) {
            allocation.of_graph = false;
        }
        self.later(time, device, Effect::Release(address, of_graph));
    }

    /// Drops the addresses of nodes that are gone, where no memory is.
    pub(crate) fn drop_unused_addresses(&mut self) {
        let reserved = self.memory.iter().filter(|(_, memory)| memory.of_graph && memory.freed);
        let reserved: Vec<(u64, usize)> =
            reserved.map(|(address, memory)| (*address, memory.device)).collect();
        for (address, device) in reserved {
            let time = self.busy(self.devices[device].primary).time;
            self.drop_later(time, device, address);
        }
    }

    /// Takes an allocation from the program. Its memory stays until [`drop_memory`].
    ///
    /// [`drop_memory`]: State::drop_memory
    fn release(&mut self, address: u64) -> Answer<usize> {
        let allocation = self.memory.get_mut(&address);
        let allocation = valid(allocation.filter(|allocation| !allocation.freed))?;
        allocation.freed = true;
        self.devices[allocation.device].allocated -= allocation.memory.len() as u64;
        if let Some(pool) = allocation.pool {
            self.pools.released(pool, allocation.memory.len());
        }
        Ok(allocation.device)
    }

    /// Gives back the memory of an allocation that was released.
    pub(crate) fn drop_memory(&mut self, address: u64) -> Option<Allocation> {
        let allocation = self.memory.remove(&address)?;
        if let Some(pool) = allocation.pool {
            self.pools.dropped(pool, address);
        }
        Some(allocation)
    }

    /// The allocation that an address is in, freed or not.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&base, allocation) = self.memory.range(..=address).next_back()?;
        (address - base < allocation.len() as u64).then_some((base, allocation))
    }

    /// The bytes at an address, for an operation that was submitted when they could be used.
    pub(crate) fn standing_memory(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let (base, allocation) = self.memory.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        allocation.memory.bytes_mut().get_mut(offset..offset.checked_add(len)?)
    }

    /// The bytes at an address; `None` where they are not within one allocation.
    fn memory(&self, address: u64, len: usize) -> Option<(&Allocation, &[u8])> {
        let (base, allocation) = self.memory.range(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        let bytes = allocation.memory.bytes().get(offset..offset.checked_add(len)?)?;
        (!allocation.freed).then_some((allocation, bytes))
    }

    /// Whether work on a device reaches memory: its own, whichever context it is of, the host's, and that
    /// of pools that are opened to the device.
    fn reaches(&self, device: usize, allocation: &Allocation) -> bool {
        match allocation.pool {
            _ if allocation.kind != Kind::Device => true,
            Some(pool) => self.pool_is_open(pool, self.physical(device)),
            None => self.physical(allocation.device) == self.physical(device),
        }
    }

    /// The bytes at an address that work on this device reaches.
    pub(crate) fn device_memory(&self, device: usize, address: u64, len: usize) -> Option<&[u8]> {
        let (allocation, bytes) = self.memory(address, len)?;
        self.reaches(device, allocation).then_some(bytes)
    }

    /// The bytes that a copy is about, on whichever device.
    pub(crate) fn target(&self, address: u64, len: usize) -> Answer<&[u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        valid(self.memory(address, len).map(|(_, bytes)| bytes))
    }

    /// Refuses memory that a node cannot be about: none, and none that another node allocates.
    pub(crate) fn node_target(&self, address: u64, len: usize) -> Answer {
        if self.is_reserved(address, len) {
            return Ok(());
        }
        self.target(address, len).map(drop)
    }

    /// Whether a range is within memory that a node allocates, be it there or not.
    fn is_reserved(&self, address: u64, len: usize) -> bool {
        let found = self.allocation(address).filter(|(_, memory)| memory.of_graph);
        found.is_some_and(|(base, memory)| {
            (address - base).checked_add(len as u64).is_some_and(|end| end <= memory.len() as u64)
        })
    }

    /// The addresses of an allocation.
    fn extent(&self, address: u64) -> Range<u64> {
        let len = self.memory.get(&address).map_or(0, Allocation::len);
        address..address + len as u64
    }

    /// Makes or gives up an allocation in the order of a stream that was looked up already, and
    /// returns when.
    fn touch_whole(&mut self, stream: usize, address: u64, what: Accessor) -> u64 {
        let mut admitted = self.admit(stream);
        // It takes no time of its own.
        admitted.start.time = self.pending(stream).time;
        let turn = Turn::of(&admitted, self.streams[&stream].context);
        let time = turn.start.time;
        let operation = self.operation(&turn, self.streams[&stream].id, what, time);
        self.touch(&operation, self.extent(address), true);
        self.conclude(admitted, time);
        time
    }
}
