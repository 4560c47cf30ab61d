//! The probe: a kernel whose blocks report where and when they ran.
#![allow(unsafe_code, reason = "launches a kernel")]

use std::time::Duration;

use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::work::launch::LaunchConfig;
use crate::work::library::{Kernel, Library};
use crate::work::memory::DeviceBuffer;
use crate::work::stream::Stream;

/// The probe's PTX, which the driver compiles for any GPU of compute capability 5.2 or newer.
const PTX: &str = include_str!("probe.ptx");
const THREADS: u32 = 1024;
/// The number of 8-byte words that a block writes.
const WORDS: usize = 3;

/// A block of the probe, with the SM and the time at which it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Block {
    /// The SM's id (`%smid`).
    pub sm: u32,
    /// The time at which the block started, in nanoseconds of the device's clock (`%globaltimer`).
    pub start_ns: u64,
    /// The time at which the block ended, in nanoseconds of the device's clock.
    pub end_ns: u64,
}

/// The loaded probe kernel.
pub(crate) struct Probe {
    kernel: Kernel,
}

/// A probe that was launched on a stream. Dropping this object waits for the stream, and then frees the buffer.
pub(crate) struct Running<'a> {
    stream: &'a Stream,
    results: DeviceBuffer<u64>,
    finished: bool,
}

impl Probe {
    pub(crate) fn load(device: &Device) -> Result<Probe> {
        let kernel = Library::from_ptx(device, PTX)?.kernel("green_ctx_probe")?;
        Ok(Probe { kernel })
    }

    /// Launches the probe on a stream whose context has `sm_count` SMs. Each block stays on its SM for at least
    /// `stay`.
    ///
    /// An SM holds at most two blocks of this size, and the grid has twice as many blocks as fit. So all SMs are
    /// full before the first block ends, and every SM takes part.
    pub(crate) fn launch<'a>(
        &self,
        stream: &'a Stream,
        sm_count: u32,
        stay: Duration,
    ) -> Result<Running<'a>> {
        let blocks = sm_count.saturating_mul(4);
        let device = stream.context().device();
        let results = DeviceBuffer::<u64>::zeroed(device, blocks as usize * WORDS)?;
        let stay = u64::try_from(stay.as_nanos()).unwrap_or(u64::MAX);
        let config = LaunchConfig::new(blocks, THREADS);
        // SAFETY: these are the kernel's two parameters, and the buffer has room for three words per block.
        // `Running` keeps the buffer alive until the stream is done, and no other code has its address.
        unsafe { stream.launch(&self.kernel, config, (results.as_argument(), stay)) }?;
        Ok(Running { stream, results, finished: false })
    }
}

impl Running<'_> {
    /// Waits for the probe and returns the results of its blocks.
    pub(crate) fn finish(mut self) -> Result<Vec<Block>> {
        let words = self.results.read(self.stream)?;
        self.finished = true;
        Ok(words.chunks_exact(WORDS).map(block).collect())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.finished && !self.stream.driver().is_forked() {
            // The kernel may still be writing to the buffer.
            self.stream.driver().clean_up(|| self.stream.synchronize());
        }
    }
}

fn block(words: &[u64]) -> Block {
    // The SM's id is the low half of the first word: CUDA devices and hosts are little-endian.
    Block { sm: words[0] as u32, start_ns: words[1], end_ns: words[2] }
}
