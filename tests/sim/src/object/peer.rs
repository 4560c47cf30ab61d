//! Access from one device to the memory of another.
//!
//! Access belongs to contexts (cuda.h). The primary context of a device and its green ones are of one
//! address space, so what one of them is given the others have too.

use green_ctx_sys::{CUctx_st, CUresult};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;

impl State {
    /// Whether one device can be given access to another's memory: all can, but none to its own.
    pub(crate) fn can_be_peers(&self, device: usize, peer: usize) -> bool {
        self.physical(device) != self.physical(peer)
    }

    /// The devices of the current context and of its peer. They may be one context, which is then
    /// refused as one device is, as recorded.
    fn peer(&mut self, peer: Ptr<CUctx_st>) -> Answer<(usize, usize)> {
        let current = self.current()?;
        let other = self.context(peer.address())?.device;
        Ok((self.contexts[&current].device, other))
    }
}

pub(crate) fn enable(driver: &Driver, peer: Ptr<CUctx_st>, flags: u32) -> Answer {
    let mut state = driver.state();
    let pair = state.peer(peer)?;
    invalid_if(flags != 0)?;
    refuse_if(!state.can_be_peers(pair.0, pair.1), CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)?;
    refuse_if(state.peers.contains(&pair), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)?;
    state.peers.push(pair);
    Ok(())
}

pub(crate) fn disable(driver: &Driver, peer: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    let pair = state.peer(peer)?;
    let before = state.peers.len();
    state.peers.retain(|enabled| *enabled != pair);
    refuse_if(state.peers.len() == before, CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
}

pub(crate) fn can_access(driver: &Driver, out: Ptr<i32>, ordinal: i32, peer: i32) -> Answer {
    let state = driver.state();
    out.given()?;
    let (device, peer) = (state.device(ordinal)?, state.device(peer)?);
    out.write(i32::from(state.can_be_peers(device, peer)))
}
