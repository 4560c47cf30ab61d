//! The built-in kernels, each with the memory that it uses.
#![allow(unsafe_code, reason = "launches kernels")]

#[cfg(feature = "sim")]
use green_ctx::sim::Sim;
use green_ctx::{Device, DeviceBuffer, Kernel, LaunchConfig, Library, Result, Stream};

use super::PTX;

/// Threads of a block, in every kernel.
const THREADS: u32 = 256;
/// The numbers that the small kernel adds.
const SMALL: u32 = 256 * 256;
/// Rows and columns of the part of a product that one block makes.
const TILE: u32 = 64;
/// Queries of one block, one for each thread.
const QUERIES: u32 = THREADS;
pub(super) const HEADS: u32 = 32;
/// Numbers of a query, key or value.
pub(super) const HEAD_LEN: u32 = 32;

/// The kernels of one device.
pub(super) struct Kernels {
    fill: Kernel,
    add: Kernel,
    copy: Kernel,
    gemv: Kernel,
    gemm: Kernel,
    attention: Kernel,
}

/// A kernel and its memory, whose lengths fit `size`.
pub(super) struct Work {
    kernel: Kernel,
    buffers: Buffers,
    size: u32,
}

enum Buffers {
    /// Two factors and their product: `size` squared each.
    Gemm([DeviceBuffer<f32>; 3]),
    /// A matrix of `size` squared, a vector and the product, of `size`.
    Gemv([DeviceBuffer<f32>; 3]),
    /// Source and target of `size` MiB.
    Copy([DeviceBuffer<f32>; 2]),
    /// Two terms and their sum, of `SMALL`.
    Small([DeviceBuffer<f32>; 3]),
    /// Queries, keys, values and the result, of `HEADS` times `size` times `HEAD_LEN`.
    Attention([DeviceBuffer<f32>; 4]),
}

impl Kernels {
    pub(super) fn load(device: &Device) -> Result<Kernels> {
        let library = Library::from_ptx(device, PTX)?;
        Ok(Kernels {
            fill: library.kernel("job_fill")?,
            add: library.kernel("job_add")?,
            copy: library.kernel("job_copy")?,
            gemv: library.kernel("job_gemv")?,
            gemm: library.kernel("job_gemm")?,
            attention: library.kernel("job_attention")?,
        })
    }

    /// A product of two square matrices of a multiple of 64 rows.
    pub(super) fn gemm(&self, stream: &Stream, side: u32) -> Result<Work> {
        let len = square(side);
        let matrices = [self.filled(stream, 1, len)?, self.filled(stream, 2, len)?];
        let [a, b] = matrices;
        let buffers = Buffers::Gemm([a, b, zeroed(stream, len)?]);
        Ok(Work { kernel: self.gemm.clone(), buffers, size: side })
    }

    /// A product of a square matrix of a multiple of 256 rows with a vector.
    pub(super) fn gemv(&self, stream: &Stream, side: u32) -> Result<Work> {
        let len = side as usize;
        let matrix = self.filled(stream, 1, square(side))?;
        let buffers = Buffers::Gemv([matrix, self.filled(stream, 2, len)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.gemv.clone(), buffers, size: side })
    }

    /// A copy of so many MiB.
    pub(super) fn copy(&self, stream: &Stream, mib: u32) -> Result<Work> {
        let len = (mib as usize) << 18;
        let buffers = Buffers::Copy([self.filled(stream, 1, len)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.copy.clone(), buffers, size: mib })
    }

    /// So many additions, one after the other.
    pub(super) fn small(&self, stream: &Stream, launches: u32) -> Result<Work> {
        let len = SMALL as usize;
        let terms = [self.filled(stream, 1, len)?, self.filled(stream, 2, len)?];
        let [a, b] = terms;
        let buffers = Buffers::Small([a, b, zeroed(stream, len)?]);
        Ok(Work { kernel: self.add.clone(), buffers, size: launches })
    }

    /// Attention over a sequence of a multiple of 256 tokens.
    pub(super) fn attention(&self, stream: &Stream, length: u32) -> Result<Work> {
        let len = (HEADS * HEAD_LEN) as usize * length as usize;
        let filled = |seed| self.filled(stream, seed, len);
        let buffers =
            Buffers::Attention([filled(1)?, filled(2)?, filled(3)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.attention.clone(), buffers, size: length })
    }

