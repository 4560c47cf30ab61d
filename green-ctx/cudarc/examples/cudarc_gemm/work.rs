//! The work of the example: a product through cuBLAS, a memory-bound addition, and a kernel that occupies SMs.

use std::collections::BTreeSet;
use std::sync::Arc;

use cudarc::cublas::sys::{
    self as cublas, cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType,
};
use cudarc::cublas::{CudaBlas, result};
use cudarc::driver::{
    CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig,
    PushKernelArg,
};

/// The result type of the example's functions.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// PTX for any GPU of compute capability 5.2 or newer. The driver compiles it when the module is loaded.
pub(crate) const PTX: &str = include_str!("kernels.ptx");

/// An upper bound for the SM ids of any GPU.
const SM_IDS: usize = 4096;
/// The number of elements in each vector of the addition.
const NUMBERS: usize = 64 << 20;
/// The number of elements of the product that are compared with values computed on the host.
const SAMPLES: usize = 1000;

/// Creates a cuBLAS handle on a stream. `sm_count` is the number of SMs for which cuBLAS chooses its kernels; with
/// `None`, cuBLAS uses the device's SM count.
pub(crate) fn blas(stream: &Arc<CudaStream>, sm_count: Option<u32>) -> Result<CudaBlas> {
    let blas = CudaBlas::new(Arc::clone(stream))?;
    if let Some(count) = sm_count {
        // SAFETY: the handle is alive.
        unsafe { cublas::cublasSetSmCountTarget(*blas.handle(), i32::try_from(count)?) }
            .result()?;
    }
    Ok(blas)
}

/// The product of two square bf16 matrices, summed in f32.
///
/// The elements are small integers, so every sum is exact, whatever the order of its terms.
pub(crate) struct Product {
    size: usize,
    a: CudaSlice<u16>,
    b: CudaSlice<u16>,
    c: CudaSlice<f32>,
}

impl Product {
    pub(crate) fn new(stream: &Arc<CudaStream>, size: usize) -> Result<Product> {
        let matrix = |seed| -> Vec<u16> {
            (0..size * size).map(|index| bf16(element(seed, index))).collect()
        };
        Ok(Product {
            size,
            a: stream.clone_htod(&matrix(1))?,
            b: stream.clone_htod(&matrix(2))?,
            c: stream.alloc_zeros(size * size)?,
        })
    }

    /// Returns the number of floating-point operations in one product.
    pub(crate) fn operations(&self) -> f64 {
        2.0 * (self.size as f64).powi(3)
    }

    pub(crate) fn submit(&mut self, blas: &CudaBlas, stream: &CudaStream) -> Result {
        let (size, one, zero) = (i32::try_from(self.size)?, 1f32, 0f32);
        let (a, _reads_a) = self.a.device_ptr(stream);
        let (b, _reads_b) = self.b.device_ptr(stream);
        let (c, _writes_c) = self.c.device_ptr_mut(stream);
        let (input, output) = (cudaDataType::CUDA_R_16BF, cudaDataType::CUDA_R_32F);
        let plain = cublasOperation_t::CUBLAS_OP_N;
        // cuBLAS stores columns where these matrices store rows. So it computes the transposed product, which is
        // the product of the transposed matrices in reverse order.
        // SAFETY: the handle uses this stream. Each matrix has `size * size` elements of the type that is passed
        // with its pointer. `one` and `zero` outlive the call, which reads them.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                plain,
                plain,
                size,
                size,
                size,
                (&raw const one).cast(),
                b as *const _,
                input,
                size,
                a as *const _,
                input,
                size,
                (&raw const zero).cast(),
                c as *mut _,
                output,
                size,
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
            )
        }?;
        Ok(())
    }

    /// Compares a sample of the product's elements with values computed on the host, and sets the product to zero.
    /// Returns whether all compared elements are equal.
    pub(crate) fn take(&mut self, stream: &Arc<CudaStream>) -> Result<bool> {
        let product = stream.clone_dtoh(&self.c)?;
        stream.memset_zeros(&mut self.c)?;
        let size = self.size;
        // The step has no divisor in common with the number of elements, so rows and columns vary.
        Ok((0..SAMPLES).map(|sample| sample * 7_368_787 % (size * size)).all(|index| {
            let (row, column) = (index / size, index % size);
            let sum: i32 =
                (0..size).map(|k| element(1, row * size + k) * element(2, k * size + column)).sum();
            product[index] == sum as f32
        }))
    }
}

