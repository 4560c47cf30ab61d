//! The object through which a kernel's closure accesses its launch.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, Once};

use crate::clock::cost;
use crate::driver::Driver;
use crate::effects::Written;
use crate::image::KernelInfo;

/// The closure of a kernel.
pub(crate) type KernelFn = Arc<dyn Fn(&mut KernelCall<'_>) + Send + Sync>;

/// Warns, once per process, that a launch computes nothing.
pub(crate) fn warn_unregistered(kernel: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        // If standard error is closed, the program still continues.
        let _ = writeln!(
            io::stderr(),
            "warning: no closure is registered for the kernel {kernel}, so the simulated driver computes nothing and \
             memory keeps its contents. This warning is not repeated for other launches. Rust tests register a \
             closure with Sim::register_kernel (see guide::testing in the documentation of green-ctx). Programs on \
             the simulated libcuda.so.1 cannot register one (see docs/simulated-libcuda.md)."
        );
    });
}

/// An access outside the allocations that the launch's device can reach. The launch fails, as on a GPU.
/// After the end of the launch, the device's contexts return `CUDA_ERROR_ILLEGAL_ADDRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not within one allocation that the device can reach")]
#[non_exhaustive]
pub struct IllegalAddress {
    /// The first address of the access.
    pub address: u64,
    /// The length of the access in bytes.
    pub bytes: usize,
}

/// The SM and the times of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The index of the block in the grid; x varies fastest.
    pub index: u64,
    /// The id of the SM.
    pub sm: u32,
    /// The start of the block, in virtual nanoseconds.
    pub start_ns: u64,
    /// The end of the block, in virtual nanoseconds.
    pub end_ns: u64,
}

/// A launch, as presented to a closure that was registered with
/// [`Sim::register_kernel`](crate::Sim::register_kernel).
pub struct KernelCall<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) info: Arc<KernelInfo>,
    pub(crate) params: Vec<u8>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) device: usize,
    pub(crate) sms: Arc<[u32]>,
    pub(crate) blocks_per_sm: u32,
    pub(crate) start_ns: u64,
    pub(crate) duration_ns: u64,
    /// The bytes written, which become visible to other work when the launch ends.
    pub(crate) writes: Vec<Written>,
    /// The addresses read.
    pub(crate) reads: Vec<Range<u64>>,
    pub(crate) faulted: bool,
}

