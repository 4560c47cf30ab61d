//! Contexts: a device's primary one and the green ones, behind one type.
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

/// A context: the device's primary one, or a green one that runs on its own SMs. Clones share it.
///
/// A partition is a green context, made by [`Device::create_context`]. The last handle, streams
/// included, gives its SMs back to the device. What still runs on them goes on: whoever takes them
/// next gets them at once, and new work there waits for it on the device. The driver's context is
/// kept for the next partition of the same SMs ([`Device::context_counts`]).
///
/// Where that work cannot be recorded, nobody gets the partition's own SMs until a split has tried again
/// with success. The driver refuses to record it while a foreign stream of the context is being captured, and
/// the attempt invalidates the capture. While a stream is captured that was [kept](crate::Stream::keep_alive), nothing
/// is attempted, and the capture goes on.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// let split = device.resources().sm()?.split([32])?;
/// let group = split.groups.into_iter().next().ok_or("one group was asked for")?;
///
/// let partition = device.create_context(group)?;
/// let stream = partition.create_stream(StreamOptions::default())?;
/// assert_eq!(stream.context(), &partition);
///
/// drop(stream);
/// let group = partition.close()?.ok_or("a green context has a group")?;
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
    /// Dropped after the context itself, which depends on it.
    kind: Kind,
    device: Device,
}

#[allow(clippy::large_enum_variant, reason = "contexts are few, and nearly all are green")]
enum Kind {
    Primary,
    Green(Green),
    /// Somebody else's: nothing is destroyed.
    Borrowed(Borrowed),
    /// Destroyed by `close`, which has taken the group: nothing is left to do.
    Closed,
}

/// Somebody else's context.
struct Borrowed {
    /// Its green context, when it is one.
    green: Option<Raw<CUgreenCtx_st>>,
    calls: Calls,
    _owner: Owner,
}

struct Green {
    raw: Raw<CUgreenCtx_st>,
    calls: Calls,
    group: SmGroup,
    workqueue: Option<WorkqueueConfig>,
    fencing: Fencing,
    /// The context whose workqueues it uses.
    queues: Option<Context>,
    /// Keeps the device initialised.
    primary: Arc<PrimaryShares>,
}

/// Recognises a context's handles after the last of them has gone. It keeps nothing alive, and never matches
/// another context, even one that reuses the driver's handle. A context that was not closed
/// ([`Refused`](crate::error::Refused)) is still the same one.
#[derive(Clone)]
pub struct WeakContext {
    inner: Weak<Inner>,
}

impl WeakContext {
    /// Whether a handle is of this context.
    #[must_use]
    pub fn is(&self, context: &Context) -> bool {
        context.is(&self.inner)
    }
}

impl fmt::Debug for WeakContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakContext").finish_non_exhaustive()
    }
}

/// What a partition holds of the primary context.
pub(crate) type PrimaryShares = primary::Shares<Context>;

impl InSlot for Registry<Inner> {
    const SLOT: Slot = Slot::Contexts;

    fn make(_driver: &Driver) -> Self {
        Registry::default()
    }
}

impl Driver {
    /// The living [`Context`] behind a raw handle, if it is one of this crate's.
    #[must_use]
    pub fn find_context(&self, raw: CUcontext) -> Option<Context> {
        self.registered(self.contexts(), raw.addr()).map(Context::from_inner)
    }

    pub(crate) fn contexts(&self) -> &Registry<Inner> {
        self.slot()
    }
}

