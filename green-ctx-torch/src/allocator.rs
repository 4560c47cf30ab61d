//! An allocator for PyTorch that knows partitions.
//!
//! It is used from PyTorch through the [C functions](self::c) of this library:
//! `torch.cuda.memory.CUDAPluggableAllocator(path, "green_ctx_torch_alloc", "green_ctx_torch_free")`
//! gives an allocator for `torch.cuda.MemPool(allocator.allocator())`, and [`Allocator`] is the same
//! state from Rust.
//!
//! Memory comes from a memory pool of the allocator's own, in the order of the stream that it is asked
//! for on, and goes back in that order. Each block is in the account of the partition that its stream is
//! of, by the partition's name. Streams in no partition share an account, and so do those of foreign green
//! contexts. There are limits for all memory and for each account.
//!
//! # Out of memory
//!
//! A limit refuses at once. Where the driver has no memory, [`Allocator::allocate`] waits on the host for
//! what was freed behind work that still runs, as far as that is on one of the 64 streams that were freed
//! on last, gives the pool's unused memory back to the device, and asks again. It waits for no stream that
//! is being captured, and for none of green-ctx that is gone: what was freed on the streams of a closed
//! partition can be had when their work is done.
//!
//! Where a limit would be passed, or the driver has no memory then, [`c::green_ctx_torch_alloc`] returns
//! null. What PyTorch makes of it depends on how the allocator is used:
//!
//! - In a `MemPool`, PyTorch's caching allocator asks for segments. It takes null for
//!   `cudaErrorMemoryAllocation` (`allocPrimitive` in c10/cuda/CUDACachingAllocator.cpp) and ends in
//!   `torch.OutOfMemoryError`. Before that it gives back what it caches and asks again, but in some
//!   versions not inside `use_mem_pool` (its issue 159674): `torch.cuda.empty_cache()` outside of it
//!   helps there.
//! - As the current allocator (`torch.cuda.memory.change_current_allocator`), PyTorch does not look at
//!   the pointer (`CUDAPluggableAllocator::malloc` in torch/csrc/cuda/CUDAPluggableAllocator.cpp; its
//!   issue 133280 is open): the tensor has no memory, and the first kernel that uses it fails. Use a
//!   `MemPool` where a limit shall hold.
//!
//! Both are read from PyTorch's sources. A limit in a `MemPool` was seen to end in
//! `torch.OutOfMemoryError`, and what it had given stayed whole (PyTorch 2.11, H200, driver 580.159.04).
//!
//! # Order
//!
//! A block that is freed is used again by whoever comes after the free in stream order. A free on one
//! stream waits, on the device, for the stream that the block was allocated on and for each that was
//! [recorded](Allocator::record_stream) for it, as far as work was submitted to them. The pool never makes
//! an allocation wait for a free that its stream does not follow anyway
//! (`CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES` is off), so that no partition waits for another
//! because of memory. Where the device has no memory left, the host [waits](self#out-of-memory) instead.
//!
//! A block that was used on the default stream of a foreign context (one of
//! `torch.cuda.green_contexts`, say) goes back when that context is current again, or with
//! [`empty_cache`](Allocator::empty_cache); one of a per-thread default stream, on that thread.
//!
//! A block keeps the stream that it was allocated on, and those recorded, when they are of green-ctx; and
//! so the partition. Give memory back (`torch.cuda.empty_cache()`) before closing one.
//!
//! # Graphs
//!
//! An allocation on a stream that is being captured is made outside of the capture, as PyTorch does with
//! `cudaMalloc`: a graph with allocation nodes could not be moved to a partition. The block is ready for
//! every stream when the function returns. From then on the graph may use it whenever it is launched,
//! so it goes back to the driver when it is freed *and* neither the graph, a clone nor an executable of it
//! is left. The same holds for a block that is freed, or recorded, on a stream that is being captured. A free
//! waits until no stream of the block is in a capture.
//!
//! # Sharing with other processes
//!
//! The driver gives no IPC handle of pooled memory (recorded on an H200, driver 580.159.04). Blocks that
//! shall have one are allocated while the allocator is [shareable](Allocator::set_shareable): by
//! `cuMemAlloc`, which waits for nothing, and `cuMemFree`, which waits for the device's work.
//!
//! # Threads
//!
//! Everything may be called on any thread, with Python's interpreter lock or without it. No lock of this
//! module is held during a call of the driver, of the clean-up hook, or while a handle is dropped: the driver
//! may wait for any other thread. Bytes are reserved under the lock, then the driver is called, and the block
//! is entered under the lock again. A block is taken out before it is freed. If the free fails or has to
//! wait, the block goes to a list that later calls look at.

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

/// The result of an allocator's operation.
pub type Result<T, E = AllocatorError> = std::result::Result<T, E>;

