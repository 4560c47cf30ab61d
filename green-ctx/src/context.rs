//! Contexts: a device's primary one and the green ones, behind one type.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::{Arc, Weak};

use green_ctx_sys::{
    CUcontext, CUctx_st, CUdevResource, CUdevResourceType, CUgreenCtx, CUgreenCtx_st,
    CUgreenCtxCreate_flags,
};
use parking_lot::Mutex;

use crate::current::{self, Current, Scope};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result, call};
use crate::event::Event;
use crate::raw::Raw;
use crate::resource::{SmGroup, describe, empty_resource, sm_part};
use crate::stream::{Stream, StreamOptions};

/// A context: the device's primary one, or a green one that runs on its own SMs. Clones share it.
///
/// A partition is a green context, made by [`Device::create_context`]. The last handle, streams
/// included, destroys it and gives its SMs back to the device.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// let split = device.sm_resource()?.split([32])?;
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
    /// Dropped after the context itself, which stands on it.
    kind: Kind,
    device: Device,
}

enum Kind {
    Primary,
    Green(Green),
    /// Destroyed by `close`, which has taken the group: nothing is left to do.
    Closed,
}

struct Green {
    raw: Raw<CUgreenCtx_st>,
    /// The driver's header allows one thread at a time on a CUgreenCtx, up to 13.4.
    calls: Mutex<()>,
    group: SmGroup,
    /// Keeps the device initialised, and is where events and memory come from.
    _primary: Context,
}

impl Context {
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Context {
        Context { inner }
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn retain_primary(device: &Device) -> Result<Context> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a live handle, the device comes from the driver.
        unsafe { call!(device.api(), cuDevicePrimaryCtxRetain(&raw mut raw, device.as_raw())) }?;
        let raw = Raw::new(raw).ok_or(Error::null("cuDevicePrimaryCtxRetain"))?;
        Ok(Context::enter(Inner { raw, kind: Kind::Primary, device: device.clone() }))
    }

    pub(crate) fn create_green(device: &Device, group: SmGroup) -> Result<Context> {
        if group.device() != device {
            return Err(Error::DeviceMismatch { what: "the group and the context" });
        }
        let primary = device.primary_context()?;
        let descriptor = describe(&group)?;
        let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
        let mut raw = ptr::null_mut();
        // SAFETY: the descriptor was generated for this device just now. The flag is the one that
        // every driver before 13.3 requires.
        unsafe {
            call!(device.api(), cuGreenCtxCreate(&raw mut raw, descriptor, device.as_raw(), flags))
        }?;
        let raw = Raw::new(raw).ok_or(Error::null("cuGreenCtxCreate"))?;
        let green = Green { raw, calls: Mutex::new(()), group, _primary: primary };
        match derived(device, &green) {
            Ok(raw) => {
                Ok(Context::enter(Inner { raw, kind: Kind::Green(green), device: device.clone() }))
            }
            Err(error) => {
                // SAFETY: created above, and nobody else has seen it.
                let undone = unsafe { destroy_green(device.driver(), green.raw) };
                device.driver().report(undone);
                Err(error)
            }
        }
    }

    fn enter(inner: Inner) -> Context {
        let inner = Arc::new(inner);
        inner.device.driver().contexts().enter(inner.raw.address(), &inner);
        Context { inner }
    }

    /// The thread's current context, when it is one of this crate's.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxGetCurrent")]
    pub fn current(driver: &Driver) -> Result<Option<Context>> {
        Ok(driver.find_context(current::get(driver)?))
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
        self.as_raw_green().is_some()
    }