impl Device {
    /// The device's free memory in bytes, as far as the driver sees it now. Retains the primary
    /// context for the call.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuMemGetInfo")]
    pub fn free_memory(&self) -> Result<usize> {
        let primary = self.primary_context()?;
        let _scope = current::Scope::enter(self.driver(), primary.as_raw())?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live integers.
        unsafe { call!(self.functions()?, cuMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok(free)
    }

    /// The priorities that the device tells apart, from that of the streams that run first to that of those
    /// that run last: `-5..=0` on an H200. Other priorities are clamped to them
    /// ([`StreamOptions::priority`](crate::StreamOptions::priority)). Retains the primary context for the
    /// call.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxGetStreamPriorityRange")]
    pub fn stream_priorities(&self) -> Result<RangeInclusive<i32>> {
        let primary = self.primary_context()?;
        let _scope = current::Scope::enter(self.driver(), primary.as_raw())?;
        let (mut last, mut first) = (0, 0);
        // SAFETY: both pointers are to live integers; a context is current.
        unsafe {
            call!(self.functions()?, cuCtxGetStreamPriorityRange(&raw mut last, &raw mut first))
        }?;
        Ok(first..=last)
    }

    /// The primary context, which all of the device's work shares. It is retained while a handle of
    /// it lives; the first retain initialises the device, which takes long (87 ms on an H200).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn primary_context(&self) -> Result<Context> {
        self.driver().check_process()?;
        if let Some(inner) = self.state().primary.lock().upgrade() {
            return Ok(Context::from_inner(inner));
        }
        let fresh = Context::retain_primary(self)?;
        let mut slot = self.state().primary.lock();
        if let Some(inner) = slot.upgrade() {
            // Another thread was first. Dropping ours releases what it retained.
            drop(slot);
            return Ok(Context::from_inner(inner));
        }
        *slot = fresh.downgrade();
        Ok(fresh)
    }

    /// What keeps the primary context for a partition.
    pub(crate) fn primary_shares(&self) -> Result<Arc<PrimaryShares>> {
        self.driver().check_process()?;
        self.state().primary_shares.shares(|| self.primary_context())
    }

    /// What keeps the primary context for an event.
    pub(crate) fn primary_reference(&self) -> Result<PrimaryRef<Context>> {
        self.driver().check_process()?;
        self.state().primary_shares.reference(|| self.primary_context())
    }

    /// Forgets the primary context, which is about to be closed; false if others have handles to it.
    pub(crate) fn forget_primary(&self, primary: &Arc<Inner>) -> bool {
        let mut slot = self.state().primary.lock();
        // Under the lock, where nobody gets a handle of it from here.
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
    /// What the context can be recognised by when no handle of it is left.
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

    /// Whether a weak handle is one of this context, living or not.
    pub(crate) fn is(&self, other: &Weak<Inner>) -> bool {
        ptr::eq(Arc::as_ptr(&self.inner), other.as_ptr())
    }

    pub(crate) fn retain_primary(device: &Device) -> Result<Context> {
        let mut raw = ptr::null_mut();
        // Captures of other contexts go on, whether or not this brings the context up, or the release
        // takes it down (measured on an H200, driver 580.159.04).
        // SAFETY: the pointer is to a live handle, the device comes from the driver.
        unsafe {
            call!(device.functions()?, cuDevicePrimaryCtxRetain(&raw mut raw, device.as_raw()))
        }?;
        let raw = Raw::new(raw).ok_or_else(|| Error::null("cuDevicePrimaryCtxRetain"))?;
        let fresh = Arc::new(Inner { raw, kind: Kind::Primary, device: device.clone() });
        // Another thread may have been first, with the same handle. Dropping ours releases what it
        // retained.
        let (inner, late) = device.driver().contexts().get_or_enter(raw.address(), fresh);
        drop(late);
        Ok(Context { inner })
    }

    /// The context whose workqueues its work goes through: its own or, where it shares those of another, that
    /// one. So whoever shares its queues in turn keeps one context and no chain of them.
    pub(crate) fn owner_of_queues(&self) -> Context {
        match &self.inner.kind {
            Kind::Green(Green { queues: Some(owner), .. }) => owner.clone(),
            _ => self.clone(),
        }
    }

    /// A green context that was made for a group, or used again, with the context whose queues it uses.
    pub(crate) fn of_green(
        raw: RawGreen,
        group: SmGroup,
        workqueue: Option<WorkqueueConfig>,
        queues: Option<Context>,
        primary: Arc<PrimaryShares>,
    ) -> Context {
        let device = group.device().clone();
        let RawGreen { green, context } = raw;
        let green = Green {
            raw: green,
            calls: Calls::default(),
            fencing: Fencing::new(group.fences()),
            group,
            workqueue,
            queues,
            primary,
        };
        let kind = Kind::Green(green);
        Context::enter(Inner { raw: context, kind, device })
    }

    fn enter(inner: Inner) -> Context {
        let inner = Arc::new(inner);
        inner.device.driver().contexts().enter(inner.raw.address(), &inner);
        Context { inner }
    }

    /// The device that the context is on.
    #[must_use]
    #[inline]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether this is a green context, a partition with SMs of its own.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.inner.green().is_some()
    }

    /// The driver's number of the context, which profilers report too. The driver gives no number twice
    /// (cuda.h), but a partition that is made of recycled SMs has a former partition's context, and its
    /// number with it. [`weak`](Context::weak) tells such partitions apart.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxGetId")]
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the context is alive, the pointer is to a live integer.
        unsafe { call!(self.device().functions()?, cuCtxGetId(self.raw(), &raw mut id)) }?;
        Ok(id)
    }

