//! A simulated machine, and shortcuts for the calls that most tests make.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use green_ctx_sim::{Builder, Sim};
use green_ctx_sys::*;

/// Calls a function that may be missing in some driver versions.
macro_rules! call {
    ($machine:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let function = $machine.api.$function().expect(concat!(stringify!($function), " exists"));
        // SAFETY: every pointer in these tests is null or points to a variable of the type that the
        // function reads or fills, and the simulator never dereferences handles.
        unsafe { function($($arg),*) }
    }};
}

/// Calls a function that must succeed.
macro_rules! must {
    ($machine:expr, $function:ident($($arg:expr),* $(,)?)) => {
        crate::machine::ok(crate::machine::call!($machine, $function($($arg),*)))
    };
}

/// Calls a function that writes one value. Returns the status and the value.
macro_rules! ask {
    ($machine:expr, $value:expr, $function:ident($($before:expr),*; $($after:expr),*)) => {{
        let mut value = $value;
        let status = crate::machine::call!($machine, $function($($before,)* &mut value $(, $after)*));
        (status, value)
    }};
}

/// Calls a function that must succeed and writes one value. Returns the value.
macro_rules! get {
    ($machine:expr, $value:expr, $function:ident($($arg:tt)*)) => {{
        let (status, value) = crate::machine::ask!($machine, $value, $function($($arg)*));
        crate::machine::ok(status);
        value
    }};
}

pub(crate) use {ask, call, get, must};

/// Common statuses.
pub(crate) const OK: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(crate) const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;
pub(crate) const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
pub(crate) const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub(crate) const DESTROYED: CUresult = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
pub(crate) const BAD_TYPE: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE;
pub(crate) const BAD_CONFIGURATION: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;

pub(crate) const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
pub(crate) const NON_BLOCKING: u32 = 1;

/// The kernels of all tests. The simulator defines the probe and the fault; tests define the others.
pub(crate) const PTX: &CStr = c"
    .version 7.0
    .target sm_52
    .address_size 64
    .visible .entry nothing() { ret; }
    .visible .entry green_ctx_probe(.param .u64 out, .param .u64 duration_ns) { ret; }
    .visible .entry green_ctx_fault(.param .u64 address) { ret; }
    .visible .entry mixed(.param .u8 a, .param .u64 b, .param .u16 c, .param .align 16 .b8 d[20]) { ret; }
    .visible .entry put(.param .u64 to, .param .u64 what) { ret; }
    .visible .entry get(.param .u64 from, .param .u64 len) { ret; }
    .visible .entry copy(.param .u64 to, .param .u64 from) { ret; }
    .visible .entry comb(.param .u64 to, .param .u64 step) { ret; }
    .visible .entry unregistered(.param .u64 to, .param .u64 len) { ret; }
";

pub(crate) struct Machine {
    pub(crate) sim: Sim,
    pub(crate) api: Api,
}

pub(crate) fn ok(status: CUresult) {
    assert_eq!(status, OK);
}

pub(crate) fn zeroed() -> CUdevResource {
    // SAFETY: a resource consists of integers and a nullable pointer, for which zero bytes are valid.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn sm_count(resource: &CUdevResource) -> u32 {
    if resource.type_ != SM {
        return 0;
    }
    // SAFETY: `type_` shows that this field of the union is in use.
    unsafe { resource.__bindgen_anon_1.sm }.smCount
}

pub(crate) fn bytes(resource: &CUdevResource) -> &[u8; 144] {
    let pointer: *const CUdevResource = resource;
    // SAFETY: a resource has 144 bytes, and all of them are initialised: the driver fills every byte, and
    // `zeroed` leaves no gap.
    unsafe { &*pointer.cast() }
}

/// The result of a split.
pub(crate) struct Split {
    pub(crate) groups: Vec<CUdevResource>,
    pub(crate) rest: CUdevResource,
}

