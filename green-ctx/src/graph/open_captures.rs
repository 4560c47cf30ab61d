//! What captures that have not ended need: the contexts of streams that took part and ended, and the
//! libraries of kernels that were launched into them.
//!
//! The driver reports the contexts of a graph's nodes by raw handles, and before CUDA 13.2 not those of
//! memsets and copies. Nothing may have gone by then, so that what a capture needs is kept from the moment when
//! it is submitted, on every driver.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx_sys::{CUstream, CUstreamCaptureStatus};
use parking_lot::Mutex;

use super::Needs;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::Result;
use crate::error::call;
use crate::library::Library;
use crate::stream::Stream;

/// The captures of a driver that have been begun through this crate and not ended.
#[derive(Default)]
pub(crate) struct OpenCaptures {
    /// How many there are: this is all that launches and the ends of streams pay for while nothing is captured.
    count: AtomicUsize,
    captures: Mutex<Vec<Capture>>,
}

struct Capture {
    /// The driver's number of it, unique in the process (cuda.h, `cuStreamGetCaptureInfo`).
    id: u64,
    needs: Needs,
}

impl OpenCaptures {
    /// Whether there is any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }
}

/// A capture whose needs are noted, as long as it lives.
pub(super) struct Noted<'a> {
    driver: &'a Driver,
    id: u64,
}

/// Notes from now on what the capture needs that a stream has begun; `None` where it was invalidated already.
pub(super) fn note(stream: &Stream) -> Result<Option<Noted<'_>>> {
    let driver = stream.driver();
    let Some(id) = capture_of(driver, stream.raw())? else { return Ok(None) };
    let open = driver.open_captures();
    open.captures.lock().push(Capture { id, needs: Needs::default() });
    open.count.fetch_add(1, Ordering::Relaxed);
    Ok(Some(Noted { driver, id }))
}

impl Noted<'_> {
    /// What was noted, and the contexts of the streams that still take part. Asked before the capture ends: a
    /// stream takes part until then, whatever it has joined.
    pub(super) fn needs(&self) -> Result<Needs> {
        let open = self.driver.open_captures();
        let noted = |capture: &&Capture| capture.id == self.id;
        let found = open.captures.lock().iter().find(noted).map(|capture| capture.needs.clone());
        let mut needs = found.unwrap_or_default();
        for stream in living_streams(self.driver) {
            if capture_of(self.driver, stream.raw())? == Some(self.id) {
                needs.add_context(stream.context().clone());
            }
        }
        Ok(needs)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let open = self.driver.open_captures();
        let mut list = open.captures.lock();
        let index = list.iter().position(|capture| capture.id == self.id);
        let ended = index.map(|index| list.swap_remove(index));
        open.count.fetch_sub(1, Ordering::Relaxed);
        // Outside of the lock: the last handles of partitions may be among them.
        drop(list);
        drop(ended);
    }
}

/// Notes that a stream of a context ends, whose capture may go on without it. Called before it is destroyed.
#[inline]
pub(crate) fn stream_ends(context: &Context, stream: CUstream) {
    let driver = context.device().driver();
    if driver.open_captures().any() {
        note_end(driver, context, stream);
    }
}

#[cold]
fn note_end(driver: &Driver, context: &Context, stream: CUstream) {
    let noted = add(driver, stream, |needs| needs.add_context(context.clone()));
    if noted.is_err() {
        // It may take part in any of them.
        let mut captures = driver.open_captures().captures.lock();
        captures.iter_mut().for_each(|capture| capture.needs.add_context(context.clone()));
    }
    driver.report(noted);
}

/// Notes that a kernel is about to be launched, which becomes a part of a graph where the stream is being
/// captured.
#[cold]
pub(crate) fn launches_kernel(stream: &Stream, library: &Library) -> Result<()> {
    add(stream.driver(), stream.raw(), |needs| needs.add_library(library))
}

/// Adds to what the capture needs that a stream takes part in, if it does.
#[cold]
fn add(driver: &Driver, stream: CUstream, add: impl FnOnce(&mut Needs)) -> Result<()> {
    let Some(id) = capture_of(driver, stream)? else { return Ok(()) };
    let mut captures = driver.open_captures().captures.lock();
    // Nothing ends under the lock: whatever is added twice is in the list already.
    if let Some(capture) = captures.iter_mut().find(|capture| capture.id == id) {
        add(&mut capture.needs);
    }
    Ok(())
}

/// The streams that may have captured a memset or a copy: the living ones whose raw handles were given out,
/// since memsets and copies are submitted by raw handles only, and those that were cloned. This is the one
/// place that knows how they are found.
fn living_streams(driver: &Driver) -> Vec<Stream> {
    driver.streams().living().into_iter().map(Stream::from_inner).collect()
}

/// The capture that a stream takes part in, if it goes on. The question invalidates no capture (recorded on
/// an H200, driver 580.159.04).
fn capture_of(driver: &Driver, stream: CUstream) -> Result<Option<u64>> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, graph, nodes) = (0, ptr::null_mut(), ptr::null_mut());
    let (edges, count) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the callers keep the stream, the pointers are to live values or null, which is allowed.
    unsafe {
        call!(
            driver.functions()?,
            cuStreamGetCaptureInfo(
                stream,
                &raw mut status,
                &raw mut id,
                graph,
                nodes,
                edges,
                count,
            )
        )
    }?;
    let active = status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    Ok(active.then_some(id))
}
