//! Memory pools, the source of stream-ordered allocations.
//!
//! A pool caches no memory: freed memory returns to the device when the stream reaches the free operation.
//! Until then, only allocations from the same pool can reuse the memory. Such an allocation must follow the
//! free operation in stream order, or it must be allowed to make its stream wait (header,
//! `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`). The simulator counts only bytes, so memory never
//! becomes fragmented. The reserved size equals the used size. A real driver reserves memory in larger
//! steps and keeps some of it (not recorded on hardware).

use std::ffi::c_void;
use std::mem::offset_of;

use green_ctx_sys::{
    CUmemAccess_flags, CUmemAccessDesc_st, CUmemAllocationHandleType, CUmemAllocationType,
    CUmemLocation_st, CUmemLocationType, CUmemPool_attribute, CUmemPoolHandle_st,
    CUmemPoolProps_st, CUresult, CUstream_st,
};

use crate::clock::{Moment, Tick};
use crate::driver::Driver;
use crate::graph::Action;
use crate::graph::allocation::Allocate;
use crate::handle::{self, Table};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::race::Accessor;
use crate::state::State;

/// The pools of a driver.
#[derive(Default)]
pub(crate) struct Pools {
    table: Table<Pool>,
    /// The default pool of each device, which is also its current pool.
    default: Vec<usize>,
}

pub(super) struct Pool {
    device: usize,
    /// Whether the pool was destroyed. A destroyed pool remains until its last allocation is dropped.
    destroyed: bool,
    /// The maximum size in bytes, if there is one.
    limit: Option<u64>,
    /// The other devices that can access the pool's memory.
    open_to: Vec<usize>,
    /// Whether freed memory may be reused in three cases: by streams that events order after the free
    /// operation, after the free operation was reached, and by streams that are made to wait. The second
    /// setting has no effect in the simulator, because the device owns the memory once the free operation
    /// is reached.
    reuse: [i32; 3],
    /// Freed memory whose stream has not reached the free operation yet.
    pending: Vec<Pending>,
    threshold: u64,
    /// The bytes in use, and the number of allocations whose memory exists, including freed allocations.
    used: u64,
    standing: u64,
    /// The maximum of the used bytes and of the reserved bytes so far.
    used_high: u64,
    reserved_high: u64,
}

/// Memory that was freed in stream order and that no allocation has reused yet.
struct Pending {
    address: u64,
    bytes: u64,
    /// The operation that freed the memory, and the moment at which this operation is reached.
    tick: Tick,
    over: Moment,
}

impl Pool {
    fn new(device: usize) -> Pool {
        Pool {
            device,
            destroyed: false,
            limit: None,
            open_to: Vec::new(),
            reuse: [1; 3],
            pending: Vec::new(),
            threshold: 0,
            used: 0,
            standing: 0,
            used_high: 0,
            reserved_high: 0,
        }
    }

    fn pending_bytes(&self) -> u64 {
        self.pending.iter().map(|pending| pending.bytes).sum()
    }

    /// Takes bytes from the pending frees that satisfy `of`. Returns the moment at which all frees that
    /// provided bytes are reached.
    fn take(&mut self, mut bytes: u64, of: impl Fn(&Pending) -> bool) -> Moment {
        let mut over = Moment::default();
        for pending in self.pending.iter_mut().filter(|pending| of(pending)) {
            let taken = pending.bytes.min(bytes);
            if taken > 0 {
                over.join(&pending.over);
                pending.bytes -= taken;
                bytes -= taken;
            }
        }
        self.pending.retain(|pending| pending.bytes > 0);
        over
    }
}

impl Pools {
    /// Adds a device with its default pool.
    pub(crate) fn add_device(&mut self) {
        let pool = handle::next();
        self.table.insert(pool, Pool::new(self.default.len()));
        self.default.push(pool);
    }

    /// Returns the number of pools that the program still has to destroy.
    pub(crate) fn live(&self) -> u64 {
        let standing = self.table.values().filter(|pool| !pool.destroyed).count();
        (standing - self.default.len()) as u64
    }

