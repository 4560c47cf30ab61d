//! What a kernel's closure sees of its launch.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, Once};

use crate::clock::cost;
use crate::driver::Driver;
use crate::effects::Written;
use crate::image::KernelInfo;

/// What a kernel does.
pub(crate) type KernelFn = Arc<dyn Fn(&mut KernelCall<'_>) + Send + Sync>;

/// Says, once in a process, that a launch computes nothing.
pub(crate) fn warn_unregistered(kernel: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        // A program whose standard error is closed goes on.
        let _ = writeln!(
            io::stderr(),
            "warning: no function is registered for the kernel {kernel}, so the simulated driver computes nothing \
             and memory keeps its contents; later launches of such kernels give no warning. Rust tests register a \
             function with Sim::register_kernel (guide::testing in green-ctx's manual); programs on the simulated \
             libcuda.so.1 cannot (docs/simulated-libcuda.md)."
        );
    });
}

/// An access outside the allocations of the launch's device. The launch has failed with it, as on
/// a GPU: the device's contexts answer `CUDA_ERROR_ILLEGAL_ADDRESS` from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not within one allocation of the device")]
#[non_exhaustive]
pub struct IllegalAddress {
    /// Where the access began.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Where and when one block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The block's number in the grid, x varying fastest.
    pub index: u64,
    /// The id of its SM.
    pub sm: u32,
    /// When it begins, in virtual nanoseconds.
    pub start_ns: u64,
    /// When it ends, in virtual nanoseconds.
    pub end_ns: u64,
}

/// A launch as the kernel's closure sees it; see
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
    /// What was written, to be seen by others when the launch has ended.
    pub(crate) writes: Vec<Written>,
    /// The addresses that were read.
    pub(crate) reads: Vec<Range<u64>>,
    pub(crate) faulted: bool,
}

impl KernelCall<'_> {
    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The grid, in blocks.
    #[must_use]
    pub fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// A block, in threads.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Dynamic shared memory of a block in bytes.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// The SMs of the launch's context, ascending.
    #[must_use]
    pub fn sms(&self) -> &[u32] {
        &self.sms
    }

    /// When the launch begins, in virtual nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// The bytes of a parameter, by its place in the kernel's declaration.
    #[must_use]
    pub fn param_bytes(&self, index: usize) -> Option<&[u8]> {
        let param = self.info.params.get(index)?;
        self.params.get(param.offset..param.offset + param.size)
    }

    /// A parameter of four bytes as a number.
    #[must_use]
    pub fn param_u32(&self, index: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.param_bytes(index)?.try_into().ok()?))
    }

    /// A parameter of eight bytes as a number, an address among others.
    #[must_use]
    pub fn param_u64(&self, index: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.param_bytes(index)?.try_into().ok()?))
    }

    /// How long one block takes from now on, in virtual nanoseconds; 2000 at first.
    pub fn set_duration_ns(&mut self, duration: u64) {
        self.duration_ns = duration;
    }

    /// Where and when each block runs: block `i` on the `i`-th SM, beginning again after the last,
    /// and in a later wave when all SMs are full.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let (sms, start, duration) = (Arc::clone(&self.sms), self.start_ns, self.duration_ns);
        let resident = resident(&sms, self.blocks_per_sm);
        (0..blocks(self.grid)).map(move |index| {
            let start_ns = start + index / resident * duration;
            let sm = sms[(index % sms.len() as u64) as usize];
            Block { index, sm, start_ns, end_ns: start_ns + duration }
        })
    }

    /// When the last block ends.
    pub(crate) fn end_ns(&self) -> u64 {
        end_ns(self.start_ns, self.duration_ns, self.grid, &self.sms, self.blocks_per_sm)
    }

    /// Reads device memory: what it holds when the launch begins, and what the kernel wrote since.
    ///
    /// # Errors
    ///
    /// [`IllegalAddress`] where the bytes are not within one allocation of the launch's device.
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

    /// Writes device memory. Others see it when the launch has ended.
    ///
    /// # Errors
    ///
    /// [`IllegalAddress`] where the bytes are not within one allocation of the launch's device.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), IllegalAddress> {
        let state = self.driver.peek();
        let found = state.device_memory(self.device, address, bytes.len()).is_some();
        drop(state);
        if found {
            self.note(address, bytes);
        }
        self.accessed(found, address, bytes.len())
    }

    /// Keeps what was written, as one piece with what was written just before it in memory.
    fn note(&mut self, address: u64, bytes: &[u8]) {
        match self.writes.last_mut() {
            Some(last) if last.address + last.bytes.len() as u64 == address => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => self.writes.push(Written { address, bytes: bytes.to_vec() }),
        }
    }

    /// Keeps what was read, as one piece with what was read just before it in memory.
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

/// The number of blocks of a grid.
pub(crate) fn blocks(grid: [u32; 3]) -> u64 {
    grid.iter().fold(1_u64, |blocks, &side| blocks.saturating_mul(u64::from(side)))
}

/// How many blocks all SMs hold at a time.
fn resident(sms: &[u32], blocks_per_sm: u32) -> u64 {
    (sms.len() as u64 * u64::from(blocks_per_sm)).max(1)
}

/// When the last block of a launch ends.
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

/// How long a block takes unless its kernel says otherwise.
pub(crate) const DURATION: u64 = cost::KERNEL;
