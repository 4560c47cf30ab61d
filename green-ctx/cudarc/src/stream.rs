//! A stream of green-ctx as a stream of cudarc, and when it ends.
//!
//! cudarc's stream cannot hold an owner, and nothing reports when its last `Arc` is dropped. So a `CudarcStream`
//! that is dropped while cudarc's memory or handles still use the stream moves to a list. The entry holds our
//! stream and one `Arc` of cudarc's, so that no other code can unwrap that `Arc`.
//!
//! While the list has entries for a driver, a hook is registered (`Driver::on_reclaim`). It runs before every split
//! of a device and every close, and releases the entries that only the list still uses.
//!
//! cudarc's stream is made over the device's primary context. A `CudaContext` of a raw handle destroys the context,
//! so none is made for a partition's context.
#![allow(unsafe_code, reason = "gives raw handles to cudarc")]

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::{Arc, Weak};

use cudarc::driver::{CudaContext, CudaStream};
use green_ctx::{Driver, Error, Result, Stream, context::Context, driver::ReclaimHook};
use parking_lot::Mutex;

use crate::foreign::{answer, shared};

/// A stream of green-ctx as a stream of cudarc.
///
/// It dereferences to an `Arc<CudaStream>`. The [`Stream`] and its partition stay alive until this object is
/// dropped and no object of cudarc holds that `Arc`. The [crate's page](crate) explains the details.
#[must_use = "dropping it lets go of the stream"]
pub struct CudarcStream {
    kept: ManuallyDrop<Kept>,
}

/// The parts of a [`CudarcStream`]. [`Kept::end`] drops them.
struct Kept {
    /// Since this `Arc` exists, no other holder of cudarc's object can unwrap it.
    theirs: Arc<CudaStream>,
    /// A stream of cudarc, unused. While it exists, cudarc orders accesses from several streams.
    tracking: Arc<CudaStream>,
    primary: Context,
    ours: Stream,
}

/// A stream whose [`CudarcStream`] was dropped while an object of cudarc still uses it.
struct Waiting {
    kept: Kept,
    /// While it exists, the driver calls [`reclaim`] before splits and closes.
    hook: Arc<ReclaimHook>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

/// The unused streams that make cudarc order accesses, one per context: each stream takes memory on the device.
static TRACKING: Mutex<Vec<(Weak<CudaContext>, Weak<CudaStream>)>> = Mutex::new(Vec::new());

/// Returns the unused stream of a cudarc context, or creates it.
fn tracking(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>> {
    // While a `Weak` exists, no other context gets this address.
    let of_context = |(known, _): &&(Weak<CudaContext>, _)| known.as_ptr() == Arc::as_ptr(context);
    let found = TRACKING.lock().iter().filter(of_context).find_map(|(_, stream)| stream.upgrade());
    if let Some(stream) = found {
        return Ok(stream);
    }
    let stream = answer("CudaContext::new_stream", context.new_stream())?;
    let mut known = TRACKING.lock();
    known.retain(|(_, stream)| stream.strong_count() > 0);
    known.push((Arc::downgrade(context), Arc::downgrade(&stream)));
    Ok(stream)
}

impl CudarcStream {
    /// Creates a cudarc stream from `stream`, in cudarc's context of the same device. cudarc does not destroy the
    /// stream, which stays alive while an object of cudarc uses it.
    ///
    /// The first call for a context waits for all of the device's work, as cudarc's own first stream does. Make it
    /// before allocating memory that several streams share. The calling thread's current context does not change.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidRequest`] if `context` is not the device's primary context (`CudaContext::new`), if the
    ///   stream belongs to a context that `cuCtxCreate` created, or if cudarc has loaded another driver library.
    /// - [`Error::DeviceMismatch`] if `context` belongs to another device.
    /// - [`Error::Forked`] in a forked process, and [`Error::Driver`] if a driver call fails.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use cudarc::driver::CudaContext;
    /// # use green_ctx::Driver;
    /// # use green_ctx_cudarc::{CudarcStream, device_of, stream_of};
    /// # let cuda = CudaContext::new(0)?;
    /// # let device = device_of(&Driver::load()?, &cuda)?;
    /// let parts = device.partition([16])?;
    /// let stream = CudarcStream::new(parts[0].stream(), &cuda)?;
    /// let memory = stream.alloc_zeros::<f32>(1 << 20)?;
    /// // The conversion back gives the same stream.
    /// assert_eq!(&stream_of(device.driver(), &stream)?, stream.stream());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(stream: &Stream, context: &Arc<CudaContext>) -> Result<CudarcStream> {
        let device = stream.context().device();
        let driver = device.driver();
        reclaim(driver);
        let (theirs, primary) = shared(driver, context)?;
        if theirs != *device {
            return Err(Error::DeviceMismatch { what: "the stream and cudarc's context" });
        }
        if context.cu_ctx().addr() != primary.as_raw().addr() {
            let reason = "cudarc's context is not the device's primary context; create it with \
                          `CudaContext::new`";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if !stream.context().is_green() && *stream.context() != primary {
            let reason = "the stream belongs neither to a partition nor to the primary context; \
                          pass a stream of one of them";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        let tracking = {
            // cudarc makes its context current and leaves it so, unless the context is already current.
            let _current = primary.make_current()?;
            tracking(context)?
        };
        // SAFETY: `stream` keeps the raw stream alive, and `Kept` holds it until no other code has the result. The
        // stream of a green context works with objects of the primary context (recorded on an H200, driver
        // 580.159.04). Work that is submitted through both objects is in the order of submission, since both have
        // the same raw stream.
        let theirs = unsafe { context.wrap_borrowed_stream(stream.as_raw().cast()) };
        let kept = Kept { theirs, tracking, primary, ours: stream.clone() };
        Ok(CudarcStream { kept: ManuallyDrop::new(kept) })
    }

    /// Returns the green-ctx stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.kept.ours
    }

    /// Returns the cudarc stream, for functions that take an `Arc` of it, such as `CudaBlas::new`. The stream stays
    /// alive while the `Arc` exists.
    #[must_use]
    pub fn cudarc(&self) -> Arc<CudaStream> {
        Arc::clone(&self.kept.theirs)
    }
}

impl Deref for CudarcStream {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        &self.kept.theirs
    }
}

impl Drop for CudarcStream {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and the field is not used after it.
        let kept = unsafe { ManuallyDrop::take(&mut self.kept) };
        if kept.driver().is_forked() {
            // The child owns none of this, and a thread that no longer exists may hold the list's lock.
            return mem::forget(kept);
        }
        if let Err(kept) = kept.end() {
            kept.wait();
        }
    }
}

