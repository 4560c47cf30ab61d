//! Contexts: primary contexts and green contexts, behind one type.
#![allow(unsafe_code, reason = "calls the driver")]

mod close;
mod foreign;
mod guard;
mod guests;
mod lease;
mod ordering;
mod stream;
mod weak;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use green_ctx_sys::{CUcontext, CUctx_st, CUdevResource, CUdevResourceType, CUgreenCtx, Rest};

use crate::handle::capture::RelaxedCapture;
use crate::handle::current::{self, Scope};
use crate::handle::dev_resource;
use crate::handle::device::Device;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::fence::Fence;
use crate::handle::green::{Green, Turn};
use crate::handle::group::SmGroup;
use crate::handle::owner::Owner;
use crate::handle::primary::{self, PrimaryRef};
use crate::handle::raw::Raw;
use crate::handle::registry::Registry;
use crate::handle::report::{self, Held};

pub use close::CloseReason;
pub(crate) use close::when_alone;
use lease::Lease;
pub(crate) use stream::ContextStream;

pub use self::guard::Current;
pub use self::weak::WeakContext;

/// A context: the primary context of a device, or a green context with its own SMs. Clones share the context.
///
/// [`Device::create_context`] creates a green context. When the last handle and the last stream of a green context are
/// dropped, its SMs return to the device. Work that is still running continues. The next owner gets the SMs
/// immediately, and the next owner's work waits on the device for the earlier work. The driver's context is kept for
/// the next partition on the same SMs ([`Device::context_counts`]).
///
/// If the driver can neither record an event for the remaining work nor wait for it, no floor can get the partition's
/// SMs until the record succeeds at a later split: they are in quarantine. The driver refuses the record while a
/// foreign stream of the context is being captured, and the attempt invalidates the capture. While a stream that was
/// [kept alive](crate::Stream::keep_alive) is being captured, this crate does not attempt the record, so the capture
/// stays valid.
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
    /// The driver's green context, or `None` for a context that is not green.
    green: Option<Arc<Green>>,
    /// Set while the context belongs to a partition. A context of this crate has no lease if other code wrapped its
    /// handle while the driver's context was idle. The next partition on its SMs then leases this object.
    lease: OnceLock<Lease>,
    /// Set for a primary context, to which this object has a reference.
    is_retained: bool,
    /// Keeps a foreign context alive, which this crate never destroys.
    owner: Option<Owner>,
    /// Declared last, so that the context is dropped before the device on which it depends.
    device: Device,
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
        let known = self.state().primary.load(Ordering::Relaxed);
        let known = self.driver().contexts().find(known).map(Context::from_inner);
        // After the primary context was taken down, its address may belong to another context.
        let is_own = |context: &Context| context.inner.is_retained && context.device() == self;
        if let Some(context) = known.filter(is_own) {
            return Ok(context);
        }
        let context = Context::retain_primary(self)?;
        self.state().primary.store(context.inner.raw.address(), Ordering::Relaxed);
        Ok(context)
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
}

impl Context {
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Context {
        Context { inner }
    }

    pub(crate) fn retain_primary(device: &Device) -> Result<Context> {
        // Under a reserve, work outside of partitions runs in the context of the rest.
        let rest = device.unbound()?;
        let mut raw = ptr::null_mut();
        // Captures in other contexts stay valid, even if this call initialises the primary context or the release
        // takes it down (measured on an H200, driver 580.159.04).
        // SAFETY: `raw` is a live local that the driver writes, and `device` is one of the driver's devices.
        unsafe {
            call!(device.functions()?, cuDevicePrimaryCtxRetain(&raw mut raw, device.as_raw()))
        }?;
        let raw = Raw::new(rest.map_or(raw, |rest| rest.context))
            .ok_or_else(|| Error::null("cuDevicePrimaryCtxRetain"))?;
        // If another thread was first, this object is dropped, which releases its reference.
        Ok(Context::enter(device, raw, None, true, None))
    }

    /// Returns the context that owns the workqueues that this context uses. Every context that shares workqueues refers
    /// directly to their owner, so no chains of contexts form.
    pub(crate) fn owner_of_queues(&self) -> Context {
        self.lease().and_then(|lease| lease.queues.clone()).unwrap_or_else(|| self.clone())
    }

    /// Leases a driver context that was created or reused for `group`. `queues` is the context that owns the
    /// workqueues, or `None` if the new context has its own. `work` is the fence of a context that takes turns on its
    /// SMs with other contexts.
    ///
    /// The lease has begun ([`Green::begin_lease`]). If other code has a `Context` of the idle driver context, that
    /// object is leased.
    pub(crate) fn lease_for(
        green: &Arc<Green>,
        group: SmGroup,
        queues: Option<Context>,
        primary: Arc<PrimaryShares>,
        work: Option<Fence>,
    ) -> Context {
        let context = Context::of_green(group.device(), green, None);
        let waits = green.streams.are_kept();
        context.inner.lease.get_or_init(|| Lease::new(group, queues, primary, work, waits));
        context
    }

