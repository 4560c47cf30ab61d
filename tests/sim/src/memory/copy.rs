//! Copies. An address says by itself whether the driver knows its memory: what it does not know is
//! memory of the host that is not page-locked.

use std::ffi::c_void;

use green_ctx_sys::{
    CUDA_MEMCPY2D_st, CUDA_MEMCPY3D_st, CUctx_st, CUmemorytype, CUresult, CUstream_st,
};
use parking_lot::MutexGuard;

use super::backing;
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;
use crate::work::{self, Copy, Place, Rows, Work};

/// Whether a function returns before the copy is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    /// When it is submitted, unless the host's memory has to be there.
    AtOnce,
    /// When it is done, unless no memory of the host takes part (cuda.h, "API synchronization
    /// behavior").
    WhenDone,
}

impl State {
    /// What is at an address, over so many bytes: memory that the driver knows, or else the host's.
    fn place(&self, address: u64, bytes: usize) -> Answer<Place> {
        if self.allocation(address).is_some() {
            return self.device_place(address, bytes);
        }
        invalid_if(bytes > 0 && (address == 0 || backing::is_of_device(address)))?;
        Ok(Place::Host(Ptr::at(address).into()))
    }

    /// Distinguishes memory of the host that is page-locked from other memory of the host, which a
    /// node of a graph does not: it may have been locked since.
    pub(crate) fn recognise(&self, copy: &mut Copy) {
        for (place, rows) in [(&mut copy.to, copy.to_rows), (&mut copy.from, copy.from_rows)] {
            let Place::Host(host) = place else { continue };
            let address = host.pointer().address() as u64;
            let bytes = rows.extent().unwrap_or(usize::MAX);
            if self.allocation(address).is_some() && self.target(address, bytes).is_ok() {
                *place = Place::Device(address);
            }
        }
    }

    /// Memory that a function says is a device's; the host's will do where it is page-locked.
    fn device_place(&self, address: u64, bytes: usize) -> Answer<Place> {
        self.node_target(address, bytes)?;
        Ok(Place::Device(address))
    }

    /// Whether a copy to or from a place can do without the host's waiting.
    fn on_host(&self, place: &Place) -> bool {
        match place {
            Place::Host(_) => true,
            Place::Device(address) => self.is_on_host(*address),
        }
    }

    /// Whether an address is one of page-locked memory.
    pub(crate) fn is_on_host(&self, address: u64) -> bool {
        self.allocation(address).is_some_and(|(_, allocation)| allocation.on_host())
    }

