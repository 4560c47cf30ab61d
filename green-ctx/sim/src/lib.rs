//! A simulated CUDA driver that knows green contexts.
//!
//! A [`Sim`] implements the driver's C functions over the [`Profile`] of a GPU: how its SMs are
//! grouped, which symbols exist at which version, and what is answered to every kind of misuse, as
//! recorded on hardware. What a program loads through [`Sim::get_proc_address`] behaves as the
//! driver does, crashes included, so that code that cuts a GPU into partitions can be tested where
//! there is no GPU.
//!
//! The test sees more than the program: what was launched and on which SMs ([`Sim::launches`]),
//! in which order ([`Launch::happens_before`]), which accesses to memory nothing puts in order
//! ([`Sim::races`]), what was left behind ([`Sim::live`]), which calls
//! were made ([`Sim::calls`]); and it can make calls fail ([`Sim::fail`]) and say what kernels do
//! ([`Sim::register_kernel`]).
//!
//! Time is virtual: a call advances it a little, waiting moves it to the end of what is waited
//! for, and a run of a single-threaded program gives the same times every time. Launches do not
//! slow each other down, even on the same SMs. Fills, and copies on a device, take the longer the
//! fewer SMs their context has; copies from and to the host take as long on few SMs as on many.
//!
//! [`Builder::clock`] lets time pass by itself, too ([`Clock::Real`]): for programs that sleep instead of
//! waiting, or whose functions in streams have to run while they make no call.
//!
//! What work does is there when virtual time has come to its end, as on a GPU: what a kernel wrote,
//! its failure, a copy to the device, a fill, a callback. A program that does not wait for work sees
//! that it is missing. Kernels and copies from the host read at the call what the program had to
//! have ready by then: a kernel the memory as it will be when it begins, a copy the host's memory.
//! A copy to the host waits for itself. Page-locked memory of the host is read and written when the
//! copy ends: who changes it before, or looks into it, sees what that does.
//!
//! Device addresses are numbers that nobody can follow, and the host's memory keeps its own. Every
//! access is checked: where it lies, whether the memory still stands, and whether the device reaches
//! it. Initially memory is zero, where a GPU's is not.
//!
//! # Where the answers come from
//!
//! The H200 and the H100 answer as real ones did: every case that was recorded on them, with driver
//! 580.159.04 (CUDA 13.0), is put to the simulated driver too and compared (package
//! green-ctx-conformance). Other driver versions differ from the recorded one as the headers say. The
//! other parts are not recorded: they have the numbers of data sheets, and answer by the H200's rules.
//! [`Profile::provenance`] has the source of each group of data.
//!
//! These are in no record:
//!
//! - Times, which are round figures of an H200. How much longer a memset or a copy takes on few SMs is
//!   recorded roughly, and [`Profile::transfer`] gives those ratios.
//! - Device attributes and memory sizes, which are from data sheets.
//! - What no case asks. The functions' documentation is followed there.
//!
//! [`Topology`] says which groups and cluster capacities are recorded and which follow from a rule.
//!
//! # What kernels are made of
//!
//! Libraries and modules are loaded from PTX text, from cubins and from fat binaries (packed with
//! LZ4 or zstd, or not), in memory or in a file. The simulator reads the names and parameters of
//! kernels, their bounds on threads and clusters, their shared memory and registers. It reads no
//! instructions: what a kernel does is what [`Sim::register_kernel`] says.
//!
//! - A mistake in instructions is not seen, and the compiler's logs are empty. A kernel of text is
//!   said to use 32 registers. Of shared memory the device functions that it calls are not counted.
//! - A program cannot ask for the variables of an image.
//! - Code for the linker (relocatable, LTO, Tile IR) is not linked: a fat binary of nothing else is
//!   `CUDA_ERROR_NO_BINARY_FOR_GPU`. Cubins of 32 bits are `CUDA_ERROR_INVALID_IMAGE`.
//! - Loading is lazy, whatever the environment says.
//!
//! Occupancy is reckoned as `cuda_occupancy.h` does, on the SMs of the current context or of the
//! stream, within what was set with `cuFuncSetAttribute` and `cuKernelSetAttribute`. A cluster lies in
//! one GPC ([`Topology::gpcs`]) of one resource of its context, with each of its blocks on an SM of
//! its own: that rule gives every recorded number of clusters.
//!
//! # Graphs
//!
//! A graph is launched node by node: each begins when those that it comes after are over, on the SMs
//! of its own context, whatever stream launches it, as recorded. What a graph's copies from the host
//! read is what is there when the graph is launched, and its kernels see memory as it will be when
//! they begin. [`Launch::happens_before`] knows the edges of a graph: what a graph's nodes do beside
//! each other is unordered, and all of it comes after what was in the stream before and before what
//! comes into it later. [`Launch::graph_launch`] says which launches of kernels belong together.
//!
//! Until it is instantiated, a node is moved by setting what was read from it with another context
//! current, as recorded: kernels of libraries and of modules, fills and copies, in children and clones
//! too. An executable's nodes stay as they are.
//!
//! Nodes that allocate have their addresses from when they are added, and the memory is there from a
//! launch on until a node or the program frees it. It takes room while it is there, where hardware
//! keeps it for later launches.
//!
//! Memory that was freed before the launch fails the device as a wrong address in a kernel does. An
//! executable's flags do not change how it runs. A cooperative node of more blocks than its context holds is launched and never runs,
//! as recorded; whoever waits for it gets `CUDA_ERROR_LAUNCH_TIMEOUT` where hardware never answers.
//!
//! # What drivers have from 13.1 on
//!
//! Of these nothing is recorded, since no such driver was at hand: they do what the header of 13.5
//! says, and the source marks each answer that the header leaves open.
//!
//! - `cuDevSmResourceSplit` makes groups of different sizes whose SMs lie together in GPCs. Which
//!   SMs those are follows from [`Topology::gpcs`]. The results of one call combine with each
//!   other where their alignments are equal. A call without room for results only discovers, and
//!   from 13.4 on discovery without a constraint finds every SM: both are as users of newer drivers
//!   report, and the source says where. A count that the GPCs do not have is refused, as users of an
//!   RTX 5080 report. Of locality domains the part `b200` has two, one a die.
//! - The resources of workqueues and of their configuration. They change nothing that a program can
//!   see, and are given back as they were provisioned. How many workloads they are for
//!   ([`Profile::workqueue_limit`]) is the documented default; the environment is not read.
//! - `cuStreamGetDevResource` answers for the SMs of a stream's context.
//!
//! # Contexts of a program's own
//!
//! Contexts of `cuCtxCreate` do what the header says; nothing is recorded of them. No context is limited to a number of SMs but green ones, since
//! that needs MPS.
//!
//! # As a library
//!
//! Package green-ctx-sim-cuda is the simulated driver as a `libcuda.so.1`, for programs that load or
//! link the driver themselves. It exports every function of `cuda.h`, each in all of its forms. Those
//! that are not simulated refuse ([`Sim::unsimulated_calls`] counts them), and `cuGetProcAddress` does
//! not find them. To a form for the per-thread default stream (`_ptsz`, `_ptds`) the null stream is
//! `CU_STREAM_PER_THREAD`.
//!
//! Programs that go through CUDA's runtime (libcudart) do not run on it: the runtime asks
//! `cuGetExportTable` for tables of functions that are documented nowhere, and none is simulated. One
//! such call is enough: `Device.sync()` of NVIDIA's cuda-core is `cudaDeviceSynchronize`. NVRTC asks
//! for a table too, and does without it.
//!
//! # Resolved but not simulated yet
//!
//! These functions can be looked up where the real driver has them and answer
//! `CUDA_ERROR_NOT_SUPPORTED`, as nothing less than doing what they do would be an answer:
//!
//! - `cuStreamWaitEvent` of an event outside the capture
//! - nodes that allocate managed memory, or for more devices than one
//! - copies of nodes from or to CUDA arrays
//! - `cuMemPoolCreate` of host and of managed memory
//! - `cuPointerGetAttribute` of peer-to-peer tokens, RDMA, access flags and mappings
//!
//! A pool can be opened to other devices; other memory of a device is out of their reach. Pools keep
//! nothing that was freed once the stream has come to the free. There are no arrays, and no profiler.
//!
//! Functions that neither this project nor its clients call are not simulated. Among them are those for
//! conditional nodes and nodes of events, changes of edges and of executables, tensor maps, managed
//! memory, copies of rows and slices, handles from other processes, and access between devices.
//!
//! # Limits
//!
//! The simulator is for tests of programs that use the driver API, as far as that is possible without
//! computing. It will not execute the instructions of kernels, time kernels as a GPU does, link device code
//! or model caches: a test says what its kernels do. It will not provide the tables behind
//! `cuGetExportTable`, so programs of CUDA's runtime, PyTorch among them, will not run on it. Arrays,
//! textures, graphics interoperability, mapped physical memory, checkpoints, and memory or events of other
//! processes will stay unsimulated.
//!
//! A function is simulated if green contexts, streams, events, graphs, memory or launches interact with it,
//! or if programs that are tested stop without it.
//!
//! # Example
//!
//! A green context of the first sixteen SMs, and what runs on it:
//!
//! ```
//! use green_ctx_sim::Sim;
//! use green_ctx_sys::{Api, CUdevResource, CUdevResourceType, CUresult};
//! use std::ptr::null_mut;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::new("h200@13.0")?;
//! // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`.
//! let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
//! // SAFETY: zero bytes are a resource of no type.
//! let (mut device, mut group) = unsafe { std::mem::zeroed::<(CUdevResource, CUdevResource)>() };
//! let (mut desc, mut green, mut stream, mut groups) = (null_mut(), null_mut(), null_mut(), 1);
//! let ok = |status| assert_eq!(status, CUresult::CUDA_SUCCESS);
//! // SAFETY: each pointer is to a local variable of the type that the function fills.
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
//!     ok(api.cuLibraryLoadData()?(&mut library, ptx.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0));
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

// Within the crate a module is found by its own name.
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
