//! Cudarc streams that wrap green-ctx streams, and their release.
//!
//! cudarc's stream cannot hold an owner, and nothing reports when its last `Arc` is dropped. If a `CudarcStream` is
//! dropped while cudarc's memory or handles still use the stream, its contents move to a list. The list entry holds
//! the green-ctx stream and one `Arc` of the cudarc stream, so no other holder can unwrap its own `Arc`.
//!
//! While the list has entries for a driver, a hook is registered (`Driver::on_reclaim`). The hook runs before every
//! split of a device, and before every call that closes an object. It releases each entry whose cudarc stream has no
//! other holder. An entry leaves the list when its release begins, but its SMs become free only when the release ends,
//! so a second thread's hook waits for the first thread's.
//!
//! The cudarc stream is created in the device's primary context. A `CudaContext` that was created from a raw handle
//! destroys the context, so this crate never creates one for a partition's context.
#![allow(unsafe_code, reason = "passes raw handles to cudarc")]

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use green_ctx::{Driver, Error, Result, Stream, context::Context, driver::ReclaimHook};
use parking_lot::{Mutex, ReentrantMutex};

use crate::foreign::{answer, shared};

/// A cudarc stream that submits work to a green-ctx stream.
///
/// This type dereferences to an `Arc<CudaStream>`. The [`Stream`] and its partition stay alive until this object
/// and every other holder of that `Arc` are dropped. The [crate documentation](crate) explains the details.
#[must_use = "dropping it releases the stream"]
pub struct CudarcStream {
    kept: ManuallyDrop<Kept>,
}

/// The parts of a [`CudarcStream`].
struct Kept {
    /// While this `Arc` exists, no other holder of the cudarc stream can unwrap its own `Arc`.
    theirs: Arc<CudaStream>,
    needs: Needs,
}

/// The objects that must outlive a cudarc stream. [`Needs::end`] drops them.
struct Needs {
    /// An unused cudarc stream. cudarc orders accesses from several streams only while such a stream exists.
    tracking: Arc<CudaStream>,
    primary: Context,
    ours: Stream,
}

/// A stream that cudarc objects still use although its [`CudarcStream`] was dropped.
struct Waiting {
    /// `None` once no other code holds the cudarc stream.
    theirs: Option<Arc<CudaStream>>,
    needs: Needs,
    /// While this hook exists, the driver calls [`reclaim`] before splits and closes.
    hook: Arc<ReclaimHook>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

/// Held while a thread releases streams. The lock is reentrant, because a release can run the program's code, such as
/// the clean-up hook or the owner of a borrowed stream, and that code may split.
static RELEASING: ReentrantMutex<()> = ReentrantMutex::new(());

/// How long [`reclaim`] waits for another thread's releases. They take microseconds, unless one of them runs code of
/// the program that waits for the calling thread, and an unlimited wait would then be a deadlock.
const PATIENCE: Duration = Duration::from_secs(1);

/// The unused streams that make cudarc order accesses. There is only one per context, because each stream takes
/// device memory.
static TRACKING: Mutex<Vec<(Weak<CudaContext>, Weak<CudaStream>)>> = Mutex::new(Vec::new());

/// Returns the unused stream of a cudarc context, and creates it if it does not exist.
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
    /// Creates a cudarc stream from `stream`, in cudarc's context of the same device. `stream` stays alive while a
    /// cudarc object uses it, and cudarc does not destroy it.
    ///
    /// The first call for a context waits for all work on the device, as the creation of cudarc's own first stream
    /// does. Make this first call before you allocate memory that several streams share. The calling thread's
    /// current context does not change.
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
        // SAFETY: `stream` keeps the raw stream alive, and `Kept` holds a clone of `stream` until no other code
        // holds the result. The stream of a green context works with objects of the primary context (recorded on an
        // H200, driver 580.159.04). Work submitted through the cudarc stream and through `stream` runs in the order
        // of submission, because both use the same raw stream.
        let theirs = unsafe { context.wrap_borrowed_stream(stream.as_raw().cast()) };
        let kept = Kept { theirs, needs: Needs { tracking, primary, ours: stream.clone() } };
        Ok(CudarcStream { kept: ManuallyDrop::new(kept) })
    }

    /// Returns the green-ctx stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.kept.needs.ours
    }

    /// Returns the cudarc stream, for functions that take an `Arc<CudaStream>`, such as `CudaBlas::new`. The stream
    /// stays alive while the `Arc` exists.
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
        // SAFETY: `drop` runs once, and the field is not used afterwards.
        let kept = unsafe { ManuallyDrop::take(&mut self.kept) };
        if kept.needs.driver().is_forked() {
            // The child owns none of this, and a thread that no longer exists may hold the list's lock.
            return mem::forget(kept);
        }
        let Kept { theirs, needs } = kept;
        match still_used(theirs) {
            None => needs.end(),
            Some(theirs) => needs.wait(theirs),
        }
    }
}

