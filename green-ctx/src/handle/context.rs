//! Contexts: primary contexts and green contexts, behind one type.
#![allow(unsafe_code, reason = "calls the driver")]

mod calls;
mod close;
mod fencing;
mod foreign;
mod guard;
mod guests;
mod handles;
mod ordering;
mod streams;
mod weak;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::{Arc, Weak};

use green_ctx_sys::{
    CUcontext, CUctx_st, CUdevResource, CUdevResourceType, CUgreenCtx, CUgreenCtx_st,
};

use crate::handle::capture::RelaxedCapture;
use crate::handle::current::{self, Scope};
use crate::handle::dev_resource;
use crate::handle::device::Device;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::fence::Fence;
use crate::handle::green::{self, RawGreen};
use crate::handle::group::SmGroup;
use crate::handle::owner::Owner;
use crate::handle::primary::{self, PrimaryRef};
use crate::handle::quarantine::Stuck;
use crate::handle::raw::Raw;
use crate::handle::registry::Registry;
use crate::ledger::WorkqueueConfig;

use calls::Calls;
pub use close::CloseReason;
pub(crate) use close::OwnStream;
use fencing::Fencing;

pub use self::guard::Current;
pub use self::weak::WeakContext;

/// A context: the primary context of a device, or a green context with its own SMs. Clones share the context.
///
/// [`Device::create_context`] creates a green context. When the last handle and the last stream of a green context are
/// dropped, its SMs return to the device. Work that is still running continues. The next owner gets the SMs
/// immediately, and the next owner's work waits on the device for the earlier work. The driver's context is kept for
/// the next partition on the same SMs ([`Device::context_counts`]).
///
/// If the driver cannot record an event for the remaining work, the floor of the partition stays in quarantine until
/// the record succeeds at a later split. The driver refuses the record while a foreign stream of the context is being
/// captured, and the attempt invalidates the capture. While a stream that was [kept alive](crate::Stream::keep_alive)
/// is being captured, this crate does not attempt the record, so the capture stays valid.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// let split = device.resources().sm()?.split([32])?;
/// let group = split.groups.into_iter().next().ok_or("the split has one group")?;
///
/// let context = device.create_context(group)?;
/// let stream = context.create_stream(StreamOptions::default())?;
/// assert_eq!(stream.context(), &context);
///
/// drop(stream);
/// let group = context.close()?.ok_or("a green context has a group")?;
/// assert_eq!(group.sm_count(), 32);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias("CUcontext", "CUgreenCtx"))]
pub struct Context {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: Raw<CUctx_st>,
    /// Declared before `device`, so that the context is dropped before the device on which it depends.
    kind: Kind,
    device: Device,
}

#[allow(clippy::large_enum_variant, reason = "contexts are few, and nearly all are green")]
enum Kind {
    Primary,
    Green(Green),
    /// A context that other code owns and that this crate never destroys.
    Borrowed(Borrowed),
    /// A context that `close` has ended. `drop` has nothing left to do.
    Closed,
}

/// A context that other code owns.
struct Borrowed {
    /// The driver's green context, if the context is one.
    green: Option<Raw<CUgreenCtx_st>>,
    calls: Calls,
    _owner: Owner,
}

struct Green {
    raw: RawGreen,
    calls: Calls,
    group: SmGroup,
    workqueue: Option<WorkqueueConfig>,
    fencing: Fencing,
    /// The context whose workqueues this context uses, or `None` if this context has its own workqueues.
    queues: Option<Context>,
    /// Keeps the primary context alive, and the device initialised.
    primary: Arc<PrimaryShares>,
}

/// The reference to the primary context that a green context holds.
pub(crate) type PrimaryShares = primary::Shares<Context>;

impl InSlot for Registry<Inner> {
    const SLOT: Slot = Slot::Contexts;

    fn make(_driver: &Driver) -> Self {
        Registry::default()
    }
}

