//! The simulated C functions and their handlers.
//!
//! `generated.rs` lists every function that a driver of CUDA 13.5 exports, with its version and arguments.
//! This file has a handler for each simulated function. The variant of a function for the per-thread
//! default stream uses the same handler as the plain function. An older version of a function uses the
//! handler of the newest version, with null or zero for the arguments that the older version lacks.
//! `libcuda.so.1` exports all other functions too, but these return an error, and `cuGetProcAddress` does
//! not find them.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use green_ctx_sys::*;

use crate::launch::Shape;
use crate::library::Setting;
use crate::memory::copy::Unified;
use crate::pointer::{Argument, Ptr};
use crate::slot::SLOTS;
use crate::{
    callback, capture, context, created, device, error_text, event, graph, green, image, launch,
    library, memory, occupancy, proc_address, profiler, resource, slot, stream, unsimulated, work,
};

#[macro_use]
#[rustfmt::skip]
mod generated;

/// A special property of a function.
pub(crate) enum Mark {
    /// The function may be called before `cuInit`.
    Early,
    /// The function is "potentially unsafe" (cuda.h, `cuThreadExchangeStreamCaptureMode`). A capture in
    /// progress may forbid the call; the handler's own checks come later.
    Unsafe,
}

/// One version of a C function.
pub(crate) struct Function {
    /// The name without a version suffix.
    pub(crate) name: &'static str,
    /// The driver version that introduced this version of the function.
    pub(crate) version: u32,
    pub(crate) mark: Option<Mark>,
    /// Whether the null stream means the per-thread default stream.
    pub(crate) per_thread: bool,
    /// The address of the function for each slot; `None` if the function is not simulated.
    addresses: Option<[*const c_void; SLOTS]>,
}

// SAFETY: the pointers in `addresses` point to functions of this program, which every thread may call.
unsafe impl Sync for Function {}

impl Function {
    /// Returns whether the function has a handler.
    pub(crate) fn is_simulated(&self) -> bool {
        self.addresses.is_some()
    }

