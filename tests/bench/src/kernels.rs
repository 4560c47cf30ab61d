//! The kernels that the arms launch, and their behaviour on a simulated driver.
#![allow(unsafe_code, reason = "launches kernels")]

use green_ctx::sim::Sim;
use green_ctx::sys::{CUdevice_attribute, CUdeviceptr};
use green_ctx::{Device, DeviceBuffer, Kernel, LaunchConfig, Library, Result, Stream};
use green_ctx_cli::jobs;

const PTX: &str = include_str!("kernels.ptx");

/// The number of values that the small kernel adds: 256 × 256, one per thread.
const NUMBERS: u32 = 256 * 256;
const ADD_THREADS: u32 = 256;

/// The duration of one round of `bench_busy` on a simulated driver, in simulated nanoseconds.
const SIMULATED_ROUND_NS: u64 = 32;

/// The kernels and their memory.
pub(crate) struct Kernels {
    nothing: Kernel,
    add: Kernel,
    busy: Kernel,
    mark: Kernel,
    halve: Kernel,
    terms: [DeviceBuffer<f32>; 2],
    sums: DeviceBuffer<f32>,
    /// Threads per block, such that an SM holds exactly two blocks and no other.
    half: u32,
}

/// Memory for the marks of many launches of `bench_mark`.
pub(crate) struct Marks {
    buffer: DeviceBuffer<u32>,
    blocks: u32,
}

impl Kernels {
    pub(crate) fn load(device: &Device) -> Result<Kernels> {
        let library = Library::from_ptx(device, PTX)?;
        let kernel = |name| library.kernel(name);
        let jobs = Library::from_ptx(device, jobs::PTX)?;
        let threads = device
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let numbers = || DeviceBuffer::from_slice(device, &vec![1.5f32; NUMBERS as usize]);
        Ok(Kernels {
            nothing: kernel("bench_nothing")?,
            add: jobs.kernel("job_add")?,
            busy: kernel("bench_busy")?,
            mark: kernel("bench_mark")?,
            halve: kernel("bench_halve")?,
            terms: [numbers()?, numbers()?],
            sums: DeviceBuffer::zeroed(device, NUMBERS as usize)?,
            half: u32::try_from(threads).unwrap_or(0) / 2,
        })
    }

    /// Launches the empty kernel.
    pub(crate) fn nothing(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { stream.launch(&self.nothing, LaunchConfig::new(1, 32), ()) }
    }

    /// Launches the small kernel: an addition of 256 × 256 numbers.
    pub(crate) fn add(&self, stream: &Stream) -> Result<()> {
        let [a, b] = self.terms.each_ref().map(DeviceBuffer::as_argument);
        let config = LaunchConfig::new(NUMBERS / ADD_THREADS, ADD_THREADS);
        // SAFETY: the arguments match the kernel's three parameters, and each buffer has one number per thread.
        // Freeing the buffers waits for the device's work. Concurrent launches write the same sums, and no code
        // reads them.
        unsafe { stream.launch(&self.add, config, (a, b, self.sums.as_argument())) }
    }

    /// Launches work on `sm_count` SMs, of `waves` times as many blocks as they hold at the same time. Each
    /// block runs for `rounds`. While the work runs, its SMs have no room for other blocks.
    pub(crate) fn busy(
        &self,
        stream: &Stream,
        sm_count: u32,
        waves: u32,
        rounds: u32,
    ) -> Result<()> {
        let config = LaunchConfig::new(2 * sm_count * waves, self.half);
        // SAFETY: the arguments match the kernel's two parameters. It writes at most the first number of
        // `sums`, and no code reads that.
        unsafe { stream.launch(&self.busy, config, (self.sums.as_argument(), rounds)) }
    }

    /// Halves bf16 numbers and adds 1 to each, one number per thread.
    pub(crate) fn halve(&self, stream: &Stream, numbers: &DeviceBuffer<u16>) -> Result<()> {
        const THREADS: usize = 256;
        let blocks = u32::try_from(numbers.len() / THREADS).unwrap_or(u32::MAX);
        let config = LaunchConfig::new(blocks, THREADS as u32);
        // SAFETY: the argument matches the kernel's parameter, and `numbers` has one number per thread. Freeing
        // it waits for the device's work.
        unsafe { stream.launch(&self.halve, config, (numbers.as_argument(),)) }
    }

    /// Launches the marking kernel with one block per SM of the stream's partition. The blocks write to slot `place`.
    pub(crate) fn mark(
        &self,
        stream: &Stream,
        marks: &Marks,
        place: usize,
        sm_count: u32,
    ) -> Result<()> {
        let place = place % marks.places();
        let blocks = sm_count.min(marks.blocks);
        let address = marks.buffer.as_raw() + 4 * (place as u64) * u64::from(marks.blocks);
        // SAFETY: the argument matches the kernel's parameter, and the slot has one mark per block. Freeing the
        // buffer waits for the device's work.
        unsafe { stream.launch(&self.mark, LaunchConfig::new(blocks, self.half), (address,)) }
    }
}

impl Marks {
    /// Allocates slots for `places` launches of at most `blocks` blocks each.
    pub(crate) fn new(device: &Device, places: usize, blocks: u32) -> Result<Marks> {
        let buffer = DeviceBuffer::zeroed(device, places * blocks as usize)?;
        Ok(Marks { buffer, blocks })
    }

    /// Returns the address and the size in bytes of the marks.
    pub(crate) fn memory(&self) -> (CUdeviceptr, usize) {
        (self.buffer.as_raw(), 4 * self.buffer.len())
    }

    fn places(&self) -> usize {
        self.buffer.len() / self.blocks as usize
    }

    /// Waits for the work of a stream, and returns the SM of each block of each slot, or `None` for a block
    /// that did not run.
    pub(crate) fn read(&self, stream: &Stream) -> Result<Vec<Vec<Option<u32>>>> {
        let marks = self.buffer.read(stream)?;
        let places = marks.chunks_exact(self.blocks as usize);
        Ok(places.map(|blocks| blocks.iter().map(|mark| mark.checked_sub(1)).collect()).collect())
    }
}

/// Registers the behaviour of the kernels on a simulated driver, as far as it has visible effects.
pub(crate) fn register(sim: &Sim) {
    sim.register_kernel("bench_busy", |kernel| {
        let rounds = u64::from(kernel.param_u32(1).unwrap_or(0));
        kernel.set_duration_ns(rounds * SIMULATED_ROUND_NS + 1);
    });
    sim.register_kernel("bench_mark", |kernel| {
        let Some(out) = kernel.param_u64(0) else { return };
        for block in kernel.blocks() {
            let mark = (block.sm + 1).to_ne_bytes();
            if kernel.write(out + 4 * block.index, &mark).is_err() {
                return;
            }
        }
    });
}