impl Kept {
    /// Drops everything, or returns `self` if other code holds cudarc's object.
    fn end(self) -> Result<(), Kept> {
        let Kept { theirs, tracking, primary, ours } = self;
        // `try_unwrap` takes the only `Arc`. Merely counting would be a race, since another holder could clone it
        // afterwards.
        let theirs = match Arc::try_unwrap(theirs) {
            Ok(theirs) => theirs,
            Err(theirs) => return Err(Kept { theirs, tracking, primary, ours }),
        };
        let driver = ours.context().device().driver();
        // cudarc makes its context current before it destroys a stream, unless that context is already current. The
        // guard restores the thread's current context.
        let current = primary.make_current();
        drop((theirs, tracking));
        driver.report(current.map(drop));
        Ok(())
    }

    fn driver(&self) -> &Driver {
        self.ours.context().device().driver()
    }

    /// Moves `self` to the list, where it stays until no other code holds cudarc's object.
    fn wait(self) {
        let mut list = WAITING.lock();
        let known = list.iter().find(|waiting| waiting.kept.driver() == self.driver());
        let hook = match known {
            Some(waiting) => Arc::clone(&waiting.hook),
            None => Arc::new(self.driver().on_reclaim(|driver| {
                reclaim(driver);
            })),
        };
        list.push(Waiting { kept: self, hook });
    }
}

impl Waiting {
    /// Drops the stream, or returns `self` if it still has to wait.
    fn end(self) -> Option<Waiting> {
        let Waiting { kept, hook } = self;
        kept.end().err().map(|kept| Waiting { kept, hook })
    }
}

/// Releases streams whose [`CudarcStream`] was dropped earlier, if no object of cudarc uses them now. Returns the
/// number of the driver's streams that are still in use.
///
/// Programs rarely need to call this: every operation that could need the SMs of these streams calls it first
/// ([`Driver::on_reclaim`]).
pub fn reclaim(driver: &Driver) -> usize {
    if driver.is_forked() {
        return 0;
    }
    let of_driver = |waiting: &Waiting| waiting.kept.driver() == driver;
    let waiting: Vec<_> = WAITING.lock().extract_if(.., |waiting| of_driver(waiting)).collect();
    // Dropped outside the lock, since this calls the driver.
    let waiting: Vec<_> = waiting.into_iter().filter_map(Waiting::end).collect();
    let mut list = WAITING.lock();
    list.extend(waiting);
    list.iter().filter(|waiting| of_driver(waiting)).count()
}

impl fmt::Debug for CudarcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudarcStream").field("stream", self.stream()).finish_non_exhaustive()
    }
}
