//! An allocator for PyTorch that accounts for memory per partition.
//!
//! PyTorch uses it through the [C functions](self::c) of this library.
//! `torch.cuda.memory.CUDAPluggableAllocator(path, "green_ctx_torch_alloc", "green_ctx_torch_free")` returns an
//! allocator for `torch.cuda.MemPool(allocator.allocator())`. [`Allocator`] is the Rust interface to the same
//! state.
//!
//! Each allocator has its own memory pool. It allocates in the order of the given stream, and frees in stream
//! order too. Each block belongs to the account of its stream's partition. The accounts go by partition name.
//! Streams outside any partition share one account, and streams of foreign green contexts share another. All
//! memory together can have a limit, and so can each account.
//!
//! # Out of memory
//!
//! A request that would exceed a limit fails immediately. If the driver has no memory, [`Allocator::allocate`]
//! waits on the host for blocks that were freed behind running work, returns the pool's unused memory to the
//! device, and tries again. It waits for the 64 streams on which blocks were freed last. It does not wait for a
//! stream that is being captured, nor for a stream of green-ctx that no longer exists. Memory that was freed on
//! the streams of a closed partition becomes available when their work is done.
//!
//! If a limit would be exceeded, or the driver still has no memory, [`c::green_ctx_torch_alloc`] returns null.
//! The effect depends on how PyTorch uses the allocator:
//!
//! - In a `MemPool`, PyTorch's caching allocator requests segments. It treats null as
//!   `cudaErrorMemoryAllocation` (`allocPrimitive` in c10/cuda/CUDACachingAllocator.cpp) and raises
//!   `torch.OutOfMemoryError`. Before that it frees its cached memory and tries again. Some versions do not do
//!   this inside `use_mem_pool` (PyTorch issue 159674). With those, call `torch.cuda.empty_cache()` outside it.
//! - As the current allocator (`torch.cuda.memory.change_current_allocator`), PyTorch does not check the
//!   pointer (`CUDAPluggableAllocator::malloc` in torch/csrc/cuda/CUDAPluggableAllocator.cpp; PyTorch issue
//!   133280 is open). The tensor has no memory, and the first kernel that uses it fails. To enforce a limit,
//!   use a `MemPool`.
//!
//! Both are from PyTorch's sources. In a test, a limit in a `MemPool` raised `torch.OutOfMemoryError`, and the
//! blocks allocated before it stayed intact (PyTorch 2.11, H200, driver 580.159.04).
//!
//! # Order
//!
//! A freed block can be reused by any allocation that follows the free in stream order. The free waits, on the
//! device, for the stream on which the block was allocated and for each stream that was
//! [recorded](Allocator::record_stream) for it. It covers the work submitted to them so far. The pool never
//! makes an allocation wait for a free that its stream does not follow anyway
//! (`CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES` is off). No partition therefore waits for another
//! because of memory. If the device has no memory left, the host [waits](self#out-of-memory) instead.
//!
//! A block may have been used on the default stream of a foreign context, for example of one from
//! `torch.cuda.green_contexts`. It goes back to the driver when that context is current again, or with
//! [`empty_cache`](Allocator::empty_cache). A block that was used on a per-thread default stream goes back when
//! that thread calls the allocator again, or with `empty_cache`.
//!
//! A block keeps alive the streams of green-ctx on which it was allocated or recorded, and so their partitions.
//! Free memory (`torch.cuda.empty_cache()`) before closing a partition.
//!
//! # Graphs
//!
//! An allocation on a stream that is being captured is made outside the capture, as PyTorch does with
//! `cudaMalloc`, because a graph with allocation nodes could not be moved to a partition. The block is ready
//! for every stream when the function returns. The graph may use the block at every launch. The block therefore
//! goes back to the driver when it is freed *and* the graph, its clones and its executables are all destroyed.
//! The same applies to a block that is freed on, or recorded for, a stream that is being captured. Every free
//! also waits until no stream of the block is in a capture.
//!
//! # Sharing with other processes
//!
//! The driver has no IPC handles for pooled memory (recorded on an H200, driver 580.159.04). To get a handle,
//! allocate the block while the allocator is [shareable](Allocator::set_shareable). Such a block comes from
//! `cuMemAlloc`, which waits for nothing, and is freed with `cuMemFree`, which waits for the device's work.
//!
//! # Threads
//!
//! All functions may be called on any thread, with or without Python's interpreter lock. No lock of this module
//! is held during a driver call, during the clean-up hook, or while a handle is dropped, because the driver may
//! wait for any other thread. An allocation reserves bytes under the lock, calls the driver without it, and
//! enters the block under the lock again. A free removes the block first. If the free fails or has to wait, the
//! block goes to a list that later calls check.

#![allow(unsafe_code, reason = "takes raw streams and makes calls on them")]

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

/// The result of an operation of an allocator.
pub type Result<T, E = AllocatorError> = std::result::Result<T, E>;

/// The default number of unused bytes that an allocator's pool keeps when the program waits for work: 64 MiB.
pub const RELEASE_THRESHOLD: u64 = 64 << 20;