    /// Whether operations on this memory always wait, as the program asked for.
    fn always_waits(&self, place: &Place) -> bool {
        let Place::Device(address) = place else { return false };
        self.allocation(*address).is_some_and(|(_, allocation)| allocation.sync_memops)
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
    // Only a node can be about what another node will allocate.
    if state.streams[&stream].capture.is_none() {
        for (place, rows) in [(to, copy.to_rows), (from, copy.from_rows)] {
            if let Place::Device(address) = place {
                state.target(*address, rows.extent().unwrap_or(usize::MAX))?;
            }
        }
    }
    let pageable = matches!(to, Place::Host(_));
    let host = state.on_host(to) || state.on_host(from);
    let asked = state.always_waits(to) || state.always_waits(from);
    let waits = pageable || when == Return::WhenDone && (host || asked);
    let (mut state, end) = work::submit(driver, state, stream, Work::Copy(copy))?;
    if waits && end.is_some() { state.finish_stream(stream) } else { Ok(()) }
}

/// The stream of a copy, the one that is given or the null stream, and when the call returns.
fn stream_of(state: &mut State, stream: Option<Ptr<CUstream_st>>) -> Answer<(usize, Return)> {
    let (stream, when) = match stream {
        Some(stream) => (state.stream(stream.address())?, Return::AtOnce),
        None => (state.stream(0)?, Return::WhenDone),
    };
    state.capturing(stream)?;
    Ok((stream, when))
}

/// One end of a copy of bytes, in the type of the argument that says it.
pub(crate) trait End {
    fn place(self, state: &State, len: usize) -> Answer<Place>;
}

/// An address of a device.
impl End for u64 {
    fn place(self, state: &State, len: usize) -> Answer<Place> {
        state.device_place(self, len)
    }
}

/// A pointer of the host.
impl End for Ptr<c_void> {
    fn place(self, state: &State, len: usize) -> Answer<Place> {
        state.place(self.address() as u64, len)
    }
}

/// An address of either.
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
    submit(driver, state, stream, Copy::line(to, from, len), when)
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

/// The memory of the device of a context that was looked up already.
fn peer_place(state: &State, address: u64, context: usize, len: usize) -> Answer<Place> {
    let device = state.physical(state.contexts[&context].device);
    let found = state.allocation(address);
    invalid_if(len > 0 && found.is_none_or(|(_, found)| state.physical(found.device) != device))?;
    state.device_place(address, len)
}

/// The contexts of a copy between two. A null one is taken, as recorded; that it stands for the
/// current one is not, as there was one device.
fn peers(state: &mut State, to: Ptr<CUctx_st>, from: Ptr<CUctx_st>) -> Answer<[usize; 2]> {
    Ok([state.or_current(to.address())?, state.or_current(from.address())?])
}

/// Copies between contexts, in the order of everything that was and will be submitted to either and
/// to the current one (cuda.h).
pub(crate) fn between(
    driver: &Driver,
    to: u64,
    to_context: Ptr<CUctx_st>,
    from: u64,
    from_context: Ptr<CUctx_st>,
    len: usize,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(0)?;
    let [to_context, from_context] = peers(&mut state, to_context, from_context)?;
    let contexts = [state.current()?, to_context, from_context];
    let to = peer_place(&state, to, to_context, len)?;
    let from = peer_place(&state, from, from_context, len)?;
    for context in contexts {
        let busy = state.busy(context);
        state.hold_stream(stream, &busy);
    }
    submit(driver, state, stream, Copy::line(to, from, len), Return::AtOnce)?;
    let mut state = driver.peek();
    let done = state.pending(stream);
    contexts.iter().for_each(|context| state.hold_context(*context, &done));
    Ok(())
}

pub(crate) fn between_async(
    driver: &Driver,
    to: u64,
    to_context: Ptr<CUctx_st>,
    from: u64,
    from_context: Ptr<CUctx_st>,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    let [to_context, from_context] = peers(&mut state, to_context, from_context)?;
    let to = peer_place(&state, to, to_context, len)?;
    let from = peer_place(&state, from, from_context, len)?;
    submit(driver, state, stream, Copy::line(to, from, len), Return::AtOnce)
}

/// One side of a copy of rows, as its description has it.
struct Side {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    /// Where it begins: in bytes, rows and slices.
    at: [usize; 3],
    pitch: usize,
    /// The rows of a slice.
    height: usize,
}

impl Side {
    /// The place where the copy begins, and its rows there.
    fn resolve(&self, state: &State, extent: [usize; 3]) -> Answer<(Place, Rows)> {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let [width, height, depth] = extent;
        let [x, y, z] = self.at;
        let line = x.checked_add(width).ok_or(invalid)?;
        let lines = y.checked_add(height).ok_or(invalid)?;
        // Neither need be said where there is one row or one slice (header).
        let pitch = if self.pitch == 0 { line } else { self.pitch };
        let slice_height = if self.height == 0 { lines } else { self.height };
        refuse_if(pitch < line || slice_height < lines, invalid)?;
        let slice = pitch.checked_mul(slice_height).ok_or(invalid)?;
        let rows = Rows { width, height, depth, pitch, slice };
        let bytes = rows.extent().ok_or(invalid)?;
        let before = z
            .checked_mul(slice)
            .zip(y.checked_mul(pitch))
            .and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(x));
        let begins = |base: u64| {
            // Behind a null pointer is nothing either.
            let base = Some(base).filter(|base| *base != 0 || bytes == 0);
            base.zip(before).and_then(|(base, at)| base.checked_add(at as u64)).ok_or(invalid)
        };
        let place = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => state.place(begins(self.host)?, bytes)?,
            CUmemorytype::CU_MEMORYTYPE_DEVICE => {
                state.device_place(begins(self.device)?, bytes)?
            }
            CUmemorytype::CU_MEMORYTYPE_UNIFIED => state.place(begins(self.device)?, bytes)?,
            // There are no arrays, nor any other type.
            _ => return Err(invalid),
        };
        Ok((place, rows))
    }
}

fn rows(
    driver: &Driver,
    to: &Side,
    from: &Side,
    extent: [usize; 3],
    stream: Option<Ptr<CUstream_st>>,
) -> Answer {
    let mut state = driver.state();
    let (stream, when) = stream_of(&mut state, stream)?;
    let (to, to_rows) = to.resolve(&state, extent)?;
    let (from, from_rows) = from.resolve(&state, extent)?;
    submit(driver, state, stream, Copy { to, from, to_rows, from_rows }, when)
}

pub(crate) fn two(
    driver: &Driver,
    copy: Ptr<CUDA_MEMCPY2D_st>,
    stream: Option<Ptr<CUstream_st>>,
) -> Answer {
    let copy = copy.read()?;
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost.addr() as u64,
        device: copy.srcDevice,
        at: [copy.srcXInBytes, copy.srcY, 0],
        pitch: copy.srcPitch,
        height: 0,
    };
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost.addr() as u64,
        device: copy.dstDevice,
        at: [copy.dstXInBytes, copy.dstY, 0],
        pitch: copy.dstPitch,
        height: 0,
    };
    rows(driver, &to, &from, [copy.WidthInBytes, copy.Height, 1], stream)
}

pub(crate) fn three(
    driver: &Driver,
    copy: Ptr<CUDA_MEMCPY3D_st>,
    stream: Option<Ptr<CUstream_st>>,
) -> Answer {
    let copy = copy.read()?;
    invalid_if(!copy.reserved0.is_null() || !copy.reserved1.is_null())?;
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost.addr() as u64,
        device: copy.srcDevice,
        at: [copy.srcXInBytes, copy.srcY, copy.srcZ],
        pitch: copy.srcPitch,
        height: copy.srcHeight,
    };
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost.addr() as u64,
        device: copy.dstDevice,
        at: [copy.dstXInBytes, copy.dstY, copy.dstZ],
        pitch: copy.dstPitch,
        height: copy.dstHeight,
    };
    rows(driver, &to, &from, [copy.WidthInBytes, copy.Height, copy.Depth], stream)
}
