//! Device memory.

use green_ctx_sys::CUstream_st;

use super::Allocation;
use crate::driver::Driver;
use crate::graph::allocation;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::race::Accessor;

pub(crate) fn alloc(driver: &Driver, out: Ptr<u64>, len: usize) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    let address = state.allocate(device, len, None)?;
    out.write(address)
}

/// Frees memory after the device has become idle. Memory that was allocated in stream order is freed
/// without a wait, because the program is expected to have waited (header). No current context is
/// required (recorded on an H200).
pub(crate) fn free(driver: &Driver, address: u64) -> Answer {
    let mut state = driver.state();
    if address == 0 {
        return Ok(());
    }
    state.usable_if_current()?;
    let allocation = valid(state.memory.get(&address).filter(|allocation| !allocation.on_host()))?;
    let ordered = allocation.pool.is_some() || allocation.of_graph;
    let device = state.release(address)?;
    let primary = state.devices[device].primary;
    if ordered {
        let (current, extent) = (state.current_handle(), state.extent(address));
        state.touch_by_host(current.unwrap_or(primary), extent);
        let time = state.busy(primary).time;
        state.drop_later(time, device, address);
        return Ok(());
    }
    let busy = state.busy(primary);
    state.wait_on_host(&busy);
    state.drop_memory(address);
    state.unpoisoned(device)
}

/// Frees memory in stream order. In a capture this function adds a free node, which accepts only memory
/// that a graph allocated (header).
pub(crate) fn free_async(driver: &Driver, address: u64, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    let capture = state.capturing_or_safe(stream)?;
    if address == 0 {
        return Ok(());
    }
    if let Some(capture) = capture {
        let free = allocation::read_free(&state, address, state.captures[&capture].graph)?;
        return state.capture_action(stream, free, 0);
    }
    invalid_if(state.memory.get(&address).is_none_or(Allocation::on_host))?;
    let device = state.release(address)?;
    // Earlier work still finds the memory. No other allocation gets its address before the free.
    let time = state.touch_whole(stream, address, Accessor::Free);
    state.freed_in_order(address, stream);
    state.drop_later(time, device, address);
    Ok(())
}

pub(crate) fn get_info(driver: &Driver, free: Ptr<usize>, total: Ptr<usize>) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    free.write(state.free_bytes(device) as usize)?;
    total.write(state.profile.memory_bytes as usize)
}
