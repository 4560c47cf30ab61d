//! A stream of green-ctx as a stream of cudarc, and when it ends.
//!
//! cudarc's stream has no place for an owner, and nothing reports when the last `Arc` of it is dropped. So a
//! `CudarcStream` that is dropped while cudarc's memory or handles still use the stream moves to a list. The
//! entry has our stream and one `Arc` of cudarc's, so that no other code can unwrap that `Arc`.
//!
//! While the list has entries for a driver, a hook is registered (`Driver::on_reclaim`). It runs before every
//! split of a device and every close, and releases the entries that only the list still uses.
//!
//! cudarc's stream is made over the device's primary context. A `CudaContext` of a raw handle destroys the
//! context, so none is made for a partition's.
#![allow(unsafe_code, reason = "gives raw handles to cudarc")]

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::{Arc, Weak};

use cudarc::driver::{CudaContext, CudaStream};
use green_ctx::{Driver, Error, Result, Stream, context::Context, driver::ReclaimHook};
use parking_lot::Mutex;

use crate::foreign::{answer, shared};

/// A stream of green-ctx as cudarc's.
///
/// It is used as the `Arc<CudaStream>` that it leads to, and keeps the [`Stream`], and with it the
/// partition, until it is dropped and nothing of cudarc's has that `Arc` any more; the
/// [crate's page](crate) says more.
#[must_use = "dropping it lets go of the stream"]
pub struct CudarcStream {
    kept: ManuallyDrop<Kept>,
}

/// What a [`CudarcStream`] is made of, to be dropped by [`Kept::end`].
struct Kept {
    /// Never unique while anybody else has it: there is always this one.
    theirs: Arc<CudaStream>,
    /// Keeps cudarc in the mode in which it orders streams.
    tracking: Arc<CudaStream>,
    primary: Context,
    ours: Stream,
}

/// A stream whose [`CudarcStream`] is gone and that something of cudarc's still has.
struct Waiting {
    kept: Kept,
    /// Has the driver look for streams that need to wait no longer, while there are any.
    hook: Arc<ReclaimHook>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

/// The streams that keep cudarc ordering streams, one a context: streams that do nothing take room on
/// the device too.
static TRACKING: Mutex<Vec<(Weak<CudaContext>, Weak<CudaStream>)>> = Mutex::new(Vec::new());

/// cudarc's own stream that goes with a context.
fn tracking(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>> {
    // The address is the context's for as long as somebody knows it weakly.
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
    /// A stream as cudarc's, in cudarc's context of the same device. The stream is not cudarc's to
    /// destroy, and stays alive while anything of cudarc's has it.
    ///
    /// The first for a context waits for all of the device's work, as cudarc's first own stream does;
    /// it is made before memory that several streams share. The calling thread's current context
    /// stays what it was.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] where `context` is not the device's primary one
    /// (`CudaContext::new`), where the stream is one of a context that `cuCtxCreate` made, and where
    /// cudarc has loaded another driver library; [`Error::DeviceMismatch`] for a context of another
    /// device, [`Error::Forked`], [`Error::Driver`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use cudarc::driver::CudaContext;
    /// # use green_ctx::{Driver, StreamOptions};
    /// # use green_ctx_cudarc::{CudarcStream, device_of, stream_of};
    /// # let cuda = CudaContext::new(0)?;
    /// # let device = device_of(&Driver::load()?, &cuda)?;
    /// # let group = device.resources().sm()?.split([16])?.groups.remove(0);
    /// let partition = device.create_context(group)?;
    /// let stream = CudarcStream::new(&partition.create_stream(StreamOptions::default())?, &cuda)?;
    /// let memory = stream.alloc_zeros::<f32>(1 << 20)?;
    /// // Both ways around, it is one stream.
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
            let reason = "cudarc's context is not the device's primary one; `CudaContext::new` \
                          gives that";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if !stream.context().is_green() && *stream.context() != primary {
            let reason = "the stream is neither one of a partition nor one of the primary context, \
                          which cudarc's context is";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        let tracking = {
            // cudarc makes its context current, and leaves it there, unless it is already.
            let _current = primary.make_current()?;
            tracking(context)?
        };
        // SAFETY: the stream is alive, and `Kept` keeps it until nobody has the result. A green
        // context's stream works with what is the primary context's (recorded on an H200, driver
        // 580.159.04). It does not order work with that of green-ctx; who submits both does, as with
        // two handles of one stream.
        let theirs = unsafe { context.wrap_borrowed_stream(stream.as_raw().cast()) };
        let kept = Kept { theirs, tracking, primary, ours: stream.clone() };
        Ok(CudarcStream { kept: ManuallyDrop::new(kept) })
    }

    /// The stream that this one is.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.kept.ours
    }

    /// cudarc's object, for what takes an `Arc` of it, such as `CudaBlas::new`. The stream stays
    /// alive while it lives.
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
        // SAFETY: nobody uses the field afterwards.
        let kept = unsafe { ManuallyDrop::take(&mut self.kept) };
        if kept.driver().is_forked() {
            // Nothing of it is this process's, and the list's lock may be held for ever.
            return mem::forget(kept);
        }
        if let Err(kept) = kept.end() {
            kept.wait();
        }
    }
}

impl Kept {
    /// Lets go of everything, unless somebody else has cudarc's object.
    fn end(self) -> Result<(), Kept> {
        let Kept { theirs, tracking, primary, ours } = self;
        // Its last handle, and not only seen to be: nobody can come by another meanwhile.
        let theirs = match Arc::try_unwrap(theirs) {
            Ok(theirs) => theirs,
            Err(theirs) => return Err(Kept { theirs, tracking, primary, ours }),
        };
        let driver = ours.context().device().driver();
        // As it was, the thread's current context stays: cudarc makes its own current before it
        // destroys, unless it is already.
        let current = primary.make_current();
        drop((theirs, tracking));
        driver.report(current.map(drop));
        Ok(())
    }

    fn driver(&self) -> &Driver {
        self.ours.context().device().driver()
    }

    /// Keeps everything until nobody else has cudarc's object.
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
    /// Lets go of the stream, unless it still has to wait.
    fn end(self) -> Option<Waiting> {
        let Waiting { kept, hook } = self;
        kept.end().err().map(|kept| Waiting { kept, hook })
    }
}

/// Lets go of a driver's streams whose [`CudarcStream`] was dropped while something of cudarc's had
/// them, where that is gone now, and returns how many still wait. What could want their SMs does so by
/// itself ([`Driver::on_reclaim`]).
pub fn reclaim(driver: &Driver) -> usize {
    if driver.is_forked() {
        return 0;
    }
    let of_driver = |waiting: &Waiting| waiting.kept.driver() == driver;
    let waiting: Vec<_> = WAITING.lock().extract_if(.., |waiting| of_driver(waiting)).collect();
    // Ended without the lock: that calls the driver.
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
