//! Runs the kernels and copies of NVIDIA's crate `cuda-core` in partitions of one GPU's SMs.
//!
//! cuda-core 0.5 needs Rust 1.89, and a driver of CUDA 13 or newer. To build it, you also need libclang and a CUDA
//! toolkit of version 13 or newer with cuRAND's header, in `/usr/local/cuda` or in the folder that `CUDA_HOME` names.
//!
//! # Using a partition's stream in cuda-core
//!
//! [`cuda_core_stream`] takes a stream and cuda-core's context of the same device. Everything that cuda-core copies,
//! fills or launches on the result runs in the partition.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cuda_core::{Context, DeviceBuffer, launch_kernel_on_stream};
//! use green_ctx::{Driver, SplitRequest};
//! use green_ctx_cuda_core::{cuda_core_stream, device_of};
//!
//! let cuda = Context::new(0)?;
//! let device = device_of(&Driver::load()?, &cuda)?;
//! let parts = device.partition(SplitRequest::new().group("decode", 96).rest("others"))?;
//! let stream = cuda_core_stream(parts["decode"].stream(), &cuda)?;
//!
//! let numbers = DeviceBuffer::from_host(&stream, &[1, 2, 3, 4])?;
//! let source = ".version 7.0 .target sm_52 .address_size 64 .visible .entry nothing() { ret; }";
//! let nothing = cuda.load_module_from_ptx_src(source)?.load_function("nothing")?;
//! // SAFETY: the kernel has no parameters, and uses no memory.
//! unsafe { launch_kernel_on_stream(&nothing, (96, 1, 1), (256, 1, 1), 0, &stream, &mut []) }?;
//! assert_eq!(numbers.to_host_vec(&stream)?, [1, 2, 3, 4]);
//! # Ok(())
//! # }
//! ```
//!
//! The stream determines where work runs; the context that cuda-core makes current does not matter. cuda-core's
//! context is the device's primary context, so all partitions of a device share its memory, modules and events. A
//! function that was loaded in the primary context runs in the partition if it is launched on the partition's stream,
//! and events of the primary context can be recorded there (recorded on an H200, driver 580.159.04).
//!
//! Streams that cuda-core creates itself, with `Context::new_stream` or `Stream::fork`, are outside all partitions. The
//! SM count and the occupancy that cuda-core reports are the device's, not the partition's.
//!
//! # Lifetimes
//!
//! A borrowed cuda-core stream holds an owner, which here is the [`Stream`] of green-ctx. The partition therefore lives
//! at least until the last `Arc` of the cuda-core stream is dropped, and until then
//! [`Context::close`](green_ctx::context::Context::close) returns an error.
//!
//! If the stream has no more work, dropping the last `Arc` releases the partition. Otherwise, a thread of cuda-core
//! releases it some milliseconds after the work has ended, and a split before that does not find the SMs. So call
//! `Stream::synchronize` before the drop. Memory that is freed in the order of the stream (`RawDeviceBuffer`) also
//! holds an `Arc`, and that thread frees it.
//!
//! Do not drop the last `Arc` while the stream is being captured. cuda-core 0.5 then cannot ask the driver whether the
//! work has ended, so the stream and its partition stay until the process ends.
#![deny(unsafe_code)]

use std::sync::Arc;

use green_ctx::{Device, Driver, Error, Result, Stream, context::Context};

/// Creates a cuda-core stream from `stream`, in cuda-core's context of the same device. `stream` stays alive while the
/// result exists, and cuda-core does not destroy it. The calling thread's current context does not change.
///
/// # Errors
///
/// - [`Error::DeviceMismatch`] if `context` belongs to another device.
/// - [`Error::InvalidRequest`] if the stream belongs to a context that `cuCtxCreate` created.
/// - The same errors as [`device_of`].
pub fn cuda_core_stream(
    stream: &Stream,
    context: &Arc<cuda_core::Context>,
) -> Result<Arc<cuda_core::Stream>> {
    let device = stream.context().device();
    let (theirs, primary) = shared(device.driver(), context)?;
    if theirs != *device {
        return Err(Error::DeviceMismatch { what: "the stream and cuda-core's context" });
    }
    if !stream.context().is_green() && *stream.context() != primary {
        let reason = "the stream belongs neither to a partition nor to the primary context; pass a \
                      stream of one of them";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    let (raw, owner) = (stream.as_raw().cast(), Arc::new(stream.clone()));
    // SAFETY: the raw stream lives as long as the owner. `shared` has checked that it and cuda-core's context belong to
    // one driver. The stream of a green context works with objects of the primary context (recorded on an H200, driver
    // 580.159.04).
    #[allow(unsafe_code, reason = "passes a raw handle")]
    Ok(unsafe { cuda_core::Stream::borrow_with_owner(raw, context, owner) })
}

/// Converts a cuda-core stream to a green-ctx stream, for events, waits and launches between cuda-core's stream and
/// partitions. The cuda-core object stays alive until the last handle of the result is dropped. If this drop releases
/// the last `Arc`, cuda-core makes its context current on the dropping thread.
///
/// For a result of [`cuda_core_stream`], this is the [`Stream`] from which it was created.
///
/// # Errors
///
/// The same errors as [`device_of`], and [`Error::DefaultStream`] for `Context::default_stream`.
pub fn stream_of(driver: &Driver, stream: &Arc<cuda_core::Stream>) -> Result<Stream> {
    shared(driver, stream.context())?;
    // SAFETY: `shared` has checked, using the stream's context, that the stream belongs to this driver. The result
    // holds an `Arc` of the cuda-core object. cuda-core destroys its own streams and releases their context only when
    // the last `Arc` is dropped. For a borrowed stream, the caller of cuda-core's unsafe constructor guarantees that
    // the stream stays alive until that time.
    #[allow(unsafe_code, reason = "takes a raw handle")]
    unsafe {
        Stream::from_raw_borrowed(driver, stream.cu_stream().cast(), Arc::clone(stream))
    }
}

/// Returns the device of a cuda-core context.
///
/// # Errors
///
/// - [`Error::NoSuchDevice`] if `driver` does not have the device.
/// - [`Error::InvalidRequest`] if `context` is not the device's primary context (`cuda_core::Context::new`), or if
///   cuda-core and `driver` have loaded different driver libraries. [`Driver::load`] loads cuda-core's.
/// - [`Error::Forked`] in a forked process, and [`Error::Driver`] if a driver call fails.
pub fn device_of(driver: &Driver, context: &cuda_core::Context) -> Result<Device> {
    shared(driver, context).map(|(device, _)| device)
}

/// Returns the device of a cuda-core context, and the device's primary context, which must be the same. Handles are
/// addresses, and no two libraries in a process use the same address.
fn shared(driver: &Driver, context: &cuda_core::Context) -> Result<(Device, Context)> {
    let number = context.cu_device();
    let device = driver.devices().find(|device| device.as_raw() == number);
    let device = device.ok_or_else(|| Error::NoSuchDevice {
        ordinal: u32::try_from(number).unwrap_or(u32::MAX),
        count: u32::try_from(driver.devices().count()).unwrap_or(u32::MAX),
    })?;
    let primary = device.primary_context()?;
    if context.cu_ctx().addr() != primary.as_raw().addr() {
        let reason = "cuda-core's context is not the device's primary context in this `Driver`; \
                      create it with `cuda_core::Context::new`, and load the same driver library \
                      in both";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    Ok((device, primary))
}
