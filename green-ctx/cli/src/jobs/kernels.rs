//! The built-in kernels, and the memory that each one uses.
#![allow(unsafe_code, reason = "launches kernels")]

#[cfg(feature = "sim")]
use green_ctx::sim::Sim;
use green_ctx::{Device, DeviceBuffer, Kernel, LaunchConfig, Library, Result, Stream};

use super::PTX;

/// The threads per block of every kernel.
const THREADS: u32 = 256;
/// The length of the vectors that the small kernel adds.
const SMALL: u32 = 256 * 256;
/// The rows and columns of the tile of a matrix product that one block computes.
const TILE: u32 = 64;
/// The queries per block, one per thread.
const QUERIES: u32 = THREADS;
pub(super) const HEADS: u32 = 32;
/// The dimension of a query, a key or a value.
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

/// A kernel with its memory. The buffers' lengths match `size`.
pub(super) struct Work {
    kernel: Kernel,
    buffers: Buffers,
    size: u32,
}

enum Buffers {
    /// Two factors and their product: `size` × `size` each.
    Gemm([DeviceBuffer<f32>; 3]),
    /// A `size` × `size` matrix, a vector and the product, both of length `size`.
    Gemv([DeviceBuffer<f32>; 3]),
    /// Source and destination, `size` MiB each.
    Copy([DeviceBuffer<f32>; 2]),
    /// Two terms and their sum, of length `SMALL`.
    Small([DeviceBuffer<f32>; 3]),
    /// Queries, keys, values and the result: `HEADS` × `size` × `HEAD_LEN` each.
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

    /// Returns a product of two square matrices. `side` is a multiple of 64.
    pub(super) fn gemm(&self, stream: &Stream, side: u32) -> Result<Work> {
        let len = square(side);
        let matrices = [self.filled(stream, 1, len)?, self.filled(stream, 2, len)?];
        let [a, b] = matrices;
        let buffers = Buffers::Gemm([a, b, zeroed(stream, len)?]);
        Ok(Work { kernel: self.gemm.clone(), buffers, size: side })
    }

    /// Returns a product of a square matrix and a vector. `side` is a multiple of 256.
    pub(super) fn gemv(&self, stream: &Stream, side: u32) -> Result<Work> {
        let len = side as usize;
        let matrix = self.filled(stream, 1, square(side))?;
        let buffers = Buffers::Gemv([matrix, self.filled(stream, 2, len)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.gemv.clone(), buffers, size: side })
    }

    /// Returns a copy of `mib` MiB.
    pub(super) fn copy(&self, stream: &Stream, mib: u32) -> Result<Work> {
        let len = (mib as usize) << 18;
        let buffers = Buffers::Copy([self.filled(stream, 1, len)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.copy.clone(), buffers, size: mib })
    }

    /// Returns `launches` additions, one after the other.
    pub(super) fn small(&self, stream: &Stream, launches: u32) -> Result<Work> {
        let len = SMALL as usize;
        let terms = [self.filled(stream, 1, len)?, self.filled(stream, 2, len)?];
        let [a, b] = terms;
        let buffers = Buffers::Small([a, b, zeroed(stream, len)?]);
        Ok(Work { kernel: self.add.clone(), buffers, size: launches })
    }

    /// Returns attention over `length` tokens, a multiple of 256.
    pub(super) fn attention(&self, stream: &Stream, length: u32) -> Result<Work> {
        let len = (HEADS * HEAD_LEN) as usize * length as usize;
        let filled = |seed| self.filled(stream, seed, len);
        let buffers =
            Buffers::Attention([filled(1)?, filled(2)?, filled(3)?, zeroed(stream, len)?]);
        Ok(Work { kernel: self.attention.clone(), buffers, size: length })
    }

    /// Returns numbers between 0.5 and 1 and between -1 and -0.5, determined by the seed. `len` is a multiple of 256.
    fn filled(&self, stream: &Stream, seed: u32, len: usize) -> Result<DeviceBuffer<f32>> {
        let buffer = zeroed(stream, len)?;
        let config = LaunchConfig::new(blocks(len), THREADS);
        // SAFETY: the arguments are the kernel's two parameters. Each thread writes one number, and there are no more
        // threads than numbers. Freeing the buffer waits for the device's work.
        unsafe { stream.launch(&self.fill, config, (buffer.as_argument(), seed)) }?;
        Ok(buffer)
    }

    /// Returns the same in bf16. `len` is a multiple of 512.
    pub(super) fn filled_bf16(
        &self,
        stream: &Stream,
        seed: u32,
        len: usize,
    ) -> Result<DeviceBuffer<u16>> {
        let buffer = DeviceBuffer::zeroed(stream.context().device(), len)?;
        let config = LaunchConfig::new(blocks(len / 2), THREADS);
        // SAFETY: as in `filled`, but each thread writes two numbers of two bytes, and there are half as many threads.
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
                // `size` is a multiple of `TILE`, and there is one block per tile. Freeing the buffers waits for the
                // device's work; this also holds for the launches below.
                unsafe { stream.launch(kernel, config, (a, b, c, size)) }
            }
            Buffers::Gemv(buffers) => {
                let [matrix, x, y] = buffers.each_ref().map(DeviceBuffer::as_argument);
                let config = LaunchConfig::new(size, THREADS);
                // SAFETY: the arguments are the kernel's four parameters. The matrix has `size` rows and columns, which
                // is a multiple of 4, and there is one block per row.
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

/// Gives the kernels whose time depends on the job's size a duration on a simulated driver. It is roughly that of an
/// H200: the work of a block divided by the work of an SM per nanosecond. The other kernels keep the simulator's
/// default.
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

/// Returns the number of whole blocks for this number of threads.
fn blocks(threads: usize) -> u32 {
    u32::try_from(threads / THREADS as usize).unwrap_or(u32::MAX)
}
