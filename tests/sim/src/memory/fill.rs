//! Fills, and writes of one value in stream order.

use green_ctx_sys::{CUresult, CUstream_st};
use parking_lot::MutexGuard;

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;
use crate::work::{self, Fill, Rows, Work};

/// Rows of elements, with so many bytes from one row to the next.
#[derive(Clone, Copy)]
struct Area {
    pitch: usize,
    width: usize,
    height: usize,
}

/// Fills in the order of a stream that was looked up already; returns whether the work is under way.
fn submit(
    driver: &Driver,
    mut state: MutexGuard<'_, State>,
    stream: usize,
    to: u64,
    pattern: &[u8],
    area: Area,
) -> Answer<bool> {
    state.capturing(stream)?;
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let Area { height, .. } = area;
    let width = area.width.checked_mul(pattern.len());
    // A count of elements whose bytes are no number is not found out by the call, but by the device
    // (recorded of elements in one row; of more rows it is not).
    let endless = width.is_none() && height == 1;
    let width = width.or(endless.then_some(usize::MAX)).ok_or(invalid)?;
    let pitch = if height > 1 { area.pitch } else { width };
    let slice = pitch.checked_mul(height).ok_or(invalid)?;
    let rows = Rows { width, height, depth: 1, pitch, slice };
    let bytes = if endless { pattern.len() } else { rows.extent().ok_or(invalid)? };
    // Where nothing is filled no place is wrong, as recorded.
    if bytes > 0 {
        let aligned = |number: u64| number.is_multiple_of(pattern.len() as u64);
        refuse_if(pitch < width || !aligned(to) || !endless && !aligned(pitch as u64), invalid)?;
        let device = state.device_of_stream(stream);
        // What a captured fill is of is not looked at, be it null, as recorded.
        let captured = state.streams[&stream].capture.is_some();
        refuse_if(!captured && state.device_memory(device, to, bytes).is_none(), invalid)?;
    }
    let fill = Fill { to, pattern: pattern.to_vec(), rows };
    Ok(work::submit(driver, state, stream, Work::Fill(fill))?.1.is_some())
}

/// The bytes of a value, the lowest first as on every host of a GPU.
fn bytes<V: Into<u64>>(value: V) -> Vec<u8> {
    value.into().to_le_bytes()[..size_of::<V>()].to_vec()
}

fn line(count: usize) -> Area {
    Area { pitch: 0, width: count, height: 1 }
}

/// Fills without waiting, unless the memory is the host's (cuda.h, "API synchronization behavior").
pub(crate) fn at_once(driver: &Driver, to: u64, value: impl Into<u64>, count: usize) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(0)?;
    let found = state.allocation(to);
    let waits = found.is_some_and(|(_, found)| found.on_host() || found.sync_memops);
    if submit(driver, state, stream, to, &bytes(value), line(count))? && waits {
        return driver.peek().finish_stream(stream);
    }
    Ok(())
}

pub(crate) fn line_in_order(
    driver: &Driver,
    to: u64,
    value: impl Into<u64>,
    count: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    rows_in_order(driver, to, 0, value, count, 1, stream)
}

pub(crate) fn rows_in_order(
    driver: &Driver,
    to: u64,
    pitch: usize,
    value: impl Into<u64>,
    width: usize,
    height: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    let area = Area { pitch, width, height };
    submit(driver, state, stream, to, &bytes(value), area).map(drop)
}

pub(crate) fn write_value(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    to: u64,
    value: impl Into<u64>,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    state.capturing(stream)?;
    // Not even the flag of the header is taken, as recorded of an H200.
    invalid_if(flags != 0)?;
    submit(driver, state, stream, to, &bytes(value), line(1)).map(drop)
}
