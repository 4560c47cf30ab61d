//! The contexts whose streams take part in a capture.
//!
//! Before CUDA 13.2 the driver does not report the contexts of memsets and copies, so a graph keeps the
//! context of every stream that was captured into it.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx_sys::{CUstream, CUstreamCaptureStatus};
use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::Driver;
use crate::error::Result;
use crate::error::call;
use crate::stream::Stream;

/// The captures of a driver that have been begun through this crate and not ended.
#[derive(Default)]
pub(crate) struct Captures {
    /// How many there are: this is all that a stream's end pays for while nothing is captured.
    count: AtomicUsize,
    captures: Mutex<Vec<Capture>>,
}

struct Capture {
    /// The driver's number of it, unique in the process (cuda.h, `cuStreamGetCaptureInfo`).
    id: u64,
    /// The contexts of streams that have ended since.
    left: Vec<Context>,
}

/// A capture whose participants are noted, as long as it lives.
pub(super) struct Noted<'a> {
    driver: &'a Driver,
    id: u64,
}

/// Notes the participants of the capture that a stream has begun; `None` where the driver reports the
/// contexts of all nodes.
pub(super) fn note(stream: &Stream) -> Result<Option<Noted<'_>>> {
    let driver = stream.driver();
    if driver.api().cuGraphNodeGetParams().is_ok() {
        return Ok(None);
    }
    let Some(id) = capture_of(driver, stream.raw())? else { return Ok(None) };
    let captures = driver.captures();
    captures.captures.lock().push(Capture { id, left: Vec::new() });
    captures.count.fetch_add(1, Ordering::Relaxed);
    Ok(Some(Noted { driver, id }))
}

impl Noted<'_> {
    /// The contexts of all streams that take part, those that have ended included. Asked before the
    /// capture ends: a stream takes part until then, whatever it has joined.
    pub(super) fn contexts(&self) -> Result<Vec<Context>> {
        let mut contexts = Vec::new();
        for stream in living_streams(self.driver) {
            if capture_of(self.driver, stream.raw())? == Some(self.id) {
                contexts.push(stream.context().clone());
            }
        }
        let captures = self.driver.captures().captures.lock();
        let noted = captures.iter().find(|capture| capture.id == self.id);
        contexts.extend(noted.into_iter().flat_map(|capture| &capture.left).cloned());
        Ok(contexts)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let captures = self.driver.captures();
        let mut list = captures.captures.lock();
        let index = list.iter().position(|capture| capture.id == self.id);
        let ended = index.map(|index| list.swap_remove(index));
        captures.count.fetch_sub(1, Ordering::Relaxed);
        // Outside of the lock: the last handles of partitions may be among them.
        drop(list);
        drop(ended);
    }
}

/// Notes that a stream of a context ends, whose capture may go on without it. Called before it is destroyed.
#[inline]
pub(crate) fn stream_ends(context: &Context, stream: CUstream) {
    let driver = context.device().driver();
    if driver.captures().count.load(Ordering::Relaxed) != 0 {
        note_end(driver, context, stream);
    }
}

#[cold]
fn note_end(driver: &Driver, context: &Context, stream: CUstream) {
    let captures = driver.captures();
    match capture_of(driver, stream) {
        Ok(Some(id)) => {
            let context = context.clone();
            let mut captures = captures.captures.lock();
            if let Some(capture) = captures.iter_mut().find(|capture| capture.id == id) {
                capture.left.push(context);
            }
        }
        Ok(None) => {}
        Err(error) => driver.report(Err(error)),
    }
}

/// The streams that may have captured a memset or a copy: the living ones whose raw handles were given out,
/// since memsets and copies are submitted by raw handles only, and those that were cloned. This is the one place that knows how they
/// are found.
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
            driver.api(),
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
