//! Memory for inputs and results: buffers on the device, and pinned buffers on the host.
#![allow(unsafe_code, reason = "calls the driver")]

mod pinned;

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_sys::CUdeviceptr;

use crate::handle::capture::RelaxedCapture;
use crate::handle::context::Context;
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::work::stream::{Stream, StreamOptions};

pub use pinned::PinnedBuffer;

/// Device memory that holds a fixed number of plain values. Dropping the buffer frees the memory.
///
/// Freeing waits for the device's work, except for graphs on streams of partitions
/// ([recorded](crate::guide::graphs#where-to-launch) on an H200, driver 580.159.04). A buffer from
/// [`Stream::allocate`] is freed in stream order instead, without waiting.
///
/// While other streams are captured, on any thread and in any mode, buffers can be created, read and dropped. None of
/// these operations becomes part of the graph. While the stream of a stream-ordered buffer is captured, the buffer
/// can neither be copied nor freed.
///
/// This type is meant for results and small inputs. A `DeviceBuffer` is not an array type. Programs that need an
/// array type can use another library on the streams of this crate.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{DeviceBuffer, Driver, StreamOptions, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
/// let buffer = DeviceBuffer::from_slice(&device, &[1u32, 2, 3])?;
/// assert_eq!(buffer.read(&stream)?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
pub struct DeviceBuffer<T: Element> {
    raw: CUdeviceptr,
    len: usize,
    context: Context,
    /// For a stream-ordered allocation, the stream in whose order the memory is allocated and freed.
    home: Option<Stream>,
    /// True if a copy may still be running that is not ordered before the free. In that case the memory is leaked.
    is_lost: AtomicBool,
    _elements: PhantomData<T>,
}

/// A plain value type: every bit pattern is a valid value, and there is no padding.
pub trait Element: sealed::Element {}

mod sealed {
    pub trait Element: Copy + Default + Send + Sync + 'static {}
}