impl Driver {
    /// Returns the live [`Context`] of this crate that has this raw handle, or `None` if there is none.
    #[must_use]
    pub fn find_context(&self, raw: CUcontext) -> Option<Context> {
        self.registered(self.contexts(), raw.addr()).map(Context::from_inner)
    }

    pub(crate) fn contexts(&self) -> &Registry<Inner> {
        self.slot()
    }
}

impl Device {
    /// Returns the device's free memory in bytes, as the driver currently reports it. The call retains the primary
    /// context until the call returns.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuMemGetInfo")]
    pub fn free_memory(&self) -> Result<usize> {
        let primary = self.primary_context()?;
        let _scope = current::Scope::enter(self.driver(), primary.as_raw())?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: `free` and `total` are live locals that the driver writes.
        unsafe { call!(self.functions()?, cuMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok(free)
    }

    /// Returns the stream priorities that the device distinguishes, from the highest priority to the lowest: `-5..=0`
    /// on an H200. Streams with lower numbers run first. Other priorities are clamped to this range
    /// ([`StreamOptions::priority`](crate::StreamOptions::priority)). The call retains the primary context until the
    /// call returns.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuCtxGetStreamPriorityRange")]
    pub fn stream_priorities(&self) -> Result<RangeInclusive<i32>> {
        let primary = self.primary_context()?;
        let _scope = current::Scope::enter(self.driver(), primary.as_raw())?;
        let (mut last, mut first) = (0, 0);
        // SAFETY: `last` and `first` are live locals that the driver writes. A context is current while `_scope` lives.
        unsafe {
            call!(self.functions()?, cuCtxGetStreamPriorityRange(&raw mut last, &raw mut first))
        }?;
        Ok(first..=last)
    }

    /// Returns the primary context of the device, which all code in the process shares. The primary context is retained
    /// until its last handle is dropped. The first retain initialises the device, which takes 87 ms on an H200.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let primary = device.primary_context()?;
    /// assert!(!primary.is_green());
    /// assert_eq!(primary.sm_count()?, 132);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn primary_context(&self) -> Result<Context> {
        self.driver().check_process()?;
        if let Some(inner) = self.state().primary.lock().upgrade() {
            return Ok(Context::from_inner(inner));
        }
        let fresh = Context::retain_primary(self)?;
        let mut slot = self.state().primary.lock();
        if let Some(inner) = slot.upgrade() {
            // Another thread stored its context first. Dropping `fresh` releases the reference that it retained.
            drop(slot);
            return Ok(Context::from_inner(inner));
        }
        *slot = fresh.downgrade();
        Ok(fresh)
    }

    /// Returns the reference to the primary context for a green context.
    pub(crate) fn primary_shares(&self) -> Result<Arc<PrimaryShares>> {
        self.driver().check_process()?;
        self.state().primary_shares.shares(|| self.primary_context())
    }

    /// Returns the reference to the primary context for an event.
    pub(crate) fn primary_reference(&self) -> Result<PrimaryRef<Context>> {
        self.driver().check_process()?;
        self.state().primary_shares.reference(|| self.primary_context())
    }

    /// Removes the primary context, which the caller is about to close, from the device's state. Returns false and
    /// changes nothing if other handles exist.
    pub(crate) fn forget_primary(&self, primary: &Arc<Inner>) -> bool {
        let mut slot = self.state().primary.lock();
        // The lock is held, so no other thread can get a new handle from `slot`.
        if Arc::strong_count(primary) > 1 {
            return false;
        }
        let former = mem::take(&mut *slot);
        drop(slot);
        drop(former);
        true
    }
}

impl Context {
    /// Returns a weak reference, which identifies the context and does not keep it alive. The reference stays valid
    /// after the last handle is dropped.
    #[must_use]
    pub fn weak(&self) -> WeakContext {
        WeakContext { inner: self.downgrade() }
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Context {
        Context { inner }
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// Returns whether `other` refers to this context. `other` may refer to a context that was dropped.
    pub(crate) fn is(&self, other: &Weak<Inner>) -> bool {
        ptr::eq(Arc::as_ptr(&self.inner), other.as_ptr())
    }

    pub(crate) fn retain_primary(device: &Device) -> Result<Context> {
        let mut raw = ptr::null_mut();
        // Captures in other contexts stay valid, even if this call initialises the primary context or the release
        // takes it down (measured on an H200, driver 580.159.04).
        // SAFETY: `raw` is a live local that the driver writes, and `device` is one of the driver's devices.
        unsafe {
            call!(device.functions()?, cuDevicePrimaryCtxRetain(&raw mut raw, device.as_raw()))
        }?;
        let raw = Raw::new(raw).ok_or_else(|| Error::null("cuDevicePrimaryCtxRetain"))?;
        let fresh = Arc::new(Inner { raw, kind: Kind::Primary, device: device.clone() });
        // Another thread may have entered an object for the same handle. Dropping `late` releases its reference.
        let (inner, late) = device.driver().contexts().get_or_enter(raw.address(), fresh);
        drop(late);
        Ok(Context { inner })
    }

    /// Returns the context that owns the workqueues that this context uses. Every context that shares workqueues refers
    /// directly to their owner, so no chains of contexts form.
    pub(crate) fn owner_of_queues(&self) -> Context {
        match &self.inner.kind {
            Kind::Green(green) => green.queues.as_ref().unwrap_or(self).clone(),
            _ => self.clone(),
        }
    }

    /// Creates the object that represents a green context. The driver's context was created or reused for `group`.
    /// `queues` is the context that owns the workqueues, or `None` if the new context has its own. `work` is the fence
    /// of a context that takes turns on its SMs with other contexts.
    pub(crate) fn of_green(
        raw: RawGreen,
        group: SmGroup,
        workqueue: Option<WorkqueueConfig>,
        queues: Option<Context>,
        primary: Arc<PrimaryShares>,
        work: Option<Fence>,
    ) -> Context {
        let device = group.device().clone();
        let green = Green {
            raw,
            calls: Calls::default(),
            fencing: Fencing::new(group.fences(), work),
            group,
            workqueue,
            queues,
            primary,
        };
        Context::enter(Inner { raw: raw.context, kind: Kind::Green(green), device })
    }

    fn enter(inner: Inner) -> Context {
        let inner = Arc::new(inner);
        inner.device.driver().contexts().enter(inner.raw.address(), &inner);
        Context { inner }
    }

    /// Returns the device that the context is on.
    #[must_use]
    #[inline]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns whether this is a green context.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.inner.green().is_some()
    }

    /// Returns the driver's identifier of the context, which profilers also report. The driver never gives two contexts
    /// the same identifier (cuda.h). A partition that reuses an earlier partition's context has the same identifier as
    /// the earlier partition. [`weak`](Context::weak) distinguishes such partitions.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuCtxGetId")]
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: `self` keeps the context alive, and `id` is a live local that the driver writes.
        unsafe { call!(self.device().functions()?, cuCtxGetId(self.raw(), &raw mut id)) }?;
        Ok(id)
    }

