//! Device memory: host memory behind addresses that are checked at every access.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

use green_ctx_sys::{CUresult, CUstream_st};
use parking_lot::MutexGuard;

use crate::driver::Driver;
use crate::effects::Effect;
use crate::pointer::{Answer, Ptr};
use crate::race::{Accessor, History};
use crate::state::State;
use crate::work::{self, Copy, Fill, Place, Turn, Work};

/// The alignment of device addresses in bytes.
const ALIGN: usize = 512;

/// One allocation.
pub(crate) struct Allocation {
    pub(crate) device: usize,
    /// Whether the program freed it in stream order, and the stream is not there yet.
    pub(crate) freed: bool,
    /// Whether it was made in stream order, and so freeing it waits for nothing.
    ordered: bool,
    /// Whether it holds a variable of a module, and is not the program's to free.
    pub(crate) of_module: bool,
    /// Who touched it.
    pub(crate) history: History,
    memory: Memory,
}

impl Allocation {
    fn new(device: usize, ordered: bool, memory: Memory) -> Allocation {
        let history = History::default();
        Allocation { device, freed: false, ordered, of_module: false, history, memory }
    }
}

/// Zeroed host memory at a device address. It is not touched before it is used, so that large
/// allocations cost nothing.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    /// From the start to the first aligned address.
    offset: usize,
    len: usize,
}

