//! Captures and graphs: whether a stream is being captured, and how long a graph needs a block.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{mem, ptr};

use green_ctx::sys::{
    CUdriverProcAddressQueryResult, CUgraph, CUresult, CUstream, CUstreamCaptureStatus, Version,
};
use green_ctx::{Driver, Error, Result};

use green_ctx::call;
use green_ctx::error::check;

/// The capture state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// The stream is not being captured.
    None,
    /// The stream is being captured, so work submitted to the stream becomes part of a graph.
    Active,
    /// The stream's capture has failed and has not ended yet, or a capture of another stream forbids the use of the
    /// legacy stream. Work submitted to the stream does not become part of a graph.
    Forbidden,
}

/// Returns the capture state of a stream.
///
/// # Safety
///
/// The stream must be alive. A default-stream token is resolved in the current context.
pub(super) unsafe fn of(driver: &Driver, stream: CUstream) -> Result<Capture> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the contract of this function says that `stream` is alive, and `status` is a live local.
    let answer = unsafe { driver.api().cuStreamIsCapturing()?(stream, &raw mut status) };
    if answer == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
        return Ok(Capture::Forbidden);
    }
    check("cuStreamIsCapturing", answer)?;
    Ok(match status {
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Capture::None,
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Capture::Active,
        _ => Capture::Forbidden,
    })
}

/// The hold of a graph on a block that the graph may use. A hold begins during the capture and ends when the graph, all
/// its copies and all its executables are destroyed.
#[derive(Clone)]
pub(super) struct Hold {
    capture: u64,
    over: Arc<AtomicBool>,
}

impl Hold {
    /// Returns a hold that never ends, for a graph whose destruction is not reported.
    pub(super) fn for_ever() -> Hold {
        Hold { capture: u64::MAX, over: Arc::new(AtomicBool::new(false)) }
    }

