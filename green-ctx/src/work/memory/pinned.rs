//! Pinned memory of the host, and copies that the host does not wait for.
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

/// Page-locked memory of the host that holds a fixed number of plain values: the device copies from it and to
/// it while the host goes on ([`DeviceBuffer::copy_from`], [`DeviceBuffer::copy_to`]).
///
/// The buffer knows its last copy. Its values can be had only when that is done: [`as_slice`](Self::as_slice)
/// waits for it, and so does dropping the buffer. A buffer that is leaked is never freed. So no copy ever
/// reaches memory that the program uses for something else.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{DeviceBuffer, Driver, StreamOptions, memory::PinnedBuffer, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
/// let mut values = PinnedBuffer::from_slice(&device, &[1u32, 2, 3])?;
///
/// // Each line returns at once. The work is in the stream's order, the allocation and its end too.
/// let buffer: DeviceBuffer<u32> = stream.allocate(3)?;
/// buffer.copy_from(&mut values, &stream)?;
/// let mut copied = PinnedBuffer::zeroed(&device, 3)?;
/// buffer.copy_to(&mut copied, &stream)?;
/// drop(buffer);
///
/// // Waits for the copy.
/// assert_eq!(copied.as_slice()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[doc(alias("cuMemHostAlloc", "cuMemAllocHost"))]
pub struct PinnedBuffer<T: Element> {
    raw: NonNull<T>,
    len: usize,
    /// Recorded after each copy.
    done: Event,
    /// The streams of copies after which the event could not be recorded.
    unrecorded: Vec<Stream>,
    context: Context,
}

// SAFETY: the memory is this object's alone, as a box's is, and its values may be sent and shared (`Element`
// says so). What the device does with it is over before anybody gets to the values.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}
// SAFETY: as above; a shared reference gives no more than shared references to the values.
unsafe impl<T: Element> Sync for PinnedBuffer<T> {}

impl<T: Element> PinnedBuffer<T> {
    /// Allocates `len` values, all zero, for copies from and to a device. Pinning memory is slow: allocate
    /// early, and use it again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for no values or more than can be addressed, and [`Error::Driver`]
    /// when there is not enough memory.
    pub fn zeroed(device: &Device, len: usize) -> Result<PinnedBuffer<T>> {
        let bytes = byte_len::<T>(len)?;
        let context = device.primary_context()?;
        let done = device.create_event(EventOptions::default())?;
        let mut raw = ptr::null_mut();
        {
            let _relaxed = RelaxedCapture::enter(device.driver())?;
            let _scope = Scope::enter(device.driver(), context.as_raw())?;
            let (api, flags) = (device.functions()?, CU_MEMHOSTALLOC_PORTABLE);
            // SAFETY: the pointer is to a live address.
            unsafe { call!(api, cuMemHostAlloc(&raw mut raw, bytes, flags)) }?;
        }
        let raw = NonNull::new(raw.cast::<T>()).ok_or_else(|| Error::null("cuMemHostAlloc"))?;
        // SAFETY: the memory has room for as many values, and is aligned to pages. All zero is a value of
        // every element.
        unsafe { raw.write_bytes(0, len) };
        Ok(PinnedBuffer { raw, len, done, unrecorded: Vec::new(), context })
    }

    /// Allocates pinned memory with a copy of these values.
    ///
    /// # Errors
    ///
    /// The errors of [`zeroed`](PinnedBuffer::zeroed).
    pub fn from_slice(device: &Device, values: &[T]) -> Result<PinnedBuffer<T>> {
        let mut buffer = PinnedBuffer::zeroed(device, values.len())?;
        buffer.as_mut_slice()?.copy_from_slice(values);
        Ok(buffer)
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

    /// The values, once the last copy is done: waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work before the copy included.
    #[doc(alias = "cuEventSynchronize")]
    pub fn as_slice(&self) -> Result<&[T]> {
        self.wait()?;
        // SAFETY: the memory holds as many values, which were set when it was allocated. No copy is under
        // way, and the next needs this object mutably.
        Ok(unsafe { slice::from_raw_parts(self.raw.as_ptr(), self.len) })
    }

    /// The values, to be changed, once the last copy is done: waits for it.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.settle()?;
        // SAFETY: as above, and nobody else has a reference.
        Ok(unsafe { slice::from_raw_parts_mut(self.raw.as_ptr(), self.len) })
    }

    /// Waits until no copy is under way.
    fn wait(&self) -> Result<()> {
        self.driver().check_process()?;
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        self.unrecorded.iter().try_for_each(Stream::synchronize)?;
        self.done.synchronize()
    }

    /// Waits, and forgets what it waited for.
    fn settle(&mut self) -> Result<()> {
        self.wait()?;
        self.unrecorded.clear();
        Ok(())
    }

    /// Submits a copy, after the former one of this buffer.
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
        // Also after a failure: the driver may have begun.
        let recorded = stream.record(&self.done);
        submitted.and(recorded.inspect_err(|_| self.unrecorded.push(stream.clone())))
    }

    fn driver(&self) -> &Driver {
        self.context.device().driver()
    }

    fn free(&self) -> Result<()> {
        // Where it fails, the device may still copy, and the memory stays.
        self.wait()?;
        let _scope = Scope::enter(self.driver(), self.context.as_raw())?;
        // SAFETY: allocated by `zeroed`, freed once, and no copy is under way.
        unsafe { call!(self.driver().functions()?, cuMemFreeHost(self.raw.as_ptr().cast())) }
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Copies all values from the host, in the order of a stream, and returns at once.
    ///
    /// The copy comes after what `stream` has been given so far, after the last copy of `source`, and after
    /// the allocation where that is [in stream order](Stream::allocate). As with kernels, work on other
    /// streams that uses the buffer has to be ordered with it: otherwise which bytes it finds is open.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] where the buffers differ in length, [`Error::DeviceMismatch`] where stream
    /// and buffers are not of one device, and [`Error::Capturing`] while the stream is captured, or the one in
    /// whose order the memory was allocated: nothing is copied then. [`Error::Driver`] otherwise, where the copy may happen or not.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&self, source: &mut PinnedBuffer<T>, stream: &Stream) -> Result<()> {
        let (api, bytes) = (self.driver().functions()?, self.byte_len());
        self.copy(source, stream, |target, source| {
            // SAFETY: both sides have this many bytes. The pinned one stays until the copy is done, since
            // its buffer waits for that; the other is freed after all work of the device, or behind the
            // copy in the order of its own stream. The stream is alive.
            unsafe { call!(api, cuMemcpyHtoDAsync(target, source, bytes, stream.raw())) }
        })
    }

    /// Copies all values to the host, in the order of a stream, and returns at once.
    /// [`PinnedBuffer::as_slice`] waits for them.
    ///
    /// The order is that of [`copy_from`](Self::copy_from).
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from).
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
        // The buffer is freed in the order of its own stream.
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
