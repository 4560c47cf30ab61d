//! Streams that other libraries created.
//!
//! `get_or_enter` looks up a raw handle in the registry and, if necessary, enters a new object, both under one lock.
//! So each raw handle has only one object, which also holds for a kept stream that is given out again. An owned stream
//! is destroyed when its last handle is dropped. A borrowed stream is not destroyed, and its object keeps the owner
//! alive. Default-stream tokens do not identify a stream, and are refused.
//!
//! The driver reports the stream's context. If this crate has no [`Context`] for the stream's context, that context
//! is borrowed together with the stream. From CUDA 12.5 on, `cuStreamGetCtx` reports green contexts too. On older
//! drivers, this module calls the CUDA 9.2 form of the function if the stream has no green context.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::{Arc, OnceLock};

use green_ctx_sys::{
    CUcontext, CUctx_st, CUdriverProcAddressQueryResult, CUgreenCtx_st, CUresult, CUstream,
    CUstream_st,
};

use super::{DefaultStream, Inner, Stream};
use crate::handle::context::{Context, ContextStream};
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check};
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;

impl Stream {
    /// Takes ownership of a foreign stream of this context. Dropping the last handle destroys the stream.
    ///
    /// In a partition, the stream's work waits for work that earlier owners of the SMs left running, as on any new
    /// stream.
    ///
    /// # Errors
    ///
    /// If this call fails, the stream still belongs to the caller.
    ///
    /// - [`Error::AlreadyOwned`] if a [`Stream`] for the handle exists.
    /// - [`Error::DefaultStream`] if the handle is a default-stream token.
    /// - [`Error::InvalidRequest`] if the stream belongs to another context.
    /// - [`Error::Forked`] in a forked process, and [`Error::Driver`] if a driver call fails.
    ///
    /// # Safety
    ///
    /// `raw` must be a live stream of the context's driver, and no other code may destroy it. Other code may use the
    /// stream only while a handle of the result exists.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Stream, sim::Sim, sys::CUresult};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let context = driver.device(0)?.primary_context()?;
    /// // Another library creates a stream in the current context.
    /// let mut raw = std::ptr::null_mut();
    /// {
    ///     let _current = context.make_current()?;
    ///     // SAFETY: `raw` is a live local.
    ///     let status = unsafe { driver.api().cuStreamCreate()?(&raw mut raw, 1) };
    ///     assert_eq!(status, CUresult::CUDA_SUCCESS);
    /// }
    /// // SAFETY: the stream was created above, and no other code has it.
    /// let stream = unsafe { Stream::from_raw_owned(&context, raw) }?;
    /// assert_eq!(driver.find_stream(raw), Some(stream));
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn from_raw_owned(context: &Context, raw: CUstream) -> Result<Stream> {
        let driver = context.device().driver();
        let raw = handle(driver, raw)?;
        if driver.streams().find(raw.address()).is_some() {
            return Err(Error::AlreadyOwned { what: "stream" });
        }
        // SAFETY: the stream is alive by this function's contract.
        let (found, _) = unsafe { context_of(driver, raw) }?;
        if found.as_ptr() != context.raw() {
            let problem = "the stream belongs to another context; pass the stream's own context";
            return Err(Error::InvalidRequest(problem.to_owned()));
        }
        // Borrowed at first, so that an error here does not destroy the caller's stream.
        let mut inner = Inner::foreign(raw, context, Some(Arc::new(())))?;
        if let Some(inner) = Arc::get_mut(&mut inner) {
            inner.stream.set_owner(None);
        }
        let (stream, late) = Stream::enter(inner);
        let Some(mut late) = late else { return Ok(stream) };
        // Another thread was first, so its object represents the stream.
        match Arc::get_mut(&mut late) {
            Some(late) => late.stream.set_owner(Some(Arc::new(()))),
            None => mem::forget(late),
        }
        Err(Error::AlreadyOwned { what: "stream" })
    }

    /// Uses a foreign stream without taking ownership. This crate never destroys the stream. The crate keeps `owner`
    /// alive until the last handle of the result, and of a context that was borrowed with it, is dropped.
    ///
    /// If a [`Stream`] for the handle exists, that [`Stream`] is returned and `owner` is dropped. If a [`Context`]
    /// for the stream's context exists, or if this crate created the context, that [`Context`] is used. Otherwise the
    /// context is borrowed together with the stream.
    ///
    /// # Errors
    ///
    /// [`Error::DefaultStream`] if the handle is a default-stream token, [`Error::Forked`] in a forked process, and
    /// [`Error::Driver`] if a driver call fails.
    ///
    /// # Safety
    ///
    /// `raw` must be a live stream of this driver. The stream and its context must stay alive until `owner` is
    /// dropped. A live handle of a partition of this crate keeps that partition's context alive.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Stream, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let context = driver.device(0)?.primary_context()?;
    /// let ours = context.create_stream(StreamOptions::default())?;
    /// // The handle passes through another library and comes back.
    /// let raw = ours.as_raw();
    /// // SAFETY: `ours` keeps the stream and its context alive.
    /// let same = unsafe { Stream::from_raw_borrowed(&driver, raw, ours.clone()) }?;
    /// assert_eq!(same, ours);
    /// assert_eq!(same.context(), &context);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuStreamGetCtx", "cuStreamGetGreenCtx"))]
    pub unsafe fn from_raw_borrowed(
        driver: &Driver,
        raw: CUstream,
        owner: impl Send + Sync + 'static,
    ) -> Result<Stream> {
        let raw = handle(driver, raw)?;
        if let Some(inner) = driver.streams().find(raw.address()) {
            return Ok(Stream::from_inner(inner));
        }
        let owner: Owner = Arc::new(owner);
        // SAFETY: the stream is alive by this function's contract.
        let (context, green) = unsafe { context_of(driver, raw) }?;
        // SAFETY: the owner keeps the stream's context alive by this function's contract.
        let context = unsafe { Context::adopt(driver, context, green, Arc::clone(&owner)) }?;
        let inner = Inner::foreign(raw, &context, Some(owner))?;
        Ok(Stream::enter(inner).0)
    }
}

