//! Streams that other libraries created.
//!
//! `get_or_enter` looks a raw handle up and enters a new object under one lock, so that one handle has one
//! object. An owned stream is destroyed with its last handle. A borrowed stream is not destroyed, and its
//! object keeps the owner alive. Default-stream tokens are not handles, and are refused.
//!
//! The driver reports the stream's context. If no object represents the context either, it is borrowed with
//! the stream. From CUDA 12.5 on, `cuStreamGetCtx` reports green contexts too. Before that, the form of 9.2
//! is called for a stream without a green context.
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
use crate::handle::context::Context;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check};
use crate::handle::owner::{Owner, Ownership};
use crate::handle::raw::Raw;

impl Stream {
    /// Takes over a foreign stream of this context: the last handle destroys it.
    ///
    /// In a partition the stream's work waits, as that of any new stream, for what still runs on the
    /// SMs since before the partition was made.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyOwned`] for a stream that an object of this crate stands for,
    /// [`Error::DefaultStream`] for a default-stream token, [`Error::InvalidRequest`] for a stream of
    /// another context, [`Error::Forked`], [`Error::Driver`]. The stream stays the caller's then.
    ///
    /// # Safety
    ///
    /// `raw` must be a living stream of the context's driver, and nobody else may destroy it. Others
    /// may use it no longer than a handle of the result lives.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Stream, sim::Sim, sys::CUresult};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let context = driver.device(0)?.primary_context()?;
    /// // Some other library makes a stream in the current context.
    /// let mut raw = std::ptr::null_mut();
    /// {
    ///     let _current = context.make_current()?;
    ///     // SAFETY: the pointer is to a live handle.
    ///     let status = unsafe { driver.api().cuStreamCreate()?(&raw mut raw, 1) };
    ///     assert_eq!(status, CUresult::CUDA_SUCCESS);
    /// }
    /// // SAFETY: it was made just now, and no other code has it.
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
            return Err(Error::InvalidRequest("the stream is one of another context".to_owned()));
        }
        // Nothing of this object is the stream's end yet, so that an error leaves it as it was.
        let mut inner = Inner::foreign(raw, context.clone(), Ownership::borrowed(()))?;
        if let Some(inner) = Arc::get_mut(&mut inner) {
            inner.ownership = Ownership::Owned;
        }
        let (inner, late) = driver.streams().get_or_enter(raw.address(), inner);
        let Some(mut late) = late else { return Ok(Stream::from_inner(inner)) };
        // Another thread was first, and its object stands for the stream.
        match Arc::get_mut(&mut late) {
            Some(late) => late.ownership = Ownership::borrowed(()),
            None => mem::forget(late),
        }
        Err(Error::AlreadyOwned { what: "stream" })
    }

    /// Uses a stream that is somebody else's. Nothing destroys it; `owner` is kept until the last
    /// handle of the result is gone, and its context's handles with it.
    ///
    /// A stream that an object of this crate stands for already is that object, and `owner` is
    /// dropped. The stream's context, too, is the object that stands for it; where there is none it
    /// is borrowed along with the stream.
    ///
    /// # Errors
    ///
    /// [`Error::DefaultStream`] for a default-stream token, [`Error::Forked`], [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// `raw` must be a living stream of this driver. It and its context must stay alive until
    /// `owner` is dropped; of a partition of this crate a living handle sees to that.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Stream, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let context = driver.device(0)?.primary_context()?;
    /// let ours = context.create_stream(StreamOptions::default())?;
    /// // From here to another library and back.
    /// let raw = ours.as_raw();
    /// // SAFETY: `ours` keeps the stream and its context.
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
        // SAFETY: the owner keeps the stream's context by this function's contract.
        let context = unsafe { Context::adopt(driver, context, green, Arc::clone(&owner)) }?;
        let inner = Inner::foreign(raw, context, Ownership::Borrowed { _owner: owner })?;
        let (inner, late) = driver.streams().get_or_enter(raw.address(), inner);
        drop(late);
        Ok(Stream::from_inner(inner))
    }
}