    /// The SMs that the context owns; `None` for a primary context, which runs on all of them, and
    /// for a borrowed one, whose SMs are in no ledger.
    #[must_use]
    pub fn group(&self) -> Option<&SmGroup> {
        match &self.inner.kind {
            Kind::Green(green) => Some(&green.group),
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }

    /// What reports call the context: its group's name, and `primary` or `borrowed` where it owns
    /// none.
    #[must_use]
    pub fn label(&self) -> &str {
        match self.group() {
            Some(group) => group.name(),
            None if self.is_green() => "borrowed",
            None => "primary",
        }
    }

    /// The driver's handle. For a green context it is the one that `cuCtxFromGreenCtx` gives.
    ///
    /// Work may reach the context's default stream from now on. That stream waits, as all others of
    /// the context, for what still runs on its SMs since before; a failure of that goes to
    /// [`Driver::on_cleanup_failure`].
    #[must_use]
    #[doc(alias = "cuCtxFromGreenCtx")]
    pub fn as_raw(&self) -> CUcontext {
        self.device().driver().report(self.expose());
        self.raw()
    }

    /// The driver's handle, for calls of this crate that submit no work to the default stream.
    #[inline]
    pub(crate) fn raw(&self) -> CUcontext {
        self.inner.raw.as_ptr()
    }

    /// The driver's handle of a green context, `None` for a primary one.
    #[must_use]
    pub fn as_raw_green(&self) -> Option<CUgreenCtx> {
        self.device().driver().report(self.expose());
        self.raw_green()
    }

    /// The driver's handle of a green context, for calls of this crate.
    pub(crate) fn raw_green(&self) -> Option<CUgreenCtx> {
        self.inner.green().map(|(raw, _)| raw.as_ptr())
    }

    /// Waits until all work of this context is done. Captures of other contexts' streams go on. A primary
    /// context waits for the device's green contexts too (cuda.h), except for
    /// [their graphs](crate::guide::graphs#where-to-launch).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included, and where a stream of this context is being
    /// captured; its capture is invalidated.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// What the context was provisioned with, in the driver's form.
    pub(crate) fn dev_resource(&self, kind: CUdevResourceType) -> Result<CUdevResource> {
        let api = self.device().functions()?;
        if let Some(found) = self.with_green(|green| dev_resource::of_green(api, green, kind)) {
            return found;
        }
        // SAFETY: the context is alive.
        unsafe { dev_resource::of_raw_context(api, self.as_raw(), kind) }
    }

    /// Runs a call on the raw green context while no other thread makes one; `None` for a primary
    /// context.
    #[inline]
    pub(crate) fn with_green<R>(&self, call: impl FnOnce(Raw<CUgreenCtx_st>) -> R) -> Option<R> {
        self.inner.green().map(|(raw, calls)| {
            let _one_at_a_time = calls.turn();
            call(raw)
        })
    }

    /// Destroys a stream of this context, in turn with calls on a green context where threads contend
    /// for it.
    #[inline]
    pub(crate) fn destroy_stream(&self, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        let green = self.inner.green();
        let _in_turn = green.and_then(|(_, calls)| calls.turn_if_contended());
        destroy()
    }
}

impl Inner {
    /// The green context and the lock for calls on it; `None` for a context that is not green.
    #[inline]
    fn green(&self) -> Option<(Raw<CUgreenCtx_st>, &Calls)> {
        match &self.kind {
            Kind::Green(green) => Some((green.raw, &green.calls)),
            Kind::Borrowed(borrowed) => borrowed.green.map(|raw| (raw, &borrowed.calls)),
            Kind::Primary | Kind::Closed => None,
        }
    }