    /// Returns the group of SMs that the context owns. Returns `None` for a primary context, which runs on all SMs, and
    /// for a borrowed context, whose SMs are in no ledger.
    #[must_use]
    pub fn group(&self) -> Option<&SmGroup> {
        match &self.inner.kind {
            Kind::Green(green) => Some(&green.group),
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }

    /// Returns the name of the context in reports: the name of its group, or `primary` or `borrowed` if the context has
    /// no group.
    #[must_use]
    pub fn label(&self) -> &str {
        match self.group() {
            Some(group) => group.name(),
            None if self.is_green() => "borrowed",
            None => "primary",
        }
    }

    /// Returns the driver's handle. For a green context, this is the result of `cuCtxFromGreenCtx`.
    ///
    /// The caller can use this handle to submit work to the context's default stream. This method therefore makes the
    /// default stream wait for earlier work on the SMs, as the other streams of the context do. If that wait cannot be
    /// set up, the error is passed to the hook of [`Driver::on_cleanup_failure`].
    #[must_use]
    #[doc(alias = "cuCtxFromGreenCtx")]
    pub fn as_raw(&self) -> CUcontext {
        self.device().driver().report(self.expose());
        self.raw()
    }

    /// Returns the driver's handle, for calls that submit no work to the default stream.
    #[inline]
    pub(crate) fn raw(&self) -> CUcontext {
        self.inner.raw.as_ptr()
    }

    /// Returns the driver's handle of a green context, or `None` for a context that is not green. Has the same effect
    /// on the default stream as [`as_raw`](Context::as_raw).
    #[must_use]
    pub fn as_raw_green(&self) -> Option<CUgreenCtx> {
        self.device().driver().report(self.expose());
        self.raw_green()
    }

    /// Returns the driver's handle of a green context, for calls that submit no work to the default stream.
    pub(crate) fn raw_green(&self) -> Option<CUgreenCtx> {
        self.inner.green().map(|(raw, _)| raw.as_ptr())
    }

    /// Blocks the calling thread until all work of this context is done. For a primary context, the call also waits for
    /// the work of the device's green contexts (cuda.h), except for [their
    /// graphs](crate::guide::graphs#where-to-launch). Captures in other contexts stay valid.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], including errors raised by the work. If a stream of this context is being captured, the call
    /// fails and invalidates the capture.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim, event::EventOptions};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition([32])?;
    /// let event = device.create_event(EventOptions::default())?;
    /// parts[0].stream().record(&event)?;
    /// parts[0].context().synchronize()?;
    /// assert!(event.is_complete()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        synchronize(self.device(), self.inner.raw)
    }

