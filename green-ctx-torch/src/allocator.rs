//! An allocator for PyTorch that accounts for memory per partition.
//!
//! PyTorch uses the allocator through the [C functions](self::c) of this library.
//! `torch.cuda.memory.CUDAPluggableAllocator(path, "green_ctx_torch_alloc", "green_ctx_torch_free")` returns an
//! allocator for `torch.cuda.MemPool(allocator.allocator())`. [`Allocator`] is the Rust interface to the same
//! allocators.
//!
//! Each allocator has its own memory pool, and allocates and frees memory in stream order. Each block is counted in the
//! account of its stream's partition. Partitions with the same name share an account. Streams outside any partition
//! share one account, and streams of foreign green contexts share another. Each account can have a limit, and so can
//! the allocator as a whole.
//!
//! # Out of memory
//!
//! A request that would exceed a limit fails immediately. If the driver has no free memory, [`Allocator::allocate`]
//! waits on the host for frees that are queued behind running work, returns the pool's unused memory to the device, and
//! tries again. The host waits for the 64 streams on which blocks were freed most recently. The host does not wait for
//! a stream that is being captured, or for a stream of green-ctx that no longer exists. Memory that was freed on the
//! streams of a closed partition becomes available when their work is done.
//!
//! If a limit would be exceeded, or the driver still has no memory, [`c::green_ctx_torch_alloc`] returns null.
//! The effect depends on how PyTorch uses the allocator:
//!
//! - In a `MemPool`, PyTorch's caching allocator requests segments from this allocator, and treats null as
//!   `cudaErrorMemoryAllocation` (`allocPrimitive` in c10/cuda/CUDACachingAllocator.cpp). The caching allocator frees
//!   its cached memory and tries again. If the second attempt fails, it raises `torch.OutOfMemoryError`. Inside
//!   `use_mem_pool`, some versions of PyTorch do not free cached memory (PyTorch issue 159674). With these versions,
//!   call `torch.cuda.empty_cache()` outside `use_mem_pool`.
//! - If this allocator is PyTorch's current allocator (`torch.cuda.memory.change_current_allocator`), PyTorch does not
//!   check the pointer (`CUDAPluggableAllocator::malloc` in torch/csrc/cuda/CUDAPluggableAllocator.cpp; the PyTorch
//!   issue 133280 is open). The tensor then has no memory, and the first kernel that uses the tensor fails. To enforce
//!   a limit, use a `MemPool`.
//!
//! These two effects are taken from PyTorch's source code. In a test, a limit in a `MemPool` raised
//! `torch.OutOfMemoryError`, and the blocks allocated before the error stayed intact (PyTorch 2.11, H200, driver
//! 580.159.04).
//!
//! # Order
//!
//! A freed block can be reused by any allocation that follows the free in stream order. The free waits, on the device,
//! for the work submitted so far to the stream on which the block was allocated and to each stream that was
//! [recorded](Allocator::record_stream) for the block. The pool never adds a wait to an allocation: it reuses a block
//! only if the allocation's stream is already ordered after the free
//! (`CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES` is off). One partition therefore never waits for another
//! partition's memory on the device. If the device has no memory left, the host [waits](self#out-of-memory) instead.
//!
//! If a freed block was used on the default stream of a foreign context, such as a context from
//! `torch.cuda.green_contexts`, the block is returned to the driver by a later call that is made while that context is
//! current, or by [`empty_cache`](Allocator::empty_cache). A freed block that was used on a per-thread default stream
//! is returned when that thread calls the allocator again, or by `empty_cache`.
//!
//! A block keeps alive each stream of green-ctx on which the block was allocated or recorded, and therefore the
//! stream's partition. Free its memory before closing a partition: in PyTorch, delete the tensors and the `MemPool`.
//!
//! # Graphs
//!
//! An allocation on a stream that is being captured is made outside the capture, as PyTorch does with `cudaMalloc`,
//! because a graph with allocation nodes could not be moved to a partition. The block is ready for every stream when
//! the function returns. The graph may use the block at every launch. The block is therefore returned to the driver
//! only when the block has been freed *and* the graph, all its clones and all its executables have been destroyed. The
//! same applies to a block that is freed on, or recorded for, a stream that is being captured. Every free also waits
//! until none of the block's streams is being captured.
//!
//! # Sharing with other processes
//!
//! The driver provides no IPC handles for pooled memory (recorded on an H200, driver 580.159.04). To get a handle,
//! allocate the block while the allocator is [shareable](Allocator::set_shareable). A shareable block is allocated with
//! `cuMemAlloc`, which does not wait, and freed with `cuMemFree`, which waits until the device's work is done.
//!
//! # Threads
//!
//! All functions may be called on any thread, with or without Python's interpreter lock. No lock of this module is held
//! during a driver call, during the clean-up hook, or while a handle is dropped, because the driver may wait for any
//! other thread. An allocation reserves bytes under the lock, calls the driver without the lock, and takes the lock
//! again to record the block. Freeing a block first removes it from the records. If the free fails or has to wait, the
//! block is added to a list, and later calls try to free it.

