//! Device memory: host memory behind addresses that are checked at every access.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;

use green_ctx_sys::{CUresult, CUstream_st};

use crate::clock::cost;
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// The alignment of device addresses in bytes.
const ALIGN: usize = 512;

/// One allocation.
pub(crate) struct Allocation {
    pub(crate) device: usize,
    memory: Memory,
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
        let device = &self.devices[device];
        let active = self.contexts[&device.primary].alive;
        let context = if active { self.profile.primary_context_bytes } else { 0 };
        self.profile.memory_bytes.saturating_sub(context + device.green_bytes + device.allocated)
    }

    fn allocate(&mut self, device: usize, len: usize) -> Answer<u64> {
        if len == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if len as u64 > self.free_bytes(device) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let memory = Memory::new(len).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = memory.address();
        self.devices[device].allocated += len as u64;
        self.memory.insert(address, Allocation { device, memory });
        Ok(address)
    }

    fn release(&mut self, address: u64) -> Answer {
        let allocation = self.memory.remove(&address).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.devices[allocation.device].allocated -= allocation.memory.len as u64;
        Ok(())
    }

    /// The bytes at a device address; `None` where they are not within one allocation.
    fn memory(&mut self, address: u64, len: usize) -> Option<(usize, &mut [u8])> {
        let (base, allocation) = self.memory.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        let bytes = allocation.memory.bytes_mut().get_mut(offset..offset.checked_add(len)?)?;
        Some((allocation.device, bytes))
    }

    /// The bytes at an address of this device.
    pub(crate) fn device_memory(&self, device: usize, address: u64, len: usize) -> Option<&[u8]> {
        let (base, allocation) = self.memory.range(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        let bytes = allocation.memory.bytes().get(offset..offset.checked_add(len)?)?;
        (allocation.device == device).then_some(bytes)
    }

    /// The bytes at an address of this device, to be written.
    pub(crate) fn device_memory_mut(
        &mut self,
        device: usize,
        address: u64,
        len: usize,
    ) -> Option<&mut [u8]> {
        self.memory(address, len).filter(|(owner, _)| *owner == device).map(|(_, bytes)| bytes)
    }

    /// The bytes that a copy or memset is about.
    fn target(&mut self, address: u64, len: usize) -> Answer<&mut [u8]> {
        if len == 0 {
            return Ok(&mut []);
        }
        let found = self.memory(address, len).map(|(_, bytes)| bytes);
        found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Does an operation on memory in a stream that was looked up already: its effect is there at
    /// once, its time passes in the stream.
    fn transfer(
        &mut self,
        stream: usize,
        (address, len): (u64, usize),
        effect: impl FnOnce(&mut [u8]) -> Answer,
    ) -> Answer {
        self.target(address, len)?;
        if self.capture_operation(stream)? {
            return Ok(());
        }
        self.target(address, len).and_then(effect)?;
        self.occupy(stream, cost::COPY + len as u64 * 1000 / cost::COPY_BYTES);
        Ok(())
    }

    /// The stream of an operation that names none, with the host kept from captures.
    fn null_stream(&mut self) -> Answer<usize> {
        let stream = self.stream(0)?;
        self.no_strict_capture()?;
        Ok(stream)
    }
}

pub(crate) fn alloc(driver: &Driver, out: Ptr<u64>, len: usize) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    state.no_strict_capture()?;
    let address = state.allocate(device, len)?;
    out.write(address)
}

/// Frees memory, for which the host waits until the device is idle.
pub(crate) fn free(driver: &Driver, address: u64) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    if address == 0 {
        return Ok(());
    }
    state.no_strict_capture()?;
    state.release(address)?;
    let busy = state.busy(state.devices[device].primary);
    state.wait_on_host(&busy);
    Ok(())
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
    let address = state.allocate(device, len)?;
    out.write(address)
}

/// Frees in stream order. Capturing it is not simulated.
pub(crate) fn free_async(driver: &Driver, address: u64, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    uncaptured_device(&mut state, stream)?;
    state.release(address)
}

fn uncaptured_device(state: &mut State, stream: usize) -> Answer<usize> {
    if state.capture_operation(stream)? {
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
    state.transfer(stream, (to, len), |bytes| from.read_bytes(bytes))?;
    state.wait_for_stream(stream);
    Ok(())
}

pub(crate) fn copy_to_host(driver: &Driver, to: Ptr<c_void>, from: u64, len: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.null_stream()?;
    state.transfer(stream, (from, len), |bytes| to.write_bytes(bytes))?;
    state.wait_for_stream(stream);
    Ok(())
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
    state.transfer(stream, (to, len), |bytes| from.read_bytes(bytes))
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
    state.transfer(stream, (from, len), |bytes| to.write_bytes(bytes))
}

fn fill(state: &mut State, stream: usize, to: u64, pattern: &[u8], count: usize) -> Answer {
    let len = count.checked_mul(pattern.len()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    state.transfer(stream, (to, len), |bytes| {
        bytes.chunks_exact_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(pattern));
        Ok(())
    })
}

pub(crate) fn set_d8(driver: &Driver, to: u64, value: u8, count: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.null_stream()?;
    fill(&mut state, stream, to, &[value], count)
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
    fill(&mut state, stream, to, &[value], count)
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
    fill(&mut state, stream, to, &value.to_ne_bytes(), count)
}
