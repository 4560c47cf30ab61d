//! A simulated CUDA driver with green contexts, for tests on machines without a GPU.
//!
//! A [`Sim`] implements the C functions of the driver API for devices of one [`Profile`]. A program loads
//! these functions through [`Sim::get_proc_address`]. They behave as the real driver's do: they group the
//! SMs in the same way, exist in the same driver versions, and answer misuse with the same statuses. They
//! also crash in the same situations.
//!
//! A test sees more than the program does:
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
//! Time is virtual. A call advances it slightly, and a wait advances it to the end of the awaited work, so
//! a single-threaded program gets the same times in every run. Launches do not slow each other down, even
//! on the same SMs. Memsets and copies within a device take longer if their context has fewer SMs. Copies
//! between host and device take the same time on any number of SMs.
//!
//! With [`Clock::Real`] (see [`Builder::clock`]), time also follows the host's clock. Programs need this if
//! they sleep instead of waiting, or if a host function in a stream must run while the program makes no
//! call.
//!
//! Work takes effect when virtual time reaches its end, as on a GPU. This applies to the writes and
//! failures of kernels, to copies to the device, to memsets and to callbacks. A program that forgets to
//! wait therefore finds the results missing. The inputs of work are read when it is submitted: a copy reads
//! the host's memory as it is, and a kernel reads device memory as it will be when the kernel begins. A
//! copy to pageable host memory returns after the data has arrived. Page-locked host memory is read and
//! written at the end of the copy, so a program that changes or inspects it too early sees the consequence.
//!
//! The host cannot dereference device addresses. Host memory has the same address for host and device. The
//! simulator checks that every access lies within one allocation, that the allocation still exists, and
//! that the device can reach it. New memory is zeroed, unlike memory of a GPU.
//!
//! # Sources of the answers
//!
//! *Recorded*, in this documentation, means observed on a real H200 and H100 with driver 580.159.04 (CUDA
//! 13.0). The package green-ctx-conformance runs every recorded case on the simulator too and compares the
//! answers. Other driver versions differ from the recorded one as NVIDIA's headers say. The other GPUs were
//! not recorded: they have the numbers of their data sheets and follow the rules of the H200.
//! [`Profile::provenance`] names the source of each group of data.
//!
//! The following was not recorded:
//!
//! - Times. They are round values for an H200. The record says only roughly how much longer a memset or a
//!   copy takes on few SMs, and [`Profile::transfer`] reproduces those ratios.
//! - Device attributes and memory sizes. They come from data sheets.
//! - Situations that no recorded case covers. The simulator follows the documentation of the function.
//!
//! [`Topology`] says which groups and cluster capacities were recorded and which follow from a rule.
//!
//! # Kernel images
//!
//! Libraries and modules are loaded from PTX text, cubins and fat binaries, in memory or in a file. Fat
//! binaries may be uncompressed or compressed with LZ4 or zstd. The simulator reads the names and
//! parameters of kernels, their limits on threads and clusters, their shared memory and their registers. It
//! does not read instructions; [`Sim::register_kernel`] defines what a kernel does.
//!
//! - Mistakes in instructions are not found, and the logs of the JIT compiler are empty. A kernel in PTX
//!   text counts as using 4 registers per thread. Its shared memory does not include that of the device
//!   functions that it calls.
//! - A program cannot look up the global variables of an image.
//! - Code for the linker (relocatable code, LTO, Tile IR) is not linked. Loading a fat binary with
//!   nothing else fails with `CUDA_ERROR_NO_BINARY_FOR_GPU`, and loading a 32-bit cubin with
//!   `CUDA_ERROR_INVALID_IMAGE`.
//! - Loading is always lazy; `CUDA_MODULE_LOADING` is not read.
//!
//! Occupancy is computed as in NVIDIA's `cuda_occupancy.h`, for the SMs of the current context or of the
//! stream. It respects the attributes that were set with `cuFuncSetAttribute` and `cuKernelSetAttribute`. A
//! cluster lies in one GPC ([`Topology::gpcs`]) of one resource of its context, and each of its blocks runs
//! on a different SM. This rule reproduces every recorded number of clusters.
//!
//! # Graphs
//!
//! A graph is launched node by node. Each node begins when its dependencies have ended, and runs on the SMs
//! of its own context, whichever stream launches the graph (recorded). Copies from pageable host memory
//! read it when the graph is launched. Kernels see memory as it will be when they begin.
//! [`Launch::happens_before`] follows the edges of a graph: concurrent nodes are unordered, and the whole
//! graph runs after the earlier work of the stream and before its later work. [`Launch::graph_launch`]
//! tells which kernel launches belong to the same graph launch.
//!
//! Before instantiation, a program can move a node to another context: it reads the node's parameters and
//! sets them again while the other context is current (recorded). This works for kernels of libraries and
//! of modules, for memsets and for copies, and in child graphs and clones too. The nodes of an executable
//! graph cannot be changed.
//!
//! An allocation node gets its address when it is added. Its memory exists from a launch until a node or
//! the program frees it, and counts as used only during that time. Hardware keeps the memory for later
//! launches.
//!
//! If a node uses memory that was freed before the launch, the device fails as it does when a kernel accesses an
//! illegal address. Of the instantiation flags, only `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH` changes how a
//! graph runs. If a cooperative node has more blocks than its context holds, it is launched but never runs (recorded).
//! Hardware then never answers a wait for it; the simulator returns `CUDA_ERROR_LAUNCH_TIMEOUT`.
//!
//! # CUDA 13.1 and newer
//!
//! Nothing in this section was recorded, because no such driver was available. It follows the header of
//! CUDA 13.5; the source code marks each answer that the header leaves open.
//!
//! - `cuDevSmResourceSplit` makes groups of different sizes whose SMs lie together in GPCs.
//!   [`Topology::gpcs`] determines which SMs these are. The groups of one call can be combined if their
//!   alignments are equal. Without room for results, the call only discovers sizes; from 13.4 on, discovery
//!   without a constraint finds every SM. Both follow reports of users of newer drivers, which the source
//!   code cites. A count that the GPCs cannot provide is refused, as users of an RTX 5080 report. The
//!   profile `b200` has two locality domains, one per die.
//! - Workqueue resources and workqueue configurations are accepted, and reading them back returns the
//!   provisioned values. They change nothing else that a program can see. Their concurrency limit
//!   ([`Profile::workqueue_limit`]) is the documented default; `CUDA_DEVICE_MAX_CONNECTIONS` is not read.
//! - `cuStreamGetDevResource` returns the SMs of the stream's context.
//!
//! # Contexts from `cuCtxCreate`
//!
//! These contexts follow the header; none was recorded. They always have every SM, because execution
//! affinity needs MPS. Only green contexts have fewer SMs.
//!
//! # As `libcuda.so.1`
//!
//! The package green-ctx-sim-cuda builds the simulated driver as a `libcuda.so.1` for programs that load or
//! link the driver themselves. It exports every function of `cuda.h`, in every version and variant.
//! Functions that are not simulated return `CUDA_ERROR_NOT_SUPPORTED` ([`Sim::unsimulated_calls`] counts
//! them), and `cuGetProcAddress` does not find them. In the variants for the per-thread default stream
//! (`_ptsz`, `_ptds`), the null stream means `CU_STREAM_PER_THREAD`.
//!
//! Programs that use the CUDA runtime (libcudart) do not run on it. The runtime requests tables of
//! undocumented functions from `cuGetExportTable`, and the simulator has none of them. One runtime call is
//! enough to fail: `Device.sync()` of NVIDIA's cuda-core calls `cudaDeviceSynchronize`. NVRTC requests such
//! a table as well but works without it.
//!
//! # Unsupported uses of simulated functions
//!
//! The following uses return `CUDA_ERROR_NOT_SUPPORTED`, because any other answer would be wrong without
//! the work behind it:
//!
//! - `cuStreamWaitEvent` with `CU_EVENT_WAIT_EXTERNAL`
//! - allocation nodes for managed memory or for access by more than one device
//! - copy nodes from or to CUDA arrays
//! - `cuMemPoolCreate` for host or managed memory
//! - `cuPointerGetAttribute` for peer-to-peer tokens, RDMA, access flags and mappings
//!
//! A memory pool can be opened to other devices; a device cannot reach any other memory of another device.
//! Pools return freed memory to the device as soon as the stream reaches the free. CUDA arrays and the
//! profiler do not exist.
//!
//! Functions that neither this project nor its users call are not simulated. Among them are the functions
//! for conditional nodes and event nodes, for changing edges and executable graphs, for tensor maps and
//! managed memory, for copies of rows and slices, for handles from other processes, and for access between
//! devices.
//!
//! # Limits
//!
//! The simulator serves tests of programs that use the driver API, as far as that is possible without
//! computing. It will not execute kernel instructions, time kernels as a GPU does, link device code or
//! model caches: the test defines what its kernels do. It will not provide the tables behind
//! `cuGetExportTable`, so programs of the CUDA runtime, PyTorch among them, will not run on it. Arrays,
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