    /// Returns the ID of the capture, which is unique in the process (cuda.h, `cuStreamGetCaptureInfo`).
    pub(super) fn capture(&self) -> u64 {
        self.capture
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Returns the hold of the graph into which a stream is being captured. This is the hold that `known` finds, or a
    /// new hold that a user object of the graph ends. Returns `None` if the stream is not being captured.
    ///
    /// # Safety
    ///
    /// As for [`of`].
    pub(super) unsafe fn of(
        driver: &Driver,
        stream: CUstream,
        known: impl FnOnce(u64) -> Option<Hold>,
    ) -> Result<Option<Hold>> {
        // SAFETY: this function has the same contract as `graph_of`.
        let Some((capture, graph)) = (unsafe { graph_of(driver, stream) })? else {
            return Ok(None);
        };
        if let Some(hold) = known(capture) {
            return Ok(Some(hold));
        }
        let hold = Hold { capture, over: Arc::new(AtomicBool::new(false)) };
        // SAFETY: `graph` belongs to an open capture of `stream` and exists until that capture ends. This code assumes
        // that no other thread ends the capture while the caller uses the stream.
        unsafe { hold.tie(driver, graph) }?;
        Ok(Some(hold))
    }

    /// Attaches a user object to the graph. The object's destructor ends the hold when the graph, all its copies and
    /// all its executables are destroyed.
    ///
    /// # Safety
    ///
    /// The graph must be alive.
    unsafe fn tie(&self, driver: &Driver, graph: CUgraph) -> Result<()> {
        type Object = *mut c_void;
        type Create = unsafe extern "C" fn(
            *mut Object,
            *mut c_void,
            unsafe extern "C" fn(*mut c_void),
            u32,
            u32,
        ) -> CUresult;
        type Retain = unsafe extern "C" fn(CUgraph, Object, u32, u32) -> CUresult;
        type Release = unsafe extern "C" fn(Object, u32) -> CUresult;
        // `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC` and `CU_GRAPH_USER_OBJECT_MOVE` (cuda.h).
        const NO_SYNC: u32 = 1;
        const MOVE: u32 = 1;
        // SAFETY: the driver's `cuUserObjectCreate` has had this signature since CUDA 11.3 (cudaTypedefs.h).
        let create = unsafe {
            mem::transmute::<*mut c_void, Create>(function(driver, c"cuUserObjectCreate")?)
        };
        // SAFETY: the driver's `cuGraphRetainUserObject` has had this signature since CUDA 11.3 (cudaTypedefs.h).
        let retain = unsafe {
            mem::transmute::<*mut c_void, Retain>(function(driver, c"cuGraphRetainUserObject")?)
        };
        // SAFETY: the driver's `cuUserObjectRelease` has had this signature since CUDA 11.3 (cudaTypedefs.h).
        let release = unsafe {
            mem::transmute::<*mut c_void, Release>(function(driver, c"cuUserObjectRelease")?)
        };
        let mut object = ptr::null_mut();
        let flag = Arc::into_raw(Arc::clone(&self.over)).cast_mut().cast();
        // SAFETY: `object` is a live local. `flag` is a reference from `Arc::into_raw`, which `graph_is_gone` takes
        // over; the driver calls this destructor once.
        let made = unsafe { create(&raw mut object, flag, graph_is_gone, 1, NO_SYNC) };
        if let Err(error) = check("cuUserObjectCreate", made) {
            // SAFETY: `flag` is from `Arc::into_raw` above. The call failed, so no object takes the reference over.
            drop(unsafe { Arc::from_raw(flag.cast::<AtomicBool>().cast_const()) });
            return Err(error);
        }
        // SAFETY: the contract of this function says that `graph` is alive, and `object` was created above. With `MOVE`
        // the graph takes over the only reference to `object`.
        let moved = unsafe { retain(graph, object, 1, MOVE) };
        check("cuGraphRetainUserObject", moved).inspect_err(|_| {
            // SAFETY: the call above failed, so this function still owns the only reference to `object`.
            driver.report(check("cuUserObjectRelease", unsafe { release(object, 1) }));
        })
    }
}

/// The destructor of a user object. The destructor must not call CUDA (cuda.h, `cuUserObjectCreate`), and this
/// destructor does not.
unsafe extern "C" fn graph_is_gone(flag: *mut c_void) {
    // SAFETY: `tie` passes `flag` from `Arc::into_raw`, and the driver calls the destructor of an object once.
    let over = unsafe { Arc::from_raw(flag.cast::<AtomicBool>().cast_const()) };
    over.store(true, Ordering::Release);
}

/// Returns the ID and the graph of the capture that a stream is in.
///
/// # Safety
///
/// As for [`of`].
unsafe fn graph_of(driver: &Driver, stream: CUstream) -> Result<Option<(u64, CUgraph)>> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, none) = (0, ptr::null_mut(), ptr::null_mut());
    // SAFETY: the contract of this function says that `stream` is alive. Each pointer points to a live local or is
    // null, which cuda.h allows.
    unsafe {
        call!(
            driver.api(),
            cuStreamGetCaptureInfo(
                stream,
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                none,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        )
    }?;
    let active = status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    Ok((active && !graph.is_null()).then_some((id, graph)))
}

/// Returns a driver function (CUDA 11.3 and newer) that is not in green-ctx's table of driver functions.
fn function(driver: &Driver, name: &'static CStr) -> Result<*mut c_void> {
    const VERSION: u32 = 11_030;
    let mut address: *mut c_void = ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    let entry = driver.api().entry();
    // SAFETY: `name` is a terminated string, and `address` and `status` are live locals.
    let found =
        unsafe { entry(name.as_ptr(), &raw mut address, VERSION as c_int, 0, &raw mut status) };
    check("cuGetProcAddress", found)?;
    if !address.is_null() {
        return Ok(address);
    }
    Err(Error::Unsupported {
        call: "cuUserObjectCreate",
        needs: Version::from_number(VERSION),
        found: driver.version(),
    })
}