/// Returns an element of a matrix, from -4 to 4.
fn element(seed: u64, index: usize) -> i32 {
    let mixed = (index as u64 ^ (seed << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) % 9) as i32 - 4
}

/// Converts a small integer to bf16, which is the upper half of an f32.
fn bf16(value: i32) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

/// A vector that is repeatedly added to another vector, with three memory accesses per element.
pub(crate) struct Addition {
    function: CudaFunction,
    y: CudaSlice<u32>,
    x: CudaSlice<u32>,
    seen: CudaSlice<u32>,
    passes: u32,
}

impl Addition {
    pub(crate) fn new(stream: &Arc<CudaStream>, module: &Arc<CudaModule>) -> Result<Addition> {
        let x: Vec<u32> = (0..NUMBERS as u32).map(number).collect();
        Ok(Addition {
            function: module.load_function("add")?,
            y: stream.alloc_zeros(NUMBERS)?,
            x: stream.clone_htod(&x)?,
            seen: stream.alloc_zeros(SM_IDS)?,
            passes: 0,
        })
    }

    /// Returns the number of bytes that one pass reads and writes.
    pub(crate) fn bytes(&self) -> f64 {
        3.0 * size_of::<u32>() as f64 * NUMBERS as f64
    }

    pub(crate) fn submit(&mut self, stream: &CudaStream, sm_count: u32) -> Result {
        let shape = LaunchConfig {
            // An SM holds eight blocks of 256 threads, so the grid fits the partition.
            grid_dim: (sm_count * 8, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        };
        let pieces = (NUMBERS / 4) as u32;
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(&mut self.y).arg(&self.x).arg(&pieces).arg(&mut self.seen);
        // SAFETY: these are the kernel's four parameters. Both vectors have `4 * pieces` elements, and `seen` has
        // one element per SM id.
        unsafe { launch.launch(shape) }?;
        self.passes = self.passes.wrapping_add(1);
        Ok(())
    }

    /// Returns whether every element of the sum is correct after all passes so far.
    pub(crate) fn is_right(&self, stream: &Arc<CudaStream>) -> Result<bool> {
        let sums = stream.clone_dtoh(&self.y)?;
        Ok((0..).zip(sums).all(|(index, sum)| sum == number(index).wrapping_mul(self.passes)))
    }

    /// Returns the SMs on which passes ran since the last call.
    pub(crate) fn take_sms(&mut self, stream: &Arc<CudaStream>) -> Result<BTreeSet<u32>> {
        take_sms(&mut self.seen, stream)
    }
}

fn number(index: u32) -> u32 {
    index.wrapping_mul(0x9e37_79b9) | 1
}

/// A kernel that occupies SMs completely for a given time.
pub(crate) struct Hold {
    function: CudaFunction,
    seen: CudaSlice<u32>,
    threads: u32,
}

impl Hold {
    /// Creates the kernel. `threads` is the maximum number of threads that an SM holds at a time.
    pub(crate) fn new(
        stream: &Arc<CudaStream>,
        module: &Arc<CudaModule>,
        threads: u32,
    ) -> Result<Hold> {
        let function = module.load_function("hold")?;
        Ok(Hold { function, seen: stream.alloc_zeros(SM_IDS)?, threads })
    }

    pub(crate) fn submit(&mut self, stream: &CudaStream, sm_count: u32, ns: u64) -> Result {
        let shape = LaunchConfig {
            grid_dim: (sm_count * 2, 1, 1),
            block_dim: (self.threads / 2, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(&mut self.seen).arg(&ns);
        // SAFETY: these are the kernel's two parameters, and `seen` has one element per SM id.
        unsafe { launch.launch(shape) }?;
        Ok(())
    }

    /// Returns the SMs that the kernel occupied since the last call.
    pub(crate) fn take_sms(&mut self, stream: &Arc<CudaStream>) -> Result<BTreeSet<u32>> {
        take_sms(&mut self.seen, stream)
    }
}

fn take_sms(seen: &mut CudaSlice<u32>, stream: &Arc<CudaStream>) -> Result<BTreeSet<u32>> {
    let marks = stream.clone_dtoh(seen)?;
    stream.memset_zeros(seen)?;
    Ok((0..).zip(marks).filter(|(_, mark)| *mark != 0).map(|(sm, _)| sm).collect())
}
