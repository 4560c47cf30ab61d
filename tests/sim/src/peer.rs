//! Access from one device to the memory of another, of which there is none here.

use green_ctx_sys::{CUctx_st, CUresult};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};

/// A peer is a context other than the current one (cuda.h).
fn check(driver: &Driver, peer: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    let current = state.current()?;
    state.context(peer.address())?;
    if peer.address() == current {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok(())
}

pub(crate) fn enable(driver: &Driver, peer: Ptr<CUctx_st>, flags: u32) -> Answer {
    check(driver, peer)?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
}

pub(crate) fn disable(driver: &Driver, peer: Ptr<CUctx_st>) -> Answer {
    check(driver, peer)?;
    Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
}