impl Machine {
    /// Creates a machine whose driver is not initialised.
    pub(crate) fn dormant(builder: Builder) -> Machine {
        let sim = builder.build().expect("a free slot");
        // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`. `Machine`
        // keeps `sim` and `api` together.
        let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) };
        Machine { api: api.expect("the simulator has what is required"), sim }
    }

    /// Returns the address of a function that [`Api`] does not have.
    pub(crate) fn lookup(&self, name: &CStr) -> *mut c_void {
        let (mut address, look) = (null_mut(), self.sim.get_proc_address());
        // SAFETY: the pointers point to a C string and to a variable of the type that the function fills;
        // the last pointer may be null.
        ok(unsafe { look(name.as_ptr(), &mut address, 13_000, 0, null_mut()) });
        assert!(!address.is_null(), "{name:?}");
        address
    }

    pub(crate) fn with_devices(spec: &str, devices: usize) -> Machine {
        let machine = Machine::dormant(Sim::builder(spec).devices(devices));
        ok(machine.init());
        machine
    }

    pub(crate) fn new() -> Machine {
        Machine::with_devices("h200", 1)
    }

    /// Creates a machine whose primary context is retained and current.
    pub(crate) fn with_primary() -> Machine {
        let machine = Machine::new();
        ok(machine.push(machine.retain()));
        machine
    }

    pub(crate) fn init(&self) -> CUresult {
        // SAFETY: `cuInit` has no precondition.
        unsafe { self.api.cuInit()(0) }
    }

    pub(crate) fn retain(&self) -> CUcontext {
        get!(self, null_mut(), cuDevicePrimaryCtxRetain(; 0))
    }

    pub(crate) fn push(&self, context: CUcontext) -> CUresult {
        call!(self, cuCtxPushCurrent(context))
    }

    pub(crate) fn pop(&self) {
        must!(self, cuCtxPopCurrent(null_mut()));
    }

    pub(crate) fn current(&self) -> CUcontext {
        get!(self, null_mut(), cuCtxGetCurrent(;))
    }

    pub(crate) fn device(&self) -> CUdevResource {
        get!(self, zeroed(), cuDeviceGetDevResource(0; SM))
    }

    /// Splits into at most `wanted` groups.
    pub(crate) fn split(
        &self,
        input: &CUdevResource,
        wanted: u32,
        flags: u32,
        minimum: u32,
    ) -> Result<Split, CUresult> {
        let mut groups = vec![zeroed(); wanted as usize];
        let (mut count, mut rest) = (wanted, zeroed());
        let status = call!(
            self,
            cuDevSmResourceSplitByCount(
                groups.as_mut_ptr(),
                &mut count,
                input,
                &mut rest,
                flags,
                minimum
            )
        );
        if status != OK {
            assert_eq!(count, wanted, "a failed split leaves the count alone");
            return Err(status);
        }
        groups.truncate(count as usize);
        Ok(Split { groups, rest })
    }

    /// Returns the device's units of eight SMs.
    pub(crate) fn units(&self) -> Split {
        self.split(&self.device(), 16, 0, 8).expect("units of eight")
    }

    /// Returns the device's units of two SMs.
    pub(crate) fn fine_units(&self) -> Split {
        self.split(&self.device(), 66, 1, 2).expect("units of two")
    }

    pub(crate) fn desc(&self, resources: &[CUdevResource]) -> Result<CUdevResourceDesc, CUresult> {
        let mut resources = resources.to_vec();
        let mut desc = null_mut();
        let status = call!(
            self,
            cuDevResourceGenerateDesc(&mut desc, resources.as_mut_ptr(), resources.len() as u32)
        );
        if status == OK { Ok(desc) } else { Err(status) }
    }

    pub(crate) fn create(&self, desc: CUdevResourceDesc) -> (CUresult, CUgreenCtx) {
        ask!(self, null_mut(), cuGreenCtxCreate(; desc, 0, 1))
    }

    /// Creates a green context of these resources.
    pub(crate) fn green(&self, resources: &[CUdevResource]) -> CUgreenCtx {
        let (status, green) = self.create(self.desc(resources).expect("these combine"));
        ok(status);
        green
    }

    /// Creates a green context of the first group of `count` SMs.
    pub(crate) fn green_of(&self, count: u32) -> CUgreenCtx {
        let split = self.split(&self.device(), 1, 0, count).expect("it fits");
        self.green(&split.groups)
    }

    pub(crate) fn context(&self, green: CUgreenCtx) -> CUcontext {
        get!(self, null_mut(), cuCtxFromGreenCtx(; green))
    }

    pub(crate) fn destroy(&self, green: CUgreenCtx) -> CUresult {
        call!(self, cuGreenCtxDestroy(green))
    }

    pub(crate) fn green_stream(&self, green: CUgreenCtx) -> CUstream {
        get!(self, null_mut(), cuGreenCtxStreamCreate(; green, NON_BLOCKING, 0))
    }

    /// Creates a stream of the current context.
    pub(crate) fn stream(&self, flags: u32) -> CUstream {
        get!(self, null_mut(), cuStreamCreate(; flags))
    }

    /// Creates an event of the current context.
    pub(crate) fn event(&self) -> CUevent {
        get!(self, null_mut(), cuEventCreate(; 0))
    }

    /// Makes a stream wait for the present work of another stream.
    pub(crate) fn wait(&self, from: CUstream, to: CUstream) {
        let event = self.event();
        must!(self, cuEventRecord(event, from));
        must!(self, cuStreamWaitEvent(to, event, 0));
    }

    pub(crate) fn alloc(&self, bytes: usize) -> CUdeviceptr {
        get!(self, 0, cuMemAlloc(; bytes))
    }

    /// Reads memory with a copy that does not wait for green streams.
    pub(crate) fn read<const N: usize>(&self, address: CUdeviceptr) -> [u8; N] {
        let mut bytes = [0; N];
        must!(self, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), address, N));
        bytes
    }

    /// Captures the work that a function submits to a stream. Returns an executable graph.
    pub(crate) fn capture(&self, stream: CUstream, work: impl FnOnce()) -> CUgraphExec {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        must!(self, cuStreamBeginCapture(stream, mode));
        work();
        let graph = get!(self, null_mut(), cuStreamEndCapture(stream;));
        get!(self, null_mut(), cuGraphInstantiateWithFlags(; graph, 0))
    }

    /// Returns a kernel of [`PTX`].
    pub(crate) fn kernel(&self, name: &str) -> CUkernel {
        self.kernel_of(PTX, name)
    }

    pub(crate) fn kernel_of(&self, ptx: &CStr, name: &str) -> CUkernel {
        let name = CString::new(name).expect("text");
        let (image, no_options) = (ptx.as_ptr().cast(), null_mut());
        let library = get!(
            self,
            null_mut(),
            cuLibraryLoadData(; image, null_mut(), null_mut(), 0, null_mut(), no_options, 0)
        );
        get!(self, null_mut(), cuLibraryGetKernel(; library, name.as_ptr()))
    }

    /// Launches blocks of 1024 threads, with parameters of eight bytes.
    pub(crate) fn launch(
        &self,
        kernel: CUkernel,
        blocks: u32,
        stream: CUstream,
        params: &[u64],
    ) -> CUresult {
        let mut params: Vec<*mut c_void> =
            params.iter().map(|param| std::ptr::from_ref(param).cast_mut().cast()).collect();
        call!(
            self,
            cuLaunchKernel(
                kernel.cast(),
                blocks,
                1,
                1,
                1024,
                1,
                1,
                0,
                stream,
                params.as_mut_ptr(),
                null_mut()
            )
        )
    }

    pub(crate) fn sync(&self, stream: CUstream) -> CUresult {
        call!(self, cuStreamSynchronize(stream))
    }

    /// Returns how many clusters of a size run at the same time, with one block of 1024 threads per SM.
    pub(crate) fn clusters(&self, stream: CUstream, size: u32) -> (CUresult, i32) {
        // SAFETY: an attribute consists of integers and nullable pointers, for which zero bytes are valid.
        let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim =
            CUlaunchAttributeValue_union__bindgen_ty_1 { x: size, y: 1, z: 1 };
        let config = CUlaunchConfig {
            gridDimX: 16 * size,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1024,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        ask!(self, -1, cuOccupancyMaxActiveClusters(; self.kernel("nothing").cast(), &config))
    }

    /// Returns the SMs of the last launch.
    pub(crate) fn sms(&self) -> Vec<u32> {
        self.sim.launches().last().map(|launch| launch.sms.to_vec()).unwrap_or_default()
    }

    /// Returns the SM resource of a context.
    pub(crate) fn own(&self, green: CUgreenCtx) -> CUdevResource {
        get!(self, zeroed(), cuGreenCtxGetDevResource(green; SM))
    }

    /// Returns the SM count that the driver reports for a green context of these resources, and the SMs
    /// that a kernel runs on.
    pub(crate) fn observe(&self, resources: &[CUdevResource]) -> (u32, Vec<u32>) {
        let green = self.green(resources);
        let count = sm_count(&self.own(green));
        let stream = self.green_stream(green);
        ok(self.launch(self.kernel("nothing"), 1000, stream, &[]));
        must!(self, cuStreamDestroy(stream));
        ok(self.destroy(green));
        (count, self.sms())
    }
}

