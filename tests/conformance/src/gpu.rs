//! Helpers for the cases: resources, contexts, streams, and running the probe.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::ptr::null_mut;
use std::time::Duration;

use green_ctx_sys::*;
use serde_json::{Value, json};

use crate::answer::Failure;
use crate::calls::{Calls, Params, blank};
use crate::driver::Driver;

/// The kernels of the cases: green-ctx's probe, and one that faults.
pub(crate) const PTX: &str = concat!(
    include_str!("../../../green-ctx/src/observe/probe.ptx"),
    include_str!("fault.ptx"),
    "\0"
);

/// The bytes that each block of the probe writes.
pub(crate) const BLOCK_BYTES: usize = 24;

/// Threads per block of the probe: an SM holds at most two such blocks at a time.
pub(crate) const THREADS: u32 = 1024;

/// How long a block of the probe stays if only its SM matters.
pub(crate) const SHORT: Duration = Duration::from_millis(2);

/// How long a block stays if the host acts during its run.
pub(crate) const LONG: Duration = Duration::from_millis(50);

pub(crate) const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

/// Flags for `cuGreenCtxCreate`, required before CUDA 13.3.
pub(crate) const DEFAULT_STREAM: u32 = 1;

/// Flags for a stream that does not synchronise with the default stream. Streams of green contexts need them.
pub(crate) const NON_BLOCKING: u32 = 1;

/// The first device of a driver, with objects that several cases need.
pub(crate) struct Gpu {
    driver: Driver,
    pub(crate) device: CUdevice,
    primary: Cell<Option<CUcontext>>,
    library: OnceCell<CUlibrary>,
}

impl Deref for Gpu {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        &self.driver.calls
    }
}

impl Gpu {
    pub(crate) fn new(driver: Driver) -> Gpu {
        Gpu { driver, device: 0, primary: Cell::new(None), library: OnceCell::new() }
    }

    /// Returns the size in bytes of a timed memset or copy: large enough that the time of submitting it is
    /// negligible. A smaller size is enough on a simulated driver, whose clock has no noise and whose bytes are
    /// copied by this process.
    pub(crate) fn timed_bytes(&self) -> usize {
        if self.driver.is_simulated() { 32 << 20 } else { 256 << 20 }
    }

    /// Clears the thread's context stack, whatever earlier cases pushed.
    pub(crate) fn clear_current(&self) -> Result<(), Failure> {
        // More than any case pushes. A stack that never becomes empty must not hang the run.
        for _ in 0..64 {
            if self.cuCtxGetCurrent()?.must()?.is_null() {
                return Ok(());
            }
            self.cuCtxPopCurrent()?.must()?;
        }
        Err(Failure::Other("the context stack does not become empty".to_owned()))
    }

    /// Returns the primary context, retained once per process.
    pub(crate) fn primary(&self) -> Result<CUcontext, Failure> {
        if let Some(primary) = self.primary.get() {
            return Ok(primary);
        }
        let primary = self.cuDevicePrimaryCtxRetain(self.device)?.must()?;
        self.primary.set(Some(primary));
        Ok(primary)
    }

    /// Returns all SMs of the device.
    pub(crate) fn device_resource(&self) -> Result<CUdevResource, Failure> {
        self.cuDeviceGetDevResource(self.device, SM)?.must()
    }

    /// Calls `cuDevSmResourceSplitByCount` with room for `groups` groups.
    pub(crate) fn split(
        &self,
        input: &CUdevResource,
        flags: u32,
        groups: u32,
        min: u32,
    ) -> Result<Split, Failure> {
        let mut result = vec![blank(); groups as usize];
        let mut count = groups;
        let mut remainder = blank();
        let reply = self.cuDevSmResourceSplitByCount(
            result.as_mut_ptr(),
            &raw mut count,
            input,
            &raw mut remainder,
            flags,
            min,
        )?;
        if reply.is_ok() {
            result.truncate(count as usize);
        }
        Ok(Split { status: reply.status, count, groups: result, remainder })
    }