/// How many unused bytes an allocator's pool keeps by default when work is waited for.
pub const RELEASE_THRESHOLD: u64 = 64 << 20;

/// The allocator of one device. Clones share it, and so does every [`Allocator::of`] the same device.
///
/// # Example
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
/// // SAFETY: the stream is alive.
/// let block = unsafe { allocator.allocate(4096, stream.as_raw()) }?;
/// assert_eq!(allocator.partition("p0").map(|usage| usage.current_bytes), Some(4096));
/// // SAFETY: nothing uses the block that is not in the stream's order.
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
    /// Made at the first allocation; dropped before the device, which keeps the driver.
    source: OnceLock<Source>,
    books: Mutex<Books>,
    /// How many freed blocks wait, so that nobody needs the lock to find that there are none.
    waiting: AtomicU64,
    shareable: AtomicBool,
    threshold: AtomicU64,
    device: Device,
}

/// What the lock is for. No driver call happens under it, and nothing is dropped that could make one.
#[derive(Default)]
struct Books {
    accounts: Accounts,
    blocks: BTreeMap<CUdeviceptr, Block>,
    waiting: VecDeque<Waiting>,
    pending: Pending,
}

impl Allocator {
    /// The allocator of a device. It lasts as long as a handle of it: whoever sets limits keeps one, or
    /// asks for the [`global`](Allocator::global) one.
    #[must_use]
    pub fn of(device: &Device) -> Allocator {
        global::of(device)
    }

    /// The allocator that the [C functions](self::c) use for a device. It is kept for them.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::InvalidRequest`] for a negative ordinal, [`AllocatorError::Driver`] where there is
    /// no driver or no such device.
    pub fn global(ordinal: i32) -> Result<Allocator> {
        global::of_ordinal(ordinal)
    }

    /// Makes the [C functions](self::c) use this driver from now on. Otherwise they use
    /// [`Driver::load`]. The driver is kept, and its allocators, until another is installed or
    /// [`uninstall`](Allocator::uninstall) is called.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::InUse`] while blocks are out that another driver's allocators gave through the
    /// C functions: they could not be freed any more.
    pub fn install(driver: &Driver) -> Result<()> {
        global::install(Some(driver))
    }

    /// Makes the C functions forget the driver that they use.
    ///
    /// # Errors
    ///
    /// As [`install`](Allocator::install).
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

    /// The device whose memory this is.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Allocates a block in the order of a stream, in the account of the stream's partition. A
    /// default-stream token stands for the stream of the current context, or of the primary one where none
    /// of this device is current. No bytes are no block, and give the null address.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Limit`], [`AllocatorError::Driver`]. Nothing is allocated then. Before
    /// `CUDA_ERROR_OUT_OF_MEMORY` is returned, the host waits for memory that others have freed.
    ///
    /// # Safety
    ///
    /// `stream` must be a living stream of this driver, and stay alive until the block is freed, and
    /// where the block waits for a graph then, until that is gone; a stream of green-ctx is kept alive.
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
        // SAFETY: the stream is alive by this function's contract.
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
                // SAFETY: the stream is alive and not captured, its context current for a token.
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