    /// The context's number, unique in the process and never used again.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxGetId")]
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the context is alive, the pointer is to a live integer.
        unsafe { call!(self.device().api(), cuCtxGetId(self.as_raw(), &raw mut id)) }?;
        Ok(id)
    }

    /// How many SMs the context's work runs on, by the driver's own account.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias("cuCtxGetDevResource", "cuGreenCtxGetDevResource"))]
    pub fn sm_count(&self) -> Result<u32> {
        match &self.inner.kind {
            Kind::Green(green) => provisioned(self.device(), green),
            Kind::Primary | Kind::Closed => {
                let mut resource = empty_resource();
                let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
                // SAFETY: the context is alive, the pointer is to a live structure.
                unsafe {
                    call!(
                        self.device().api(),
                        cuCtxGetDevResource(self.as_raw(), &raw mut resource, kind)
                    )
                }?;
                Ok(sm_part(&resource).smCount)
            }
        }
    }

    /// The SMs that the context owns; `None` for a primary context, which runs on all of them.
    #[must_use]
    pub fn group(&self) -> Option<&SmGroup> {
        match &self.inner.kind {
            Kind::Green(green) => Some(&green.group),
            Kind::Primary | Kind::Closed => None,
        }
    }

    /// The driver's handle. For a green context it is the one that `cuCtxFromGreenCtx` gives.
    #[must_use]
    #[doc(alias = "cuCtxFromGreenCtx")]
    pub fn as_raw(&self) -> CUcontext {
        self.inner.raw.as_ptr()
    }

    /// The driver's handle of a green context, `None` for a primary one.
    #[must_use]
    pub fn as_raw_green(&self) -> Option<CUgreenCtx> {
        match &self.inner.kind {
            Kind::Green(green) => Some(green.raw.as_ptr()),
            Kind::Primary | Kind::Closed => None,
        }
    }

    /// Creates a stream whose work runs in this context.
    ///
    /// It does not synchronise with the default stream, in a green context because the driver
    /// demands that.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias("cuGreenCtxStreamCreate", "cuStreamCreateWithPriority"))]
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        Stream::create(self, options)
    }

    /// Records an event that completes when all work of this context up to now has, that of
    /// streams which are destroyed already included. A primary context's covers the device's green
    /// contexts too (cuda.h).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]; [`Error::Unsupported`] for a primary context before CUDA 12.5.
    #[doc(alias("cuCtxRecordEvent", "cuGreenCtxRecordEvent"))]
    pub fn record(&self, event: &Event) -> Result<()> {
        let api = self.device().api();
        let recorded = self.with_green(|green| {
            // SAFETY: both handles are alive.
            unsafe { call!(api, cuGreenCtxRecordEvent(green, event.as_raw())) }
        });
        // SAFETY: both handles are alive.
        recorded.unwrap_or_else(|| unsafe {
            call!(api, cuCtxRecordEvent(self.as_raw(), event.as_raw()))
        })
    }

    /// Makes the work that is submitted from now on to the streams that this context has wait for
    /// an event. Streams that are created later do not wait (recorded on an H200, driver
    /// 580.159.04).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]; [`Error::Unsupported`] for a primary context before CUDA 12.5.
    #[doc(alias("cuCtxWaitEvent", "cuGreenCtxWaitEvent"))]
    pub fn wait(&self, event: &Event) -> Result<()> {
        let api = self.device().api();
        let waits = self.with_green(|green| {
            // SAFETY: both handles are alive.
            unsafe { call!(api, cuGreenCtxWaitEvent(green, event.as_raw())) }
        });
        // SAFETY: both handles are alive.
        waits
            .unwrap_or_else(|| unsafe { call!(api, cuCtxWaitEvent(self.as_raw(), event.as_raw())) })
    }

    /// Waits until all work of this context is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// Makes the context current on this thread while the guard lives.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxPushCurrent")]
    pub fn make_current(&self) -> Result<Current> {
        Current::enter(self)
    }

    /// Waits for the context's work, destroys the context, and gives its group back, ready for
    /// another context. A primary context is released and has no group.
    ///
    /// # Errors
    ///
    /// [`CloseError`], which gives the context back: when another handle of it lives (a clone, a
    /// stream, a guard), when it is current on this thread, and when the driver fails.
    pub fn close(self) -> Result<Option<SmGroup>, CloseError> {
        let driver = self.device().driver().clone();
        // Out of the registry first, so that no new handle can come from there.
        driver.contexts().forget(self.inner.raw.address(), Arc::as_ptr(&self.inner));
        let back = |inner: Arc<Inner>, reason| {
            inner.device.driver().contexts().enter(inner.raw.address(), &inner);
            Err(CloseError { context: Context { inner }, reason })
        };
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(shared) => return back(shared, CloseReason::Shared),
        };
        match inner.close() {
            Ok(group) => Ok(group),
            Err(reason) => back(Arc::new(inner), reason),
        }
    }

    /// Runs a call on the raw green context while no other thread makes one; `None` for a primary
    /// context.
    pub(crate) fn with_green<R>(&self, call: impl FnOnce(CUgreenCtx) -> R) -> Option<R> {
        match &self.inner.kind {
            Kind::Green(green) => {
                let _one_at_a_time = green.calls.lock();
                Some(call(green.raw.as_ptr()))
            }
            Kind::Primary | Kind::Closed => None,
        }
    }
}

