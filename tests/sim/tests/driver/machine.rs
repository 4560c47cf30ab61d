//! A simulated machine and short forms of the calls that most tests make.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use green_ctx_sim::{Sim, Spec};
use green_ctx_sys::*;

/// Calls a function that every driver may have.
macro_rules! call {
    ($machine:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let function = $machine.api.$function().expect(concat!(stringify!($function), " exists"));
        // SAFETY: pointers are to variables of the types that the function reads and fills, and
        // handles are never followed.
        unsafe { function($($arg),*) }
    }};
}

/// Calls a function that has one answer, and returns the status and the answer.
macro_rules! ask {
    ($machine:expr, $value:expr, $function:ident($($before:expr),*; $($after:expr),*)) => {{
        let mut value = $value;
        let status = crate::machine::call!($machine, $function($($before,)* &mut value $(, $after)*));
        (status, value)
    }};
}

/// Calls a function that the table does not have, in the form of a version.
macro_rules! old {
    ($machine:expr, $name:literal, $version:literal ($($arg:expr => $ty:ty),*)) => {{
        type Form = unsafe extern "C" fn($($ty),*) -> CUresult;
        // SAFETY: this is the function's signature in that version.
        let function: Form = unsafe { $machine.function($name, $version) };
        // SAFETY: pointers are to variables of the types that the function fills.
        unsafe { function($($arg),*) }
    }};
}

pub(crate) use {ask, call, old};

/// The statuses that tests name most.
pub(crate) const OK: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(crate) const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
pub(crate) const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub(crate) const DESTROYED: CUresult = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
pub(crate) const BAD_TYPE: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE;
pub(crate) const BAD_CONFIGURATION: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;

pub(crate) const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
pub(crate) const NON_BLOCKING: u32 = 1;

/// A kernel of each kind that tests launch.
const PTX: &str = "
    .version 7.0
    .target sm_52
    .address_size 64
    .visible .entry nothing() { ret; }
    .visible .entry green_ctx_probe(.param .u64 out, .param .u64 duration_ns) { ret; }
    .visible .entry green_ctx_fault(.param .u64 address) { ret; }
    .visible .entry mixed(.param .u8 a, .param .u64 b, .param .u16 c, .param .align 16 .b8 d[20]) { ret; }
";

pub(crate) struct Machine {
    pub(crate) sim: Sim,
    pub(crate) api: Api,
}

pub(crate) fn ok(status: CUresult) {
    assert_eq!(status, OK);
}

pub(crate) fn zeroed() -> CUdevResource {
    // SAFETY: a resource is plain numbers and a nullable pointer.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn sm_count(resource: &CUdevResource) -> u32 {
    if resource.type_ != SM {
        return 0;
    }
    // SAFETY: the type says that these are SMs.
    unsafe { resource.__bindgen_anon_1.sm }.smCount
}

pub(crate) fn bytes(resource: &CUdevResource) -> &[u8; 144] {
    let pointer: *const CUdevResource = resource;
    // SAFETY: a resource is 144 bytes, all of them written: the driver fills them, and `zeroed`
    // left no gap.
    unsafe { &*pointer.cast() }
}

/// The result of a split.
pub(crate) struct Split {
    pub(crate) groups: Vec<CUdevResource>,
    pub(crate) rest: CUdevResource,
}

