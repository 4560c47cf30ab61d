//! The kernels that are launched, and what they do on a simulated driver.
#![allow(unsafe_code, reason = "launches kernels")]

use green_ctx::sim::Sim;
use green_ctx::sys::{CUdevice_attribute, CUdeviceptr};
use green_ctx::{Device, DeviceBuffer, Kernel, LaunchConfig, Library, Result, Stream};
use green_ctx_cli::jobs;

const PTX: &str = include_str!("kernels.ptx");

/// The small kernel's numbers: 256 × 256, one a thread.
const NUMBERS: u32 = 256 * 256;
const ADD_THREADS: u32 = 256;

/// What one round of `bench_busy` takes on a simulated driver, in virtual nanoseconds.
const SIMULATED_ROUND_NS: u64 = 32;

/// The kernels and the memory that they use.
pub(crate) struct Kernels {
    nothing: Kernel,
    add: Kernel,
    busy: Kernel,
    mark: Kernel,
    halve: Kernel,
    terms: [DeviceBuffer<f32>; 2],
    sums: DeviceBuffer<f32>,
    /// Threads of a block of which an SM holds exactly two, and nothing beside them.
    half: u32,
}

/// Room for what many launches of the marking kernel write.
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
        // SAFETY: the kernel's three parameters, each with a number for every thread; freeing them
        // waits for the device's work. Launches beside each other write the same sums, which nobody
        // reads.
        unsafe { stream.launch(&self.add, config, (a, b, self.sums.as_argument())) }
    }

    /// Launches work of `waves` times as many blocks as `sm_count` SMs hold, each of them busy for
    /// as many rounds. While it runs, its SMs hold nothing else.
    pub(crate) fn busy(
        &self,
        stream: &Stream,
        sm_count: u32,
        waves: u32,
        rounds: u32,
    ) -> Result<()> {
        let config = LaunchConfig::new(2 * sm_count * waves, self.half);
        // SAFETY: the kernel's two parameters; it writes to the first number at most, which nobody
        // reads.
        unsafe { stream.launch(&self.busy, config, (self.sums.as_argument(), rounds)) }
    }

    /// Halves numbers in bf16 and adds one to each, a thread a number.
    pub(crate) fn halve(&self, stream: &Stream, numbers: &DeviceBuffer<u16>) -> Result<()> {
        const THREADS: usize = 256;
        let blocks = u32::try_from(numbers.len() / THREADS).unwrap_or(u32::MAX);
        let config = LaunchConfig::new(blocks, THREADS as u32);
        // SAFETY: the kernel's parameter, with a number for every thread; freeing them waits for the
        // device's work.
        unsafe { stream.launch(&self.halve, config, (numbers.as_argument(),)) }
    }

    /// Launches the marking kernel with as many blocks as the stream's partition has SMs, which mark
    /// this place.
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
        // SAFETY: the kernel's parameter, and room for a mark of each block there; freeing it waits
        // for the device's work.
        unsafe { stream.launch(&self.mark, LaunchConfig::new(blocks, self.half), (address,)) }
    }
}

impl Marks {
    /// Room for this many launches of at most so many blocks.
    pub(crate) fn new(device: &Device, places: usize, blocks: u32) -> Result<Marks> {
        let buffer = DeviceBuffer::zeroed(device, places * blocks as usize)?;
        Ok(Marks { buffer, blocks })
    }

    /// Where the marks are, and how many bytes they have.
    pub(crate) fn memory(&self) -> (CUdeviceptr, usize) {
        (self.buffer.as_raw(), 4 * self.buffer.len())
    }

    fn places(&self) -> usize {
        self.buffer.len() / self.blocks as usize
    }

    /// The SMs of each place's blocks, `None` for those that did not run, after the work of a
    /// stream.
    pub(crate) fn read(&self, stream: &Stream) -> Result<Vec<Vec<Option<u32>>>> {
        let marks = self.buffer.read(stream)?;
        let places = marks.chunks_exact(self.blocks as usize);
        Ok(places.map(|blocks| blocks.iter().map(|mark| mark.checked_sub(1)).collect()).collect())
    }
}

/// Says what the kernels do on a simulated driver, as far as something is seen of it.
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