impl Inner {
    /// Creates an object for a foreign handle that is not in the registry yet.
    fn foreign(
        raw: Raw<CUstream_st>,
        context: &Context,
        owner: Option<Owner>,
    ) -> Result<Arc<Inner>> {
        // In the list before the context is exposed, so that a switch that does not see the one sees the other.
        let stream = ContextStream::enter(context, raw, owner);
        context.expose()?;
        context.hold_new(stream.raw_stream())?;
        // Marked as registered here: the caller enters it.
        Ok(Arc::new(Inner { stream, registered: OnceLock::from(()) }))
    }
}

/// Checks that a handle identifies a stream: it must be neither null nor a default-stream token.
fn handle(driver: &Driver, raw: CUstream) -> Result<Raw<CUstream_st>> {
    driver.check_process()?;
    match (DefaultStream::from_raw(raw), Raw::new(raw)) {
        (None, Some(raw)) => Ok(raw),
        (token, _) => Err(Error::DefaultStream { token: token.unwrap_or(DefaultStream::Null) }),
    }
}

/// Returns the context of a stream, and its green context if it has one.
///
/// # Safety
///
/// The stream must be alive.
pub(crate) unsafe fn context_of(
    driver: &Driver,
    stream: Raw<CUstream_st>,
) -> Result<(Raw<CUctx_st>, Option<Raw<CUgreenCtx_st>>)> {
    let api = driver.functions()?;
    let (mut context, mut green) = (ptr::null_mut(), ptr::null_mut());
    if let Ok(get) = api.cuStreamGetCtx() {
        // For a green stream it returns the green context, and the primary context as the ordinary one (recorded on
        // an H200, driver 580.159.04).
        // SAFETY: the caller keeps the stream alive, and `context` and `green` are live locals.
        check("cuStreamGetCtx", unsafe { get(stream.as_ptr(), &raw mut context, &raw mut green) })?;
    } else {
        // SAFETY: the caller keeps the stream alive, and `green` is a live local.
        unsafe { call!(api, cuStreamGetGreenCtx(stream.as_ptr(), &raw mut green)) }?;
        if green.is_null() {
            // SAFETY: the caller keeps the stream alive.
            context = unsafe { context_by_the_older_form(driver, stream) }?;
        }
    }
    let Some(green) = Raw::new(green) else {
        return Ok((Raw::new(context).ok_or_else(|| Error::null("cuStreamGetCtx"))?, None));
    };
    // On driver 580.159.04 a green context and the context derived from it have the same handle. If so, this
    // look-up finds a context of this crate without a driver call, which would have to be serialised with other
    // threads' calls on it.
    let ours = driver.greens().find(green.address());
    if let Some(ours) = ours.filter(|ours| ours.raw.address() == green.address()) {
        return Ok((ours.context, Some(green)));
    }
    // SAFETY: the green context is alive because the caller keeps its stream alive. `context` is a live local.
    unsafe { call!(api, cuCtxFromGreenCtx(&raw mut context, green.as_ptr())) }?;
    Ok((Raw::new(context).ok_or_else(|| Error::null("cuCtxFromGreenCtx"))?, Some(green)))
}

/// Calls the CUDA 9.2 form of `cuStreamGetCtx`, which does not report green contexts. The function table holds only
/// the form of CUDA 12.5.
///
/// # Safety
///
/// The stream must be alive.
unsafe fn context_by_the_older_form(
    driver: &Driver,
    stream: Raw<CUstream_st>,
) -> Result<CUcontext> {
    type Get = unsafe extern "C" fn(CUstream, *mut CUcontext) -> CUresult;
    const NAME: &CStr = c"cuStreamGetCtx";
    const VERSION: c_int = 9020;
    let mut address: *mut c_void = ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    let entry = driver.api().entry();
    // SAFETY: the name ends with a NUL, and `address` and `status` are live locals.
    let found = unsafe { entry(NAME.as_ptr(), &raw mut address, VERSION, 0, &raw mut status) };
    check("cuGetProcAddress", found)?;
    if address.is_null() {
        return Err(Error::null("cuGetProcAddress"));
    }
    // SAFETY: the address is not null. For versions from 9.2 up to, but not including, 12.5, the driver returns the
    // function with this signature (cudaTypedefs.h, `PFN_cuStreamGetCtx_v9020`).
    let get = unsafe { mem::transmute::<*mut c_void, Get>(address) };
    let mut context = ptr::null_mut();
    // SAFETY: the caller keeps the stream alive, and `context` is a live local.
    check("cuStreamGetCtx", unsafe { get(stream.as_ptr(), &raw mut context) })?;
    Ok(context)
}
