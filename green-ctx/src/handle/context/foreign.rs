//! Contexts that other libraries created.
//!
//! `get_or_enter` looks a raw handle up and enters a new object under one lock, so that one handle has one
//! object. A borrowed context is not destroyed, and its object keeps the owner alive. A device's primary
//! context is never borrowed: the result is the retained one.
//!
//! To find out whether a context is green, this module makes it current and asks for the green context of the
//! legacy default stream (recorded on an H200, driver 580.159.04). The SMs of a borrowed green context are in
//! no ledger, so partitions of this crate can overlap with it.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{CUcontext, CUctx_st, CUgreenCtx_st};

use super::calls::Calls;
use super::{Borrowed, Context, Inner, Kind};
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;
use crate::work::stream::DefaultStream;

impl Context {
    /// Uses a foreign context: a green context that somebody else made, or one that `cuCtxCreate`
    /// made. Nothing destroys it; `owner` is kept until the last handle of the result is gone, its
    /// streams included.
    ///
    /// A context that an object of this crate stands for already is that object, and a device's
    /// primary context is the [primary context](Device::primary_context), which is retained; `owner`
    /// is dropped then. The SMs of a borrowed green context are in no ledger: it has no
    /// [`group`](Context::group), and nothing keeps partitions of this crate off them.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a null handle, [`Error::Forked`], [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// `raw` must be a living context of this driver, and stay alive until `owner` is dropped. Where
    /// it is a green one, nobody may use its `CUgreenCtx` on another thread during a call of this
    /// crate (the header's rule up to CUDA 13.4).
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim, context::Context};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let group = device.resources().sm()?.split([16])?.groups.remove(0);
    /// let ours = device.create_context(group)?;
    /// // From here to another library and back.
    /// let raw = ours.as_raw();
    /// // SAFETY: `ours` keeps the context.
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
        if let Some(inner) = driver.contexts().find(raw.address()) {
            return Ok(Context { inner });
        }
        // SAFETY: the context is alive by this function's contract.
        let green = unsafe { green_of(driver, raw) }?;
        // SAFETY: the owner keeps the context by this function's contract.
        unsafe { Context::adopt(driver, raw, green, Arc::new(owner)) }
    }

    /// The device of a context.
    ///
    /// # Safety
    ///
    /// The context must be alive.
    pub(crate) unsafe fn device_of_raw(driver: &Driver, raw: CUcontext) -> Result<Device> {
        let _scope = Scope::enter(driver, raw)?;
        let mut number = 0;
        // SAFETY: the pointer is to a live integer; the context is current.
        unsafe { call!(driver.functions()?, cuCtxGetDevice(&raw mut number)) }?;
        driver
            .devices()
            .find(|device| device.as_raw() == number)
            .ok_or_else(|| Error::InvalidRequest(format!("the driver has no device {number}")))
    }

    /// The object of a context, borrowed where there is none.
    ///
    /// # Safety
    ///
    /// The context must be alive until the owner is dropped, `green` its green context if it is one.
    pub(crate) unsafe fn adopt(
        driver: &Driver,
        raw: Raw<CUctx_st>,
        green: Option<Raw<CUgreenCtx_st>>,
        owner: Owner,
    ) -> Result<Context> {
        if let Some(inner) = driver.contexts().find(raw.address()) {
            return Ok(Context { inner });
        }
        // SAFETY: the context is alive.
        let device = unsafe { Context::device_of_raw(driver, raw.as_ptr()) }?;
        if green.is_none()
            && let Some(primary) = active_primary(&device)?
            && primary.inner.raw.address() == raw.address()
        {
            return Ok(primary);
        }
        let kind = Kind::Borrowed(Borrowed { green, calls: Calls::default(), _owner: owner });
        let fresh = Arc::new(Inner { raw, kind, device });
        let (inner, late) = driver.contexts().get_or_enter(raw.address(), fresh);
        drop(late);
        Ok(Context { inner })
    }
}

/// The green context behind a context.
///
/// # Safety
///
/// The context must be alive.
unsafe fn green_of(driver: &Driver, raw: Raw<CUctx_st>) -> Result<Option<Raw<CUgreenCtx_st>>> {
    let _scope = Scope::enter(driver, raw.as_ptr())?;
    let token = DefaultStream::Legacy.as_raw();
    let mut green = ptr::null_mut();
    // The driver answers for the current context (recorded on an H200, driver 580.159.04).
    // SAFETY: the token is looked up in the current context; the pointer is to a live handle.
    unsafe { call!(driver.functions()?, cuStreamGetGreenCtx(token, &raw mut green)) }?;
    Ok(Raw::new(green))
}

/// The primary context of a device, if somebody has brought it up.
fn active_primary(device: &Device) -> Result<Option<Context>> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both pointers are to live integers, the device comes from the driver.
    unsafe {
        call!(
            device.functions()?,
            cuDevicePrimaryCtxGetState(device.as_raw(), &raw mut flags, &raw mut active)
        )
    }?;
    if active == 0 { Ok(None) } else { device.primary_context().map(Some) }
}