macro_rules! elements {
    ($($type:ty),*) => { $(impl sealed::Element for $type {} impl Element for $type {})* };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Element> DeviceBuffer<T> {
    /// Allocates `len` values, all zero. The zeros are written in the primary context.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if `len` is 0 or too large to address. [`Error::Driver`] if the driver call fails,
    /// for example because there is not enough memory.
    #[doc(alias("cuMemAlloc", "cuMemsetD8Async"))]
    pub fn zeroed(device: &Device, len: usize) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::<T>::allocate(device, len)?;
        buffer.write(|stream| {
            let (api, bytes) = (buffer.driver().functions()?, buffer.byte_len());
            // SAFETY: the allocation has `bytes` bytes, and the stream is alive.
            unsafe { call!(api, cuMemsetD8Async(buffer.raw, 0, bytes, stream.raw())) }
        })?;
        Ok(buffer)
    }

    /// Allocates a buffer that holds a copy of `values`.
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](DeviceBuffer::zeroed).
    #[doc(alias("cuMemAlloc", "cuMemcpyHtoDAsync"))]
    pub fn from_slice(device: &Device, values: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::<T>::allocate(device, values.len())?;
        let source = values.as_ptr().cast();
        buffer.write(|stream| {
            let (api, bytes) = (buffer.driver().functions()?, buffer.byte_len());
            // SAFETY: the source and the target have `bytes` bytes and outlive the wait in `write`. The stream is
            // alive.
            unsafe { call!(api, cuMemcpyHtoDAsync(buffer.raw, source, bytes, stream.raw())) }
        })?;
        Ok(buffer)
    }

    fn allocate(device: &Device, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = byte_len::<T>(len)?;
        let context = device.primary_context()?;
        let mut raw = 0;
        {
            let _relaxed = RelaxedCapture::enter(device.driver())?;
            let _scope = Scope::enter(device.driver(), context.as_raw())?;
            // SAFETY: `raw` is a live local.
            unsafe { call!(device.functions()?, cuMemAlloc(&raw mut raw, bytes)) }?;
        }
        Ok(DeviceBuffer::new(raw, len, context, None))
    }

    fn new(
        raw: CUdeviceptr,
        len: usize,
        context: Context,
        home: Option<Stream>,
    ) -> DeviceBuffer<T> {
        let is_lost = AtomicBool::new(false);
        DeviceBuffer { raw, len, context, home, is_lost, _elements: PhantomData }
    }

    /// Returns a copy of the values. The copy runs after the work submitted to `stream` so far, and this call waits
    /// for the copy.
    ///
    /// # Errors
    ///
    /// - [`Error::DeviceMismatch`] if `stream` belongs to another driver.
    /// - [`Error::Capturing`] if `stream`, or the stream in whose order the memory was allocated, is being
    ///   captured. The capture stays valid.
    /// - [`Error::Forked`] in a forked process.
    /// - [`Error::Driver`] if a driver call fails or if work that was submitted earlier failed.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        if stream.driver() != self.driver() {
            return Err(Error::DeviceMismatch { what: "the buffer and the stream" });
        }
        refuse_capture(stream)?;
        if let Some(home) = self.home.as_ref().filter(|home| *home != stream) {
            refuse_capture(home)?;
            stream.wait_for(home)?;
        }
        let mut values = vec![T::default(); self.len];
        let target = values.as_mut_ptr().cast();
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        // SAFETY: the source and the target have `byte_len` bytes and outlive the wait below. The stream is alive.
        let copied = unsafe {
            call!(
                self.driver().functions()?,
                cuMemcpyDtoHAsync(target, self.raw, self.byte_len(), stream.raw())
            )
        };
        copied.and_then(|()| stream.synchronize()).map(|()| values)
    }

    /// Copies all values from another buffer in stream order, and returns without waiting. The ordering rules are
    /// those of [`copy_from`](DeviceBuffer::copy_from).
    ///
    /// # Errors
    ///
    /// As for [`copy_from`](DeviceBuffer::copy_from).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{DeviceBuffer, Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let parts = device.partition([32])?;
    /// let source = DeviceBuffer::from_slice(&device, &[1u32, 2, 3])?;
    /// let target = DeviceBuffer::<u32>::zeroed(&device, 3)?;
    /// target.copy_from_buffer(&source, parts[0].stream())?;
    /// assert_eq!(target.read(parts[0].stream())?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub fn copy_from_buffer(&self, source: &DeviceBuffer<T>, stream: &Stream) -> Result<()> {
        self.check_copy(&source.context, source.len, stream)?;
        if self.raw == source.raw {
            return Ok(());
        }
        let homes = [&self.home, &source.home].into_iter().flatten();
        let mut homes = homes.filter(|home| *home != stream);
        homes.clone().try_for_each(refuse_capture)?;
        homes.clone().try_for_each(|home| stream.wait_for(home))?;
        let (api, bytes) = (self.driver().functions()?, self.byte_len());
        // SAFETY: both buffers have `bytes` bytes. Each buffer is freed after all work of the device, or after the
        // copy in the order of its own stream (`home.wait_for` below). The stream is alive.
        let copied =
            unsafe { call!(api, cuMemcpyDtoDAsync(self.raw, source.raw, bytes, stream.raw())) };
        copied.and_then(|()| homes.try_for_each(|home| home.wait_for(stream))).inspect_err(|_| {
            let over = self.driver().while_relaxed(|| stream.synchronize());
            self.is_lost.fetch_or(over.is_err(), Ordering::Relaxed);
            source.end_behind(over);
        })
    }

    /// Returns an error if the buffers and the stream belong to different devices, if the lengths differ, or if the
    /// stream is being captured.
    fn check_copy(&self, other: &Context, len: usize, stream: &Stream) -> Result<()> {
        let device = self.context.device();
        if stream.context().device() != device || other.device() != device {
            return Err(Error::DeviceMismatch { what: "the buffers and the stream" });
        }
        if self.len != len {
            let (most, own) = (self.len.max(len), self.len);
            return Err(Error::InvalidRequest(format!(
                "{most} values cannot be copied between buffers of {own} and {len} values; use \
                 buffers of equal length"
            )));
        }
        refuse_capture(stream)
    }

    /// Handles the result `over` of waiting for a copy that is not ordered before the free of this memory. If the
    /// wait failed, the memory is leaked.
    fn end_behind(&self, over: Result<()>) {
        self.is_lost.fetch_or(over.is_err(), Ordering::Relaxed);
        self.driver().report(over);
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false, since a buffer holds at least one value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device address of the memory.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.raw
    }

    fn byte_len(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn driver(&self) -> &Driver {
        self.context.device().driver()
    }

    /// Submits a write to a new stream and waits for the write. The context's default stream is not used, since it
    /// would wait for all blocking streams of the context and invalidate their captures.
    fn write(&self, submit: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let stream = self.context.create_stream(StreamOptions::default())?;
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        let submitted = submit(&stream);
        // Waits even if the submission failed: the driver may already be reading the values.
        submitted.and(stream.synchronize())
    }

    fn free(&self) -> Result<()> {
        // The memory is leaked, and the failure was reported.
        if self.is_lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(home) = &self.home {
            // A graph can free only what it allocates (cuda.h), and the attempt would invalidate the capture.
            if home.is_capturing()? {
                return Err(Error::Capturing);
            }
            // SAFETY: the memory was allocated in the order of this stream, and only `drop` frees it. The memory is
            // freed after the work that was submitted to the stream earlier, and the stream waits for copies on other
            // streams.
            return unsafe {
                call!(self.driver().functions()?, cuMemFreeAsync(self.raw, home.raw()))
            };
        }
        let _scope = Scope::enter(self.driver(), self.context.as_raw())?;
        // SAFETY: `allocate` allocated the memory, and only `drop` frees it.
        unsafe { call!(self.driver().functions()?, cuMemFree(self.raw)) }
    }
}