    /// Returns the resource of type `kind` that the context was created with.
    pub(crate) fn dev_resource(&self, kind: CUdevResourceType) -> Result<CUdevResource> {
        let api = self.device().functions()?;
        if let Some(found) = self.with_green(|green| dev_resource::of_green(api, green, kind)) {
            return found;
        }
        // SAFETY: `self` keeps the context alive, and `api` is the function table of the context's driver.
        unsafe { dev_resource::of_raw_context(api, self.as_raw(), kind) }
    }

    /// Calls `call` with the raw green context, under the lock for driver calls on that green context. Returns `None`
    /// for a context that is not green.
    #[inline]
    pub(crate) fn with_green<R>(&self, call: impl FnOnce(Raw<CUgreenCtx_st>) -> R) -> Option<R> {
        self.inner.green().map(|(raw, calls)| {
            let _one_at_a_time = calls.turn();
            call(raw)
        })
    }

    /// Destroys a stream of this context. If threads have contended for the lock of a green context, `destroy` runs
    /// under that lock.
    #[inline]
    pub(crate) fn destroy_stream(&self, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        let green = self.inner.green();
        let _in_turn = green.and_then(|(_, calls)| calls.turn_if_contended());
        destroy()
    }
}

impl Inner {
    /// Returns the green context and the lock for calls on it, or `None` if the context is not green.
    #[inline]
    fn green(&self) -> Option<(Raw<CUgreenCtx_st>, &Calls)> {
        match &self.kind {
            Kind::Green(green) => Some((green.raw.green, &green.calls)),
            Kind::Borrowed(borrowed) => borrowed.green.map(|raw| (raw, &borrowed.calls)),
            Kind::Primary | Kind::Closed => None,
        }
    }

