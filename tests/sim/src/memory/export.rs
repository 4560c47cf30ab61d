//! Pools and what is in them for other processes. A simulated driver is one process's, so that what it
//! exports it can import itself; what another one made is not reached.

use std::ffi::c_void;
use std::fs;
use std::os::fd::IntoRawFd;

use green_ctx_sys::{CUmemAllocationHandleType, CUmemPoolHandle_st, CUresult};

use super::{backing, ipc};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, refuse_if};
use crate::state::State;

/// What the contents of a file and the data of a pointer begin with.
const POOL: [u8; 8] = *b"sim.pool";
const POINTER: [u8; 8] = *b"sim.ptr\0";

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Refuses handles of other systems, and flags, which there are none of.
fn check_kind(kind: CUmemAllocationHandleType, flags: u64) -> Answer {
    let file = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if kind == file && flags == 0 { Ok(()) } else { Err(INVALID) }
}

/// Makes a file descriptor, which the program closes, of a pool that was made to be exported.
pub(crate) fn pool(
    driver: &Driver,
    out: Ptr<c_void>,
    pool: Ptr<CUmemPoolHandle_st>,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    check_kind(kind, flags)?;
    refuse_if(!state.pools.get(pool.address())?.exported, INVALID)?;
    let contents = ipc::handle(POOL, driver.slot, pool.address() as u64);
    let file = backing::unnamed_file(&contents.map(|byte| byte as u8));
    let file = file.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    out.cast().write(file.into_raw_fd())
}

/// Makes a pool of a file descriptor. It gives what is imported, and allocates nothing.
pub(crate) fn import_pool(
    driver: &Driver,
    out: Ptr<*mut CUmemPoolHandle_st>,
    file: Ptr<c_void>,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    check_kind(kind, flags)?;
    // The path leads to what the descriptor stands for, and leaves the descriptor's position alone.
    let path = format!("/proc/self/fd/{}", file.address());
    let is_ours = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == 64);
    let contents = if is_ours { fs::read(&path).ok() } else { None };
    let contents: [u8; 64] = contents.and_then(|it| it.try_into().ok()).ok_or(INVALID)?;
    let pool = ipc::check(&contents.map(|byte| byte as i8), POOL, driver.slot, INVALID)?;
    let pool = state.pools.import(pool as usize)?;
    out.write(handle::pointer(pool))
}

/// The allocation of a pool that was made to be exported.
fn exported(state: &mut State, is_it: impl Fn(u64, u64) -> bool) -> Answer<(u64, u64, usize)> {
    let found = state.memory.iter().find(|(base, it)| !it.freed && is_it(**base, it.id));
    let (&base, found) = found.ok_or(INVALID)?;
    let (id, pool) = (found.id, found.pool.ok_or(INVALID)?);
    if state.pools.get(pool)?.exported { Ok((base, id, pool)) } else { Err(INVALID) }
}

/// Describes an allocation, for who has its pool.
pub(crate) fn pointer(driver: &Driver, out: Ptr<c_void>, address: u64) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let (_, id, _) = exported(&mut state, |base, _| base == address)?;
    out.cast().write(ipc::handle(POINTER, driver.slot, id))
}

/// Finds what was described, at the same address since the process is the same. It is freed once for
/// each import, and then once more by who allocated it (header).
pub(crate) fn import_pointer(
    driver: &Driver,
    out: Ptr<u64>,
    pool: Ptr<CUmemPoolHandle_st>,
    data: Ptr<c_void>,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let data = data.cast().read()?;
    let id = ipc::check(&data, POINTER, driver.slot, INVALID)?;
    let (base, _, of) = exported(&mut state, |_, other| other == id)?;
    refuse_if(state.pools.get(pool.address())?.imported != Some(of), INVALID)?;
    if let Some(allocation) = state.memory.get_mut(&base) {
        allocation.imports += 1;
    }
    out.write(base)
}
