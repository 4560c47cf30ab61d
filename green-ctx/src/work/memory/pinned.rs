//! Pinned host memory, and copies that run while the host continues.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;

use green_ctx_sys::{CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr};

use super::{DeviceBuffer, Element, byte_len, refuse_capture};
use crate::handle::capture::RelaxedCapture;
use crate::handle::context::Context;
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::event::{Event, EventOptions};
use crate::work::stream::Stream;

/// Page-locked host memory that holds a fixed number of plain values. The device copies from and to this memory while
/// the host continues ([`DeviceBuffer::copy_from`], [`DeviceBuffer::copy_to`]).
///
/// The buffer tracks its last copy. [`as_slice`](Self::as_slice) and dropping the buffer wait for that copy, and a
/// leaked buffer is never freed. So no copy ever reaches memory that the program has reused.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{DeviceBuffer, Driver, StreamOptions, memory::PinnedBuffer, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
/// let mut values = PinnedBuffer::from_slice(&device, &[1u32, 2, 3])?;
///
/// // These calls return without waiting. The allocation, the copies and the free run in stream order.
/// let buffer: DeviceBuffer<u32> = stream.allocate(3)?;
/// buffer.copy_from(&mut values, &stream)?;
/// let mut copied = PinnedBuffer::zeroed(&device, 3)?;
/// buffer.copy_to(&mut copied, &stream)?;
/// drop(buffer);
///
/// // `as_slice` waits for the copy.
/// assert_eq!(copied.as_slice()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[doc(alias("cuMemHostAlloc", "cuMemAllocHost"))]
pub struct PinnedBuffer<T: Element> {
    raw: NonNull<T>,
    len: usize,
    /// The event that is recorded after each copy.
    done: Event,
    /// The streams on which `done` could not be recorded after a copy.
    unrecorded: Vec<Stream>,
    context: Context,
}

// SAFETY: this object owns the memory as a `Box` does, and `Element` requires the values to be `Send` and `Sync`.
// Before this object gives out the values, `wait` waits until the device has finished with the memory.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}
// SAFETY: as for `Send`. A shared reference to this object gives only shared references to the values.
unsafe impl<T: Element> Sync for PinnedBuffer<T> {}

impl<T: Element> PinnedBuffer<T> {
    /// Allocates `len` values, all zero, for copies from and to a device. Pinning memory is slow: allocate early,
    /// and reuse the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if `len` is 0 or too large to address. [`Error::Driver`] if the driver call fails,
    /// for example because there is not enough memory.
    pub fn zeroed(device: &Device, len: usize) -> Result<PinnedBuffer<T>> {
        let bytes = byte_len::<T>(len)?;
        let context = device.primary_context()?;
        let done = device.create_event(EventOptions::default())?;
        let mut raw = ptr::null_mut();
        {
            let _relaxed = RelaxedCapture::enter(device.driver())?;
            let _scope = Scope::enter(device.driver(), context.as_raw())?;
            let (api, flags) = (device.functions()?, CU_MEMHOSTALLOC_PORTABLE);
            // SAFETY: `raw` is a live local.
            unsafe { call!(api, cuMemHostAlloc(&raw mut raw, bytes, flags)) }?;
        }
        let raw = NonNull::new(raw.cast::<T>()).ok_or_else(|| Error::null("cuMemHostAlloc"))?;
        // SAFETY: the memory has room for `len` values and is aligned to pages. All zero is a valid value of every
        // `Element`.
        unsafe { raw.write_bytes(0, len) };
        Ok(PinnedBuffer { raw, len, done, unrecorded: Vec::new(), context })
    }