impl Inner {
    /// An object for a foreign handle, not yet in the registry.
    fn foreign(
        raw: Raw<CUstream_st>,
        context: Context,
        ownership: Ownership,
    ) -> Result<Arc<Inner>> {
        let (slot, context) = (context.enter_stream(raw), context.for_stream());
        // The caller enters it in the registry.
        let (registered, kept) = (OnceLock::from(()), OnceLock::new());
        let inner = Arc::new(Inner { raw, context, slot, registered, kept, ownership });
        inner.context.expose()?;
        inner.context.hold_new(Stream::from_inner(Arc::clone(&inner)).raw_stream())?;
        Ok(inner)
    }
}

/// Refuses what no object can stand for.
fn handle(driver: &Driver, raw: CUstream) -> Result<Raw<CUstream_st>> {
    driver.check_process()?;
    match (DefaultStream::from_raw(raw), Raw::new(raw)) {
        (None, Some(raw)) => Ok(raw),
        (token, _) => Err(Error::DefaultStream { token: token.unwrap_or(DefaultStream::Null) }),
    }
}

/// The context of a stream, and the green context behind it.
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
        // For a green stream it returns the green context, and the primary one beside it (recorded
        // on an H200, driver 580.159.04).
        // SAFETY: the stream is alive, both pointers are to live handles.
        check("cuStreamGetCtx", unsafe { get(stream.as_ptr(), &raw mut context, &raw mut green) })?;
    } else {
        // SAFETY: as above.
        unsafe { call!(api, cuStreamGetGreenCtx(stream.as_ptr(), &raw mut green)) }?;
        if green.is_null() {
            // SAFETY: the stream is alive.
            context = unsafe { context_by_the_older_form(driver, stream) }?;
        }
    }
    let Some(green) = Raw::new(green) else {
        return Ok((Raw::new(context).ok_or_else(|| Error::null("cuStreamGetCtx"))?, None));
    };
    // The handles of a green context and of the context derived from it are equal on driver
    // 580.159.04. Where that holds, a context of this crate is found without a call, which other
    // threads' calls on it would have to be kept from.
    let ours = driver.contexts().find(green.address()).map(Context::from_inner);
    if let Some(ours) = ours.filter(|ours| ours.raw_green() == Some(green.as_ptr())) {
        return Ok((
            Raw::new(ours.raw()).ok_or_else(|| Error::null("cuCtxFromGreenCtx"))?,
            Some(green),
        ));
    }
    // SAFETY: the green context is alive, since its stream is used; the pointer is to a live handle.
    unsafe { call!(api, cuCtxFromGreenCtx(&raw mut context, green.as_ptr())) }?;
    Ok((Raw::new(context).ok_or_else(|| Error::null("cuCtxFromGreenCtx"))?, Some(green)))
}

/// Asks with the function's form of CUDA 9.2, which knows no green contexts. The table of functions
/// has the form of 12.5.
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
    // SAFETY: the name is terminated, both pointers are to live values.
    let found = unsafe { entry(NAME.as_ptr(), &raw mut address, VERSION, 0, &raw mut status) };
    check("cuGetProcAddress", found)?;
    if address.is_null() {
        return Err(Error::null("cuGetProcAddress"));
    }
    // SAFETY: the function has this signature from 9.2 on, where it is asked for at a version
    // before 12.5 (cudaTypedefs.h, `PFN_cuStreamGetCtx_v9020`), and the address is not null.
    let get = unsafe { mem::transmute::<*mut c_void, Get>(address) };
    let mut context = ptr::null_mut();
    // SAFETY: the stream is alive, the pointer is to a live handle.
    check("cuStreamGetCtx", unsafe { get(stream.as_ptr(), &raw mut context) })?;
    Ok(context)
}