/// Drops a cudarc stream, or returns it if other code holds it. The drop calls no driver function, because the stream
/// is borrowed and [`Needs::tracking`] holds its context.
fn still_used(theirs: Arc<CudaStream>) -> Option<Arc<CudaStream>> {
    // `try_unwrap` takes the only `Arc`. Merely counting would be a race, since another holder could clone it
    // afterwards.
    Arc::try_unwrap(theirs).err()
}

impl Needs {
    /// Drops all fields.
    fn end(self) {
        let Needs { tracking, primary, ours } = self;
        let driver = ours.context().device().driver();
        // cudarc makes its context current before it destroys a stream, unless that context is already current. The
        // guard restores the thread's current context.
        let current = primary.make_current();
        drop(tracking);
        driver.report(current.map(drop));
    }

    fn driver(&self) -> &Driver {
        self.ours.context().device().driver()
    }

    /// Moves `self` to the list, where it stays until no other code holds the cudarc stream.
    fn wait(self, theirs: Arc<CudaStream>) {
        let mut list = WAITING.lock();
        let known = list.iter().find(|waiting| waiting.needs.driver() == self.driver());
        let hook = match known {
            Some(waiting) => Arc::clone(&waiting.hook),
            None => Arc::new(self.driver().on_reclaim(|driver| {
                reclaim(driver);
            })),
        };
        list.push(Waiting { theirs: Some(theirs), needs: self, hook });
    }
}

impl Waiting {
    /// Returns whether no other code holds the cudarc stream. If the answer is `true`, it stays true.
    fn is_unused(&mut self) -> bool {
        self.theirs = self.theirs.take().and_then(still_used);
        self.theirs.is_none()
    }

    /// Releases the stream. The hook is removed last, so that other threads wait until the SMs are free.
    fn end(self) {
        let Waiting { theirs: _, needs, hook } = self;
        needs.end();
        drop(hook);
    }
}

/// Releases each stream whose [`CudarcStream`] was dropped earlier and that no cudarc object still uses. Returns
/// the number of the driver's dropped streams that are still in use.
///
/// If another thread is releasing streams, this function first waits for that thread. It stops waiting after a second,
/// since the other thread may be running code of the program that waits for the calling thread.
///
/// Programs rarely need to call this: every operation that could need the SMs of these streams calls this function
/// first ([`Driver::on_reclaim`]).
pub fn reclaim(driver: &Driver) -> usize {
    if driver.is_forked() {
        return 0;
    }
    let releasing = RELEASING.try_lock_for(PATIENCE);
    let of_driver = |waiting: &Waiting| waiting.needs.driver() == driver;
    let next = || {
        let mut list = WAITING.lock();
        list.extract_if(.., |waiting| of_driver(waiting) && waiting.is_unused()).next()
    };
    // One at a time, so that the other streams stay in the list, where a split in the middle of a release finds them.
    // Released outside the list's lock, since this calls the driver.
    while let Some(unused) = next() {
        unused.end();
    }
    drop(releasing);
    WAITING.lock().iter().filter(|waiting| of_driver(waiting)).count()
}

impl fmt::Debug for CudarcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudarcStream").field("stream", self.stream()).finish_non_exhaustive()
    }
}