    /// Numbers of 0.5 to 1 and their negatives, the same for each seed. `len` is a multiple of 256.
    fn filled(&self, stream: &Stream, seed: u32, len: usize) -> Result<DeviceBuffer<f32>> {
        let buffer = zeroed(stream, len)?;
        let config = LaunchConfig::new(blocks(len), THREADS);
        // SAFETY: the kernel's two parameters; each thread writes one number, and there are no more
        // threads than numbers. Freeing the buffer waits for the device's work.
        unsafe { stream.launch(&self.fill, config, (buffer.as_argument(), seed)) }?;
        Ok(buffer)
    }

    /// The same in bf16. `len` is a multiple of 512.
    pub(super) fn filled_bf16(
        &self,
        stream: &Stream,
        seed: u32,
        len: usize,
    ) -> Result<DeviceBuffer<u16>> {
        let buffer = DeviceBuffer::zeroed(stream.context().device(), len)?;
        let config = LaunchConfig::new(blocks(len / 2), THREADS);
        // SAFETY: as above; each thread writes two numbers.
        unsafe { stream.launch(&self.fill, config, (buffer.as_argument(), seed)) }?;
        Ok(buffer)
    }
}

impl Work {
    /// Submits one iteration.
    pub(super) fn submit(&self, stream: &Stream) -> Result<()> {
        let Work { kernel, buffers, size } = self;
        let size = *size;
        match buffers {
            Buffers::Gemm(matrices) => {
                let [a, b, c] = matrices.each_ref().map(DeviceBuffer::as_argument);
                let tiles = size / TILE;
                let config = LaunchConfig::with_shape((tiles, tiles, 1), (THREADS, 1, 1));
                // SAFETY: the kernel's four parameters; the matrices have `size` rows of as many
                // numbers, a multiple of `TILE`, and a block for each tile. Freeing them waits for the
                // device's work, as below.
                unsafe { stream.launch(kernel, config, (a, b, c, size)) }
            }
            Buffers::Gemv(buffers) => {
                let [matrix, x, y] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(size, THREADS);
                // SAFETY: the kernel's four parameters; there is a block for each of `size` rows, which
                // have as many columns, a multiple of 4.
                unsafe { stream.launch(kernel, config, (matrix, x, y, size)) }
            }
            Buffers::Copy(buffers) => {
                let [from, to] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(blocks(buffers[0].len() / 4), THREADS);
                // SAFETY: the kernel's two parameters; each thread copies four numbers, and both
                // buffers have as many.
                unsafe { stream.launch(kernel, config, (from, to)) }
            }
            Buffers::Small(buffers) => {
                let [a, b, sum] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(SMALL / THREADS, THREADS);
                (0..size).try_for_each(|_| {
                    // SAFETY: the kernel's three parameters, each with a number for every thread.
                    unsafe { stream.launch(kernel, config, (a, b, sum)) }
                })
            }
            Buffers::Attention(buffers) => {
                let [queries, keys, values, out] =
                    buffers.each_ref().map(DeviceBuffer::as_argument);
                let grid = (size / QUERIES, HEADS, 1);
                let config = LaunchConfig::with_shape(grid, (THREADS, 1, 1));
                // SAFETY: the kernel's five parameters; the buffers have `HEADS` times `size` rows of
                // `HEAD_LEN` numbers, and `size` is a multiple of `QUERIES`.
                unsafe { stream.launch(kernel, config, (queries, keys, values, out, size)) }
            }
        }
    }
}

/// Gives the kernels whose time depends on the job's size a duration on a simulated driver, roughly
/// that of an H200: a block's work by what an SM does in a nanosecond. The others keep the simulator's.
#[cfg(feature = "sim")]
pub(super) fn register(sim: &Sim) {
    // Nanoseconds of a block for each unit of the size, and the size's place among the parameters.
    let durations = [("job_gemm", 80, 3), ("job_gemv", 1, 3), ("job_attention", 150, 4)];
    for (name, ns, place) in durations {
        sim.register_kernel(name, move |kernel| {
            let size = u64::from(kernel.param_u32(place).unwrap_or(0));
            kernel.set_duration_ns(size * ns + 1);
        });
    }
}

fn zeroed(stream: &Stream, len: usize) -> Result<DeviceBuffer<f32>> {
    DeviceBuffer::zeroed(stream.context().device(), len)
}

fn square(side: u32) -> usize {
    side as usize * side as usize
}

/// The whole blocks of so many threads.
fn blocks(threads: usize) -> u32 {
    u32::try_from(threads / THREADS as usize).unwrap_or(u32::MAX)
}
