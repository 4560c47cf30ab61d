//! A simulated CUDA driver with green contexts, for tests on machines without a GPU.
//!
//! A [`Sim`] implements the C functions of the driver API for devices of one [`Profile`]. A program loads
//! these functions through [`Sim::get_proc_address`]. The simulated functions behave like the real driver:
//! they group SMs in the same way, exist in the same driver versions, return the same statuses after
//! misuse, and crash in the same situations.
//!
//! A test can query more than the program can:
//!
//! - which kernels were launched and on which SMs ([`Sim::launches`]), and in which order
//!   ([`Launch::happens_before`]);
//! - accesses to the same memory that are not ordered by a stream, an event or a wait ([`Sim::races`]);
//! - the handles and the memory that the program did not release ([`Sim::live`]);
//! - the calls that the program made ([`Sim::calls`]).
//!
//! A test can also make calls fail ([`Sim::fail`]) and define what kernels compute
//! ([`Sim::register_kernel`]).
//!
//! # Time
//!
//! Time is virtual. A call advances virtual time slightly, and a wait advances virtual time to the end of
//! the awaited work. A single-threaded program therefore gets the same times in every run. Launches do not
//! slow each other down, even on the same SMs. Memsets and copies within a device take longer if their
//! context has fewer SMs. Copies between host and device take the same time on any number of SMs.
//!
//! With [`Clock::Real`] (see [`Builder::clock`]), time also follows the host's clock. A program needs the
//! real clock if the program sleeps instead of waiting for work, or if a host function in a stream must run
//! while the program makes no call.
//!
//! Work takes effect when virtual time reaches the end of the work, as on a GPU. This rule applies to the
//! writes and failures of kernels, to copies to the device, to memsets and to callbacks. A program that
//! forgets to wait therefore finds the results missing. The simulator reads the inputs of work when the
//! program submits the work. A copy from pageable host memory gets the current contents, and a kernel gets
//! the contents that device memory will have when the kernel begins. A copy to pageable host memory returns
//! after the data has arrived. Page-locked host memory is read and written at the end of the copy, so a
//! program that changes or inspects this memory too early gets wrong data.
//!
//! The host cannot dereference device addresses. Page-locked host memory has the same address for the host
//! and for devices. The simulator checks that every access lies within one allocation, that the allocation
//! still exists, and that the device can access the allocation. New memory is zeroed, unlike memory of a
//! GPU.
//!
//! # Sources of the answers
//!
//! In this documentation, *recorded* means that the behaviour was observed on a real H200 and a real H100
//! with driver 580.159.04 (CUDA 13.0). The package green-ctx-conformance runs every recorded case on the
//! simulator too and compares the answers. For other driver versions, the simulator follows the differences
//! between the versions of NVIDIA's headers. Other GPUs were not recorded: their profiles use the numbers
//! from the data sheets and the rules of the H200. [`Profile::provenance`] names the source of each group
//! of data.
//!
//! The following was not recorded:
//!
//! - Times. All durations are round values for an H200. The record shows only roughly how much longer a
//!   memset or a copy takes on few SMs, and [`Profile::transfer`] reproduces those ratios.
//! - Device attributes and memory sizes. These values come from data sheets.
//! - Situations that no recorded case covers. In these situations, the simulator follows NVIDIA's
//!   documentation of the function.
//!
//! The documentation of [`Topology`] lists which groups and cluster capacities were recorded and which
//! follow from a rule.
//!
//! # Kernel images
//!
//! Libraries and modules are loaded from PTX text, cubins and fat binaries, in memory or in a file. Fat
//! binaries may be uncompressed or compressed with LZ4 or zstd. The simulator reads the names and
//! parameters of kernels, their limits on threads and clusters, their shared memory and their registers.
//! The simulator does not read instructions; [`Sim::register_kernel`] defines what a kernel does.
//!
//! - Mistakes in instructions are not found, and the logs of the JIT compiler are empty. A kernel in PTX
//!   text counts as using 4 registers per thread. For such a kernel, the reported shared memory does not
//!   include the shared memory of device functions that the kernel calls.
//! - A program cannot look up the global variables of an image.
//! - Code for the linker (relocatable code, LTO, Tile IR) is not linked. Loading a fat binary that contains
//!   only such code fails with `CUDA_ERROR_NO_BINARY_FOR_GPU`. Loading a 32-bit cubin fails with
//!   `CUDA_ERROR_INVALID_IMAGE`.
//! - Loading is always lazy; the simulator does not read the environment variable `CUDA_MODULE_LOADING`.
//!
//! Occupancy is computed as in NVIDIA's `cuda_occupancy.h`, for the SMs of the current context or of the
//! stream. Occupancy depends on the attributes that the program sets with `cuFuncSetAttribute` and
//! `cuKernelSetAttribute`. All blocks of a cluster run in one GPC ([`Topology::gpcs`]) and in one SM
//! resource of the context, each block on a different SM. This rule reproduces every recorded number of
//! active clusters.
//!
//! # Graphs
//!
//! A graph is launched node by node. Each node begins when its dependencies have ended, and runs on the SMs
//! of its own context, no matter which stream launches the graph (recorded on hardware). A copy from pageable host
//! memory reads that memory when the graph is launched. A kernel gets the contents that memory will have
//! when the kernel begins. [`Launch::happens_before`] follows the edges of a graph: concurrent nodes are
//! unordered, and the whole graph runs after the earlier work of the stream and before its later work.
//! [`Launch::graph_launch`] identifies the kernel launches that belong to the same graph launch.
//!
//! Before instantiation, a program can move a node to another context: the program reads the parameters of
//! the node, and sets the same parameters while the other context is current (recorded on hardware). This works for
//! kernels of libraries and of modules, for memsets and for copies. Nodes of child graphs and of clones can
//! be moved in the same way. The nodes of an executable graph cannot be changed.
//!
//! An allocation node gets its address when the program adds the node. The memory of the node exists from a
//! launch until a node or the program frees the memory. The simulator counts the memory as used only during
//! that time, whereas real hardware keeps the memory for later launches.
//!
//! If a node uses memory that was freed before the launch, the device fails as if a kernel had accessed an
//! illegal address. Only one instantiation flag changes how a graph runs:
//! `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`. If a cooperative kernel in a graph has more blocks
//! than fit in the context of its node at the same time, the launch succeeds but the kernel never runs
//! (recorded on hardware). On hardware, a wait for such a kernel never returns; in the simulator, the wait returns
//! `CUDA_ERROR_LAUNCH_TIMEOUT`.
//!
//! # CUDA 13.1 and newer
//!
//! Nothing in this section was recorded, because no such driver was available. The simulator follows the
//! header of CUDA 13.5, and the source code marks each answer that the header leaves open.
//!
//! - `cuDevSmResourceSplit` makes groups of different sizes whose SMs lie together in GPCs.
//!   [`Topology::gpcs`] determines the SMs of each group. One descriptor can combine groups of the same
//!   call if these groups have the same alignment and locality domain. If the result array is null, the
//!   call accepts only discovery requests, which have an SM count of 0. From CUDA 13.4 on, a discovery
//!   request without a constraint finds every SM. These two rules follow reports from users of newer
//!   drivers, which the source code cites. An SM count that the GPCs cannot provide is refused, as users of
//!   an RTX 5080 report. The profile `b200` has two locality domains, one per die.
//! - Workqueue resources and workqueue configurations are accepted, and reading them back returns the
//!   provisioned values. These resources change nothing else that a program can query. The concurrency
//!   limit ([`Profile::workqueue_limit`]) is the documented default; the simulator does not read the
//!   environment variable `CUDA_DEVICE_MAX_CONNECTIONS`.
//! - `cuStreamGetDevResource` returns the SMs of the stream's context.
//!
//! # Contexts from `cuCtxCreate`
//!
//! Contexts from `cuCtxCreate` follow the header; their behaviour was not recorded. Such a context always
//! has every SM of the device, because limiting the SMs by execution affinity requires MPS. Only green
//! contexts have fewer SMs.
//!
//! # As `libcuda.so.1`
//!
//! The package green-ctx-sim-cuda builds the simulated driver as a `libcuda.so.1` for programs that load or
//! link the driver themselves. This library exports every function of `cuda.h`, in every version and
//! variant. Functions that are not simulated return `CUDA_ERROR_NOT_SUPPORTED` ([`Sim::unsimulated_calls`]
//! counts them), and `cuGetProcAddress` does not find them. In the variants for the per-thread default
//! stream (`_ptsz`, `_ptds`), the null stream means `CU_STREAM_PER_THREAD`.
//!
//! NVIDIA's CUDA runtime (libcudart) does not run on the simulated driver, so programs that use it need a replacement,
//! such as the one that `cargo xtask sim-lib --torch` builds for PyTorch. The runtime requests tables of undocumented
//! functions from `cuGetExportTable`, and the simulator has none of them. A single runtime call is enough to make a
//! program fail. For example, `Device.sync()` in NVIDIA's cuda-core calls `cudaDeviceSynchronize`. NVRTC also requests
//! such a table, but works without the table.
//!
//! # Unsupported uses of simulated functions
//!
//! The simulator does not implement the following uses, so they return `CUDA_ERROR_NOT_SUPPORTED`:
//!
//! - `cuStreamWaitEvent` with `CU_EVENT_WAIT_EXTERNAL`
//! - allocation nodes for managed memory or for access by more than one device
//! - copy nodes from or to CUDA arrays
//! - `cuMemPoolCreate` for host or managed memory
//! - `cuPointerGetAttribute` for peer-to-peer tokens, RDMA, access flags and mappings
//!
//! A program can open a memory pool to other devices; a device cannot access any other memory of another
//! device. A pool returns freed memory to the device as soon as the stream reaches the free. CUDA arrays
//! are not simulated, and `cuProfilerStart` and `cuProfilerStop` have no effect.
//!
//! Functions that neither this project nor its users call are not simulated. These include the functions
//! for conditional nodes and event nodes, for changing edges and executable graphs, for tensor maps and
//! managed memory, for copies of rows and slices, for handles from other processes, and for access between
//! devices.
//!
//! # Limits
//!
//! The simulator is meant for tests of programs that use the driver API, as far as such tests are possible
//! without executing kernels. The simulator will not execute kernel instructions, time kernels as a GPU
//! does, link device code or model caches; the test defines what its kernels do. The simulator will not
//! provide the tables behind `cuGetExportTable`, so NVIDIA's CUDA runtime will not run on it. Arrays,
//! textures, graphics interoperability, mapped physical memory, checkpoints, and memory or events of other
//! processes will remain unsimulated.
//!
//! A function is simulated if green contexts, streams, events, graphs, memory or launches interact with it,
//! or if a tested program cannot continue without it.
//!
//! # Examples
//!
//! Creates a green context of 16 SMs and launches a kernel in it:
//!
//! ```
//! use green_ctx_sim::Sim;
//! use green_ctx_sys::{Api, CUdevResource, CUdevResourceType, CUresult};
//! use std::ptr::null_mut;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::new("h200@13.0")?;
//! // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
//! let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
//! // SAFETY: a zeroed resource is a valid resource of no type.
//! let (mut device, mut group) = unsafe { std::mem::zeroed::<(CUdevResource, CUdevResource)>() };
//! let (mut desc, mut green, mut stream, mut groups) = (null_mut(), null_mut(), null_mut(), 1);
//! let ok = |status| assert_eq!(status, CUresult::CUDA_SUCCESS);
//! // SAFETY: each pointer is to a local variable of the type that the function reads or fills.
//! unsafe {
//!     ok(api.cuInit()(0));
//!     ok(api.cuDeviceGetDevResource()?(0, &mut device, CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM));
//!     ok(api.cuDevSmResourceSplitByCount()?(&mut group, &mut groups, &device, null_mut(), 0, 16));
//!     ok(api.cuDevResourceGenerateDesc()?(&mut desc, &mut group, 1));
//!     ok(api.cuGreenCtxCreate()?(&mut green, desc, 0, 1));
//!     ok(api.cuGreenCtxStreamCreate()?(&mut stream, green, 1, 0));
//! }
//!
//! let ptx = c".version 7.0 .target sm_52 .visible .entry work() { ret; }";
//! let (mut library, mut kernel) = (null_mut(), null_mut());
//! // SAFETY: as above; the text ends with a null byte, and the kernel has no parameters.
//! unsafe {
//!     ok(api.cuLibraryLoadData()?(
//!         &mut library, ptx.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0,
//!     ));
//!     ok(api.cuLibraryGetKernel()?(&mut kernel, library, c"work".as_ptr()));
//!     ok(api.cuLaunchKernel()?(kernel.cast(), 64, 1, 1, 32, 1, 1, 0, stream, null_mut(), null_mut()));
//! }
//! let launch = &sim.launches()[0];
//! assert!(launch.is_green);
//! assert_eq!(&launch.sms[..], [0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51]);
//! assert_eq!(sim.live().green_contexts, 1);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::expect_used))]

mod sim;
mod state;

mod entry;
mod execution;
mod object;
mod part;
mod testing;

mod graph;
mod image;
mod library;
mod memory;

// The crate refers to each module by its own name, without the folder.
use entry::{
    crash, driver, error_text, functions, handle, pointer, proc_address, slot, unsimulated,
};
use execution::{builtin, callback, clock, effects, turn, work};
use object::{
    capture, context, created, device, event, green, launch, occupancy, profiler, resource, stream,
};
use part::{profile, sm_set, spec, topology};
use testing::{calls, fault, kernel, live, race, trace};

pub use calls::Call;
pub use clock::Clock;
pub use fault::Fault;
#[doc(hidden)]
pub use functions::entrances;
pub use kernel::{Block, IllegalAddress, KernelCall};
pub use live::Live;
pub use profile::{Origin, Profile, Provenance, Record, Source, TransferRate, TransferRates};
pub use race::{Access, Accessor, Race};
pub use sim::{Builder, GetProcAddress, Sim, SimError};
pub use spec::{Spec, SpecError, VERSIONS};
pub use topology::Topology;
pub use trace::Launch;