    /// Splits the whole device into as many groups as possible. Must succeed.
    pub(crate) fn split_device(&self, flags: u32, min: u32) -> Result<Split, Failure> {
        self.split(&self.device_resource()?, flags, 256, min)?.must()
    }

    /// Creates a green context of these resources.
    pub(crate) fn green(&self, resources: &[CUdevResource]) -> Result<CUgreenCtx, Failure> {
        let desc = self.describe(resources)?;
        self.cuGreenCtxCreate(desc, self.device, DEFAULT_STREAM)?.must()
    }

    /// Generates a descriptor of these resources.
    pub(crate) fn describe(
        &self,
        resources: &[CUdevResource],
    ) -> Result<CUdevResourceDesc, Failure> {
        let mut resources = resources.to_vec();
        let count = u32::try_from(resources.len()).unwrap_or(u32::MAX);
        self.cuDevResourceGenerateDesc(resources.as_mut_ptr(), count)?.must()
    }

    /// Creates a green context of one group of `sms` SMs of the device.
    pub(crate) fn green_with(&self, sms: u32) -> Result<CUgreenCtx, Failure> {
        let split = self.split(&self.device_resource()?, 0, 1, sms)?.must()?;
        self.green(&split.groups)
    }

    /// Returns the context derived from a green context.
    pub(crate) fn context_of(&self, green: CUgreenCtx) -> Result<CUcontext, Failure> {
        self.cuCtxFromGreenCtx(green)?.must()
    }

