//! Handles for sharing memory with other processes. A simulated driver belongs to one process, so handles
//! cannot be opened.

use green_ctx_sys::CUipcMemHandle_st;

use super::Kind;
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
/// Writes an IPC handle for device memory that belongs to no pool. Any address inside the allocation is
/// accepted (recorded on hardware).
pub(crate) fn get_memory(driver: &Driver, out: Ptr<CUipcMemHandle_st>, address: u64) -> Answer {
    let mut state = driver.state();
    state.current()?;
    out.given()?;
    let (_, found) = valid(state.allocation(address))?;
    let of_pool = found.pool.is_some();
    invalid_if(found.freed || found.kind != Kind::Device || of_pool)?;
    let mut reserved = [0; 64];
    let number = found.id.to_ne_bytes();
    reserved.iter_mut().zip(number).for_each(|(to, from)| *to = from as std::ffi::c_char);
    out.write(CUipcMemHandle_st { reserved })
}