#![allow(unsafe_code, reason = "takes raw streams and passes them to the driver")]

pub mod c;

mod account;
mod block;
mod capture;
mod error;
mod global;
mod handle;
mod pending;
mod place;
mod release;
mod reservation;
mod snapshot;
mod source;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use green_ctx::sys::{CUdeviceptr, CUstream};
use green_ctx::{CUresult, Device, Driver, graph::RelaxedCapture};
use parking_lot::Mutex;

use account::Accounts;
use block::{Block, Waiting};
use capture::Capture;
use pending::Pending;
use place::Place;
use reservation::Reservation;
use source::Source;

pub use account::{Owner, Usage};
pub use error::AllocatorError;
pub use snapshot::{BlockInfo, Snapshot};

/// The result of an allocator's operation.
pub type Result<T, E = AllocatorError> = std::result::Result<T, E>;

/// The default number of unused bytes that an allocator's pool keeps when the host synchronises with the device: 64
/// MiB.
pub const RELEASE_THRESHOLD: u64 = 64 << 20;

/// The allocator of one device. Clones share one state, and so do all results of [`Allocator::of`] for the same device.
///
/// # Examples
///
/// ```
/// # #![allow(unsafe_code)]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use green_ctx::{Driver, StreamOptions, sim::Sim};
/// use green_ctx_torch::allocator::Allocator;
///
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// let group = device.resources().sm()?.split([16])?.groups.remove(0);
/// let partition = device.create_context(group)?;
/// let stream = partition.create_stream(StreamOptions::default())?;
///
/// let allocator = Allocator::of(&device);
/// allocator.set_partition_limit("p0", Some(1 << 20));
/// // SAFETY: `stream` is alive.
/// let block = unsafe { allocator.allocate(4096, stream.as_raw()) }?;
/// assert_eq!(allocator.partition("p0").map(|usage| usage.current_bytes), Some(4096));
/// // SAFETY: no work outside the order of `stream` uses the block.
/// unsafe { allocator.free(block, stream.as_raw()) }?;
/// assert_eq!(allocator.partition("p0").map(|usage| usage.peak_bytes), Some(4096));
/// assert_eq!(allocator.partition("p1"), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Allocator {
    inner: Arc<Inner>,
}

struct Inner {
    /// Created at the first allocation. Dropped before `device`, which keeps the driver alive.
    source: OnceLock<Source>,
    books: Mutex<Books>,
    /// The number of freed blocks that wait to be returned to the driver. If there are none, calls need not take the
    /// lock.
    waiting: AtomicU64,
    shareable: AtomicBool,
    threshold: AtomicU64,
    device: Device,
}

/// The state under the lock. While the lock is held, no driver call is made, and no object is dropped that could call
/// the driver.
#[derive(Default)]
struct Books {
    accounts: Accounts,
    blocks: BTreeMap<CUdeviceptr, Block>,
    waiting: VecDeque<Waiting>,
    pending: Pending,
}

impl Allocator {
    /// Returns the allocator of a device. The allocator and its limits exist until the last handle is dropped. To keep
    /// the limits, store a handle, or use the [`global`](Allocator::global) allocator.
    #[must_use]
    pub fn of(device: &Device) -> Allocator {
        global::of(device)
    }

    /// Returns the allocator that the [C functions](self::c) use for a device. The C functions keep the allocator
    /// alive.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::InvalidRequest`] if the ordinal is negative. [`AllocatorError::Driver`] if there is no
    /// driver or no such device.
    pub fn global(ordinal: i32) -> Result<Allocator> {
        global::of_ordinal(ordinal)
    }

    /// Makes the [C functions](self::c) use this driver from now on. Without this call they use
    /// [`Driver::load`]. The driver and its allocators stay alive until another driver is installed or
    /// [`uninstall`](Allocator::uninstall) is called.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::InUse`] while blocks from the allocators of another driver are in use. Blocks of the previous
    /// driver could no longer be freed through the C functions.
    pub fn install(driver: &Driver) -> Result<()> {
        global::install(Some(driver))
    }