    /// Returns the address of the function for the driver of `slot`; null if the function is not simulated.
    pub(crate) fn address(&self, slot: usize) -> *mut c_void {
        self.addresses.map_or(std::ptr::null_mut(), |addresses| addresses[slot].cast_mut())
    }
}

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// Expands to an array with the trampoline `$name` of every slot.
macro_rules! every_slot {
    ($name:ident as $ty:ty) => {
        every_slot!($name as $ty: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    ($name:ident as $ty:ty: $($slot:literal)*) => {
        [$(trampolines::$name::<$slot> as $ty),*]
    };
}

/// Defines the macro `handler!`, which looks up the handler and the mark of a function. `handler!` calls
/// another macro with the handler and the mark, each in brackets, and with its own remaining arguments. If
/// the function has no handler, both brackets are empty. The first argument of `handlers!` is a dollar sign
/// for the patterns of `handler!`.
macro_rules! handlers {
    ($d:tt $($export:ident $($mark:ident)? => $handler:expr;)*) => {
        macro_rules! handler {
            $(($export $d then:ident $d($d rest:tt)*) => {
                $d then! { [$handler] [$($mark)?] $d($d rest)* }
            };)*
            ($d other:ident $d then:ident $d($d rest:tt)*) => {
                $d then! { [] [] $d($d rest)* }
            };
        }
    };
}

/// Defines the function that the trampolines of all slots call. This function passes the C arguments to the
/// handler.
macro_rules! entrance {
    ([$handler:expr] [$($mark:ident)?] $export:ident ($($arg:ident: $ty:ty),*)) => {
        pub unsafe fn $export(slot: usize, $($arg: $ty),*) -> CUresult {
            $(
                // SAFETY: the C caller promises that each pointer is null or valid as cuda.h requires for
                // this function. This promise is the requirement of `Argument::take`.
                let $arg = unsafe { Argument::take($arg) };
            )*
            slot::enter(slot, Id::$export as usize, move |driver| $handler(driver, $($arg),*))
        }
    };
    ([] [] $export:ident ($($arg:ident: $ty:ty),*)) => {
        pub unsafe fn $export(slot: usize, $(_: $ty),*) -> CUresult {
            slot::enter(slot, Id::$export as usize, unsimulated::refuse)
        }
    };
}

macro_rules! mark {
    () => {
        None
    };
    ($mark:ident) => {
        Some(Mark::$mark)
    };
}

/// Expands to the entry of a function in the table `FUNCTIONS`.
macro_rules! row {
    ([$handler:expr] [$($mark:ident)?] $export:ident $($row:tt)*) => {
        row! { $export $($row)* [$($mark)?] Some(every_slot!($export as *const c_void)) }
    };
    // A function without a handler refuses before `cuInit` too.
    ([] [] $($row:tt)*) => {
        row! { $($row)* [Early] None }
    };
    ($export:ident $plain:ident $name:literal $version:literal [$($mark:ident)?] $addresses:expr) => {
        Function {
            name: $name,
            version: $version,
            mark: mark!($($mark)?),
            per_thread: Id::$export as usize != Id::$plain as usize,
            addresses: $addresses,
        }
    };
}

macro_rules! functions {
    ($($export:ident: $plain:ident = $name:literal $version:literal ($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the names are those of the driver API")]
        enum Id { $($export),* }

        /// The functions that C code calls; each function exists once per slot.
        #[allow(dead_code, non_snake_case, clippy::too_many_arguments, reason = "names and parameters are those of the driver API, and not all functions are simulated")]
        mod trampolines {
            use super::*;

            $(
                pub(super) unsafe extern "C" fn $export<const SLOT: usize>($($arg: $ty),*) -> CUresult {
                    // SAFETY: the arguments are the caller's own, passed on unchanged, so the caller's
                    // promise holds for them.
                    unsafe { entrances::$export(SLOT, $($arg),*) }
                }
            )*
        }

        /// The functions that the trampolines of all slots call. Each of these functions passes the C
        /// arguments to a handler. A library that exports the driver API under the original names calls
        /// these functions. The simulator itself exports nothing, because a program that contains the
        /// simulator must not hide a real driver's functions.
        #[allow(missing_docs, non_snake_case, clippy::too_many_arguments, clippy::missing_safety_doc, reason = "the functions are those of the driver API, which documents them")]
        pub mod entrances {
            use super::*;

            $(handler! { $plain entrance $export ($($arg: $ty),*) })*
        }

        /// Every function that a driver exports.
        pub(crate) static FUNCTIONS: &[Function] =
            &[$(handler! { $plain row $export $plain $name $version }),*];
    };
}

/// Returns the `cuGetProcAddress` of the driver in `slot`.
pub(crate) fn get_proc_address(slot: usize) -> GetProcAddress {
    const ENTRIES: [GetProcAddress; SLOTS] = every_slot!(cuGetProcAddress_v2 as GetProcAddress);
    ENTRIES[slot]
}

handlers! {
    $
    cuInit Early => device::init;
    cuDriverGetVersion Early => device::driver_get_version;
    cuGetErrorName Early => error_text::get_name;
    cuGetErrorString Early => error_text::get_string;
    cuGetProcAddress Early => |driver, name, out, version, flags| {
        proc_address::get(driver, name, out, version, flags, None)
    };
    cuGetProcAddress_v2 Early => |driver, name, out, version, flags, status| {
        proc_address::get(driver, name, out, version, flags, Some(status))
    };
    cuGetExportTable Early => proc_address::get_export_table;

    cuDeviceGet => device::get;
    cuDeviceGetCount => device::get_count;
    cuDeviceGetName => device::get_name;
    cuDeviceGetUuid => device::get_uuid;
    cuDeviceGetUuid_v2 => device::get_uuid;
    cuDeviceTotalMem_v2 => device::total_mem;
    cuDeviceGetAttribute => device::get_attribute;
    cuDeviceGetPCIBusId => device::get_pci_bus_id;
    cuDeviceGetByPCIBusId => device::get_by_pci_bus_id;
    cuDeviceComputeCapability => device::compute_capability;
    cuDeviceGetProperties => device::get_properties;
    cuDeviceGetExecAffinitySupport => device::get_exec_affinity_support;
    cuDeviceGetDefaultMemPool => memory::pool::get_default;
    cuDeviceGetMemPool => memory::pool::get_current;
    cuDeviceGetDevResource => resource::of_device;

    cuDevicePrimaryCtxRetain => context::primary_retain;
    cuDevicePrimaryCtxRelease => context::primary_release;
    cuDevicePrimaryCtxReset => context::primary_reset;
    cuDevicePrimaryCtxRelease_v2 => context::primary_release;
    cuDevicePrimaryCtxGetState => context::primary_get_state;
    cuDevicePrimaryCtxReset_v2 => context::primary_reset;

    cuCtxCreate_v2 => created::create;
    cuCtxCreate_v3 => created::create_with_affinity;
    cuCtxCreate_v4 => created::create_with_params;
    cuCtxPushCurrent_v2 => context::push_current;
    cuCtxPopCurrent_v2 => context::pop_current;
    cuCtxSetCurrent => context::set_current;
    cuCtxGetCurrent => context::get_current;
    cuCtxGetDevice => context::get_device;
    cuCtxGetDevice_v2 => context::get_device_of;
    cuCtxGetFlags => context::get_flags;
    cuCtxSynchronize => context::synchronize;
    cuCtxSynchronize_v2 => context::synchronize_this;
    cuCtxGetStreamPriorityRange => context::get_stream_priority_range;
    cuCtxGetId => context::get_id;
    cuCtxDestroy_v2 => created::destroy;
    cuCtxRecordEvent => context::record_event;
    cuCtxWaitEvent => context::wait_event;
    cuCtxGetDevResource => context::get_dev_resource;
    cuCtxFromGreenCtx => green::to_context;

    cuGreenCtxCreate => green::create;
    cuGreenCtxDestroy => green::destroy;
    cuGreenCtxGetDevResource => context::get_dev_resource;
    cuGreenCtxRecordEvent => context::record_event;
    cuGreenCtxWaitEvent => context::wait_event;
    cuGreenCtxStreamCreate => green::stream_create;
    cuGreenCtxGetId => green::get_id;
    cuDevSmResourceSplitByCount => resource::split_by_count;
    cuDevSmResourceSplit => resource::split_structured;
    cuDevResourceGenerateDesc => resource::generate_desc;

    cuStreamCreate => |driver, out, flags| stream::create(driver, out, flags, 0);
    cuStreamCreateWithPriority => stream::create;
    cuStreamDestroy_v2 => stream::destroy;
    cuStreamQuery Unsafe => stream::query;
    cuStreamSynchronize Unsafe => stream::synchronize;
    cuStreamWaitEvent => stream::wait_event;
    cuStreamGetPriority => stream::get_priority;
    cuStreamGetFlags => stream::get_flags;
    cuStreamGetId => stream::get_id;
    cuStreamGetCtx => stream::get_ctx;
    cuStreamGetCtx_v2 => stream::get_ctx_v2;
    cuStreamGetGreenCtx => stream::get_green_ctx;
    cuStreamGetDevResource => stream::get_dev_resource;
    cuLaunchHostFunc => work::launch_host;
    // The version of 10.0. Its captures are all relaxed (recorded on hardware).
    cuStreamBeginCapture => |driver, stream| capture::begin(driver, stream, RELAXED);
    cuStreamBeginCapture_v2 => capture::begin;
    cuThreadExchangeStreamCaptureMode => capture::exchange_mode;
    cuStreamEndCapture => capture::end;
    cuStreamIsCapturing => capture::info::is_capturing;

    // The first version: the status and the capture's id.
    cuStreamGetCaptureInfo => |driver, stream, status, id| {
        capture::info::get(
            driver, stream, status, id, Ptr::null(), Ptr::null(), Ptr::null(), Ptr::null(),
        )
    };
    // Adds the graph and the dependencies of the next node.
    cuStreamGetCaptureInfo_v2 => |driver, stream, status, id, graph, after, count| {
        capture::info::get(driver, stream, status, id, graph, after, Ptr::null(), count)
    };
    // Adds the edge data.
    cuStreamGetCaptureInfo_v3 => capture::info::get;

    cuEventCreate => event::create;
    cuEventDestroy_v2 => event::destroy;
    cuEventRecord => event::record;
    cuEventQuery Unsafe => event::query;
    cuEventSynchronize Unsafe => event::synchronize;
    cuEventElapsedTime => event::elapsed_time;
    cuEventElapsedTime_v2 => event::elapsed_time;

    cuLibraryLoadData => |driver, out, code, jit, jit_values, jit_count, options, values, count| {
        let fetch = || image::for_library(code);
        library::load(driver, out, fetch, jit, jit_values, jit_count, options, values, count)
    };
    cuLibraryLoadFromFile => |driver, out, name, jit, jit_values, jit_count, options, values, count| {
        let fetch = || image::from_file(Ptr::c_str(&name)?);
        library::load(driver, out, fetch, jit, jit_values, jit_count, options, values, count)
    };
    cuLibraryUnload Unsafe => library::unload;
    cuLibraryGetKernel => library::get_kernel;
    cuLibraryGetKernelCount => library::get_kernel_count;
    cuKernelGetFunction => library::kernel_get_function;
    cuKernelGetAttribute => library::kernel_get_attribute;
    cuKernelSetAttribute => |driver, attribute, value, kernel, device| {
        library::kernel_set(driver, kernel, device, Setting::Attribute(attribute, value))
    };
    cuKernelGetParamInfo => library::kernel_get_param_info;
    cuKernelGetName => library::kernel_get_name;
    cuModuleLoadData => library::module_load_data;
    cuModuleUnload Unsafe => library::module_unload;
    cuModuleGetFunction => library::module_get_function;
    cuFuncGetAttribute => library::func_get_attribute;
    cuFuncSetAttribute => |driver, function, attribute, value| {
        library::func_set(driver, function, Setting::Attribute(attribute, value))
    };
    cuFuncSetCacheConfig => |driver, function, config| {
        library::func_set(driver, function, Setting::Cache(config))
    };
    cuFuncGetName => library::func_get_name;

    cuLaunchKernel => |driver, function, x, y, z, width, height, depth, bytes, stream, params, extra| {
        let shape = Shape::new([x, y, z], [width, height, depth], bytes, false);
        launch::launch(driver, function, shape, Ptr::address(stream), params, extra)
    };
    cuLaunchKernelEx => launch::extended;
    cuLaunchCooperativeKernel => |driver, function, x, y, z, width, height, depth, bytes, stream, params| {
        let shape = Shape::new([x, y, z], [width, height, depth], bytes, true);
        launch::launch(driver, function, shape, Ptr::address(stream), params, Ptr::null())
    };
    cuOccupancyMaxActiveBlocksPerMultiprocessor => |driver, out, function, block, bytes| {
        occupancy::max_active_blocks(driver, out, function, block, bytes, 0)
    };
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags => occupancy::max_active_blocks;
    cuOccupancyMaxPotentialBlockSize => |driver, grid, block, function, shared_of, bytes, limit| {
        occupancy::max_potential_block_size(
            driver, grid, block, function, shared_of, bytes, limit,
        )
    };
    cuOccupancyMaxPotentialClusterSize => occupancy::max_potential_cluster_size;
    cuOccupancyMaxActiveClusters => occupancy::max_active_clusters;

    cuMemAlloc_v2 Unsafe => memory::device::alloc;
    cuMemFree_v2 Unsafe => memory::device::free;
    cuMemAllocAsync => |driver, out, len, stream| {
        memory::pool::allocate(driver, out, len, None, stream)
    };
    cuMemAllocFromPoolAsync => |driver, out, len, pool, stream| {
        memory::pool::allocate(driver, out, len, Some(pool), stream)
    };
    cuMemFreeAsync => memory::device::free_async;
    cuMemGetInfo_v2 => memory::device::get_info;
    cuMemPoolCreate Unsafe => memory::pool::create;
    cuMemPoolDestroy Unsafe => memory::pool::destroy;
    cuMemPoolTrimTo Unsafe => memory::pool::trim_to;
    cuMemPoolGetAttribute Unsafe => memory::pool::get_attribute;
    cuMemPoolSetAttribute Unsafe => memory::pool::set_attribute;
    cuMemPoolSetAccess Unsafe => memory::pool::set_access;
    cuPointerGetAttribute => memory::pointer::get_attribute;
    cuPointerGetAttributes => memory::pointer::get_attributes;

    cuMemcpy => |driver, to, from, len| {
        memory::copy::at_once(driver, Unified(to), Unified(from), len)
    };
    cuMemcpyAsync => |driver, to, from, len, stream| {
        memory::copy::in_order(driver, Unified(to), Unified(from), len, stream)
    };
    cuMemcpyHtoD_v2 => memory::copy::at_once;
    cuMemcpyDtoH_v2 => memory::copy::at_once;
    cuMemcpyDtoD_v2 => memory::copy::at_once;
    cuMemcpyHtoDAsync_v2 => memory::copy::in_order;
    cuMemcpyDtoHAsync_v2 => memory::copy::in_order;
    cuMemcpyDtoDAsync_v2 => memory::copy::in_order;

    cuMemsetD8_v2 => memory::fill::at_once;
    cuMemsetD16_v2 => memory::fill::at_once;
    cuMemsetD32_v2 => memory::fill::at_once;
    cuMemsetD8Async => memory::fill::in_order;
    cuMemsetD16Async => memory::fill::in_order;
    cuMemsetD32Async => memory::fill::in_order;

    cuMemAllocHost_v2 Unsafe => |driver, out, len| memory::host::alloc(driver, out, len, 0);
    cuMemFreeHost Unsafe => memory::host::free;
    cuMemHostAlloc Unsafe => memory::host::alloc;
    cuMemHostRegister_v2 Unsafe => memory::host::register;
    cuMemHostUnregister Unsafe => memory::host::unregister;

    cuIpcGetMemHandle => memory::ipc::get_memory;

    cuProfilerStart Unsafe => profiler::start;
    cuProfilerStop Unsafe => profiler::stop;

    cuUserObjectCreate => graph::user_object::create;
    cuUserObjectRelease => graph::user_object::release;
    cuGraphRetainUserObject => graph::user_object::retain_from_graph;
    cuGraphReleaseUserObject => graph::user_object::release_from_graph;
    cuGraphCreate => graph::create;
    cuGraphDestroy => graph::destroy;
    cuGraphClone => graph::clone;
    cuGraphGetNodes => graph::get_nodes;
    cuGraphGetEdges => |driver, graph, from, to, count| {
        graph::edge::get_all(driver, graph, from, to, Ptr::null(), count)
    };
    cuGraphGetEdges_v2 => graph::edge::get_all;
    cuGraphNodeGetType => graph::node::get_type;
    cuGraphNodeGetParams => graph::generic::get_params;
    cuGraphAddKernelNode_v2 => graph::kind::add::<graph::kernel::Kernel>;
    cuGraphKernelNodeGetParams_v2 => graph::kind::get::<graph::kernel::Kernel>;
    cuGraphKernelNodeSetParams_v2 => graph::kind::set::<graph::kernel::Kernel>;
    cuGraphKernelNodeGetAttribute => graph::kernel::get_attribute;
    cuGraphKernelNodeSetAttribute => graph::kernel::set_attribute;
    cuGraphAddMemcpyNode => graph::kind::add_in::<graph::memcpy::Memcpy>;
    cuGraphMemcpyNodeGetParams => graph::kind::get::<graph::memcpy::Memcpy>;
    cuGraphMemcpyNodeSetParams => graph::kind::set::<graph::memcpy::Memcpy>;
    cuGraphAddMemsetNode => graph::kind::add_in::<graph::memset::Memset>;
    cuGraphMemsetNodeGetParams => graph::kind::get::<graph::memset::Memset>;
    cuGraphMemsetNodeSetParams => graph::kind::set::<graph::memset::Memset>;
    cuGraphAddHostNode => graph::kind::add::<callback::Callback>;
    cuGraphAddChildGraphNode => graph::kind::add::<graph::child::Child>;
    cuGraphChildGraphNodeGetGraph => graph::kind::get::<graph::child::Child>;
    cuGraphAddEmptyNode => graph::node::add_empty;
    cuGraphAddMemAllocNode => graph::kind::add::<graph::allocation::Allocate>;
    cuGraphAddMemFreeNode => graph::kind::add::<graph::allocation::Free>;

    cuGraphInstantiateWithFlags => graph::exec::instantiate;
    cuGraphInstantiateWithParams => graph::exec::instantiate_with_params;
    cuGraphUpload => graph::exec::upload;
    cuGraphLaunch => graph::launch::launch;
    cuGraphExecDestroy Unsafe => graph::exec::destroy;
}

driver_functions!(functions);
