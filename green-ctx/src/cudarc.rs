//! cudarc in partitions, with the feature `cudarc`.
//!
//! [`Stream::to_cudarc`] gives a partition's stream as `CudaStream` of the crate `cudarc`: what
//! cudarc copies, fills, allocates and launches on it runs in the partition, and so does what cuBLAS
//! and other libraries do that are given it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::driver::CudaContext;
//! use green_ctx::{Device, Driver, StreamOptions};
//!
//! let cuda = CudaContext::new(0)?;
//! let device = Device::from_cudarc(&Driver::load()?, &cuda)?;
//! let group = device.resources().sm()?.split([16])?.groups.remove(0);
//! let partition = device.create_context(group)?;
//!
//! let stream = partition.create_stream(StreamOptions::default())?.to_cudarc(&cuda)?;
//! let numbers = stream.clone_htod(&[1u32, 2, 3])?;
//! assert_eq!(stream.clone_dtoh(&numbers)?, [1, 2, 3]);
//! # Ok(())
//! # }
//! ```
//!
//! The other way lead [`Device::from_cudarc`], [`Context::from_cudarc`] and [`Stream::from_cudarc`].
//!
//! # Which context is current
//!
//! Before most of its calls cudarc makes its own context current on the thread, and leaves it there.
//! For a context of `CudaContext::new` that is the device's primary one, never the partition's. The
//! stream decides all the same: a function that was loaded with the primary context current runs in
//! the partition when it is launched on the partition's stream, and events of either context record
//! and wait on it (recorded on an H200, driver 580.159.04). So memory, modules and events of cudarc are
//! good for all partitions of the device. What this crate calls of cudarc leaves the thread's current
//! context as it was.
//!
//! What is asked of the *context* is answered for the whole device:
//!
//! - `CudaContext::new_stream` and `CudaStream::fork` make streams that are in no partition.
//! - The number of SMs, and what cudarc says of occupancy, are the device's. A library that sizes its
//!   grids by them does so for all SMs; cuBLAS takes the number from `cublasSetSmCountTarget`.
//!
//! # Who keeps what
//!
//! cudarc's `CudaStream` has no place for an owner, nothing tells when the last `Arc` of one goes, and
//! a `CudaContext` of a raw handle destroys it. So a [`CudarcStream`] wraps the raw stream as a borrowed
//! one over the *primary* context, and keeps this crate's [`Stream`] beside it. Others may keep the
//! `Arc<CudaStream>` for longer: a `CudaSlice` does, and a `CudaBlas`. Then the stream waits, and goes,
//! the partition with it, at the first call after they are gone that could want its SMs: a
//! [split or plan](crate::SmResource::split), [`Context::close`], [`Stream::to_cudarc`], or [`reclaim`].
//!
//! cudarc orders accesses to a `CudaSlice` from several streams while its context has made streams of
//! its own, and does not count those that it was given. [`CudarcStream`]s keep one of its own beside them,
//! unused, so that they are ordered; as with cudarc's own streams, memory that is allocated
//! before the first is not tracked, and waits end with the last.
#![allow(unsafe_code, reason = "takes raw handles")]

mod stream;

use std::sync::Arc;

use ::cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use green_ctx_sys::CUresult;

use crate::context::Context;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::stream::Stream;

pub use stream::{CudarcStream, reclaim};

impl Device {
    /// The device of cudarc's context.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`], [`Error::InvalidRequest`] where cudarc has loaded another driver
    /// library than `driver`, [`Error::Forked`], [`Error::Driver`].
    pub fn from_cudarc(driver: &Driver, context: &CudaContext) -> Result<Device> {
        shared(driver, context).map(|(device, _)| device)
    }
}

impl Context {
    /// cudarc's context as one of this crate. That of `CudaContext::new` is the device's
    /// [primary context](Device::primary_context), which is retained; any other is borrowed, and
    /// cudarc's object kept until the last handle of the result is gone.
    ///
    /// # Errors
    ///
    /// As [`Device::from_cudarc`].
    pub fn from_cudarc(driver: &Driver, context: &Arc<CudaContext>) -> Result<Context> {
        let (_, primary) = shared(driver, context)?;
        if context.cu_ctx().addr() == primary.as_raw().addr() {
            return Ok(primary);
        }
        // SAFETY: it is a context of this driver, as `shared` has found out, and cudarc destroys it
        // when the last `Arc` goes.
        unsafe { Context::from_raw_borrowed(driver, context.cu_ctx().cast(), Arc::clone(context)) }
    }
}

impl Stream {
    /// A stream of cudarc's as one of this crate: for events, waits and launches between it and
    /// partitions. cudarc's object is kept until the last handle of the result is gone; where that is
    /// its last, cudarc makes its context current on that thread and destroys the stream.
    ///
    /// The stream of a [`CudarcStream`] is the [`Stream`] that it was made from.
    ///
    /// # Errors
    ///
    /// As [`Device::from_cudarc`], and [`Error::DefaultStream`] for cudarc's default and per-thread
    /// streams.
    pub fn from_cudarc(driver: &Driver, stream: &Arc<CudaStream>) -> Result<Stream> {
        shared(driver, stream.context())?;
        // SAFETY: the stream is one of this driver, as `shared` has found out of its context. cudarc
        // destroys its own, and the context, when the last `Arc` goes; whoever gave it another's
        // promised to keep that one until then (cudarc, `CudaContext::wrap_borrowed_stream`).
        unsafe { Stream::from_raw_borrowed(driver, stream.cu_stream().cast(), Arc::clone(stream)) }
    }
}

/// The device of cudarc's context, and its primary context. That cudarc and `driver` are of one
/// library shows in both being given the same primary context: handles are addresses, so two libraries
/// of one process have none in common.
fn shared(driver: &Driver, context: &CudaContext) -> Result<(Device, Context)> {
    driver.check_process()?;
    let number = context.cu_device();
    let device = driver.devices().find(|device| device.as_raw() == number);
    let device = device.ok_or_else(|| Error::NoSuchDevice {
        ordinal: u32::try_from(number).unwrap_or(u32::MAX),
        count: u32::try_from(driver.devices().count()).unwrap_or(u32::MAX),
    })?;
    let primary = device.primary_context()?;
    let theirs = if context.is_primary() { context.cu_ctx() } else { retained(context)? };
    if theirs.addr() != primary.as_raw().addr() {
        let reason = "cudarc has loaded another driver library than this `Driver` is of";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    Ok((device, primary))
}

/// The primary context as cudarc's driver library knows it, as a number.
fn retained(context: &CudaContext) -> Result<::cudarc::driver::sys::CUcontext> {
    let device = context.cu_device();
    // SAFETY: the device is one that cudarc's driver gave it.
    let raw = unsafe { result::primary_ctx::retain(device) };
    let raw = answer("cuDevicePrimaryCtxRetain", raw)?;
    // SAFETY: as above; it gives back what was taken just now.
    let released = unsafe { result::primary_ctx::release(device) };
    answer("cuDevicePrimaryCtxRelease", released).map(|()| raw)
}

/// What cudarc answered, as this crate's error.
fn answer<T>(call: &'static str, answer: Result<T, DriverError>) -> Result<T> {
    answer.map_err(|DriverError(status)| Error::Driver { call, status: CUresult(status as _) })
}
