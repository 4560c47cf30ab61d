//! The probe: a kernel whose blocks report where and when they ran.
#![allow(unsafe_code, reason = "launches a kernel")]

use std::time::Duration;

use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::work::launch::LaunchConfig;
use crate::work::library::{Kernel, Library};
use crate::work::memory::DeviceBuffer;
use crate::work::stream::Stream;

/// Text for any GPU from compute capability 5.2 on; the driver compiles it.
const PTX: &str = include_str!("probe.ptx");
const THREADS: u32 = 1024;
/// Words of 8 bytes that a block writes.
const WORDS: usize = 3;

/// Where and when one block of the probe ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Block {
    /// The SM's id (`%smid`).
    pub sm: u32,
    /// When the block started, in nanoseconds of the device's clock (`%globaltimer`).
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// The probe kernel, loaded.
pub(crate) struct Probe {
    kernel: Kernel,
}

/// A probe that was launched on a stream. Its buffer goes only after the stream was waited for.
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

    /// Launches the probe on a stream whose context has `sm_count` SMs. A block stays for at least
    /// `stay`.
    ///
    /// Blocks are so large that an SM holds at most two, and there are twice as many as fit: all
    /// SMs are full before the first block leaves, so each takes part.
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
        // SAFETY: the kernel's two parameters, with room for each block's three words. `Running`
        // keeps the buffer until the stream is done, and nobody else knows its address.
        unsafe { stream.launch(&self.kernel, config, (results.as_argument(), stay)) }?;
        Ok(Running { stream, results, finished: false })
    }
}

impl Running<'_> {
    /// Waits for the probe and returns what its blocks wrote.
    pub(crate) fn finish(mut self) -> Result<Vec<Block>> {
        let words = self.results.read(self.stream)?;
        self.finished = true;
        Ok(words.chunks_exact(WORDS).map(block).collect())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.finished && !self.stream.driver().is_forked() {
            // The kernel may still write to the buffer.
            self.stream.driver().clean_up(|| self.stream.synchronize());
        }
    }
}

fn block(words: &[u64]) -> Block {
    // The id is the first word's low half: devices and hosts of CUDA are little-endian.
    Block { sm: words[0] as u32, start_ns: words[1], end_ns: words[2] }
}