    /// Resets a device: all memory of its pools is dropped.
    pub(crate) fn reset_device(&mut self, device: usize) {
        self.table.retain(|_, pool| pool.device != device || !pool.destroyed);
        for pool in self.table.values_mut().filter(|pool| pool.device == device) {
            (pool.used, pool.standing) = (0, 0);
            pool.pending.clear();
        }
    }

    /// Records that an allocation from a pool was freed, although its memory still exists.
    pub(super) fn released(&mut self, pool: usize, bytes: usize) {
        if let Some(pool) = self.table.get_mut(&pool) {
            pool.used -= bytes as u64;
        }
    }

    /// Returns the number of freed bytes on a device that still belong to their pools. Only allocations
    /// from the same pool may reuse such bytes.
    pub(super) fn pending_bytes(&self, device: usize) -> u64 {
        let pools = self.table.values().filter(|pool| pool.device == device);
        pools.map(Pool::pending_bytes).sum()
    }

    /// Records that the memory of an allocation was dropped. A destroyed pool is removed together with its
    /// last allocation.
    pub(super) fn dropped(&mut self, pool: usize, address: u64) {
        if let Some(found) = self.table.get_mut(&pool) {
            found.pending.retain(|pending| pending.address != address);
            found.standing -= 1;
            if found.destroyed && found.standing == 0 {
                self.table.remove(&pool);
            }
        }
    }

    pub(super) fn get(&mut self, handle: usize) -> Answer<&mut Pool> {
        valid(self.table.get_mut(&handle).filter(|pool| !pool.destroyed))
    }
}

impl State {
    /// Returns whether a device can reach the memory of a pool.
    pub(super) fn pool_is_open(&self, pool: usize, device: usize) -> bool {
        let pool = self.pools.table.get(&pool);
        pool.is_some_and(|pool| pool.device == device || pool.open_to.contains(&device))
    }

    /// Allocates memory from a pool, in stream order on an existing stream. An allocation of 0 bytes
    /// returns the null address (recorded on hardware).
    pub(super) fn allocate_from(&mut self, pool: usize, len: usize, stream: usize) -> Answer<u64> {
        let Pool { device, used, .. } = *self.pools.get(pool)?;
        if len == 0 {
            return Ok(0);
        }
        let used = used.saturating_add(len as u64);
        self.reuse(pool, len as u64, stream)?;
        let address = self.allocate(device, len, Some(pool))?;
        let pool = self.pools.get(pool)?;
        pool.used = used;
        pool.standing += 1;
        pool.used_high = pool.used_high.max(used);
        pool.reserved_high = pool.reserved_high.max(used);
        self.touch_whole(stream, address, Accessor::Allocation);
        Ok(address)
    }

    /// Finds memory for an allocation. Memory that was freed earlier in stream order is used first, then
    /// free memory of the device, and finally other freed memory of the pool. In the last case the stream
    /// is made to wait, if the pool allows this.
    fn reuse(&mut self, pool: usize, bytes: u64, stream: usize) -> Answer {
        let device = self.pools.get(pool)?.device;
        let (start, free) = (self.next_start(stream), self.free_bytes(device));
        let actor = self.streams[&stream].last.actor.clone();
        let pool = self.pools.get(pool)?;
        let [by_events, _, by_waiting] = pool.reuse.map(|allowed| allowed != 0);
        let follows = |pending: &Pending| {
            pending.tick.actor == actor || (by_events && start.clock.knows(&pending.tick))
        };
        let followed = pool.pending.iter().filter(|pending| follows(pending));
        let followed: u64 = followed.map(|pending| pending.bytes).sum();
        let pending = pool.pending_bytes();
        let room = pool.limit.map_or(free, |limit| {
            free.min(limit.saturating_sub(pool.used.saturating_add(pending)))
        });
        let missing = bytes.saturating_sub(followed).saturating_sub(room);
        if missing > 0 && (!by_waiting || missing > pending - followed) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        pool.take(bytes, follows);
        if missing > 0 {
            let over = pool.take(missing, |_| true);
            self.hold_stream(stream, &over);
        }
        Ok(())
    }