impl Machine {
    /// A machine whose driver is not initialised.
    pub(crate) fn dormant(spec: &str, devices: usize) -> Machine {
        let spec: Spec = spec.parse().expect("a valid spec");
        let sim = Sim::builder(spec).devices(devices).build().expect("a free slot");
        // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`, and each
        // test keeps both together.
        let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) };
        Machine { api: api.expect("the simulator has what is required"), sim }
    }

    pub(crate) fn with_devices(spec: &str, devices: usize) -> Machine {
        let machine = Machine::dormant(spec, devices);
        ok(machine.init());
        machine
    }

    pub(crate) fn new() -> Machine {
        Machine::with_devices("h200", 1)
    }

    /// A machine whose primary context is retained and current.
    pub(crate) fn with_primary() -> (Machine, CUcontext) {
        let machine = Machine::new();
        let primary = machine.retain();
        ok(machine.push(primary));
        (machine, primary)
    }

    /// A function that the table may not have, in the form of a version.
    ///
    /// # Safety
    ///
    /// `F` must be the type of a pointer to a function with this form's signature.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr, version: i32) -> F {
        let address = self.lookup(name, version);
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: the sizes are equal, and the caller says that the address is an `F`.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// The address of a function in the form of a version.
    pub(crate) fn lookup(&self, name: &CStr, version: i32) -> *mut c_void {
        let (mut address, look) = (null_mut(), self.sim.get_proc_address());
        // SAFETY: the pointers are to a string and to a variable of the type that is filled.
        ok(unsafe { look(name.as_ptr(), &mut address, version, 0, null_mut()) });
        assert!(!address.is_null(), "{name:?} at {version}");
        address
    }

    pub(crate) fn init(&self) -> CUresult {
        // SAFETY: `cuInit` takes the flags 0 and nothing else.
        unsafe { self.api.cuInit()(0) }
    }

    pub(crate) fn retain(&self) -> CUcontext {
        let (status, context) = ask!(self, null_mut(), cuDevicePrimaryCtxRetain(; 0));
        ok(status);
        context
    }

    pub(crate) fn push(&self, context: CUcontext) -> CUresult {
        call!(self, cuCtxPushCurrent(context))
    }

    pub(crate) fn pop(&self) -> CUresult {
        call!(self, cuCtxPopCurrent(null_mut()))
    }

    pub(crate) fn device(&self) -> CUdevResource {
        let (status, resource) = ask!(self, zeroed(), cuDeviceGetDevResource(0; SM));
        ok(status);
        resource
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

    /// The device's units of eight.
    pub(crate) fn units(&self) -> Split {
        self.split(&self.device(), 16, 0, 8).expect("units of eight")
    }

    /// The device's units of two.
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

    /// A green context of these resources.
    pub(crate) fn green(&self, resources: &[CUdevResource]) -> CUgreenCtx {
        let (status, green) = self.create(self.desc(resources).expect("these combine"));
        ok(status);
        green
    }

    /// A green context of the first group of `count` SMs.
    pub(crate) fn green_of(&self, count: u32) -> CUgreenCtx {
        let split = self.split(&self.device(), 1, 0, count).expect("it fits");
        self.green(&split.groups)
    }

    pub(crate) fn context(&self, green: CUgreenCtx) -> CUcontext {
        let (status, context) = ask!(self, null_mut(), cuCtxFromGreenCtx(; green));
        ok(status);
        context
    }

    pub(crate) fn destroy(&self, green: CUgreenCtx) -> CUresult {
        call!(self, cuGreenCtxDestroy(green))
    }

    pub(crate) fn green_stream(&self, green: CUgreenCtx) -> CUstream {
        let (status, stream) =
            ask!(self, null_mut(), cuGreenCtxStreamCreate(; green, NON_BLOCKING, 0));
        ok(status);
        stream
    }

    /// A stream of the current context.
    pub(crate) fn stream(&self, flags: u32) -> CUstream {
        let (status, stream) = ask!(self, null_mut(), cuStreamCreate(; flags));
        ok(status);
        stream
    }

    /// An event of the current context.
    pub(crate) fn event(&self) -> CUevent {
        let (status, event) = ask!(self, null_mut(), cuEventCreate(; 0));
        ok(status);
        event
    }

    /// A kernel of [`PTX`].
    pub(crate) fn kernel(&self, name: &str) -> CUkernel {
        self.kernel_of(PTX, name).expect("the text has it")
    }

    pub(crate) fn kernel_of(&self, ptx: &str, name: &str) -> Result<CUkernel, CUresult> {
        let (ptx, name) = (CString::new(ptx).expect("text"), CString::new(name).expect("text"));
        let (mut library, mut kernel) = (null_mut(), null_mut());
        let status = call!(
            self,
            cuLibraryLoadData(
                &mut library,
                ptx.as_ptr().cast(),
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0
            )
        );
        if status != OK {
            return Err(status);
        }
        let status = call!(self, cuLibraryGetKernel(&mut kernel, library, name.as_ptr()));
        if status == OK { Ok(kernel) } else { Err(status) }
    }

    /// Launches blocks of 1024 threads with parameters of eight bytes.
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

    /// The SMs that the last launch ran on.
    pub(crate) fn sms(&self) -> Vec<u32> {
        self.sim.launches().last().map(|launch| launch.sms.to_vec()).unwrap_or_default()
    }

    /// The SMs that a kernel sees in a green context of these resources, and the count that the
    /// driver states.
    pub(crate) fn observe(&self, resources: &[CUdevResource]) -> (u32, Vec<u32>) {
        let green = self.green(resources);
        let (status, resource) = ask!(self, zeroed(), cuGreenCtxGetDevResource(green; SM));
        ok(status);
        let stream = self.green_stream(green);
        ok(self.launch(self.kernel("nothing"), 1000, stream, &[]));
        ok(call!(self, cuStreamDestroy(stream)));
        ok(self.destroy(green));
        (sm_count(&resource), self.sms())
    }
}