    /// Creates a stream of a green context.
    pub(crate) fn stream_of(&self, green: CUgreenCtx) -> Result<CUstream, Failure> {
        self.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0)?.must()
    }

    /// Creates a stream of the current context.
    pub(crate) fn stream(&self) -> Result<CUstream, Failure> {
        self.cuStreamCreate(NON_BLOCKING)?.must()
    }

    /// Creates an event of the current context.
    pub(crate) fn event(&self) -> Result<CUevent, Failure> {
        self.cuEventCreate(0)?.must()
    }

    /// Pushes a context onto the thread's stack.
    pub(crate) fn push(&self, context: CUcontext) -> Result<(), Failure> {
        self.cuCtxPushCurrent(context)?.must()
    }

    /// Pops the current context off the thread's stack.
    pub(crate) fn pop(&self) -> Result<CUcontext, Failure> {
        self.cuCtxPopCurrent()?.must()
    }

    /// Returns the library of the kernels, loaded once.
    pub(crate) fn library(&self) -> Result<CUlibrary, Failure> {
        if let Some(library) = self.library.get() {
            return Ok(*library);
        }
        let library = self.cuLibraryLoadData(ptx())?.must()?;
        Ok(*self.library.get_or_init(|| library))
    }

    /// Returns the probe as a kernel, which belongs to no context.
    pub(crate) fn probe_kernel(&self) -> Result<CUkernel, Failure> {
        self.cuLibraryGetKernel(self.library()?, c"green_ctx_probe")?.must()
    }

    /// Returns the probe as a function to launch. The manual allows a `CUkernel` there.
    pub(crate) fn probe(&self) -> Result<CUfunction, Failure> {
        Ok(self.probe_kernel()?.cast())
    }

    /// Allocates zeroed device memory for a probe of `blocks` blocks. A context must be current.
    pub(crate) fn probe_memory(&self, blocks: u32) -> Result<CUdeviceptr, Failure> {
        let bytes = blocks as usize * BLOCK_BYTES;
        let address = self.cuMemAlloc(bytes)?.must()?;
        // A copy from the host is complete when it returns; a memset need not be.
        self.cuMemcpyHtoD(address, &vec![0; bytes])?.must()?;
        Ok(address)
    }

    /// Launches the probe.
    pub(crate) fn launch_probe(
        &self,
        stream: CUstream,
        blocks: u32,
        memory: CUdeviceptr,
        duration: Duration,
    ) -> Result<CUresult, Failure> {
        let mut params = probe_params(memory, duration);
        Ok(self.cuLaunchKernel(self.probe()?, blocks, THREADS, stream, &mut params)?.status)
    }

    /// Returns the SMs that a probe ran on, sorted. Blocks that did not run are left out.
    pub(crate) fn probed_sms(&self, memory: CUdeviceptr, blocks: u32) -> Result<Vec<u32>, Failure> {
        let blocks = self.probe_blocks(memory, blocks)?;
        let ran = blocks.iter().filter(|block| block.end != 0);
        Ok(ran.map(|block| block.sm).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns when the one block of a probe began and ended, by the device's clock.
    pub(crate) fn probed_span(&self, memory: CUdeviceptr) -> Result<(u64, u64), Failure> {
        let blocks = self.probe_blocks(memory, 1)?;
        Ok(blocks.first().map_or((0, 0), |block| (block.start, block.end)))
    }

    /// Returns whether every block of a probe has ended.
    pub(crate) fn probe_is_complete(
        &self,
        memory: CUdeviceptr,
        blocks: u32,
    ) -> Result<bool, Failure> {
        Ok(self.probe_blocks(memory, blocks)?.iter().all(|block| block.end != 0))
    }

    fn probe_blocks(&self, memory: CUdeviceptr, blocks: u32) -> Result<Vec<Block>, Failure> {
        let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
        self.cuMemcpyDtoH(&mut bytes, memory)?.must()?;
        Ok(bytes.chunks_exact(BLOCK_BYTES).map(Block::read).collect())
    }

    /// Returns the number of SMs that the driver reports for a stream's context.
    fn sm_count_of(&self, stream: CUstream) -> Result<u32, Failure> {
        let green = self.cuStreamGetGreenCtx(stream)?.must()?;
        let resource = if green.is_null() {
            self.device_resource()?
        } else {
            self.cuGreenCtxGetDevResource(green, SM)?.must()?
        };
        Ok(sm(&resource).smCount)
    }

    /// Runs the probe on a stream, waits, and returns the SMs that it ran on, sorted. The grid is large enough
    /// to reach every SM of the stream.
    pub(crate) fn sms_of(&self, stream: CUstream) -> Result<Vec<u32>, Failure> {
        let blocks = 4 * self.sm_count_of(stream)?;
        let memory = self.probe_memory(blocks)?;
        let status = self.launch_probe(stream, blocks, memory, SHORT)?;
        if status != CUresult::CUDA_SUCCESS {
            return Err(Failure::Call { call: "cuLaunchKernel", status });
        }
        self.cuStreamSynchronize(stream)?.must()?;
        let blocks = self.probe_blocks(memory, blocks)?;
        self.cuMemFree(memory)?.must()?;
        if blocks.iter().any(|block| block.end == 0) {
            return Err(Failure::Other("a block of the probe did not write".to_owned()));
        }
        Ok(blocks.iter().map(|block| block.sm).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns the device time of the work that `submit` adds to a stream, in milliseconds: the shortest of five runs.
    pub(crate) fn fastest(
        &self,
        stream: CUstream,
        submit: impl Fn() -> Result<(), Failure>,
    ) -> Result<f32, Failure> {
        let (start, end) = (self.event()?, self.event()?);
        let mut fastest = f32::INFINITY;
        for _ in 0..5 {
            self.cuEventRecord(start, stream)?.must()?;
            submit()?;
            self.cuEventRecord(end, stream)?.must()?;
            self.cuStreamSynchronize(stream)?.must()?;
            fastest = fastest.min(self.cuEventElapsedTime(start, end)?.must()?);
        }
        self.cuEventDestroy(start)?.must()?;
        self.cuEventDestroy(end)?.must()?;
        Ok(fastest)
    }

    /// Returns how many clusters of `size` blocks can be active at the same time, as the driver computes it for
    /// a stream.
    pub(crate) fn clusters(
        &self,
        function: CUfunction,
        stream: CUstream,
        size: u32,
    ) -> Result<(CUresult, i32), Failure> {
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.clusterDim =
            CUlaunchAttributeValue_union__bindgen_ty_1 { x: size, y: 1, z: 1 };
        let config = CUlaunchConfig {
            gridDimX: size * 64,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let reply = self.cuOccupancyMaxActiveClusters(function, &config)?;
        Ok((reply.status, reply.out))
    }
}

/// The result of a split.
pub(crate) struct Split {
    pub(crate) status: CUresult,
    /// The number of groups as the driver left it, whether or not the call succeeded.
    pub(crate) count: u32,
    pub(crate) groups: Vec<CUdevResource>,
    pub(crate) remainder: CUdevResource,
}

impl Split {
    /// Returns the split, which must have succeeded for the case to continue.
    pub(crate) fn must(self) -> Result<Split, Failure> {
        if self.status == CUresult::CUDA_SUCCESS {
            Ok(self)
        } else {
            Err(Failure::Call { call: "cuDevSmResourceSplitByCount", status: self.status })
        }
    }

    /// Returns the SM counts of the groups: one number if all are equal.
    pub(crate) fn each(&self) -> Value {
        let counts: Vec<u32> = self.groups.iter().map(|group| sm(group).smCount).collect();
        match counts.split_first() {
            Some((first, rest)) if rest.iter().all(|count| count == first) => json!(first),
            _ => json!(counts),
        }
    }

    /// Returns the type and SM count of the remainder.
    pub(crate) fn rest(&self) -> Value {
        brief(&self.remainder)
    }
}

/// Returns the type and SM count of a resource.
pub(crate) fn brief(resource: &CUdevResource) -> Value {
    json!({ "type": resource.type_.0, "sms": sm(resource).smCount })
}

/// Returns the type, SM count, minimum partition and alignment of a resource.
pub(crate) fn in_full(resource: &CUdevResource) -> Value {
    let sm = sm(resource);
    json!({
        "type": resource.type_.0,
        "sms": sm.smCount,
        "min": sm.minSmPartitionSize,
        "alignment": sm.smCoscheduledAlignment,
    })
}

/// Returns the SM fields of a resource, whatever its type.
pub(crate) fn sm(resource: &CUdevResource) -> CUdevSmResource {
    // SAFETY: the union consists of plain integers, all initialised by `blank` or by the driver.
    unsafe { resource.__bindgen_anon_1.sm }
}

/// Returns the resource with another SM count, as a caller could forge it.
pub(crate) fn tampered(resource: &CUdevResource, sms: u32) -> CUdevResource {
    let mut forged = *resource;
    forged.__bindgen_anon_1.sm = CUdevSmResource { smCount: sms, ..sm(resource) };
    forged
}

/// Returns the bytes of a resource, which are equal for the same SMs.
pub(crate) fn bytes(resource: &CUdevResource) -> [u8; 144] {
    // SAFETY: the structure has 144 bytes without padding (asserted in the bindings), all initialised.
    unsafe { core::mem::transmute(*resource) }
}

/// Returns the parameters of the probe.
pub(crate) fn probe_params(memory: CUdeviceptr, duration: Duration) -> Params {
    Params::new(&[memory, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)])
}

/// Returns the PTX of the kernels for the driver.
pub(crate) fn ptx() -> &'static core::ffi::CStr {
    core::ffi::CStr::from_bytes_until_nul(PTX.as_bytes()).unwrap_or(c"")
}

/// Compares two times roughly, so that the result is the same in every run.
pub(crate) fn compared(time: f32, with: f32) -> Value {
    json!({ "over_1.5_times": time > 1.5 * with, "over_5_times": time > 5.0 * with })
}

/// Returns the stream handle that denotes a default stream.
pub(crate) fn token(number: usize) -> CUstream {
    if number == 0 { null_mut() } else { core::ptr::without_provenance_mut(number) }
}

/// The values that one block of the probe wrote.
struct Block {
    sm: u32,
    start: u64,
    end: u64,
}

impl Block {
    fn read(bytes: &[u8]) -> Block {
        let number = |range: core::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let sm = u32::try_from(number(0..4)).unwrap_or(u32::MAX);
        Block { sm, start: number(8..16), end: number(16..24) }
    }
}