    /// Records that the last operation of a stream freed memory of a pool.
    pub(super) fn freed_in_order(&mut self, address: u64, stream: usize) {
        let (tick, over) = (self.streams[&stream].last.clone(), self.pending(stream));
        let Some(allocation) = self.memory.get(&address) else { return };
        let bytes = allocation.len() as u64;
        let pool = allocation.pool.and_then(|pool| self.pools.table.get_mut(&pool));
        if let Some(pool) = pool {
            pool.pending.push(Pending { address, bytes, tick, over });
        }
    }
}

/// Allocates memory in stream order, from the device's default pool if no pool is named. In a capture this
/// function adds an allocation node. The memory then belongs to the graph, and the pool only determines its
/// location (header).
pub(crate) fn allocate(
    driver: &Driver,
    out: Ptr<u64>,
    len: usize,
    pool: Option<Ptr<CUmemPoolHandle_st>>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    out.given()?;
    let device = state.device_of_stream(stream);
    let default = state.pools.default[state.physical(device)];
    let pool = pool.map_or(default, Ptr::address);
    // That an allocation of 0 bytes adds no node to a capture was not recorded. cuda-core's tests require
    // it to succeed.
    if state.capturing_or_safe(stream)?.is_none() || len == 0 {
        let address = state.allocate_from(pool, len, stream)?;
        return out.write(address);
    }
    let device = state.pools.get(pool)?.device;
    let node = Allocate::new(&mut state, device, len, &[])?;
    state.capture_action(stream, Action::Allocate(node), 0)?;
    out.write(node.address)
}

pub(crate) fn get_default(
    driver: &Driver,
    out: Ptr<*mut CUmemPoolHandle_st>,
    ordinal: i32,
) -> Answer {
    let state = driver.state();
    let device = state.device(ordinal)?;
    out.write(handle::pointer(state.pools.default[device]))
}

