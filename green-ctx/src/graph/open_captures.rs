//! The needs of open captures: the contexts of streams that took part and ended, and the contexts and libraries of
//! kernels that were launched into them.
//!
//! The driver reports the contexts of a graph's nodes by raw handles, and those of memsets and copies only from
//! CUDA 13.2 on. A raw handle means nothing once its context is gone. So the end of a capture looks nothing up that
//! could be gone by that time:
//!
//! - A launch notes its context and its library first.
//! - A stream that ends notes its context first, then leaves the registry, and then passes the gate. After that it
//!   is destroyed.
//! - The end of a capture asks the driver about each stream of the registry by its raw handle, and holds the gate
//!   during the question: a stream that is still in the registry at that moment is not destroyed before the answer.
//!   It takes a handle only of the streams that take part.
//! - It takes the notes out last, after it has looked up the contexts of the nodes.
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
    /// The number of open captures. While it is 0, launches and ending streams read nothing else.
    count: AtomicUsize,
    captures: Mutex<Vec<Capture>>,
    /// Held during a question about a stream, if the asking thread has no handle of the stream. Reentrant, because the
    /// simulated driver may run functions of the program during the question, and these may drop streams.
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

struct Capture {
    /// The driver's number of the capture, unique in the process (cuda.h, `cuStreamGetCaptureInfo`).
    id: u64,
    needs: Needs,
}

impl OpenCaptures {
    /// Returns whether a capture is open.
    #[inline]
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Waits until no thread is asking about a stream that has left the registry. Called before the stream is
    /// destroyed.
    ///
    /// A thread asks only about streams that it found in the registry after the count was raised. Finding a stream
    /// and leaving the registry both take the registry's lock. So a thread whose stream has left sees either the
    /// raised count, or a count that was lowered after the question.
    #[inline]
    fn pass_gate(driver: &Driver) {
        let open = driver.open_captures();
        if open.count.load(Ordering::Acquire) != 0 {
            drop(open.gate.lock());
        }
    }
}

/// An open capture whose needs are noted until this is dropped.
pub(super) struct Noted<'a> {
    driver: &'a Driver,
    id: u64,
}

/// Starts noting the needs of a stream's capture. Returns `None` if the capture has already been invalidated.
pub(super) fn note(stream: &Stream) -> Result<Option<Noted<'_>>> {
    let driver = stream.driver();
    let Some(id) = capture_of(driver, stream.raw())? else { return Ok(None) };
    launch::CAPTURE.get_or_init(|| launches_kernel);
    stream::END_HOOKS.get_or_init(|| EndHooks { ends: stream_ends, left: OpenCaptures::pass_gate });
    let open = driver.open_captures();
    open.captures.lock().push(Capture { id, needs: Needs::default() });
    open.count.fetch_add(1, Ordering::Relaxed);
    Ok(Some(Noted { driver, id }))
}

impl Noted<'_> {
    /// Returns the contexts of the live streams that take part. Must be called before the capture ends, since a
    /// stream takes part until then, even after another stream has waited for it.
    ///
    /// Only streams whose raw handles were given out matter here. Work on all other streams is submitted by this
    /// crate, and a launch notes its context.
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
        Ok(capture_of(self.driver, stream)? == Some(self.id))
    }

    /// Takes the notes out. From now on nothing is noted for the capture.
    pub(super) fn take(&mut self) -> Needs {
        let open = self.driver.open_captures();
        let mut captures = open.captures.lock();
        let index = captures.iter().position(|capture| capture.id == self.id);
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

/// Notes the context of a stream that ends. A capture that the stream takes part in may continue without it. Called
/// before the stream leaves the registry. The caller reports an error to the clean-up hook after the stream has been
/// removed from the registry.
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
    let noted = add(driver, stream, |needs| needs.add_context(context.clone()));
    if noted.is_err() {
        // The driver did not say which capture the stream takes part in, so every open capture notes the context.
        let mut captures = driver.open_captures().captures.lock();
        captures.iter_mut().for_each(|capture| capture.needs.add_context(context.clone()));
    }
    noted
}

/// Notes that a kernel is about to be launched. If the stream is being captured, the launch becomes part of a
/// graph.
fn launches_kernel(stream: &Stream, library: &Library) -> Result<()> {
    if !stream.driver().open_captures().any() {
        return Ok(());
    }
    add(stream.driver(), stream.raw(), |needs| {
        needs.add_context(stream.context().clone());
        needs.add_library(library);
    })
}

/// Adds to the needs of the capture that a stream takes part in, if there is one.
#[cold]
fn add(driver: &Driver, stream: CUstream, add: impl FnOnce(&mut Needs)) -> Result<()> {
    let Some(id) = capture_of(driver, stream)? else { return Ok(()) };
    let mut captures = driver.open_captures().captures.lock();
    // No last handle is dropped under the lock: if `add` drops a duplicate, the list holds the same object.
    if let Some(capture) = captures.iter_mut().find(|capture| capture.id == id) {
        add(&mut capture.needs);
    }
    Ok(())
}

/// Returns the capture that a stream takes part in, if the capture is still valid. The query invalidates no capture
/// (recorded on an H200, driver 580.159.04).
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