impl Stream {
    /// Allocates device memory for `len` values in the order of this stream, from the device's memory pool. The
    /// values are not initialised.
    ///
    /// Work submitted to this stream from now on can use the memory. Dropping the buffer frees the memory in stream
    /// order, after all work that was submitted to this stream before the drop. Neither the allocation nor the free
    /// makes the host wait.
    ///
    /// Work on another stream must wait for this stream before it uses the memory ([`wait_for`](Stream::wait_for)),
    /// and this stream must wait for that work before the buffer is dropped. [`DeviceBuffer::read`] and the
    /// buffer's copies add these waits themselves.
    ///
    /// The stream and its partition stay alive while the buffer exists. If the buffer is dropped while the stream is
    /// being captured, the memory cannot be freed. In that case the memory is leaked, and the hook of
    /// [`Driver::on_cleanup_failure`] receives an [`Error::Capturing`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if `len` is 0 or too large to address. [`Error::Capturing`] if the stream is being
    /// captured. [`Error::Driver`] if there is not enough memory or the device has no memory pools.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{DeviceBuffer, Driver, memory::PinnedBuffer, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition([32])?;
    /// let stream = parts[0].stream();
    /// let buffer: DeviceBuffer<u32> = stream.allocate(3)?;
    /// buffer.copy_from(&mut PinnedBuffer::from_slice(&device, &[1, 2, 3])?, stream)?;
    /// assert_eq!(buffer.read(stream)?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuMemAllocAsync", "cuMemFreeAsync"))]
    pub fn allocate<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = byte_len::<T>(len)?;
        self.driver().check_process()?;
        // In a capture, the memory would belong to the graph.
        if self.is_capturing()? {
            return Err(Error::Capturing);
        }
        let mut raw = 0;
        // The driver counts this call as unsafe while any thread captures (recorded on hardware).
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        // SAFETY: `raw` is a live local, and `self` keeps the stream alive.
        unsafe {
            call!(self.driver().functions()?, cuMemAllocAsync(&raw mut raw, bytes, self.raw()))
        }?;
        Ok(DeviceBuffer::new(raw, len, self.context().clone(), Some(self.clone())))
    }
}

/// Returns an error if the stream is being captured, since a graph would repeat the copy. If another thread begins a
/// capture after this check, the copy becomes part of that graph. Launching the graph is unsafe, and requires that
/// all memory that the graph's nodes use is alive.
fn refuse_capture(stream: &Stream) -> Result<()> {
    if stream.is_capturing()? { Err(Error::Capturing) } else { Ok(()) }
}

/// Returns the size of `len` values in bytes.
fn byte_len<T>(len: usize) -> Result<usize> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        let problem = "its length must be at least 1, and its size must be addressable";
        Error::InvalidRequest(format!("a buffer cannot hold {len} values: {problem}"))
    })
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            return;
        }
        self.driver().clean_up(|| self.free());
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
