//! The built-in kernels, and the memory that each one uses.
#![allow(unsafe_code, reason = "launches kernels")]

#[cfg(feature = "sim")]
use green_ctx::sim::Sim;
use green_ctx::{Device, DeviceBuffer, Kernel, LaunchConfig, Library, Result, Stream};

use super::PTX;

/// The number of threads per block, which is the same for every kernel.
const THREADS: u32 = 256;
/// The length of the vectors that the small kernel adds.
const SMALL: u32 = 256 * 256;
/// The number of rows and columns of the square tile that one block of the matrix product computes.
const TILE: u32 = 64;
/// The number of attention queries per block. Each thread handles one query.
const QUERIES: u32 = THREADS;
pub(super) const HEADS: u32 = 32;
/// The dimension of each query, key and value vector.
pub(super) const HEAD_LEN: u32 = 32;

/// The kernels, loaded for one device.
pub(super) struct Kernels {
    fill: Kernel,
    add: Kernel,
    copy: Kernel,
    gemv: Kernel,
    gemm: Kernel,
    attention: Kernel,
}

/// A kernel, its buffers, and the size of the job. The lengths of the buffers match `size`.
pub(super) struct Work {
    kernel: Kernel,
    buffers: Buffers,
    size: u32,
}

enum Buffers {
    /// Two factors and their product, each of which has `size` × `size` numbers.
    Gemm([DeviceBuffer<f32>; 3]),
    /// A matrix of `size` × `size` numbers, a vector of length `size`, and their product of length `size`.
    Gemv([DeviceBuffer<f32>; 3]),
    /// The source and the destination of the copy, each of which has `size` MiB.
    Copy([DeviceBuffer<f32>; 2]),
    /// Two terms and their sum, each of which has `SMALL` numbers.
    Small([DeviceBuffer<f32>; 3]),
    /// The queries, keys, values and results, each of which has `HEADS` × `size` × `HEAD_LEN` numbers.
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

    /// Returns the work of multiplying two square matrices with `side` rows. `side` must be a multiple of 64.
    pub(super) fn gemm(&self, stream: &Stream, side: u32) -> Result<Work> {
        let len = square(side);
        let matrices = [self.filled(stream, 1, len)?, self.filled(stream, 2, len)?];
        let [a, b] = matrices;
        let buffers = Buffers::Gemm([a, b, zeroed(stream, len)?]);
        Ok(Work { kernel: self.gemm.clone(), buffers, size: side })
    }

    /// Returns the work of multiplying a square matrix with `side` rows by a vector. `side` must be a multiple of 256.
    pub(super) fn gemv(&self, stream: &Stream, side: u32) -> Result<Work> {
        let len = side as usize;
        let matrix = self.filled(stream, 1, square(side))?;
        let buffers = Buffers::Gemv([matrix, self.filled(stream, 2, len)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.gemv.clone(), buffers, size: side })
    }

    /// Returns the work of copying `mib` MiB of device memory.
    pub(super) fn copy(&self, stream: &Stream, mib: u32) -> Result<Work> {
        let len = (mib as usize) << 18;
        let buffers = Buffers::Copy([self.filled(stream, 1, len)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.copy.clone(), buffers, size: mib })
    }

    /// Returns the work of `launches` vector additions, which run one after the other.
    pub(super) fn small(&self, stream: &Stream, launches: u32) -> Result<Work> {
        let len = SMALL as usize;
        let terms = [self.filled(stream, 1, len)?, self.filled(stream, 2, len)?];
        let [a, b] = terms;
        let buffers = Buffers::Small([a, b, zeroed(stream, len)?]);
        Ok(Work { kernel: self.add.clone(), buffers, size: launches })
    }

    /// Returns the work of attention over `length` tokens. `length` must be a multiple of 256.
    pub(super) fn attention(&self, stream: &Stream, length: u32) -> Result<Work> {
        let len = (HEADS * HEAD_LEN) as usize * length as usize;
        let filled = |seed| self.filled(stream, seed, len);
        let buffers =
            Buffers::Attention([filled(1)?, filled(2)?, filled(3)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.attention.clone(), buffers, size: length })
    }

