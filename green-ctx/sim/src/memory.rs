//! Memory that the driver knows: device memory and page-locked host memory. The simulator checks every
//! access.
//!
//! Device addresses lie in a range that the process reserves without access rights; the contents of device
//! memory are stored elsewhere (`memory/backing.rs`). The address alone therefore shows whether memory
//! belongs to a device, and a copy from freed device memory is refused instead of reading other memory. A
//! program that dereferences a device pointer crashes, as with a GPU. If no range can be reserved, device
//! addresses are numbers that no allocator returns. Host memory has the same address in the simulator as in
//! the program.

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

/// An allocation of the driver, or memory that the program registered.
pub(crate) struct Allocation {
    /// The device of the memory. For host memory, this is the device whose context was current at the
    /// allocation.
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// True if the program freed the memory but the stream has not reached the free yet. Also true if the
    /// memory belongs to an allocation node and is not allocated at present.
    pub(crate) freed: bool,
    /// The memory's pool. Memory of a pool was allocated in stream order, and a free of such memory does
    /// not wait for work.
    pub(crate) pool: Option<usize>,
    /// Whether an allocation node allocates the memory. Such a node keeps the address while the memory is
    /// free.
    of_graph: bool,
    /// A number unique to this allocation.
    id: u64,
    /// The last operations that accessed the memory.
    pub(crate) history: History,
    memory: Memory,
}

/// The location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Device memory, at an address that the host cannot dereference.
    Device,
    /// Page-locked host memory that the driver allocated.
    Pinned,
    /// Page-locked host memory that the program allocated and registered.
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
    /// Returns the free device memory, in bytes.
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

    /// Allocates device memory; an error if the device has too little free memory.
    fn fitting(&self, device: usize, len: usize) -> Answer<Memory> {
        invalid_if(len == 0)?;
        refuse_if(len as u64 > self.free_bytes(device), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Memory::device(len).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Reserves an address for memory that a graph node allocates at each launch. Before the first launch,
    /// the memory cannot be used or freed. The address that was released last is reused first (recorded on hardware).
    pub(crate) fn reserve(&mut self, device: usize, len: usize) -> Answer<u64> {
        let fits = |it: &Allocation| it.device == device && it.len() >= len;
        let memory = match self.spare.iter().rposition(fits) {
            Some(index) => self.spare.remove(index).memory,
            None => self.fitting(device, len)?,
        };
        let allocation = Allocation::new(device, Kind::Device, memory);
        Ok(self.add_memory(Allocation { freed: true, of_graph: true, ..allocation }))
    }

    /// Returns whether the memory of an allocation node is allocated at present; `None` if the address
    /// belongs to no allocation node.
    pub(crate) fn is_reserved_memory_there(&self, address: u64) -> Option<bool> {
        let allocation = self.memory.get(&address).filter(|allocation| allocation.of_graph);
        allocation.map(|allocation| !allocation.freed)
    }

    /// Allocates or frees the memory of an allocation node, as one operation of a graph launch that was
    /// already checked.
    pub(crate) fn set_reserved_memory(&mut self, turn: &Turn, address: u64, there: bool) {
        if self.is_reserved_memory_there(address) == Some(true) {
            // An executable graph with the automatic free flag frees the memory before it allocates it.
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

    /// Drops released memory at `time`, unless a node still uses the address.
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

    /// Drops the addresses of allocation nodes that no longer exist, unless memory is still allocated
    /// there.
    pub(crate) fn drop_unused_addresses(&mut self) {
        let reserved = self.memory.iter().filter(|(_, memory)| memory.of_graph && memory.freed);
        let reserved: Vec<(u64, usize)> =
            reserved.map(|(address, memory)| (*address, memory.device)).collect();
        for (address, device) in reserved {
            let time = self.busy(self.devices[device].primary).time;
            self.drop_later(time, device, address);
        }
    }

    /// Marks an allocation as freed by the program. The memory remains until [`drop_memory`] drops it.
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

    /// Drops the memory of a released allocation.
    pub(crate) fn drop_memory(&mut self, address: u64) -> Option<Allocation> {
        let allocation = self.memory.remove(&address)?;
        if let Some(pool) = allocation.pool {
            self.pools.dropped(pool, address);
        }
        Some(allocation)
    }

    /// Returns the allocation that contains an address, even if the allocation was freed.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&base, allocation) = self.memory.range(..=address).next_back()?;
        (address - base < allocation.len() as u64).then_some((base, allocation))
    }

    /// Returns the bytes at an address, even if they were freed, for an operation that was checked at
    /// submission.
    pub(crate) fn standing_memory(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let (base, allocation) = self.memory.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        allocation.memory.bytes_mut().get_mut(offset..offset.checked_add(len)?)
    }

    /// Returns the bytes at an address; `None` if the bytes do not lie within one allocation or were freed.
    fn memory(&self, address: u64, len: usize) -> Option<(&Allocation, &[u8])> {
        let (base, allocation) = self.memory.range(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        let bytes = allocation.memory.bytes().get(offset..offset.checked_add(len)?)?;
        (!allocation.freed).then_some((allocation, bytes))
    }

    /// Returns whether work on a device can access an allocation. Work can access host memory, memory from
    /// any context of the same GPU, and memory of pools that are open to the device.
    fn reaches(&self, device: usize, allocation: &Allocation) -> bool {
        match allocation.pool {
            _ if allocation.kind != Kind::Device => true,
            Some(pool) => self.pool_is_open(pool, self.physical(device)),
            None => self.physical(allocation.device) == self.physical(device),
        }
    }

    /// Returns the bytes at an address; `None` if work on this device cannot access the bytes.
    pub(crate) fn device_memory(&self, device: usize, address: u64, len: usize) -> Option<&[u8]> {
        let (allocation, bytes) = self.memory(address, len)?;
        self.reaches(device, allocation).then_some(bytes)
    }

    /// Returns the bytes at an address on any device, as the source or target of a copy.
    pub(crate) fn target(&self, address: u64, len: usize) -> Answer<&[u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        valid(self.memory(address, len).map(|(_, bytes)| bytes))
    }

    /// Refuses memory that does not exist, but accepts memory that an allocation node will allocate.
    pub(crate) fn node_target(&self, address: u64, len: usize) -> Answer {
        if self.is_reserved(address, len) {
            return Ok(());
        }
        self.target(address, len).map(drop)
    }

    /// Returns whether a range lies within the memory of an allocation node, even if the memory is not
    /// allocated.
    fn is_reserved(&self, address: u64, len: usize) -> bool {
        let found = self.allocation(address).filter(|(_, memory)| memory.of_graph);
        found.is_some_and(|(base, memory)| {
            (address - base).checked_add(len as u64).is_some_and(|end| end <= memory.len() as u64)
        })
    }

    /// Returns the address range of an allocation.
    fn extent(&self, address: u64) -> Range<u64> {
        let len = self.memory.get(&address).map_or(0, Allocation::len);
        address..address + len as u64
    }

    /// Records that an existing stream allocates or frees memory in stream order, and returns the time at
    /// which this happens.
    fn touch_whole(&mut self, stream: usize, address: u64, what: Accessor) -> u64 {
        let mut admitted = self.admit(stream);
        // The operation itself takes no time.
        admitted.start.time = self.pending(stream).time;
        let turn = Turn::of(&admitted, self.streams[&stream].context);
        let time = turn.start.time;
        let operation = self.operation(&turn, self.streams[&stream].id, what, time);
        self.touch(&operation, self.extent(address), true);
        self.conclude(admitted, time);
        time
    }
}