impl Inner {
    fn synchronize(&self) -> Result<()> {
        let driver = self.device.driver();
        let _scope = Scope::enter(driver, self.raw.as_ptr())?;
        // SAFETY: takes no arguments; the context is current.
        unsafe { call!(driver.api(), cuCtxSynchronize()) }
    }

    /// Destroys what is behind the handle, once nobody else has it, and hands out the group.
    fn end(&mut self) -> Result<Option<SmGroup>> {
        let driver = self.device.driver();
        match &self.kind {
            // SAFETY: nobody else has the handle, and it is destroyed once: `kind` changes below.
            Kind::Green(green) => unsafe { destroy_green(driver, green.raw) }?,
            Kind::Primary => {
                let device = self.device.as_raw();
                // SAFETY: releases the reference that `retain_primary` took.
                unsafe { call!(driver.api(), cuDevicePrimaryCtxRelease(device)) }?;
            }
            Kind::Closed => {}
        }
        match std::mem::replace(&mut self.kind, Kind::Closed) {
            Kind::Green(green) => Ok(Some(green.group)),
            Kind::Primary | Kind::Closed => Ok(None),
        }
    }

    /// What `close` does once no other handle lives.
    fn close(&mut self) -> Result<Option<SmGroup>, CloseReason> {
        if matches!(self.kind, Kind::Green(_)) {
            if current::get(self.device.driver())? == self.raw.as_ptr() {
                // The driver would destroy it and leave the thread with a dangling context.
                return Err(CloseReason::Current);
            }
            // Work goes on after its stream is destroyed, and its SMs are free only when it is
            // done.
            self.synchronize()?;
        }
        Ok(self.end()?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = self.device.driver().clone();
        // Forgotten before it is given up: the driver may use the address again at once.
        driver.contexts().forget(self.raw.address(), self);
        if matches!(self.kind, Kind::Green(_)) {
            // As in `close`. A context that cannot be waited for is destroyed all the same.
            driver.report(self.synchronize());
        }
        driver.report(self.end().map(drop));
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

/// A context that could not be closed.
#[derive(Debug, thiserror::Error)]
#[error("the context was not closed")]
pub struct CloseError {
    /// The context, as usable as before.
    pub context: Context,
    /// Why it was not closed.
    #[source]
    pub reason: CloseReason,
}

/// Why a context was not closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Another handle keeps it: a clone, a stream, a guard.
    #[error("another handle of the context is alive")]
    Shared,
    /// It is this thread's current context.
    #[error("the context is current on this thread")]
    Current,
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] Error),
}

/// The usable handle of a new green context, after a look at what it was provisioned with.
fn derived(device: &Device, green: &Green) -> Result<Raw<CUctx_st>> {
    let mut raw = ptr::null_mut();
    // SAFETY: the green context is alive, the pointer is to a live handle.
    unsafe { call!(device.api(), cuCtxFromGreenCtx(&raw mut raw, green.raw.as_ptr())) }?;
    let raw = Raw::new(raw).ok_or(Error::null("cuCtxFromGreenCtx"))?;
    let (expected, found) = (green.group.sm_count(), provisioned(device, green)?);
    if found == expected { Ok(raw) } else { Err(Error::WrongProvision { expected, found }) }
}

fn provisioned(device: &Device, green: &Green) -> Result<u32> {
    let mut resource: CUdevResource = empty_resource();
    let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    let _one_at_a_time = green.calls.lock();
    // SAFETY: the green context is alive, the pointer is to a live structure.
    unsafe {
        call!(device.api(), cuGreenCtxGetDevResource(green.raw.as_ptr(), &raw mut resource, kind))
    }?;
    Ok(sm_part(&resource).smCount)
}

/// # Safety
///
/// The handle must be alive, and nobody may use it afterwards.
unsafe fn destroy_green(driver: &Driver, raw: Raw<CUgreenCtx_st>) -> Result<()> {
    // SAFETY: as this function's own contract.
    unsafe { call!(driver.api(), cuGreenCtxDestroy(raw.as_ptr())) }
}