    fn synchronize(&self) -> Result<()> {
        let driver = self.device.driver();
        let _relaxed = RelaxedCapture::enter(driver)?;
        let _scope = Scope::enter(driver, self.raw.as_ptr())?;
        // SAFETY: takes no arguments; the context is current.
        unsafe { call!(driver.functions()?, cuCtxSynchronize()) }
            .inspect_err(|error| self.device.note(error))
    }

    /// Releases the reference that `retain_primary` took.
    fn release(&self) -> Result<()> {
        // SAFETY: the reference is this object's, and it is released once.
        unsafe { call!(self.device.functions()?, cuDevicePrimaryCtxRelease(self.device.as_raw())) }
    }

    /// Leaves the driver's context to whoever asks for its SMs next.
    fn leave(&self, green: &mut Green) {
        // What else there is of the context goes first.
        green.fencing.end_guests();
        let raw = RawGreen { green: green.raw, context: self.raw };
        let (placement, sm_count) = (green.group.placement(), green.group.sm_count());
        green::leave(&self.device, raw, placement, green.workqueue, sm_count);
    }

    /// What the last handle of a green context does.
    fn give_up(&self, mut green: Green) {
        let driver = self.device.driver();
        // By raw calls only: whoever gets the context next would find it current on this thread. What is
        // deeper on the thread's stack, or on those of others, the driver does not report.
        let primary = green.primary.context().raw();
        driver.report(current::replace(driver, self.raw.as_ptr(), primary));
        // Recording would invalidate foreign code's capture, so that it is put off.
        let is_captured = matches!(green.has_kept_captures(&self.device), Ok(true));
        let recorded = (!is_captured).then(|| green.record(&self.device));
        // What the context itself still waited for, and graphs of others: a record of its own work may
        // cover neither.
        green.group.add_fences(green.fencing.take_pending());
        let guests = green.fencing.record_guests(driver);
        green.group.add_fences(guests);
        green.fencing.end_guests();
        match recorded {
            Some(Ok(running)) => {
                green.group.add_fences(running);
                self.leave(&mut green);
            }
            Some(Err(error)) => {
                driver.report(Err(error));
                self.give_up_unrecorded(green);
            }
            None => self.quarantine(green),
        }
    }

    /// What the last handle does when the work could not be recorded: nobody knows then when the SMs
    /// are really free, unless all of the work is done.
    fn give_up_unrecorded(&self, green: Green) {
        let driver = self.device.driver();
        let done = RelaxedCapture::enter(driver).and_then(|_relaxed| self.synchronize());
        let raw = RawGreen { green: green.raw, context: self.raw };
        if done.is_ok() || self.device.has_failed() {
            driver.report(done);
            // Nothing runs any more. Why recording failed is not known, so nobody else gets the
            // context.
            return green::end(&self.device, raw.green);
        }
        self.quarantine(green);
    }

    /// Leaves the SMs to nobody until the context's work is recorded.
    fn quarantine(&self, mut green: Green) {
        let raw = RawGreen { green: green.raw, context: self.raw };
        let (placement, sm_count) = (green.group.placement().clone(), green.group.sm_count());
        let kept = self.device.state().kept.keeps(raw.green);
        let stuck = Stuck { placement, workqueue: green.workqueue, sm_count, kept, raw };
        green.group.quarantine(vec![stuck]);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.device.driver().is_forked() {
            // Nothing of it is this process's, the group least of all.
            return mem::forget(mem::replace(&mut self.kind, Kind::Closed));
        }
        // Forgotten before it is given up: another thread may get the handle at once.
        self.device.driver().contexts().forget(self.raw.address(), self);
        match mem::replace(&mut self.kind, Kind::Closed) {
            Kind::Green(green) => self.give_up(green),
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