// SAFETY: the memory is owned by this value alone and reached through it alone.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize) -> Option<Memory> {
        // A large alignment would make the allocator write the whole memory, so the address is
        // aligned by hand.
        let layout = Layout::from_size_align(len.checked_add(ALIGN)?, 16).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let offset = start.addr().get().next_multiple_of(ALIGN) - start.addr().get();
        Some(Memory { start, layout, offset, len })
    }

    fn address(&self) -> u64 {
        (self.start.addr().get() + self.offset) as u64
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `offset` is below `ALIGN`, by which the layout is larger than `len`.
        let start = unsafe { self.start.add(self.offset) };
        // SAFETY: these bytes are initialised, and borrowed as this value is.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        let start = unsafe { self.start.add(self.offset) };
        // SAFETY: as in `bytes`, and exclusively so.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and given back here alone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
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
        self.profile.memory_bytes.saturating_sub(taken)
    }

    fn allocate(&mut self, device: usize, len: usize, ordered: bool) -> Answer<u64> {
        if len == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if len as u64 > self.free_bytes(device) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let memory = Memory::new(len).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = memory.address();
        self.devices[device].allocated += len as u64;
        self.memory.insert(address, Allocation::new(device, ordered, memory));
        Ok(address)
    }

    /// Memory for a variable of a module, which begins with `init`. It is in no account of the
    /// program's, and [`drop_memory`](State::drop_memory) takes it back.
    pub(crate) fn allocate_for_module(
        &mut self,
        device: usize,
        len: usize,
        init: &[u8],
    ) -> Answer<u64> {
        let memory = Some(len).filter(|&len| len as u64 <= self.free_bytes(device));
        let mut memory = memory.and_then(Memory::new).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if let Some(start) = memory.bytes_mut().get_mut(..init.len()) {
            start.copy_from_slice(init);
        }
        let address = memory.address();
        let allocation = Allocation::new(device, false, memory);
        self.memory.insert(address, Allocation { of_module: true, ..allocation });
        Ok(address)
    }

    /// The addresses of an allocation.
    fn extent(&self, address: u64) -> Range<u64> {
        let len = self.memory.get(&address).map_or(0, |allocation| allocation.memory.len);
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

    /// Takes an allocation from the program. Its memory stays until [`drop_memory`].
    ///
    /// [`drop_memory`]: State::drop_memory
    fn release(&mut self, address: u64) -> Answer<usize> {
        let allocation = self.memory.get_mut(&address);
        let allocation = allocation.filter(|allocation| !allocation.freed && !allocation.of_module);
        let allocation = allocation.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        allocation.freed = true;
        self.devices[allocation.device].allocated -= allocation.memory.len as u64;
        Ok(allocation.device)
    }

    /// Gives back the memory of an allocation that was released.
    pub(crate) fn drop_memory(&mut self, address: u64) {
        self.memory.remove(&address);
    }

    /// The bytes at a device address, for an operation that was submitted when they could be used.
    pub(crate) fn standing_memory(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let (base, allocation) = self.memory.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        allocation.memory.bytes_mut().get_mut(offset..offset.checked_add(len)?)
    }

    /// The bytes at a device address and the device; `None` where they are not within one
    /// allocation.
    fn memory(&self, address: u64, len: usize) -> Option<(usize, &[u8])> {
        let (base, allocation) = self.memory.range(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        let bytes = allocation.memory.bytes().get(offset..offset.checked_add(len)?)?;
        (!allocation.freed).then_some((allocation.device, bytes))
    }

    /// The bytes at an address of this device.
    pub(crate) fn device_memory(&self, device: usize, address: u64, len: usize) -> Option<&[u8]> {
        self.memory(address, len).filter(|(owner, _)| *owner == device).map(|(_, bytes)| bytes)
    }

    /// The bytes that a copy or memset is about.
    pub(crate) fn target(&self, address: u64, len: usize) -> Answer<&[u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        let found = self.memory(address, len).map(|(_, bytes)| bytes);
        found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The stream of an operation that names none, with the host kept from captures.
    fn null_stream(&mut self) -> Answer<usize> {
        let stream = self.stream(0)?;
        self.no_strict_capture()?;
        Ok(stream)
    }
}

/// Copies from the host in stream order. The host's memory is read at once.
fn upload(
    driver: &Driver,
    state: MutexGuard<'_, State>,
    stream: usize,
    to: u64,
    from: Ptr<c_void>,
    len: usize,
) -> Answer {
    state.target(to, len)?;
    if len > 0 {
        from.given()?;
    }
    let copy = Copy { to: Place::Device(to), from: Place::Host(from.into()), len };
    work::submit(driver, state, stream, Work::Copy(copy)).map(drop)
}

/// Copies to the host in stream order and waits for it, as a driver does for memory of the host that
/// is not page-locked (cuda.h, "API synchronization behavior"); here none is.
fn download(
    driver: &Driver,
    state: MutexGuard<'_, State>,
    stream: usize,
    to: Ptr<c_void>,
    from: u64,
    len: usize,
) -> Answer {
    state.target(from, len)?;
    if len > 0 {
        to.given()?;
    }
    let copy = Copy { to: Place::Host(to.into()), from: Place::Device(from), len };
    let (mut state, end) = work::submit(driver, state, stream, Work::Copy(copy))?;
    if end.is_some() { state.finish_stream(stream) } else { Ok(()) }
}

pub(crate) fn alloc(driver: &Driver, out: Ptr<u64>, len: usize) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    state.no_strict_capture()?;
    let address = state.allocate(device, len, false)?;
    out.write(address)
}

/// Frees memory, for which the host waits until the device is idle. It does not where the memory was
/// made in stream order, and the program should have waited (header).
pub(crate) fn free(driver: &Driver, address: u64) -> Answer {
    let mut state = driver.state();
    if address == 0 {
        return Ok(());
    }
    let current = state.current()?;
    let device = state.contexts[&current].device;
    state.no_strict_capture()?;
    state.release(address)?;
    if state.memory.get(&address).is_some_and(|allocation| allocation.ordered) {
        let extent = state.extent(address);
        state.touch_by_host(current, extent);
        let time = state.busy(state.devices[device].primary).time;
        state.later(time, device, Effect::Release(address));
        return Ok(());
    }
    let busy = state.busy(state.devices[device].primary);
    state.wait_on_host(&busy);
    state.drop_memory(address);
    state.unpoisoned(device)
}

/// Allocates in stream order. Capturing it is not simulated.
pub(crate) fn alloc_async(
    driver: &Driver,
    out: Ptr<u64>,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    out.given()?;
    let device = uncaptured_device(&mut state, stream)?;
    // No bytes are the null address, as recorded.
    if len == 0 {
        return out.write(0);
    }
    let address = state.allocate(device, len, true)?;
    state.touch_whole(stream, address, Accessor::Allocation);
    out.write(address)
}

/// Frees in stream order. Capturing it is not simulated.
pub(crate) fn free_async(driver: &Driver, address: u64, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    uncaptured_device(&mut state, stream)?;
    if address == 0 {
        return Ok(());
    }
    let device = state.release(address)?;
    // What was submitted before still finds the memory; nobody else gets the address meanwhile.
    let time = state.touch_whole(stream, address, Accessor::Free);
    state.later(time, device, Effect::Release(address));
    Ok(())
}

fn uncaptured_device(state: &mut State, stream: usize) -> Answer<usize> {
    if state.capturing(stream)?.is_some() {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let context = state.streams[&stream].context;
    Ok(state.contexts[&context].device)
}

pub(crate) fn get_info(driver: &Driver, free: Ptr<usize>, total: Ptr<usize>) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    free.write(state.free_bytes(device) as usize)?;
    total.write(state.profile.memory_bytes as usize)
}

pub(crate) fn copy_to_device(driver: &Driver, to: u64, from: Ptr<c_void>, len: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.null_stream()?;
    upload(driver, state, stream, to, from, len)?;
    driver.peek().finish_stream(stream)
}

pub(crate) fn copy_to_host(driver: &Driver, to: Ptr<c_void>, from: u64, len: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.null_stream()?;
    download(driver, state, stream, to, from, len)
}

pub(crate) fn copy_to_device_async(
    driver: &Driver,
    to: u64,
    from: Ptr<c_void>,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    upload(driver, state, stream, to, from, len)
}

pub(crate) fn copy_to_host_async(
    driver: &Driver,
    to: Ptr<c_void>,
    from: u64,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    download(driver, state, stream, to, from, len)
}

/// Writes a pattern `count` times, in stream order.
fn fill(
    driver: &Driver,
    state: MutexGuard<'_, State>,
    stream: usize,
    to: u64,
    pattern: &[u8],
    count: usize,
) -> Answer {
    let len = count.checked_mul(pattern.len()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    state.target(to, len)?;
    let fill = Fill { to, pattern: pattern.to_vec(), len };
    work::submit(driver, state, stream, Work::Fill(fill)).map(drop)
}

pub(crate) fn set_d8(driver: &Driver, to: u64, value: u8, count: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.null_stream()?;
    fill(driver, state, stream, to, &[value], count)
}

pub(crate) fn set_d8_async(
    driver: &Driver,
    to: u64,
    value: u8,
    count: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    fill(driver, state, stream, to, &[value], count)
}

pub(crate) fn set_d32_async(
    driver: &Driver,
    to: u64,
    value: u32,
    count: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    fill(driver, state, stream, to, &value.to_ne_bytes(), count)
}

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, the only flag of a write, which is without meaning
/// where every write is seen in the order of time.
const NO_MEMORY_BARRIER: u32 = 1;

fn write_value(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    to: u64,
    value: &[u8],
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    if flags & !NO_MEMORY_BARRIER != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    fill(driver, state, stream, to, value, 1)
}

pub(crate) fn write_value_32(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    to: u64,
    value: u32,
    flags: u32,
) -> Answer {
    write_value(driver, stream, to, &value.to_ne_bytes(), flags)
}

pub(crate) fn write_value_64(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    to: u64,
    value: u64,
    flags: u32,
) -> Answer {
    write_value(driver, stream, to, &value.to_ne_bytes(), flags)
}