/// Returns the device whose current pool is queried. An invalid ordinal gives `CUDA_ERROR_INVALID_VALUE`
/// (recorded on hardware).
fn device_with_pool(state: &State, ordinal: i32) -> Answer<usize> {
    state.device(ordinal).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn get_current(
    driver: &Driver,
    out: Ptr<*mut CUmemPoolHandle_st>,
    ordinal: i32,
) -> Answer {
    let state = driver.state();
    let device = device_with_pool(&state, ordinal)?;
    out.write(handle::pointer(state.pools.default[device]))
}

/// Reads the type of a location and the ordinal of the location's device.
fn read_location(location: Ptr<CUmemLocation_st>) -> Answer<(CUmemLocationType, i32)> {
    let [kind, ordinal] = location.cast::<[i32; 2]>().read()?;
    Ok((CUmemLocationType(kind as u32), ordinal))
}

/// Returns the device that a location names.
pub(crate) fn device_at(state: &State, location: Ptr<CUmemLocation_st>) -> Answer<usize> {
    let (kind, ordinal) = read_location(location)?;
    match kind {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => device_with_pool(state, ordinal),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Refuses allocation types that no simulated pool has.
pub(crate) fn check_kind(state: &State, kind: CUmemAllocationType) -> Answer {
    match kind {
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => Ok(()),
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED if state.version >= 13_000 => {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Creates a pool of a device. Host and managed pools are not simulated.
pub(crate) fn create(
    driver: &Driver,
    out: Ptr<*mut CUmemPoolHandle_st>,
    props: Ptr<CUmemPoolProps_st>,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let given = props.read()?;
    let location = props.cast::<u8>().element(offset_of!(CUmemPoolProps_st, location)).cast();
    check_kind(&state, given.allocType)?;
    let exported = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    if given.handleTypes.0 & !exported != 0
        || !given.win32SecurityAttributes.is_null()
        || given.reserved.iter().any(|byte| *byte != 0)
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let device = device_at(&state, location)?;
    let limit = Some(given.maxSize as u64).filter(|limit| *limit > 0);
    let pool = handle::next();
    state.pools.table.insert(pool, Pool { limit, ..Pool::new(device) });
    out.write(handle::pointer(pool))
}

/// Destroys a pool, except a default pool. The pool's memory remains until it is freed.
pub(crate) fn destroy(driver: &Driver, pool: Ptr<CUmemPoolHandle_st>) -> Answer {
    let mut state = driver.state();
    let handle = pool.address();
    let device = state.pools.get(handle)?.device;
    invalid_if(state.pools.default[device] == handle)?;
    let pool = state.pools.get(handle)?;
    pool.destroyed = true;
    if pool.standing == 0 {
        state.pools.table.remove(&handle);
    }
    Ok(())
}

/// Checks the handle and does nothing else, because a pool keeps no unused memory.
pub(crate) fn trim_to(driver: &Driver, pool: Ptr<CUmemPoolHandle_st>, _keep: usize) -> Answer {
    driver.state().pools.get(pool.address()).map(drop)
}

/// Returns the index of a reuse attribute; `None` if it is another attribute.
fn reuse(attribute: CUmemPool_attribute) -> Option<usize> {
    [
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ]
    .into_iter()
    .position(|known| known == attribute)
}

pub(crate) fn get_attribute(
    driver: &Driver,
    pool: Ptr<CUmemPoolHandle_st>,
    attribute: CUmemPool_attribute,
    out: Ptr<c_void>,
) -> Answer {
    let mut state = driver.state();
    let pool = state.pools.get(pool.address())?;
    if let Some(way) = reuse(attribute) {
        return out.cast().write(pool.reuse[way]);
    }
    let value = match attribute {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        | CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => pool.used,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => pool.reserved_high,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => pool.used_high,
        // Newer headers have further attributes, which describe how the pool was created. They are not
        // simulated.
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    out.cast().write(value)
}

pub(crate) fn set_attribute(
    driver: &Driver,
    pool: Ptr<CUmemPoolHandle_st>,
    attribute: CUmemPool_attribute,
    value: Ptr<c_void>,
) -> Answer {
    let mut state = driver.state();
    let pool = state.pools.get(pool.address())?;
    if let Some(way) = reuse(attribute) {
        pool.reuse[way] = value.cast().read()?;
        return Ok(());
    }
    match attribute {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
            pool.threshold = value.followed().cast().read()?;
        }
        // High-water marks can only be reset to 0, and restart from the present value (header).
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        | CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
            invalid_if(value.cast::<u64>().read()? != 0)?;
            if attribute == CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH {
                pool.used_high = pool.used;
            } else {
                pool.reserved_high = pool.used;
            }
        }
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

const NONE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
const READ_WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

pub(crate) fn set_access(
    driver: &Driver,
    pool: Ptr<CUmemPoolHandle_st>,
    map: Ptr<CUmemAccessDesc_st>,
    count: usize,
) -> Answer {
    let mut state = driver.state();
    let own = state.pools.get(pool.address())?.device;
    let mut wanted = Vec::new();
    for index in 0..count {
        let desc = map.given()?.element(index);
        let (kind, ordinal) = read_location(desc.cast())?;
        let of_device = kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        refuse_if(!of_device, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let device = state.device(ordinal)?;
        let flags = desc.read()?.flags;
        match flags {
            NONE | READ_WRITE => {}
            // Read-only access is not supported (recorded for the pool's own device).
            READ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        // The pool's own device cannot lose its access (recorded on hardware).
        let refused = device == own && flags == NONE;
        refuse_if(refused, CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        wanted.push((device, flags));
    }
    let pool = state.pools.get(pool.address())?;
    for (device, flags) in wanted {
        pool.open_to.retain(|open| *open != device);
        if device != own && flags == READ_WRITE {
            pool.open_to.push(device);
        }
    }
    Ok(())
}