    /// Returns the object of a green context. If there is none, creates an object without a lease.
    pub(crate) fn of_green(device: &Device, green: &Arc<Green>, owner: Option<Owner>) -> Context {
        Context::enter(device, green.context, Some(Arc::clone(green)), false, owner)
    }

    /// Returns the object that represents a handle: the registered one, or a new one without a lease.
    fn enter(
        device: &Device,
        raw: Raw<CUctx_st>,
        green: Option<Arc<Green>>,
        is_retained: bool,
        owner: Option<Owner>,
    ) -> Context {
        let lease = OnceLock::new();
        let fresh = Inner { raw, green, lease, is_retained, owner, device: device.clone() };
        // Another thread may have entered an object for the same handle.
        let contexts = device.driver().contexts();
        let (inner, _late) = contexts.get_or_enter(raw.address(), Arc::new(fresh));
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
        self.green().is_some()
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

    /// Returns the group of SMs that the context owns. Returns `None` for a primary context, which owns none, and for a
    /// borrowed context, whose SMs are in no ledger.
    #[must_use]
    pub fn group(&self) -> Option<&SmGroup> {
        self.lease().map(|lease| &lease.group)
    }

    fn lease(&self) -> Option<&Lease> {
        self.inner.lease.get()
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
        self.green().map(|green| green.raw.as_ptr())
    }

    /// Blocks the calling thread until all work of this context is done. For a primary context, the call also waits for
    /// the work of the device's green contexts (cuda.h), except for [their
    /// graphs](crate::guide::graphs#where-to-launch). Captures in other contexts stay valid.
    ///
    /// For a green context, this call records an event for the whole context and waits for the event, so other threads
    /// can use the context in the meantime. If a stream waits for an event and no work was submitted to it since, this
    /// call does not wait for that event.
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
        match self.green() {
            // A thread must not use a green context for as long as its work runs, so the thread waits for an event.
            Some(green) => green.synchronize(self.device()),
            None => synchronize(self.device(), self.raw()),
        }
    }

    /// Returns the resource of type `kind` that the context was created with.
    pub(crate) fn dev_resource(&self, kind: CUdevResourceType) -> Result<CUdevResource> {
        let api = self.device().functions()?;
        if let Some(green) = self.green() {
            return green.call(|green| dev_resource::of_green(api, green, kind));
        }
        // SAFETY: `self` keeps the context alive, and `api` is the function table of the context's driver.
        unsafe { dev_resource::of_raw_context(api, self.as_raw(), kind) }
    }

    /// Returns the driver's green context, or `None` for a context that is not green.
    #[inline]
    pub(crate) fn green(&self) -> Option<&Arc<Green>> {
        self.inner.green.as_ref()
    }

    /// Returns the rest if this is its context, or `None` for any other context.
    pub(crate) fn rest(&self) -> Result<Option<Rest>> {
        if self.inner.is_retained { self.device().unbound() } else { Ok(None) }
    }

    /// Returns the contexts whose work does not escape from this one: this context and, under a reserve, that of the
    /// rest, whose work cannot use a floor.
    pub(crate) fn without_escape(&self) -> Result<[CUcontext; 2]> {
        let rest = self.device().unbound()?;
        Ok([self.raw(), rest.map_or(self.raw(), |rest| rest.context)])
    }

    /// Makes the context current for one short call. Until the result is dropped, no other thread uses a green context.
    /// Failed clean-ups are reported afterwards.
    pub(crate) fn scope(&self) -> Result<Held<(Scope<'_>, Option<Turn<'_>>)>> {
        let turn = self.green().map(|green| green.calls.turn());
        Ok(report::hold((Scope::enter(self.device().driver(), self.raw())?, turn)))
    }
}

impl Inner {
    /// Releases the reference that `retain_primary` took.
    fn release(&self) -> Result<()> {
        // SAFETY: this object owns one reference to the primary context. That reference is released once: in `drop`, or
        // by a close that succeeds and then clears `is_retained`.
        unsafe { call!(self.device.functions()?, cuDevicePrimaryCtxRelease(self.device.as_raw())) }
    }
}

/// Blocks the calling thread until all work of a context is done. The caller keeps the context alive.
fn synchronize(device: &Device, context: CUcontext) -> Result<()> {
    let driver = device.driver();
    let _relaxed = RelaxedCapture::enter(driver)?;
    let _scope = Scope::enter(driver, context)?;
    // SAFETY: the call has no arguments, and the context is current while `_scope` lives.
    unsafe { call!(driver.functions()?, cuCtxSynchronize()) }
        .inspect_err(|error| device.note(error))
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.device.driver().is_forked() {
            // The contents belong to the parent process, above all the group of SMs.
            return mem::forget((self.lease.take(), self.owner.take()));
        }
        // Remove the entry before ending the context: another thread may get the same handle immediately.
        self.device.driver().contexts().forget(self.raw.address(), self);
        // The end of this function drops the lease, which returns the group's SMs.
        if let (Some(mut lease), Some(green)) = (self.lease.take(), &self.green) {
            lease.give_up(green, &self.device);
        }
        if self.is_retained {
            self.device.driver().report(self.release());
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