impl KernelCall<'_> {
    /// Returns the kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Returns the size of the grid, in blocks.
    #[must_use]
    pub fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Returns the size of a block, in threads.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Returns the dynamic shared memory of a block, in bytes.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Returns the ids of the SMs of the launch's context, in ascending order.
    #[must_use]
    pub fn sms(&self) -> &[u32] {
        &self.sms
    }

    /// Returns the start of the launch, in virtual nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Returns the bytes of a parameter, by its index in the kernel's declaration; `None` if the kernel has
    /// no such parameter.
    #[must_use]
    pub fn param_bytes(&self, index: usize) -> Option<&[u8]> {
        let param = self.info.params.get(index)?;
        self.params.get(param.offset..param.offset + param.size)
    }

    /// Returns a parameter of four bytes as an integer; `None` if the kernel has no such parameter of four
    /// bytes.
    #[must_use]
    pub fn param_u32(&self, index: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.param_bytes(index)?.try_into().ok()?))
    }

    /// Returns a parameter of eight bytes, such as an address, as an integer; `None` if the kernel has no
    /// such parameter of eight bytes.
    #[must_use]
    pub fn param_u64(&self, index: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.param_bytes(index)?.try_into().ok()?))
    }

    /// Sets the duration of one block, in virtual nanoseconds. The default is 2000.
    pub fn set_duration_ns(&mut self, duration: u64) {
        self.duration_ns = duration;
    }

    /// Returns the SM and the times of each block. The blocks are distributed round-robin over the SMs of
    /// [`sms`](KernelCall::sms), starting with the first. When all SMs are full, the following blocks form
    /// a later wave.
    ///
    /// # Examples
    ///
    /// ```
    /// # let sim = green_ctx_sim::Sim::new(green_ctx_sim::Spec::default())?;
    /// // Each block writes the id of its SM.
    /// sim.register_kernel("locate", |kernel| {
    ///     let Some(out) = kernel.param_u64(0) else { return };
    ///     for block in kernel.blocks() {
    ///         let _ = kernel.write(out + 4 * block.index, &block.sm.to_ne_bytes());
    ///     }
    /// });
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let (sms, start, duration) = (Arc::clone(&self.sms), self.start_ns, self.duration_ns);
        let resident = resident(&sms, self.blocks_per_sm);
        (0..blocks(self.grid)).map(move |index| {
            let start_ns = start + index / resident * duration;
            let sm = sms[(index % sms.len() as u64) as usize];
            Block { index, sm, start_ns, end_ns: start_ns + duration }
        })
    }

    /// Returns the end of the last block.
    pub(crate) fn end_ns(&self) -> u64 {
        end_ns(self.start_ns, self.duration_ns, self.grid, &self.sms, self.blocks_per_sm)
    }

    /// Reads device memory. The result is the contents at the start of the launch, with the kernel's own
    /// writes applied.
    ///
    /// # Errors
    ///
    /// [`IllegalAddress`] if the bytes do not lie within one allocation that the launch's device can reach.
    ///
    /// # Examples
    ///
    /// ```
    /// # let sim = green_ctx_sim::Sim::new(green_ctx_sim::Spec::default())?;
    /// sim.register_kernel("double", |kernel| {
    ///     let Some(address) = kernel.param_u64(0) else { return };
    ///     let mut bytes = [0; 4];
    ///     if kernel.read(address, &mut bytes).is_ok() {
    ///         let doubled = 2 * u32::from_ne_bytes(bytes);
    ///         let _ = kernel.write(address, &doubled.to_ne_bytes());
    ///     }
    /// });
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), IllegalAddress> {
        let state = self.driver.peek();
        let memory = state.device_memory(self.device, address, out.len());
        let found = memory.map(|memory| out.copy_from_slice(memory)).is_some();
        if found {
            state.foresee(self.start_ns, address, out);
        }
        drop(state);
        if found {
            self.note_read(address..address + out.len() as u64);
        }
        self.writes.iter().for_each(|write| write.over(address, out));
        self.accessed(found, address, out.len())
    }

    /// Writes device memory. Other work sees the bytes when the launch ends.
    ///
    /// # Errors
    ///
    /// [`IllegalAddress`] if the bytes do not lie within one allocation that the launch's device can reach.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), IllegalAddress> {
        let state = self.driver.peek();
        let found = state.device_memory(self.device, address, bytes.len()).is_some();
        drop(state);
        if found {
            self.note(address, bytes);
        }
        self.accessed(found, address, bytes.len())
    }

    /// Adds a write. If the bytes directly follow those of the last write, the two writes are merged.
    fn note(&mut self, address: u64, bytes: &[u8]) {
        match self.writes.last_mut() {
            Some(last) if last.address + last.bytes.len() as u64 == address => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => self.writes.push(Written { address, bytes: bytes.to_vec() }),
        }
    }

    /// Adds the range of a read. If the range directly follows that of the last read, the two ranges are
    /// merged.
    fn note_read(&mut self, range: Range<u64>) {
        match self.reads.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ => self.reads.push(range),
        }
    }

    fn accessed(&mut self, found: bool, address: u64, bytes: usize) -> Result<(), IllegalAddress> {
        self.faulted |= !found;
        if found { Ok(()) } else { Err(IllegalAddress { address, bytes }) }
    }
}

/// Returns the number of blocks of a grid.
pub(crate) fn blocks(grid: [u32; 3]) -> u64 {
    grid.iter().fold(1_u64, |blocks, &side| blocks.saturating_mul(u64::from(side)))
}

/// Returns the number of blocks that all SMs together hold at a time.
fn resident(sms: &[u32], blocks_per_sm: u32) -> u64 {
    (sms.len() as u64 * u64::from(blocks_per_sm)).max(1)
}

/// Returns the end of a launch's last block.
pub(crate) fn end_ns(
    start: u64,
    duration: u64,
    grid: [u32; 3],
    sms: &[u32],
    blocks_per_sm: u32,
) -> u64 {
    let waves = blocks(grid).div_ceil(resident(sms, blocks_per_sm));
    start.saturating_add(waves.saturating_mul(duration))
}

/// The duration of a block if the kernel's closure does not set one.
pub(crate) const DURATION: u64 = cost::KERNEL;