/// Two partitions of one unit each, one stream in the first and two in the second, and memory.
pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) greens: [CUgreenCtx; 2],
    pub(crate) streams: [CUstream; 3],
    pub(crate) memory: CUdeviceptr,
}

impl Bench {
    pub(crate) const LEN: u64 = 4096;

    pub(crate) fn new() -> Bench {
        let machine = Machine::with_primary();
        let units = machine.units();
        let greens = [0, 1].map(|unit| machine.green(&[units.groups[unit]]));
        let streams = [0, 1, 1].map(|green| machine.green_stream(greens[green]));
        let memory = machine.alloc(Bench::LEN as usize);
        Bench { machine, greens, streams, memory }
    }

    /// Launches one block per SM of the stream's partition.
    pub(crate) fn launch(&self, kernel: &str, stream: usize, params: &[u64]) {
        let kernel = self.machine.kernel(kernel);
        ok(self.machine.launch(kernel, 8, self.streams[stream], params));
    }

    /// Makes a stream wait for another one.
    pub(crate) fn wait(&self, from: usize, to: usize) {
        self.machine.wait(self.streams[from], self.streams[to]);
    }

    /// Captures the work that a function submits to the first stream.
    pub(crate) fn capture(&self, work: impl FnOnce()) -> CUgraphExec {
        self.machine.capture(self.streams[0], work)
    }
}