    /// Releases the reference that `retain_primary` took.
    fn release(&self) -> Result<()> {
        // SAFETY: this object owns one reference to the primary context. That reference is released once: in `drop`, or
        // by a close that succeeds and then sets `kind` to `Closed`.
        unsafe { call!(self.device.functions()?, cuDevicePrimaryCtxRelease(self.device.as_raw())) }
    }
}

/// Blocks the calling thread until all work of a context is done. The caller keeps the context alive.
fn synchronize(device: &Device, context: Raw<CUctx_st>) -> Result<()> {
    let driver = device.driver();
    let _relaxed = RelaxedCapture::enter(driver)?;
    let _scope = Scope::enter(driver, context.as_ptr())?;
    // SAFETY: the call has no arguments, and the context is current while `_scope` lives.
    unsafe { call!(driver.functions()?, cuCtxSynchronize()) }
        .inspect_err(|error| device.note(error))
}

impl Green {
    /// Makes the driver's context available for reuse by the next partition on the same SMs.
    fn leave(&mut self, device: &Device) {
        // The gate stream belongs to the context, so it must be destroyed before the context is given away.
        self.fencing.end_guests();
        let (placement, sm_count) = (self.group.placement(), self.group.sm_count());
        green::leave(device, self.raw, placement, self.workqueue, sm_count);
    }

    /// Ends a green context whose last handle is dropped. Only `drop` calls this function, once. Afterwards the raw
    /// handles are invalid or belong to the recycler, and dropping the fields does not use them.
    fn give_up(&mut self, device: &Device) {
        let driver = device.driver();
        // The next owner must not find its context current on this thread, where work could be submitted with it. The
        // driver does not report contexts deeper on this thread's stack, or on the stacks of other threads.
        let primary = self.primary.context().raw();
        driver.report(current::replace(driver, self.raw.context.as_ptr(), primary));
        // Recording would invalidate a capture of foreign code, so in that case it is postponed.
        let is_captured = matches!(self.has_kept_captures(device), Ok(true));
        let recorded = (!is_captured).then(|| self.record(device));
        // A record of the context's own work may cover neither the fences that it still waits for nor graphs
        // that other contexts launched in it.
        self.group.add_fences(self.fencing.take_pending());
        let guests = self.fencing.record_guests(driver);
        self.group.add_fences(guests);
        self.fencing.end_guests();
        match recorded {
            Some(Ok(running)) => {
                self.group.add_fences(running);
                self.leave(device);
            }
            Some(Err(error)) => {
                driver.report(Err(error));
                self.give_up_unrecorded(device);
            }
            None => self.quarantine(device),
        }
    }

    /// Ends a context whose work could not be recorded. If that work is still running, the SMs are put into quarantine,
    /// since it is unknown when the work will end.
    fn give_up_unrecorded(&mut self, device: &Device) {
        let done = synchronize(device, self.raw.context);
        if done.is_ok() || device.has_failed() {
            device.driver().report(done);
            // No work is running. The reason for the failed record is unknown, so the context is not reused.
            return green::end(device, self.raw.green);
        }
        self.quarantine(device);
    }

    /// Puts the SMs into quarantine until the context's work has been recorded.
    fn quarantine(&mut self, device: &Device) {
        let (placement, sm_count) = (self.group.placement().clone(), self.group.sm_count());
        let kept = device.state().kept.keeps(self.raw.green);
        let stuck = Stuck { placement, workqueue: self.workqueue, sm_count, kept, raw: self.raw };
        self.group.quarantine(vec![stuck]);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.device.driver().is_forked() {
            // The contents belong to the parent process, above all the group of SMs.
            return mem::forget(mem::replace(&mut self.kind, Kind::Closed));
        }
        // Remove the entry before ending the context: another thread may get the same handle immediately.
        self.device.driver().contexts().forget(self.raw.address(), self);
        match &mut self.kind {
            // Dropping the field returns the group's SMs afterwards.
            Kind::Green(green) => green.give_up(&self.device),
            Kind::Primary => self.device.driver().report(self.release()),
            Kind::Borrowed(_) | Kind::Closed => {}
        }
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Context {}

impl Hash for Context {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device().ordinal())
            .field("group", &self.group())
            .finish_non_exhaustive()
    }
}
