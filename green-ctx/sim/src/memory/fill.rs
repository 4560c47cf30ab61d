//! Memsets.

use green_ctx_sys::CUstream_st;
use parking_lot::MutexGuard;

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::state::State;
use crate::work::{self, Fill, Work};

/// Adds a memset to an existing stream. Returns `true` if the memset was submitted, and `false` if
/// it was captured.
fn submit(
    driver: &Driver,
    mut state: MutexGuard<'_, State>,
    stream: usize,
    to: u64,
    pattern: &[u8],
    count: usize,
) -> Answer<bool> {
    state.capturing(stream)?;
    // If the number of bytes overflows, the call succeeds and the device fails (recorded on hardware).
    let len = count.checked_mul(pattern.len());
    let bytes = len.unwrap_or(pattern.len());
    // If nothing is filled, any address is accepted (recorded on hardware).
    if bytes > 0 {
        invalid_if(!to.is_multiple_of(pattern.len() as u64))?;
        let device = state.device_of_stream(stream);
        // The target of a captured memset is not checked, even if it is null (recorded on hardware).
        let captured = state.streams[&stream].capture.is_some();
        invalid_if(!captured && state.device_memory(device, to, bytes).is_none())?;
    }
    let fill = Fill { to, pattern: pattern.to_vec(), len: len.unwrap_or(usize::MAX) };
    Ok(work::submit(driver, state, stream, Work::Fill(fill))?.1.is_some())
}

/// Returns the bytes of a value, the lowest byte first. Every host of a GPU uses this byte order.
fn bytes<V: Into<u64>>(value: V) -> Vec<u8> {
    value.into().to_le_bytes()[..size_of::<V>()].to_vec()
}

/// Fills memory, and waits for the fill only if the memory is host memory (cuda.h, "API
/// synchronization behavior").
pub(crate) fn at_once(driver: &Driver, to: u64, value: impl Into<u64>, count: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(0)?;
    let found = state.allocation(to);
    let waits = found.is_some_and(|(_, found)| found.on_host());
    if submit(driver, state, stream, to, &bytes(value), count)? && waits {
        return driver.peek().finish_stream(stream);
    }
    Ok(())
}

pub(crate) fn in_order(
    driver: &Driver,
    to: u64,
    value: impl Into<u64>,
    count: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    submit(driver, state, stream, to, &bytes(value), count).map(drop)
}
