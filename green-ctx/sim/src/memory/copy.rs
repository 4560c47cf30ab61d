//! Copies. The driver recognises device memory and page-locked host memory by the address alone. All other
//! memory is pageable host memory.

use std::ffi::c_void;

use green_ctx_sys::CUstream_st;
use parking_lot::MutexGuard;

use super::backing;
use crate::driver::Driver;
use crate::effects::{Copy, Place};
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::state::State;
use crate::work::{self, Work};

/// The time at which a copy function returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    /// The function returns at submission, unless the target is pageable host memory.
    AtOnce,
    /// The function returns at the end of the copy, or at submission if no host memory is involved (cuda.h,
    /// "API synchronization behavior").
    WhenDone,
}

impl State {
    /// Returns the place at an address: device memory or page-locked host memory, or else pageable host
    /// memory.
    fn place(&self, address: u64, bytes: usize) -> Answer<Place> {
        if self.allocation(address).is_some() {
            return self.device_place(address, bytes);
        }
        invalid_if(bytes > 0 && (address == 0 || backing::is_of_device(address)))?;
        Ok(Place::Host(Ptr::at(address).into()))
    }

    /// Converts the places of a copy whose host memory is page-locked now. When the program added a graph
    /// node, the same memory may still have been pageable.
    pub(crate) fn recognise(&self, copy: &mut Copy) {
        for place in [&mut copy.to, &mut copy.from] {
            let Place::Host(host) = place else { continue };
            let address = host.pointer().address() as u64;
            if self.allocation(address).is_some() && self.target(address, copy.len).is_ok() {
                *place = Place::Device(address);
            }
        }
    }

    /// Returns the place of device memory. Page-locked host memory is accepted too.
    fn device_place(&self, address: u64, bytes: usize) -> Answer<Place> {
        self.node_target(address, bytes)?;
        Ok(Place::Device(address))
    }

    /// Returns whether a place is on the host.
    fn on_host(&self, place: &Place) -> bool {
        match place {
            Place::Host(_) => true,
            Place::Device(address) => self.is_on_host(*address),
        }
    }

    /// Returns whether an address belongs to page-locked memory.
    pub(crate) fn is_on_host(&self, address: u64) -> bool {
        self.allocation(address).is_some_and(|(_, allocation)| allocation.on_host())
    }
}

fn submit(
    driver: &Driver,
    state: MutexGuard<'_, State>,
    stream: usize,
    copy: Copy,
    when: Return,
) -> Answer {
    let Copy { to, from, .. } = &copy;
    // Only a node can refer to memory that another node will allocate.
    if state.streams[&stream].capture.is_none() {
        for place in [to, from] {
            if let Place::Device(address) = place {
                state.target(*address, copy.len)?;
            }
        }
    }
    let pageable = matches!(to, Place::Host(_));
    let host = state.on_host(to) || state.on_host(from);
    let waits = pageable || when == Return::WhenDone && host;
    let (mut state, end) = work::submit(driver, state, stream, Work::Copy(copy))?;
    if waits && end.is_some() { state.finish_stream(stream) } else { Ok(()) }
}

/// Returns the stream of a copy and the time at which the call returns. If `stream` is `None`, the copy
/// uses the null stream.
fn stream_of(state: &mut State, stream: Option<Ptr<CUstream_st>>) -> Answer<(usize, Return)> {
    let (stream, when) = match stream {
        Some(stream) => (state.stream(stream.address())?, Return::AtOnce),
        None => (state.stream(0)?, Return::WhenDone),
    };
    state.capturing(stream)?;
    Ok((stream, when))
}

/// The source or target of a copy, in the type of the C function's argument.
pub(crate) trait End {
    fn place(self, state: &State, len: usize) -> Answer<Place>;
}

/// A device address.
impl End for u64 {
    fn place(self, state: &State, len: usize) -> Answer<Place> {
        state.device_place(self, len)
    }
}

/// A host pointer.
impl End for Ptr<c_void> {
    fn place(self, state: &State, len: usize) -> Answer<Place> {
        state.place(self.address() as u64, len)
    }
}

/// An address that is either a device address or a host pointer.
pub(crate) struct Unified(pub(crate) u64);

impl End for Unified {
    fn place(self, state: &State, len: usize) -> Answer<Place> {
        state.place(self.0, len)
    }
}

fn line(
    driver: &Driver,
    to: impl End,
    from: impl End,
    len: usize,
    stream: Option<Ptr<CUstream_st>>,
) -> Answer {
    let mut state = driver.state();
    let (stream, when) = stream_of(&mut state, stream)?;
    let (to, from) = (to.place(&state, len)?, from.place(&state, len)?);
    submit(driver, state, stream, Copy { to, from, len }, when)
}

pub(crate) fn at_once(driver: &Driver, to: impl End, from: impl End, len: usize) -> Answer {
    line(driver, to, from, len, None)
}

pub(crate) fn in_order(
    driver: &Driver,
    to: impl End,
    from: impl End,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    line(driver, to, from, len, Some(stream))
}
