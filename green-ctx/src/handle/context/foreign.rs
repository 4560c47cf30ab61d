//! Contexts that other libraries created.
//!
//! `get_or_enter` looks up the object of a raw handle, and enters a new object if it finds none. Both steps run under
//! one lock, so that each handle has one object. This crate never destroys a borrowed context, and the context's object
//! keeps its owner alive. The primary context of a device is never borrowed: the retained primary context is returned
//! instead.
//!
//! To find out whether a context is green, this module makes the context current and queries the green context of the
//! legacy default stream (recorded on an H200, driver 580.159.04). The SMs of a borrowed green context are in no
//! ledger, so partitions of this crate can use the same SMs.
//!
//! A context that this crate created is never borrowed either, even if it is idle. Its object then has no lease, and
//! the next partition on its SMs leases that object.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{CUcontext, CUctx_st, CUgreenCtx_st};

use super::Context;
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::green::Green;
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;
use crate::work::stream::DefaultStream;

impl Context {
    /// Wraps a context that other code owns: a foreign green context, or a context from `cuCtxCreate`. This crate never
    /// destroys the context. `owner` is kept alive until the last clone of the result and the last stream created from
    /// the context are dropped.
    ///
    /// If a [`Context`] of this crate already represents the handle, that context is returned and `owner` is dropped.
    /// For a device's primary context, the result is the retained [primary context](Device::primary_context). If this
    /// crate created the context for a partition that no longer exists, and keeps it because of a [kept
    /// stream](crate::Stream::keep_alive), the result becomes the context of the next partition on the same SMs.
    ///
    /// The SMs of a borrowed green context are in no ledger. The context has no [`group`](Context::group), and
    /// partitions of this crate may use the same SMs.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidRequest`] if the handle is null.
    /// - [`Error::Forked`] or [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// - `raw` must be a live context of this driver, and must stay alive until `owner` is dropped.
    /// - If `raw` is a green context, no other code may use its `CUgreenCtx` on another thread while a call to this
    ///   crate runs (the rule in cuda.h up to CUDA 13.4).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim, context::Context};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let group = device.resources().sm()?.split([16])?.groups.remove(0);
    /// let ours = device.create_context(group)?;
    /// // Another library receives this handle and passes it back.
    /// let raw = ours.as_raw();
    /// // SAFETY: the clone of `ours` keeps the context alive.
    /// let same = unsafe { Context::from_raw_borrowed(&driver, raw, ours.clone()) }?;
    /// assert_eq!(same, ours);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn from_raw_borrowed(
        driver: &Driver,
        raw: CUcontext,
        owner: impl Send + Sync + 'static,
    ) -> Result<Context> {
        driver.check_process()?;
        let raw = Raw::new(raw)
            .ok_or_else(|| Error::InvalidRequest("the context's handle is null".to_owned()))?;
        if let Some(known) = Context::known(driver, raw)? {
            return Ok(known);
        }
        // SAFETY: the context is alive, by this function's contract.
        let green = unsafe { green_of(driver, raw) }?;
        // SAFETY: the context is alive until `owner` is dropped, by this function's contract. `green_of` returned
        // its green context.
        unsafe { Context::adopt(driver, raw, green, Arc::new(owner)) }
    }

    /// Returns the device of a context.
    ///
    /// # Safety
    ///
    /// The context must be alive.
    pub(crate) unsafe fn device_of_raw(driver: &Driver, raw: CUcontext) -> Result<Device> {
        let _scope = Scope::enter(driver, raw)?;
        let mut number = 0;
        // SAFETY: `number` is a live local that the driver writes. The context is current while `_scope` lives.
        unsafe { call!(driver.functions()?, cuCtxGetDevice(&raw mut number)) }?;
        driver
            .devices()
            .find(|device| device.as_raw() == number)
            .ok_or_else(|| Error::InvalidRequest(format!("the driver has no device {number}")))
    }

    /// Returns the object that represents a context. If no such object exists, creates one that borrows the context.
    ///
    /// # Safety
    ///
    /// The context must stay alive until `owner` is dropped. If the context is green, `green` must be its handle.
    pub(crate) unsafe fn adopt(
        driver: &Driver,
        raw: Raw<CUctx_st>,
        green: Option<Raw<CUgreenCtx_st>>,
        owner: Owner,
    ) -> Result<Context> {
        if let Some(known) = Context::known(driver, raw)? {
            return Ok(known);
        }
        // SAFETY: the context is alive, by this function's contract.
        let device = unsafe { Context::device_of_raw(driver, raw.as_ptr()) }?;
        if green.is_none()
            && let Some(primary) = active_primary(&device)?
            && primary.inner.raw.address() == raw.address()
        {
            return Ok(primary);
        }
        // The rest is a green context, but takes the place of the primary context.
        if device.unbound()?.is_some_and(|rest| rest.context == raw.as_ptr()) {
            return device.primary_context();
        }
        let green = green.map(|green| Arc::new(Green::new(green, raw)));
        Ok(Context::enter(&device, raw, green, false, Some(owner)))
    }

    /// Returns the object of a context that has one, or that this crate created and keeps alive itself.
    pub(crate) fn known(driver: &Driver, raw: Raw<CUctx_st>) -> Result<Option<Context>> {
        if let Some(inner) = driver.contexts().find(raw.address()) {
            return Ok(Some(Context { inner }));
        }
        let Some(ours) = driver.greens().find(raw.address()) else { return Ok(None) };
        Ok(Some(Context::of_green(&driver.device(ours.ordinal)?, &ours, None)))
    }
}

/// Returns the green context behind a context, or `None` if the context is not green.
///
/// # Safety
///
/// The context must be alive.
unsafe fn green_of(driver: &Driver, raw: Raw<CUctx_st>) -> Result<Option<Raw<CUgreenCtx_st>>> {
    let _scope = Scope::enter(driver, raw.as_ptr())?;
    let token = DefaultStream::Legacy.as_raw();
    let mut green = ptr::null_mut();
    // The driver answers for the current context (recorded on an H200, driver 580.159.04).
    // SAFETY: the driver resolves the token in the current context, which `_scope` keeps current. `green` is a live
    // local that the driver writes.
    unsafe { call!(driver.functions()?, cuStreamGetGreenCtx(token, &raw mut green)) }?;
    Ok(Raw::new(green))
}

/// Returns the primary context of a device if that context is already active. Never activates the context.
fn active_primary(device: &Device) -> Result<Option<Context>> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: `flags` and `active` are live locals that the driver writes, and the device is one of the driver's
    // devices.
    unsafe {
        call!(
            device.functions()?,
            cuDevicePrimaryCtxGetState(device.as_raw(), &raw mut flags, &raw mut active)
        )
    }?;
    if active == 0 { Ok(None) } else { device.primary_context().map(Some) }
}
