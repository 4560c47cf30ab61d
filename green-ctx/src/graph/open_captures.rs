//! The needs of open captures: the contexts of streams that took part in a capture and were dropped, and the contexts
//! and libraries of captured kernels.
//!
//! The driver reports the contexts of a graph's nodes as raw handles, and reports the contexts of memsets and copies
//! only from CUDA 13.2 on. A raw handle is useless once its context is gone. The code that ends a capture therefore
//! looks up nothing that could already be gone:
//!
//! - A launch notes its context and its library before the driver is called. If there was no capture then, but another
//!   thread has begun one by the time the driver returns, the launch notes them afterwards. A capture therefore enters
//!   the list before the driver begins it.
//! - When a stream is dropped, the stream's context is noted first. Then the stream leaves the registry, and the
//!   thread waits at the gate (`OpenCaptures::pass_gate`). Only then is the stream destroyed.
//! - The code that ends a capture queries the driver about each stream in the registry, using the stream's raw
//!   handle. The gate's lock is held during each query, so a stream that is in the registry at that time is not
//!   destroyed before the query returns. The code obtains a `Stream` only for the streams that take part in the
//!   capture.
//! - The notes are removed last, after the contexts of the nodes have been looked up.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use green_ctx_sys::{CUstream, CUstream_st, CUstreamCaptureStatus};
use parking_lot::{Mutex, ReentrantMutex};

use super::Needs;
use crate::handle::context::Context;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::raw::Raw;
use crate::work::launch;
use crate::work::library::Library;
use crate::work::stream::{self, EndHooks, Stream};

/// The captures of a driver that were begun through this crate and have not ended.
#[derive(Default)]
pub(crate) struct OpenCaptures {
    /// The number of open captures. While this number is 0, a launch and the drop of a stream read no other field.
    count: AtomicUsize,
    /// The number of captures that were ever begun.
    begun: AtomicUsize,
    captures: Mutex<Vec<Capture>>,
    /// This lock is held while a thread queries the driver about a stream for which the thread has no handle. The
    /// lock is reentrant, because the simulated driver may run the program's host functions during the query, and
    /// these functions may drop streams.
    gate: ReentrantMutex<()>,
}

impl InSlot for OpenCaptures {
    const SLOT: Slot = Slot::OpenCaptures;

    fn make(_driver: &Driver) -> Self {
        OpenCaptures::default()
    }
}

impl Driver {
    /// Returns the driver's open captures.
    #[inline]
    fn open_captures(&self) -> &OpenCaptures {
        self.slot()
    }
}

#[derive(Default)]
struct Capture {
    /// The number of captures that were begun before this one.
    number: usize,
    /// The address of the stream that is captured first.
    origin: usize,
    /// The driver's id of the capture, which is unique in the process (cuda.h, `cuStreamGetCaptureInfo`), or `None`
    /// while the driver begins the capture. Until then, only the first stream takes part.
    id: Option<u64>,
    needs: Needs,
}

impl OpenCaptures {
    /// Returns whether a capture is open.
    #[inline]
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Waits until no thread is querying the driver about a stream that has left the registry. This function is
    /// called before the stream is destroyed.
    ///
    /// A thread queries the driver only about streams that the thread found in the registry after the count was
    /// raised. Finding a stream in the registry takes the registry's lock, and so does removing a stream. So a thread
    /// that has removed its stream sees either the raised count, or a count that was lowered after the query.
    #[inline]
    fn pass_gate(driver: &Driver) {
        let open = driver.open_captures();
        if open.count.load(Ordering::Acquire) != 0 {
            drop(open.gate.lock());
        }
    }
}

/// A capture whose needs are noted until this object is dropped.
pub(super) struct Noted<'a> {
    driver: &'a Driver,
    number: usize,
    /// The driver's id of the capture, once the driver has begun it.
    id: Option<u64>,
}

/// Starts noting the needs of a stream's capture that is about to begin.
pub(super) fn note(stream: &Stream) -> Noted<'_> {
    let (driver, origin) = (stream.driver(), stream.raw().addr());
    launch::CAPTURE.get_or_init(|| launches_kernel);
    stream::END_HOOKS.get_or_init(|| EndHooks { ends: stream_ends, left: OpenCaptures::pass_gate });
    let open = driver.open_captures();
    let number = open.begun.fetch_add(1, Ordering::Relaxed);
    open.captures.lock().push(Capture { number, origin, ..Capture::default() });
    open.count.fetch_add(1, Ordering::SeqCst);
    Noted { driver, number, id: None }
}

