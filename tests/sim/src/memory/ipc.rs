//! Handles by which other processes would reach memory and events.
//!
//! A simulated driver is one process's, so there is nobody to open a handle but who made it, which the
//! driver refuses, as recorded.

use std::ffi::c_char;

use green_ctx_sys::{CUevent_st, CUipcEventHandle_st, CUipcMemHandle_st, CUresult};

use super::Kind;
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which has to be asked for (header).
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// What the handles of memory and of events begin with.
const MEMORY: [u8; 8] = *b"sim.mem\0";
const EVENT: [u8; 8] = *b"sim.evt\0";

/// A simulated driver among those of all processes.
fn maker(slot: usize) -> [u8; 8] {
    (u64::from(std::process::id()) << 32 | slot as u64).to_ne_bytes()
}

/// A handle: what it is for, the driver that made it, and what it stands for.
pub(super) fn handle(kind: [u8; 8], slot: usize, number: u64) -> [c_char; 64] {
    let fields = [kind, maker(slot), number.to_ne_bytes()];
    let mut bytes = [0; 64];
    bytes.iter_mut().zip(fields.concat()).for_each(|(to, from)| *to = from as c_char);
    bytes
}

/// Checks that a handle is of this kind, which fails with `unlike`, and that this driver made it: of
/// other drivers' handles the memory cannot be reached. Returns what it stands for.
pub(super) fn check(
    handle: &[c_char; 64],
    kind: [u8; 8],
    slot: usize,
    unlike: CUresult,
) -> Answer<u64> {
    let bytes = handle.map(|byte| byte as u8);
    let field = |index: usize| -> [u8; 8] { std::array::from_fn(|at| bytes[8 * index + at]) };
    refuse_if(field(0) != kind, unlike)?;
    refuse_if(field(1) != maker(slot), CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
    Ok(u64::from_ne_bytes(field(2)))
}

/// A handle of device memory that is in no pool, by any address of it, as recorded.
pub(crate) fn get_memory(driver: &Driver, out: Ptr<CUipcMemHandle_st>, address: u64) -> Answer {
    let mut state = driver.state();
    state.current()?;
    out.given()?;
    let (_, found) = valid(state.allocation(address))?;
    let of_pool = found.pool.is_some();
    invalid_if(found.freed || found.kind != Kind::Device || of_pool || found.of_module)?;
    out.write(CUipcMemHandle_st { reserved: handle(MEMORY, driver.slot, found.id) })
}

/// The process that made a handle cannot open it.
pub(crate) fn open_memory(
    driver: &Driver,
    out: Ptr<u64>,
    handle: CUipcMemHandle_st,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    state.current()?;
    out.given()?;
    invalid_if(flags != LAZY_ENABLE_PEER_ACCESS)?;
    check(&handle.reserved, MEMORY, driver.slot, CUresult::CUDA_ERROR_INVALID_VALUE)?;
    Err(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// No memory was ever opened, so none can be closed.
pub(crate) fn close_memory(driver: &Driver, _address: u64) -> Answer {
    driver.state().current()?;
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn get_event(
    driver: &Driver,
    out: Ptr<CUipcEventHandle_st>,
    event: Ptr<CUevent_st>,
) -> Answer {
    let state = driver.state();
    out.given()?;
    event.given()?;
    if !state.event(event.address())?.is_interprocess() {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let number = event.address() as u64;
    out.write(CUipcEventHandle_st { reserved: handle(EVENT, driver.slot, number) })
}

/// As with memory.
pub(crate) fn open_event(
    driver: &Driver,
    out: Ptr<*mut CUevent_st>,
    handle: CUipcEventHandle_st,
) -> Answer {
    let mut state = driver.state();
    state.current()?;
    out.given()?;
    check(&handle.reserved, EVENT, driver.slot, CUresult::CUDA_ERROR_MAP_FAILED)?;
    Err(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}
