//! Page-locked host memory. Asynchronous copies of page-locked memory do not block the host. Kernels
//! access this memory at its host address.

use std::ffi::c_void;

use green_ctx_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUresult,
};

use super::backing::Memory;
use super::{Allocation, Kind};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;

const ALLOC_FLAGS: u32 =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: u32 = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

impl State {
    /// Returns the base address of the memory of this kind that begins at a host address.
    fn host_memory(&self, address: usize, kind: Kind) -> Option<u64> {
        let base = address as u64;
        self.memory.get(&base).filter(|allocation| allocation.kind == kind).map(|_| base)
    }

    /// Releases host memory. The driver waits for the device first, as it does for device memory.
    fn give_up(&mut self, base: u64) -> Answer {
        let device = self.memory[&base].device;
        let busy = self.busy(self.devices[device].primary);
        self.wait_on_host(&busy);
        self.memory.remove(&base);
        self.unpoisoned(device)
    }
}

pub(crate) fn alloc(driver: &Driver, out: Ptr<*mut c_void>, len: usize, flags: u32) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    invalid_if(flags & !ALLOC_FLAGS != 0)?;
    if len == 0 {
        // An allocation of 0 bytes returns a null pointer (recorded on hardware).
        return out.write(std::ptr::null_mut());
    }
    let memory = Memory::shared(len).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let base = state.add_memory(Allocation::new(device, Kind::Pinned, memory));
    out.write(Ptr::at(base).raw())
}

pub(crate) fn free(driver: &Driver, pointer: Ptr<c_void>) -> Answer {
    let mut state = driver.state();
    if pointer.is_null() {
        return Ok(());
    }
    // No current context is required (recorded on an H200).
    state.usable_if_current()?;
    let base = valid(state.host_memory(pointer.address(), Kind::Pinned))?;
    state.give_up(base)
}

pub(crate) fn register(driver: &Driver, pointer: Ptr<c_void>, len: usize, flags: u32) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    let start = valid(pointer.not_null())?;
    let base = pointer.address() as u64;
    let end =
        valid(base.checked_add(len as u64).filter(|_| len > 0 && flags & !REGISTER_FLAGS == 0))?;
    let before = state.memory.range(..end).next_back();
    let meets = before.filter(|(start, allocation)| *start + allocation.len() as u64 > base);
    if let Some((_, allocation)) = meets {
        // The program cannot register memory that the driver allocated (recorded for page-locked memory).
        return Err(match allocation.kind {
            Kind::Registered => CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            Kind::Device | Kind::Pinned => CUresult::CUDA_ERROR_INVALID_VALUE,
        });
    }
    // This flag is for I/O memory of third-party devices (cuda.h), which do not exist here.
    invalid_if(flags & CU_MEMHOSTREGISTER_IOMEMORY != 0)?;
    let memory = Memory::of_program(start.cast(), len);
    state.add_memory(Allocation::new(device, Kind::Registered, memory));
    Ok(())
}

pub(crate) fn unregister(driver: &Driver, pointer: Ptr<c_void>) -> Answer {
    let mut state = driver.state();
    state.usable_if_current()?;
    pointer.given()?;
    let address = pointer.address();
    // Memory that the driver knows, but not as a registration from this address on, is a different error
    // from unknown memory (recorded on hardware).
    let wrong = match state.allocation(address as u64) {
        Some(_) => CUresult::CUDA_ERROR_INVALID_VALUE,
        None => CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    };
    let base = state.host_memory(address, Kind::Registered);
    state.give_up(base.ok_or(wrong)?)
}