impl Noted<'_> {
    /// Looks up the capture that the driver has begun on this stream. Notes nothing if it has already been invalidated.
    pub(super) fn begun(&mut self, stream: &Stream) -> Result<()> {
        self.id = capture_of(self.driver, stream.raw())?;
        if self.id.is_none() {
            drop(self.take());
        }
        let mut captures = self.driver.open_captures().captures.lock();
        let own = captures.iter_mut().find(|capture| capture.number == self.number);
        own.into_iter().for_each(|own| own.id = self.id);
        Ok(())
    }

    /// Returns the contexts of the live streams that take part in the capture. This method must be called before the
    /// capture ends. Until the capture ends, a stream takes part even after another stream has waited for it.
    ///
    /// Only streams whose raw handles were given to other code matter here. Only this crate submits work to all other
    /// streams, and each launch notes its context.
    pub(super) fn participants(&self) -> Result<Needs> {
        let mut needs = Needs::default();
        for address in self.driver.streams().addresses() {
            while self.takes_part(address)? {
                if let Some(stream) = self.driver.streams().find(address) {
                    needs.add_context(Stream::from_inner(stream).context().clone());
                    break;
                }
                // Another thread is dropping the stream's last handle. It notes the context before the stream
                // leaves the registry.
                thread::yield_now();
            }
        }
        Ok(needs)
    }

    /// Returns whether a stream is in the registry and takes part in the capture.
    fn takes_part(&self, address: usize) -> Result<bool> {
        let _gate = self.driver.open_captures().gate.lock();
        if !self.driver.streams().contains(address) {
            return Ok(false);
        }
        // The stream cannot be destroyed before it has passed the gate, which this thread holds.
        let stream = ptr::with_exposed_provenance_mut::<CUstream_st>(address);
        Ok(self.id.is_some() && capture_of(self.driver, stream)? == self.id)
    }

    /// Removes the notes and returns them. After this call, nothing more is noted for the capture.
    pub(super) fn take(&mut self) -> Needs {
        if self.driver.is_forked() {
            // A thread that no longer exists may hold the list's lock forever. The notes belong to the parent.
            return Needs::default();
        }
        let open = self.driver.open_captures();
        let mut captures = open.captures.lock();
        let index = captures.iter().position(|capture| capture.number == self.number);
        let capture = index.map(|index| captures.swap_remove(index));
        drop(captures);
        if capture.is_some() {
            // A thread that reads the lowered count destroys its stream after the questions of this thread.
            open.count.fetch_sub(1, Ordering::Release);
        }
        capture.map(|capture| capture.needs).unwrap_or_default()
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        // Dropped outside the lock, since the last handles of partitions may be among the notes.
        drop(self.take());
    }
}

/// Notes the context of a stream that is being dropped. A capture in which the stream takes part may continue without
/// the stream. This function is called before the stream leaves the registry. The caller reports an error to the
/// clean-up hook after the stream has been removed from the registry.
#[must_use = "a failure is reported when the stream has left the registry"]
fn stream_ends(context: &Context, stream: Raw<CUstream_st>) -> Result<()> {
    if context.device().driver().open_captures().any() {
        note_end(context, stream.as_ptr())
    } else {
        Ok(())
    }
}

#[cold]
fn note_end(context: &Context, stream: CUstream) -> Result<()> {
    let driver = context.device().driver();
    if context.is_being_closed() {
        // `Context::close` has checked that the stream takes part in no capture. It must hold the context's only
        // handle.
        return Ok(());
    }
    add(driver, stream, |needs| needs.add_context(context.clone())).map(drop)
}

/// Notes the context and the library of a kernel that is about to be launched, if a capture needs them, and returns
/// whether one does. If the stream is being captured, the launch becomes part of a graph.
fn launches_kernel(stream: &Stream, library: &Library) -> Result<bool> {
    if !stream.driver().open_captures().any() {
        return Ok(false);
    }
    add(stream.driver(), stream.raw(), |needs| {
        needs.add_context(stream.context().clone());
        needs.add_library(library);
    })
}

/// Calls `add` with the needs of the capture in which a stream takes part, and returns whether there is such a capture.
/// If the driver does not say which capture that is, calls `add` for every open capture.
#[cold]
fn add(driver: &Driver, stream: CUstream, add: impl Fn(&mut Needs)) -> Result<bool> {
    let id = capture_of(driver, stream);
    if matches!(id, Ok(None)) {
        return Ok(false);
    }
    let mut captures = driver.open_captures().captures.lock();
    // No last handle is dropped under the lock: if `add` drops a duplicate, the list holds the same object.
    for capture in captures.iter_mut() {
        let is_one = match (&id, capture.id) {
            (Ok(id), Some(_)) => *id == capture.id,
            (Ok(_), None) => capture.origin == stream.addr(),
            (Err(_), _) => true,
        };
        if is_one {
            add(&mut capture.needs);
        }
    }
    id.map(|_| true)
}

/// Returns the id of the capture in which a stream takes part, if the capture is still valid. The query does not
/// invalidate the capture (recorded on an H200, driver 580.159.04).
fn capture_of(driver: &Driver, stream: CUstream) -> Result<Option<u64>> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, graph, nodes) = (0, ptr::null_mut(), ptr::null_mut());
    let (edges, count) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the callers keep the stream alive. The pointers are to live values, or null, which the function
    // allows.
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