/// The allocator of one device. Its clones, and all results of [`Allocator::of`] for the same device, share one
/// state.
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
    /// The number of freed blocks that wait. If it is 0, calls need not take the lock.
    waiting: AtomicU64,
    shareable: AtomicBool,
    threshold: AtomicU64,
    device: Device,
}

/// The state under the lock. No driver call is made under the lock, and nothing is dropped that could make one.
#[derive(Default)]
struct Books {
    accounts: Accounts,
    blocks: BTreeMap<CUdeviceptr, Block>,
    waiting: VecDeque<Waiting>,
    pending: Pending,
}

impl Allocator {
    /// Returns the allocator of a device. It lives until its last handle is dropped. To keep its limits, keep a
    /// handle, or use the [`global`](Allocator::global) allocator.
    #[must_use]
    pub fn of(device: &Device) -> Allocator {
        global::of(device)
    }

    /// Returns the allocator that the [C functions](self::c) use for a device. It stays alive for their use.
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
    /// [`AllocatorError::InUse`] while blocks from the allocators of another driver are in use. They could no
    /// longer be freed through the C functions.
    pub fn install(driver: &Driver) -> Result<()> {
        global::install(Some(driver))
    }

    /// Makes the C functions drop the driver that they use.
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
    /// A default-stream token means the default stream of the current context. If no context of this device is
    /// current, it means the default stream of the primary context.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Limit`] or [`AllocatorError::Driver`]. If it fails, nothing is allocated. Before this
    /// returns `CUDA_ERROR_OUT_OF_MEMORY`, the host waits for [freed memory](self#out-of-memory).
    ///
    /// # Safety
    ///
    /// `stream` must be a live stream of this driver. It must stay alive until the block is freed and, if the
    /// block then waits for a graph, until that graph is gone. For a stream of green-ctx, the block itself
    /// ensures this.
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
                // SAFETY: `stream` is alive, by this function's contract, and it is not being captured:
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

    /// Frees a block in stream order: after the work on `stream`, on the stream on which the block was
    /// allocated, and on every stream recorded for it. Does nothing for the null address.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownBlock`] or [`AllocatorError::Driver`]. If the driver fails, the caller must not
    /// use or free the block again. It stays in the accounts, and later calls try again to return it to the
    /// driver.
    ///
    /// # Safety
    ///
    /// - `stream` must be a live stream of this driver. If the block has to wait for a graph or a capture,
    ///   `stream` must stay alive until that has ended. For a stream of green-ctx, the block itself ensures
    ///   this.
    /// - No work submitted from now on may use the block.
    /// - Work that is already submitted may use the block only on these streams, or on streams that one of them
    ///   waits for.
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

    /// Records that a block is used on another stream than the one on which it was allocated. The memory is not
    /// reused before the work that is submitted to that stream until the free is done. `address` may be any
    /// address in the block.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownBlock`] or [`AllocatorError::Driver`].
    ///
    /// # Safety
    ///
    /// As for [`allocate`](Allocator::allocate): `stream` must be a live stream of this driver. It must stay
    /// alive until the block is freed and, if the block then waits for a graph, until that graph is gone. For a
    /// stream of green-ctx, the block itself ensures this.
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

    /// Sets the maximum number of bytes in use, or removes the limit with `None`. A new limit frees nothing.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_limit(bytes);
    }

    /// Sets the maximum number of bytes in use on streams of partitions with this name, or removes the limit
    /// with `None`. It also applies to partitions that are created later.
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

    /// Limits the bytes in use to a fraction of the device's memory, from 0 to 1.
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

    /// Sets the number of unused bytes that the pool keeps when the program waits for work. The pool returns
    /// the rest to the device. The default is [`RELEASE_THRESHOLD`].
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

    /// Sets whether blocks that are allocated from now on have IPC handles
    /// ([`ipc_handle`](Allocator::ipc_handle)). Such blocks are slower to free.
    pub fn set_shareable(&self, shareable: bool) {
        self.inner.shareable.store(shareable, Ordering::Relaxed);
    }

    /// Returns the handle with which another process can open the block that contains `address`
    /// (`cuIpcOpenMemHandle`). The handle is for the whole block, whose first address
    /// [`block_of`](Allocator::block_of) returns.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotShareable`] if the block is in the pool, [`AllocatorError::UnknownBlock`], or
    /// [`AllocatorError::Driver`].
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

    /// Returns the first address and the size in bytes of the block that contains `address`.
    #[must_use]
    pub fn block_of(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
        let mut books = self.inner.books.lock();
        books.find_mut(address).map(|(begin, block)| (begin, block.bytes))
    }

    /// Returns to the device the freed blocks that can be returned now, and the memory that the pool keeps.
    ///
    /// A block may have been used on a default stream that this thread cannot name: of a foreign context that
    /// is not current, or of another thread. For such blocks the call waits for the device's work, which
    /// invalidates captures of the device's streams. Otherwise it waits only to free
    /// [shareable](Allocator::set_shareable) blocks.
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
    /// An account begins with the first request for memory, or with a limit. It stays while bytes are in use or
    /// a limit is set. Only the 64 other accounts that were used last are kept.
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
