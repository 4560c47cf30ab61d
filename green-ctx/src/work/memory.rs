//! Memory for results and inputs: a buffer of a device, and a pinned one of the host.
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

/// Device memory that holds a fixed number of plain values, freed when dropped. Freeing waits for the
/// device's work, except for graphs on streams of partitions
/// ([recorded](crate::guide::graphs#where-to-launch) on an H200, driver 580.159.04); what [`Stream::allocate`] returns is freed in the
/// order of its stream instead, and nothing waits.
///
/// Buffers can be made, read and dropped while other streams are captured, on any thread and in any mode.
/// Nothing of that becomes part of the graph. While the stream itself is captured in whose order memory was
/// allocated, it can be neither copied nor freed.
///
/// It is enough for results and small inputs, and no array type: programs that want one use another
/// library, on streams of this one.
///
/// # Example
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
    /// The stream in whose order it was allocated and is freed.
    home: Option<Stream>,
    /// Whether a copy may be under way that nothing orders with the end of the memory, which stays then.
    is_lost: AtomicBool,
    _elements: PhantomData<T>,
}

/// A plain value: any bytes are one, and it has no padding.
pub trait Element: sealed::Element {}

mod sealed {
    pub trait Element: Copy + Default + Send + Sync + 'static {}
}

macro_rules! elements {
    ($($type:ty),*) => { $(impl sealed::Element for $type {} impl Element for $type {})* };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Element> DeviceBuffer<T> {
    /// Allocates `len` values, all zero. They are written by the primary context, which has all SMs.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for no values or more than can be addressed, and [`Error::Driver`]
    /// when there is not enough memory.
    #[doc(alias("cuMemAlloc", "cuMemsetD8Async"))]
    pub fn zeroed(device: &Device, len: usize) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::<T>::allocate(device, len)?;
        buffer.write(|stream| {
            let (api, bytes) = (buffer.driver().functions()?, buffer.byte_len());
            // SAFETY: the allocation has this many bytes, the stream is alive.
            unsafe { call!(api, cuMemsetD8Async(buffer.raw, 0, bytes, stream.raw())) }
        })?;
        Ok(buffer)
    }

    /// Allocates a copy of `values`.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](DeviceBuffer::zeroed).
    #[doc(alias("cuMemAlloc", "cuMemcpyHtoDAsync"))]
    pub fn from_slice(device: &Device, values: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::<T>::allocate(device, values.len())?;
        let source = values.as_ptr().cast();
        buffer.write(|stream| {
            let (api, bytes) = (buffer.driver().functions()?, buffer.byte_len());
            // SAFETY: both sides have this many bytes and live past the wait in `write`, the stream is
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
            // SAFETY: the pointer is to a live address.
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

    /// Copies the values out, after the work that was submitted to `stream` so far.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for a stream of another driver; [`Error::Capturing`] while `stream` is being
    /// captured, or the stream in whose order the memory was allocated, whose capture goes on;
    /// [`Error::Forked`]; and [`Error::Driver`], errors of the work before included.
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
        // SAFETY: both sides have this many bytes, and both live past the wait below.
        let copied = unsafe {
            call!(
                self.driver().functions()?,
                cuMemcpyDtoHAsync(target, self.raw, self.byte_len(), stream.raw())
            )
        };
        copied.and_then(|()| stream.synchronize()).map(|()| values)
    }

    /// Copies all values from another buffer, in the order of a stream, and returns at once. The order is that
    /// of [`copy_from`](DeviceBuffer::copy_from).
    ///
    /// # Errors
    ///
    /// As [`copy_from`](DeviceBuffer::copy_from).
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
        // SAFETY: both sides have this many bytes, and are freed after all work of the device, or behind the
        // copy in the order of their own streams. The stream is alive.
        let copied =
            unsafe { call!(api, cuMemcpyDtoDAsync(self.raw, source.raw, bytes, stream.raw())) };
        copied.and_then(|()| homes.try_for_each(|home| home.wait_for(stream))).inspect_err(|_| {
            let over = self.driver().while_relaxed(|| stream.synchronize());
            self.is_lost.fetch_or(over.is_err(), Ordering::Relaxed);
            source.end_behind(over);
        })
    }

    /// Refuses a copy between what does not belong together, and one that a graph would repeat.
    fn check_copy(&self, other: &Context, len: usize, stream: &Stream) -> Result<()> {
        let device = self.context.device();
        if stream.context().device() != device || other.device() != device {
            return Err(Error::DeviceMismatch { what: "the buffers and the stream" });
        }
        if self.len != len {
            let (most, own) = (self.len.max(len), self.len);
            return Err(Error::InvalidRequest(format!(
                "{most} values cannot be copied between buffers of {own} and {len}"
            )));
        }
        refuse_capture(stream)
    }

    /// Where nothing orders the end of this memory with a copy, that must be over before: takes whether it is.
    fn end_behind(&self, over: Result<()>) {
        self.is_lost.fetch_or(over.is_err(), Ordering::Relaxed);
        self.driver().report(over);
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values, which never is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The driver's address.
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

    /// Submits a write to a stream of its own and waits for it. The context's default stream would wait
    /// for all its blocking streams, and invalidate their captures.
    fn write(&self, submit: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let stream = self.context.create_stream(StreamOptions::default())?;
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        let submitted = submit(&stream);
        // Also after a failure: the driver may have begun to read the values.
        submitted.and(stream.synchronize())
    }

    fn free(&self) -> Result<()> {
        // Was reported.
        if self.is_lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(home) = &self.home {
            // A graph frees only what it allocates (cuda.h), and the attempt would invalidate the capture.
            if home.is_capturing()? {
                return Err(Error::Capturing);
            }
            // SAFETY: allocated in the order of this stream, freed once. What was submitted to it before still
            // finds the memory; copies on other streams were made to come before.
            return unsafe {
                call!(self.driver().functions()?, cuMemFreeAsync(self.raw, home.raw()))
            };
        }
        let _scope = Scope::enter(self.driver(), self.context.as_raw())?;
        // SAFETY: allocated by `allocate`, freed once.
        unsafe { call!(self.driver().functions()?, cuMemFree(self.raw)) }
    }
}

impl Stream {
    /// Allocates memory for `len` values in the order of this stream, from the device's memory pool: work that
    /// is submitted to this stream from now on can use it, and it is freed, when dropped, behind the work
    /// that was submitted until then. Neither waits for anything. The values are whatever the memory held.
    ///
    /// Work on another stream has to wait for this stream before it uses the memory
    /// ([`wait_for`](Stream::wait_for)), and this stream for that work before the buffer is dropped;
    /// [`DeviceBuffer::read`] and its copies see to it themselves.
    ///
    /// The buffer keeps the stream, and with it the partition. Dropped while the stream is being captured, it
    /// cannot be freed: the memory is lost, and
    /// [`Driver::on_cleanup_failure`] gets an [`Error::Capturing`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for no values or more than can be addressed, [`Error::Capturing`] while the
    /// stream is being captured, and [`Error::Driver`] when there is not enough memory, or on a device
    /// without memory pools.
    ///
    /// # Example
    ///
    /// [`PinnedBuffer`] has one.
    #[doc(alias("cuMemAllocAsync", "cuMemFreeAsync"))]
    pub fn allocate<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = byte_len::<T>(len)?;
        self.driver().check_process()?;
        // The memory would belong to the graph.
        if self.is_capturing()? {
            return Err(Error::Capturing);
        }
        let mut raw = 0;
        // The driver counts it as a call that may not be safe while any thread captures, as recorded.
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        // SAFETY: the pointer is to a live address, the stream is alive.
        unsafe {
            call!(self.driver().functions()?, cuMemAllocAsync(&raw mut raw, bytes, self.raw()))
        }?;
        Ok(DeviceBuffer::new(raw, len, self.context().clone(), Some(self.clone())))
    }
}

/// Refuses what a graph would repeat. Where another thread begins a capture just now, it is a part of the graph;
/// to launch that is unsafe, and wants all that its nodes use alive.
fn refuse_capture(stream: &Stream) -> Result<()> {
    if stream.is_capturing()? { Err(Error::Capturing) } else { Ok(()) }
}

/// The bytes of so many values.
fn byte_len<T>(len: usize) -> Result<usize> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| Error::InvalidRequest(format!("a buffer cannot hold {len} values")))
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