    /// Allocates a pinned buffer that holds a copy of `values`.
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](PinnedBuffer::zeroed).
    pub fn from_slice(device: &Device, values: &[T]) -> Result<PinnedBuffer<T>> {
        let mut buffer = PinnedBuffer::zeroed(device, values.len())?;
        buffer.as_mut_slice()?.copy_from_slice(values);
        Ok(buffer)
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

    /// Waits for the last copy and returns the values.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the wait fails or if work before the copy failed.
    #[doc(alias = "cuEventSynchronize")]
    pub fn as_slice(&self) -> Result<&[T]> {
        self.wait()?;
        // SAFETY: the memory holds `len` values, which were initialised when it was allocated. No copy is running
        // (`wait`), and the next copy needs a `&mut` reference to this object.
        Ok(unsafe { slice::from_raw_parts(self.raw.as_ptr(), self.len) })
    }

    /// Waits for the last copy and returns the values, mutably.
    ///
    /// # Errors
    ///
    /// As for [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.settle()?;
        // SAFETY: as in `as_slice`. In addition, `&mut self` excludes every other reference.
        Ok(unsafe { slice::from_raw_parts_mut(self.raw.as_ptr(), self.len) })
    }

    /// Waits until no copy is running.
    fn wait(&self) -> Result<()> {
        self.driver().check_process()?;
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        self.unrecorded.iter().try_for_each(Stream::synchronize)?;
        self.done.synchronize()
    }

    /// Waits until no copy is running, and clears the list of streams to wait for.
    fn settle(&mut self) -> Result<()> {
        self.wait()?;
        self.unrecorded.clear();
        Ok(())
    }

    /// Submits a copy that runs after the previous copy of this buffer.
    fn submit(
        &mut self,
        stream: &Stream,
        copy: impl FnOnce(*mut c_void) -> Result<()>,
    ) -> Result<()> {
        self.driver().check_process()?;
        if !self.unrecorded.is_empty() {
            self.settle()?;
        }
        stream.wait(&self.done)?;
        let submitted = copy(self.raw.as_ptr().cast());
        // Recorded even if the submission failed: the driver may have begun to copy.
        let recorded = stream.record(&self.done);
        submitted.and(recorded.inspect_err(|_| self.unrecorded.push(stream.clone())))
    }

    fn driver(&self) -> &Driver {
        self.context.device().driver()
    }

    fn free(&self) -> Result<()> {
        // If the wait fails, the device may still be copying, and the memory is leaked.
        self.wait()?;
        let _scope = Scope::enter(self.driver(), self.context.as_raw())?;
        // SAFETY: `zeroed` allocated the memory, only `drop` frees it, and no copy is running (`wait`).
        unsafe { call!(self.driver().functions()?, cuMemFreeHost(self.raw.as_ptr().cast())) }
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Copies all values from a pinned buffer in stream order, and returns without waiting.
    ///
    /// The copy runs after everything submitted to `stream` so far, after the last copy from or to `source`, and, for
    /// a [stream-ordered allocation](Stream::allocate), after the allocation. The caller must order other streams'
    /// work on the buffer before or after the copy, as for kernels. Unordered work may see old bytes, new bytes or a
    /// mixture.
    ///
    /// # Errors
    ///
    /// After an [`Error::Driver`], the copy may or may not happen. After any other error, nothing is copied.
    ///
    /// - [`Error::InvalidRequest`] if the buffers differ in length.
    /// - [`Error::DeviceMismatch`] if the stream and the buffers do not all belong to the same device.
    /// - [`Error::Capturing`] if `stream`, or the stream in whose order the memory was allocated, is being
    ///   captured.
    /// - [`Error::Driver`] if a driver call fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{DeviceBuffer, Driver, memory::PinnedBuffer, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let parts = device.partition([32])?;
    /// let mut values = PinnedBuffer::from_slice(&device, &[1u32, 2, 3])?;
    /// let buffer = DeviceBuffer::<u32>::zeroed(&device, 3)?;
    /// buffer.copy_from(&mut values, parts[0].stream())?;
    /// // `as_mut_slice` waits for the copy, so that the change does not reach the device.
    /// values.as_mut_slice()?[0] = 7;
    /// assert_eq!(buffer.read(parts[0].stream())?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&self, source: &mut PinnedBuffer<T>, stream: &Stream) -> Result<()> {
        let (api, bytes) = (self.driver().functions()?, self.byte_len());
        self.copy(source, stream, |target, source| {
            // SAFETY: the source and the target have `bytes` bytes. The pinned memory outlives the copy, since its
            // buffer waits for the copy. The device memory is freed after all work of the device, or after the copy
            // in the order of its own stream. The stream is alive.
            unsafe { call!(api, cuMemcpyHtoDAsync(target, source, bytes, stream.raw())) }
        })
    }

    /// Copies all values to a pinned buffer in stream order, and returns without waiting.
    /// [`PinnedBuffer::as_slice`] waits for the copy.
    ///
    /// The ordering rules are those of [`copy_from`](Self::copy_from).
    ///
    /// # Errors
    ///
    /// As for [`copy_from`](Self::copy_from).
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_to(&self, target: &mut PinnedBuffer<T>, stream: &Stream) -> Result<()> {
        let (api, bytes) = (self.driver().functions()?, self.byte_len());
        self.copy(target, stream, |source, target| {
            // SAFETY: as in `copy_from`.
            unsafe { call!(api, cuMemcpyDtoHAsync(target, source, bytes, stream.raw())) }
        })
    }

    fn copy(
        &self,
        host: &mut PinnedBuffer<T>,
        stream: &Stream,
        copy: impl FnOnce(CUdeviceptr, *mut c_void) -> Result<()>,
    ) -> Result<()> {
        self.check_copy(&host.context, host.len, stream)?;
        let other = self.home.as_ref().filter(|home| *home != stream);
        if let Some(home) = other {
            refuse_capture(home)?;
            stream.wait_for(home)?;
        }
        let submitted = host.submit(stream, |raw| copy(self.raw, raw));
        let Some(home) = other else { return submitted };
        // The buffer is freed in the order of its own stream, so that stream waits for the copy.
        submitted.and_then(|()| home.wait(&host.done)).inspect_err(|_| {
            self.end_behind(host.wait());
        })
    }
}

impl<T: Element> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            return;
        }
        self.driver().clean_up(|| self.free());
    }
}

impl<T: Element> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