    /// Makes the C functions release their driver and its allocators.
    ///
    /// # Errors
    ///
    /// As for [`install`](Allocator::install).
    pub fn uninstall() -> Result<()> {
        global::install(None)
    }

    fn new(device: &Device) -> Allocator {
        Allocator {
            inner: Arc::new(Inner {
                source: OnceLock::new(),
                books: Mutex::new(Books::default()),
                waiting: AtomicU64::new(0),
                shareable: AtomicBool::new(false),
                threshold: AtomicU64::new(RELEASE_THRESHOLD),
                device: device.clone(),
            }),
        }
    }

    /// Returns the device whose memory this allocator gives out.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Allocates a block in stream order, in the account of the stream's partition. Returns the null address
    /// for 0 bytes.
    ///
    /// A default-stream token, such as null, means the default stream of the current context. If no context of this
    /// device is current, the token means the default stream of the primary context.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Limit`] or [`AllocatorError::Driver`]. If the call fails, nothing is allocated. Before the
    /// call returns `CUDA_ERROR_OUT_OF_MEMORY`, the host waits for [freed memory](self#out-of-memory).
    ///
    /// # Safety
    ///
    /// `stream` must be a live stream of this driver. The stream must stay alive until the block is freed. If the freed
    /// block has to wait for a graph, the stream must stay alive until that graph is destroyed. The block itself keeps
    /// streams of green-ctx alive.
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    pub unsafe fn allocate(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
        if bytes == 0 {
            return Ok(0);
        }
        let inner = &*self.inner;
        let driver = inner.checked_driver()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        inner.give_back_waiting(false);
        let source = inner.source()?;
        // SAFETY: the contract of this function says that `stream` is alive.
        let (place, owner) = unsafe { Place::find(source.primary(), stream) }?;
        let capture = place.capture(driver)?;
        let hold = match capture {
            Capture::Active => inner.hold(&place)?,
            Capture::None | Capture::Forbidden => None,
        };
        let reservation = Reservation::new(inner, &owner, bytes as u64)?;
        let shareable = inner.shareable.load(Ordering::Relaxed);
        let allocate = || match capture {
            _ if shareable => source.allocate_shareable(bytes),
            Capture::None => place.with(driver, |raw| {
                // SAFETY: by this function's contract `stream` is alive. The stream is not being captured, because
                // `capture` is `None`. `Place::with` has made the context of a default-stream token current.
                unsafe { source.allocate(bytes, raw) }
            }),
            Capture::Active | Capture::Forbidden => source.allocate_for_all(bytes),
        };
        let address = match allocate() {
            Err(error) if error.status() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                inner.reclaim(driver, source);
                allocate()
            }
            answer => answer,
        }?;
        let block = Block {
            bytes: bytes as u64,
            owner: owner.clone(),
            place,
            uses: Vec::new(),
            holds: hold.into_iter().collect(),
            shareable,
        };
        reservation.take(address, block);
        Ok(address)
    }

    /// Frees a block in stream order, after the work submitted so far to `stream`, to the stream on which the block was
    /// allocated, and to every stream recorded for the block. Does nothing for the null address.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownBlock`] or [`AllocatorError::Driver`]. If the driver fails, the caller must not use or
    /// free the block again. The block stays in its account, and later calls try again to return the block to the
    /// driver.
    ///
    /// # Safety
    ///
    /// - `stream` must be a live stream of this driver. If the block has to wait for graphs or captures, `stream` must
    ///   stay alive until these graphs are destroyed and these captures have ended. The block itself keeps streams of
    ///   green-ctx alive.
    /// - No work submitted from now on may use the block.
    /// - Work that is already submitted may use the block only on the streams named above, or on a stream for which one
    ///   of those streams already waits.
    #[doc(alias = "cuMemFreeAsync")]
    pub unsafe fn free(&self, address: CUdeviceptr, stream: CUstream) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let inner = &*self.inner;
        let driver = inner.checked_driver()?;
        inner.give_back_waiting(false);
        let block = inner.books.lock().blocks.remove(&address);
        let block = block.ok_or(AllocatorError::UnknownBlock { address })?;
        // No other thread can find the block from here on. If a call fails, the block is kept for a later
        // attempt.
        let mut waiting = Waiting { address, block, on: None, reported: true };
        // SAFETY: the contract of this function says that `stream` is alive.
        let freed = unsafe { inner.free(driver, &mut waiting, stream) };
        if !matches!(freed, Ok(true)) {
            waiting.reported = freed.is_err();
            inner.wait_for_later(waiting);
        }
        freed?;
        Ok(())
    }

    /// Records that a block is used on a stream other than the stream of its allocation. The memory is not reused until
    /// the work submitted to that stream before the free is done. `address` may be any address in the block.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownBlock`] or [`AllocatorError::Driver`].
    ///
    /// # Safety
    ///
    /// As for [`allocate`](Allocator::allocate): `stream` must be a live stream of this driver. The stream must stay
    /// alive until the block is freed. If the freed block has to wait for a graph, the stream must stay alive until
    /// that graph is destroyed. The block itself keeps streams of green-ctx alive.
    pub unsafe fn record_stream(&self, address: CUdeviceptr, stream: CUstream) -> Result<()> {
        let inner = &*self.inner;
        let driver = inner.checked_driver()?;
        if !inner.books.lock().has(address) {
            return Err(AllocatorError::UnknownBlock { address });
        }
        let _relaxed = RelaxedCapture::enter(driver)?;
        // SAFETY: the contract of this function says that `stream` is alive.
        let (place, _) = unsafe { Place::find(inner.source()?.primary(), stream) }?;
        let hold = match place.capture(driver)? {
            Capture::Active => inner.hold(&place)?,
            Capture::None | Capture::Forbidden => None,
        };
        let place = {
            let mut books = inner.books.lock();
            let (_, block) =
                books.find_mut(address).ok_or(AllocatorError::UnknownBlock { address })?;
            block.hold(hold);
            block.use_on(place)
        };
        // Dropped outside the lock, because it may be the last handle of its stream.
        drop(place);
        Ok(())
    }

    /// Sets the maximum number of bytes in use, or removes the limit with `None`. Setting a limit frees no memory.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_limit(bytes);
    }

    /// Sets the maximum number of bytes in use on streams of partitions with this name, or removes the limit with
    /// `None`. The limit also applies to partitions that are created later.
    ///
    /// # Examples
    ///
    /// ```
    /// # #![allow(unsafe_code)]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # use green_ctx_torch::allocator::{Allocator, AllocatorError};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let group = device.resources().sm()?.split([16])?.groups.remove(0);
    /// # let partition = device.create_context(group)?;
    /// # let stream = partition.create_stream(StreamOptions::default())?;
    /// let allocator = Allocator::of(&device);
    /// allocator.set_partition_limit("p0", Some(4096));
    /// // SAFETY: `stream` is alive.
    /// let refused = unsafe { allocator.allocate(4097, stream.as_raw()) };
    /// assert!(matches!(refused, Err(AllocatorError::Limit { limit: 4096, .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_partition_limit(&self, name: &str, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_partition_limit(name, bytes);
    }

    /// Sets the maximum number of bytes in use on streams outside any partition, or removes the limit with
    /// `None`.
    pub fn set_outside_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_outside_limit(bytes);
    }

    /// Sets the maximum number of bytes in use on streams of foreign green contexts, or removes the limit with
    /// `None`. Other libraries in this process create such contexts.
    pub fn set_foreign_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_foreign_limit(bytes);
    }

    /// Limits the bytes in use to a fraction (from 0 to 1) of the device's memory.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::InvalidRequest`] if the fraction is not in this range. [`AllocatorError::Driver`] if
    /// the driver call fails.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&fraction) {
            let text = format!("a fraction of the memory must be from 0 to 1, not {fraction}");
            return Err(AllocatorError::InvalidRequest(text));
        }
        self.inner.checked_driver()?;
        let total = self.device().total_memory()? as u64;
        // The cast rounds down, so the limit is at most the total.
        self.set_limit(Some((total as f64 * fraction) as u64));
        Ok(())
    }

    /// Sets the number of unused bytes that the pool keeps when the host synchronises with the device. The pool returns
    /// further unused bytes to the device. The default is [`RELEASE_THRESHOLD`].
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Driver`] if the driver call fails.
    #[doc(alias = "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")]
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.inner.checked_driver()?;
        self.inner.threshold.store(bytes, Ordering::Relaxed);
        Ok(self.inner.source.get().map_or(Ok(()), |source| source.set_threshold(bytes))?)
    }

    /// Sets whether blocks that are allocated from now on have IPC handles ([`ipc_handle`](Allocator::ipc_handle)).
    /// Blocks with IPC handles are slower to free.
    pub fn set_shareable(&self, shareable: bool) {
        self.inner.shareable.store(shareable, Ordering::Relaxed);
    }

    /// Returns the handle with which another process can open the block that contains `address`
    /// (`cuIpcOpenMemHandle`). The handle is for the whole block, whose first address
    /// [`block_of`](Allocator::block_of) returns.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotShareable`] if the block is in the pool, [`AllocatorError::UnknownBlock`] if no block
    /// contains the address, and [`AllocatorError::Driver`] if a driver call fails.
    #[doc(alias = "cuIpcGetMemHandle")]
    pub fn ipc_handle(&self, address: CUdeviceptr) -> Result<[u8; 64]> {
        self.inner.checked_driver()?;
        let found = {
            let mut books = self.inner.books.lock();
            books.find_mut(address).map(|(begin, block)| (begin, block.shareable))
        };
        let (begin, shareable) = found.ok_or(AllocatorError::UnknownBlock { address })?;
        if !shareable {
            return Err(AllocatorError::NotShareable { address });
        }
        Ok(self.inner.source()?.ipc_handle(begin)?)
    }

    /// Returns the first address and the size in bytes of the block that contains `address`, if there is one.
    #[must_use]
    pub fn block_of(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
        let mut books = self.inner.books.lock();
        books.find_mut(address).map(|(begin, block)| (begin, block.bytes))
    }

    /// Returns memory to the device: the pool's unused memory, and all freed blocks that no longer have to wait.
    ///
    /// A freed block may have been used on a default stream that this thread cannot name: the default stream of a
    /// foreign context that is not current, or the per-thread default stream of another thread. For such a block, the
    /// call waits until the device's work is done, which invalidates captures of the device's streams. If there is no
    /// such block, the call waits only to free [shareable](Allocator::set_shareable) blocks.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Driver`] if a driver call fails.
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn empty_cache(&self) -> Result<()> {
        let driver = self.inner.checked_driver()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        self.inner.give_back_waiting(true);
        Ok(self.inner.source.get().map_or(Ok(()), Source::trim)?)
    }

    /// Returns the usage of all memory of this allocator.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.books.lock().accounts.total()
    }

    /// Returns the usage on streams of partitions with this name, or `None` if there is no account.
    ///
    /// The first request for memory or the first limit creates an account. An account with bytes in use or a limit is
    /// always kept. The 64 most recently used of the other accounts are kept too.
    #[must_use]
    pub fn partition(&self, name: &str) -> Option<Usage> {
        self.inner.books.lock().accounts.of(name)
    }

    /// Returns the usage on streams outside any partition: streams of the primary context and of other ordinary
    /// (non-green) contexts.
    #[must_use]
    pub fn outside(&self) -> Usage {
        self.inner.books.lock().accounts.outside()
    }

    /// Returns the usage on streams of foreign green contexts, which other libraries in this process created.
    #[must_use]
    pub fn foreign(&self) -> Usage {
        self.inner.books.lock().accounts.foreign()
    }

    /// Returns the number of bytes in use.
    #[must_use]
    pub fn current_bytes(&self) -> u64 {
        self.usage().current_bytes
    }

    /// Returns the greatest number of bytes in use since the peak was last reset.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.usage().peak_bytes
    }

    /// Returns the limit in bytes, or `None` if there is none.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.usage().limit_bytes
    }

    /// Resets all peaks to the current usage.
    pub fn reset_peak(&self) {
        self.inner.books.lock().accounts.reset_peak();
    }

    /// Returns the state of the allocator at one moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # use green_ctx_torch::allocator::Allocator;
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let allocator = Allocator::of(&driver.device(0)?);
    /// let snapshot = allocator.snapshot();
    /// assert_eq!(snapshot.total.current_bytes, 0);
    /// assert!(snapshot.to_json().starts_with('{'));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }
}

impl Inner {
    /// Returns the driver, or an error if this process was forked after the driver was loaded.
    fn checked_driver(&self) -> Result<&Driver> {
        let driver = self.device.driver();
        driver.device(self.device.ordinal())?;
        Ok(driver)
    }

    fn source(&self) -> green_ctx::Result<&Source> {
        if let Some(source) = self.source.get() {
            return Ok(source);
        }
        let fresh = Source::create(&self.device, self.threshold.load(Ordering::Relaxed))?;
        // If another thread was faster, `fresh` is dropped here, which destroys its pool.
        Ok(self.source.get_or_init(|| fresh))
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("device", &self.device().ordinal())
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}