    /// Returns a buffer of `len` pseudorandom numbers between 0.5 and 1 or between -1 and -0.5. `len` must be a
    /// multiple of 256.
    fn filled(&self, stream: &Stream, seed: u32, len: usize) -> Result<DeviceBuffer<f32>> {
        let buffer = zeroed(stream, len)?;
        let config = LaunchConfig::new(blocks(len), THREADS);
        // SAFETY: the arguments are the kernel's two parameters. Each thread writes one number, and there are no more
        // threads than numbers. Freeing the buffer waits until the kernel has finished.
        unsafe { stream.launch(&self.fill, config, (buffer.as_argument(), seed)) }?;
        Ok(buffer)
    }

    /// Returns a buffer of `len` pseudorandom bf16 numbers in the same two ranges. `len` must be a multiple of 512.
    pub(super) fn filled_bf16(
        &self,
        stream: &Stream,
        seed: u32,
        len: usize,
    ) -> Result<DeviceBuffer<u16>> {
        let buffer = DeviceBuffer::zeroed(stream.context().device(), len)?;
        let config = LaunchConfig::new(blocks(len / 2), THREADS);
        // SAFETY: the arguments are the kernel's two parameters. Each thread writes two bf16 numbers, and there are no
        // more than `len / 2` threads. Freeing the buffer waits until the kernel has finished.
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
                // SAFETY: the arguments are the kernel's four parameters. The matrices have `size` × `size` numbers,
                // `size` is a multiple of `TILE`, and there is one block per tile. Here and below, freeing the buffers
                // waits until the kernel has finished.
                unsafe { stream.launch(kernel, config, (a, b, c, size)) }
            }
            Buffers::Gemv(buffers) => {
                let [matrix, x, y] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(size, THREADS);
                // SAFETY: the arguments are the kernel's four parameters. The matrix has `size` rows and `size`
                // columns, `size` is a multiple of 4, and there is one block per row.
                unsafe { stream.launch(kernel, config, (matrix, x, y, size)) }
            }
            Buffers::Copy(buffers) => {
                let [from, to] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(blocks(buffers[0].len() / 4), THREADS);
                // SAFETY: the arguments are the kernel's two parameters. Each thread copies four numbers, and both
                // buffers have four numbers per thread.
                unsafe { stream.launch(kernel, config, (from, to)) }
            }
            Buffers::Small(buffers) => {
                let [a, b, sum] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(SMALL / THREADS, THREADS);
                (0..size).try_for_each(|_| {
                    // SAFETY: the arguments are the kernel's three parameters. Each buffer has one number per thread.
                    unsafe { stream.launch(kernel, config, (a, b, sum)) }
                })
            }
            Buffers::Attention(buffers) => {
                let [queries, keys, values, out] =
                    buffers.each_ref().map(DeviceBuffer::as_argument);
                let grid = (size / QUERIES, HEADS, 1);
                let config = LaunchConfig::with_shape(grid, (THREADS, 1, 1));
                // SAFETY: the arguments are the kernel's five parameters. The buffers have `HEADS` × `size` rows of
                // `HEAD_LEN` numbers, and `size` is a multiple of `QUERIES`.
                unsafe { stream.launch(kernel, config, (queries, keys, values, out, size)) }
            }
        }
    }
}

/// For each kernel whose time depends on the job's size, sets the duration of a block on a simulated driver. The
/// duration is roughly that on an H200: the work of the block divided by the work of an SM per nanosecond. All other
/// kernels keep the simulator's default duration.
#[cfg(feature = "sim")]
pub(super) fn register(sim: &Sim) {
    // The kernel, the nanoseconds per block and unit of size, and the index of the size among the parameters.
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

/// Returns the number of blocks for this number of threads, rounded down.
fn blocks(threads: usize) -> u32 {
    u32::try_from(threads / THREADS as usize).unwrap_or(u32::MAX)
}