    /// Frees a block in the order of a stream, and of those that it was allocated on and recorded for.
    /// The null address is no block, and nothing is done.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownBlock`], [`AllocatorError::Driver`]. After a failure of the driver the
    /// block is freed all the same as far as the caller is concerned: it stays in the accounts, and the
    /// driver is asked again at later calls.
    ///
    /// # Safety
    ///
    /// `stream` must be a living stream of this driver. Nobody may use the block in work that is submitted
    /// from now on, nor may work use it that is on a stream which was not recorded for it and which
    /// none of these waits for.
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
        // From here on the block is known to nobody else, and whatever fails it is kept for later.
        let mut waiting = Waiting { address, block, on: None, reported: true };
        // SAFETY: the stream is alive by this function's contract.
        let freed = unsafe { inner.free(driver, &mut waiting, stream) };
        if !matches!(freed, Ok(true)) {
            waiting.reported = freed.is_err();
            inner.wait_for_later(waiting);
        }
        freed?;
        Ok(())
    }

    /// Notes that a block is used on another stream than it was allocated on: what is submitted there
    /// until the block is freed is over before its memory is used again. `address` may be any of the
    /// block.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownBlock`], [`AllocatorError::Driver`].
    ///
    /// # Safety
    ///
    /// `stream` must be a living stream of this driver, and stay alive until the block is freed, and
    /// where the block waits for a graph then, until that is gone; a stream of green-ctx is kept alive.
    pub unsafe fn record_stream(&self, address: CUdeviceptr, stream: CUstream) -> Result<()> {
        let inner = &*self.inner;
        let driver = inner.checked_driver()?;
        if !inner.books.lock().has(address) {
            return Err(AllocatorError::UnknownBlock { address });
        }
        let _relaxed = RelaxedCapture::enter(driver)?;
        // SAFETY: the stream is alive by this function's contract.
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
        // Outside of the lock: it may be the last handle of its stream.
        drop(place);
        Ok(())
    }

    /// Limits the bytes that may be in use; `None` for no limit. What is in use already stays.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_limit(bytes);
    }

    /// Limits the bytes that may be in use on streams of partitions of this name, now or later; `None`
    /// for no limit.
    pub fn set_partition_limit(&self, name: &str, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_partition_limit(name, bytes);
    }

    /// Limits the bytes that may be in use on streams that are in no partition; `None` for no limit.
    pub fn set_outside_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_outside_limit(bytes);
    }

    /// Limits the bytes that may be in use on streams of foreign green contexts, those of other
    /// libraries in this process; `None` for no limit.
    pub fn set_foreign_limit(&self, bytes: Option<u64>) {
        self.inner.books.lock().accounts.set_foreign_limit(bytes);
    }

    /// Limits the bytes that may be in use to a part of the device's memory.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::InvalidRequest`] for what is not from 0 to 1, and [`AllocatorError::Driver`].
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&fraction) {
            let text = format!("a part of the memory is from 0 to 1, not {fraction}");
            return Err(AllocatorError::InvalidRequest(text));
        }
        self.inner.checked_driver()?;
        let total = self.device().total_memory()? as u64;
        // Rounded towards nothing: the result is at most the total.
        self.set_limit(Some((total as f64 * fraction) as u64));
        Ok(())
    }

    /// How many bytes that are not in use the pool keeps when work is waited for; the rest goes back to
    /// the device. [`RELEASE_THRESHOLD`] at first.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Driver`].
    #[doc(alias = "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")]
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.inner.checked_driver()?;
        self.inner.threshold.store(bytes, Ordering::Relaxed);
        Ok(self.inner.source.get().map_or(Ok(()), |source| source.set_threshold(bytes))?)
    }

    /// Whether blocks are allocated from now on in a way that other processes can be given
    /// ([`ipc_handle`](Allocator::ipc_handle)). They are slower to free.
    pub fn set_shareable(&self, shareable: bool) {
        self.inner.shareable.store(shareable, Ordering::Relaxed);
    }

    /// The handle by which another process can open the block that an address is in
    /// (`cuIpcOpenMemHandle`). It stands for the whole block, whose begin
    /// [`block_of`](Allocator::block_of) returns.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotShareable`] for a block of the pool, [`AllocatorError::UnknownBlock`],
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

    /// The block that an address is in: its first address and its bytes.
    #[must_use]
    pub fn block_of(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
        let mut books = self.inner.books.lock();
        books.find_mut(address).map(|(begin, block)| (begin, block.bytes))
    }

    /// Gives back what was freed as far as that is possible now, and the memory that the pool keeps.
    ///
    /// It waits for the device's work where a block was used on a default stream that this thread cannot
    /// name: of a foreign context that is not current, or of another thread. That invalidates
    /// captures of the device's streams; without such blocks it waits for nothing.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Driver`].
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn empty_cache(&self) -> Result<()> {
        let driver = self.inner.checked_driver()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        self.inner.give_back_waiting(true);
        Ok(self.inner.source.get().map_or(Ok(()), Source::trim)?)
    }

    /// What is in use in total.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.books.lock().accounts.total()
    }

    /// What is in use on streams of partitions of this name; `None` where there is no account.
    ///
    /// An account begins when memory is first asked for, or a limit set. It stays while bytes are in use
    /// or there is a limit. Of the others the 64 that were used last are kept.
    #[must_use]
    pub fn partition(&self, name: &str) -> Option<Usage> {
        self.inner.books.lock().accounts.of(name)
    }

    /// What is in use on streams that are in no partition: those of the primary context, and of others
    /// that are not green.
    #[must_use]
    pub fn outside(&self) -> Usage {
        self.inner.books.lock().accounts.outside()
    }

    /// What is in use on streams of foreign green contexts, those of other libraries in this process.
    #[must_use]
    pub fn foreign(&self) -> Usage {
        self.inner.books.lock().accounts.foreign()
    }

    /// The bytes in use.
    #[must_use]
    pub fn current_bytes(&self) -> u64 {
        self.usage().current_bytes
    }

    /// The most bytes that were in use.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.usage().peak_bytes
    }

    /// The limit in bytes; `None` for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.usage().limit_bytes
    }

    /// Lets all peaks begin again at what is in use.
    pub fn reset_peak(&self) {
        self.inner.books.lock().accounts.reset_peak();
    }

    /// The state of the allocator at one moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }
}

impl Inner {
    /// The driver, unless this process was forked since it was loaded.
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
        // Where another thread was first, this one is dropped, and its pool destroyed.
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
