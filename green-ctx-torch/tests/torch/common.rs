//! A simulated H200, a libtorch of the tests, and kernels that share memory.
#![allow(unsafe_code, reason = "submits to raw streams, as PyTorch does")]

use std::ffi::c_void;
use std::ptr;

use green_ctx::sim::{Launch, Race, Sim};
use green_ctx::sys::CUcontext;
use green_ctx::{
    CUresult, Device, DeviceBuffer, Driver, Kernel, Library, Stream, StreamOptions,
    context::Context,
};
use green_ctx_torch::Torch;

use crate::fake;

/// The result of a test.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

const PTX: &str = "
    .version 5.0
    .target sm_52
    .address_size 64
    .visible .entry produce(.param .u64 to) { ret; }
    .visible .entry consume(.param .u64 from) { ret; }
";
/// The duration of a kernel, longer than the calls of a test.
const LONG_NS: u64 = 50_000_000;

/// A machine on which PyTorch runs, with two partitions.
pub(crate) struct Machine {
    pub(crate) sim: Sim,
    pub(crate) device: Device,
    pub(crate) primary: Context,
    pub(crate) torch: Torch,
    pub(crate) partitions: [Context; 2],
    produce: Kernel,
    consume: Kernel,
    buffer: DeviceBuffer<u64>,
}

impl Machine {
    pub(crate) fn new() -> Result<Machine, Box<dyn std::error::Error>> {
        let sim = Sim::builder("h200@13.0").devices(2).build()?;
        let device = Driver::simulated(&sim)?.device(0)?;
        sim.register_kernel("produce", |kernel| {
            kernel.set_duration_ns(LONG_NS);
            let _ = kernel.write(kernel.param_u64(0).unwrap_or(0), &[7; 64]);
        });
        sim.register_kernel("consume", |kernel| {
            kernel.set_duration_ns(LONG_NS);
            let mut bytes = [0; 64];
            let _ = kernel.read(kernel.param_u64(0).unwrap_or(0), &mut bytes);
        });
        let library = Library::from_ptx(&device, PTX)?;
        let (produce, consume) = (library.kernel("produce")?, library.kernel("consume")?);
        let buffer = DeviceBuffer::zeroed(&device, 8)?;
        let mut groups = device.resources().sm()?.split([16, 24])?.groups.into_iter();
        let mut partition = || -> Result<Context, Box<dyn std::error::Error>> {
            Ok(device.create_context(groups.next().ok_or("two groups were requested")?)?)
        };
        let partitions = [partition()?, partition()?];
        let primary = device.primary_context()?;
        Ok(Machine { sim, device, primary, torch: torch(), partitions, produce, consume, buffer })
    }

    pub(crate) fn stream(&self, partition: usize) -> green_ctx::Result<Stream> {
        self.partitions[partition].create_stream(StreamOptions::default())
    }

    /// Creates a stream like those of PyTorch's pool.
    pub(crate) fn pool_stream(&self) -> green_ctx::Result<Stream> {
        self.primary.create_stream(StreamOptions::default())
    }

    /// Does what PyTorch does to run an operator that writes the tensor.
    pub(crate) fn produce(&self) -> Outcome {
        self.launch(&self.produce, &self.buffer)
    }

    /// Does what PyTorch does to run an operator that reads the tensor.
    pub(crate) fn consume(&self) -> Outcome {
        self.launch(&self.consume, &self.buffer)
    }

    /// Reads and writes another tensor.
    pub(crate) fn consume_and_produce(&self, buffer: &DeviceBuffer<u64>) -> Outcome {
        self.launch(&self.consume, buffer)?;
        self.launch(&self.produce, buffer)
    }

    fn launch(&self, kernel: &Kernel, buffer: &DeviceBuffer<u64>) -> Outcome {
        let stream = self.torch.current_stream(0)?;
        let launch = self.device.driver().api().cuLaunchKernel()?;
        let mut address = buffer.as_raw();
        let mut parameters = [(&raw mut address).cast::<c_void>()];
        let function = kernel.as_raw().cast();
        // SAFETY: the kernel takes an address, and the buffer outlives the kernel.
        let status = unsafe {
            launch(
                function,
                264,
                1,
                1,
                128,
                1,
                1,
                0,
                stream.cast(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        ok(status)
    }

    /// Returns the number of SMs that each launch ran on, in the order of submission.
    pub(crate) fn sms(&self) -> Vec<usize> {
        self.sim.launches().iter().map(|launch| launch.sms.len()).collect()
    }

    /// Returns the launches. Checks that each of them follows all earlier ones.
    pub(crate) fn ordered(&self, count: usize) -> Vec<Launch> {
        let launches = self.sim.launches();
        assert_eq!(launches.len(), count);
        for pair in launches.windows(2) {
            assert!(pair[0].happens_before(&pair[1]), "{pair:?}");
        }
        assert_eq!(self.sim.races(), Vec::<Race>::new());
        launches
    }

    pub(crate) fn current(&self) -> CUcontext {
        let mut current = ptr::null_mut();
        let get = self.device.driver().api().cuCtxGetCurrent().expect("every driver has it");
        // SAFETY: `current` is a live local.
        let status = unsafe { get(&raw mut current) };
        assert_eq!(status, CUresult::CUDA_SUCCESS);
        current
    }

    /// Replaces the current context, as the CUDA runtime does.
    pub(crate) fn replace_current(&self, context: &Context) -> Outcome {
        let set = self.device.driver().api().cuCtxSetCurrent()?;
        // SAFETY: the context is alive.
        ok(unsafe { set(context.as_raw()) })
    }
}

/// Returns a `Torch` whose functions are those of `fake`.
pub(crate) fn torch() -> Torch {
    // SAFETY: the functions behave like libtorch's, and are part of this program.
    unsafe { Torch::from_lookup(fake::lookup) }
}

pub(crate) fn ok(status: CUresult) -> Outcome {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(status.to_string().into()) }
}
