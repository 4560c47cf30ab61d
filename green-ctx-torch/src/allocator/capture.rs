//! Memory and graphs: what a capture forbids, and how long a graph needs a block.
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

/// How a stream takes part in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// It does not.
    None,
    /// What is submitted becomes part of a graph.
    Active,
    /// The capture has failed and not been ended yet, or it is one of another stream that forbids the
    /// legacy stream. There is no graph that this stream adds to.
    Forbidden,
}

/// How a stream takes part in a capture.
///
/// # Safety
///
/// The stream must be alive; a default-stream token is looked up in the current context.
pub(super) unsafe fn of(driver: &Driver, stream: CUstream) -> Result<Capture> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive, the pointer is to a live value.
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

/// A graph that may use a block, from its capture on until neither it, a copy of it nor an executable
/// made from it is left.
#[derive(Clone)]
pub(super) struct Hold {
    capture: u64,
    over: Arc<AtomicBool>,
}

impl Hold {
    /// The hold of a graph that does not say when it is gone.
    pub(super) fn for_ever() -> Hold {
        Hold { capture: u64::MAX, over: Arc::new(AtomicBool::new(false)) }
    }

    /// The capture's number, unique in the process (cuda.h, `cuStreamGetCaptureInfo`).
    pub(super) fn capture(&self) -> u64 {
        self.capture
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The hold of the graph that a stream is captured into: one of `known`, or a new one, for which
    /// the graph is given a user object. `None` where the capture is over.
    ///
    /// # Safety
    ///
    /// As [`of`].
    pub(super) unsafe fn of(
        driver: &Driver,
        stream: CUstream,
        known: impl FnOnce(u64) -> Option<Hold>,
    ) -> Result<Option<Hold>> {
        // SAFETY: passed on.
        let Some((capture, graph)) = (unsafe { graph_of(driver, stream) })? else {
            return Ok(None);
        };
        if let Some(hold) = known(capture) {
            return Ok(Some(hold));
        }
        let hold = Hold { capture, over: Arc::new(AtomicBool::new(false)) };
        // SAFETY: the graph is being captured, by the caller or with its knowledge, and lives at
        // least until that ends.
        unsafe { hold.tie(driver, graph) }?;
        Ok(Some(hold))
    }

    /// Has the graph and what is made of it say when they are gone.
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
        // SAFETY: the function has this signature from 11.3 on (cudaTypedefs.h).
        let create = unsafe {
            mem::transmute::<*mut c_void, Create>(function(driver, c"cuUserObjectCreate")?)
        };
        // SAFETY: as above.
        let retain = unsafe {
            mem::transmute::<*mut c_void, Retain>(function(driver, c"cuGraphRetainUserObject")?)
        };
        // SAFETY: as above.
        let release = unsafe {
            mem::transmute::<*mut c_void, Release>(function(driver, c"cuUserObjectRelease")?)
        };
        let mut object = ptr::null_mut();
        let flag = Arc::into_raw(Arc::clone(&self.over)).cast_mut().cast();
        // SAFETY: the destructor takes over the reference that `flag` is, once.
        let made = unsafe { create(&raw mut object, flag, graph_is_gone, 1, NO_SYNC) };
        if let Err(error) = check("cuUserObjectCreate", made) {
            // SAFETY: there is no object that would take the reference over.
            drop(unsafe { Arc::from_raw(flag.cast::<AtomicBool>().cast_const()) });
            return Err(error);
        }
        // SAFETY: both are alive; the graph takes over the one reference.
        let moved = unsafe { retain(graph, object, 1, MOVE) };
        check("cuGraphRetainUserObject", moved).inspect_err(|_| {
            // SAFETY: the reference is still this function's.
            driver.report(check("cuUserObjectRelease", unsafe { release(object, 1) }));
        })
    }
}

/// The destructor of a user object. It may not call CUDA (cuda.h, `cuUserObjectCreate`), and does not.
unsafe extern "C" fn graph_is_gone(flag: *mut c_void) {
    // SAFETY: the pointer came from `Arc::into_raw`, and the driver calls this once.
    let over = unsafe { Arc::from_raw(flag.cast::<AtomicBool>().cast_const()) };
    over.store(true, Ordering::Release);
}

/// The capture that a stream is in, and its graph.
///
/// # Safety
///
/// As [`of`].
unsafe fn graph_of(driver: &Driver, stream: CUstream) -> Result<Option<(u64, CUgraph)>> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, none) = (0, ptr::null_mut(), ptr::null_mut());
    // SAFETY: the stream is alive, the pointers are to live values or null, which is allowed.
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

/// A function of the driver that the table of functions lacks, from CUDA 11.3 on.
fn function(driver: &Driver, name: &'static CStr) -> Result<*mut c_void> {
    const VERSION: u32 = 11_030;
    let mut address: *mut c_void = ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    let entry = driver.api().entry();
    // SAFETY: the name is terminated, both pointers are to live values.
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
