//! The C functions: their names, versions and signatures, and the handlers behind them.
//!
//! Each line gives the name under which a library exports the function, its name without a version
//! suffix, the version that introduced this form of it, the type that `cudaTypedefs.h` has for it
//! where the bindings know it, and the handler. The compiler compares the signature with the type.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use green_ctx_sys::*;

use crate::pointer::Argument;
use crate::sim::GetProcAddress;
use crate::slot::SLOTS;
use crate::{
    attribute, callback, capture, context, created, device, error_text, event, graph, green,
    launch, library, memory, occupancy, peer, proc_address, profiler, resource, settings, slot,
    stream, unsimulated,
};

/// A C function, in the form of one version.
pub(crate) struct Function {
    /// The name without a version suffix.
    pub(crate) name: &'static str,
    /// The driver version that introduced this form.
    pub(crate) version: u32,
    /// Whether it may be called before `cuInit`.
    pub(crate) early: bool,
    /// Its address for each slot.
    addresses: [*const c_void; SLOTS],
}

// SAFETY: the addresses are those of functions, which any thread may call.
unsafe impl Sync for Function {}

impl Function {
    /// The function that finds the driver of `slot`.
    pub(crate) fn address(&self, slot: usize) -> *mut c_void {
        self.addresses[slot].cast_mut()
    }
}

/// The function `$name` for every slot.
macro_rules! every_slot {
    ($name:ident as $ty:ty) => {
        every_slot!($name as $ty: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    ($name:ident as $ty:ty: $($slot:literal)*) => {
        [$(trampolines::$name::<$slot> as $ty),*]
    };
}

macro_rules! early {
    (early) => {
        true
    };
    () => {
        false
    };
}

macro_rules! functions {
    ($(
        $export:ident = $name:literal $version:literal $($early:ident)? $([$type:ident])?
        ($($arg:ident: $ty:ty),* $(,)?) => $handler:path;
    )*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the names are the driver's own")]
        enum Id { $($export),* }

        /// The functions as C sees them, one for each slot.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the functions are the driver's own")]
        mod trampolines {
            use super::*;

            $(
                pub(super) unsafe extern "C" fn $export<const SLOT: usize>($($arg: $ty),*) -> CUresult {
                    // SAFETY: the arguments are passed on with the caller's promise about them.
                    unsafe { entrances::$export(SLOT, $($arg),*) }
                }
            )*
        }

        /// Behind the trampolines of all slots: from C's arguments to the handler's.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the functions are the driver's own")]
        mod entrances {
            use super::*;

            $(
                pub(super) unsafe fn $export(slot: usize, $($arg: $ty),*) -> CUresult {
                    $(
                        // SAFETY: the caller promises that its pointers are null or what the header
                        // says.
                        let $arg = unsafe { Argument::take($arg) };
                    )*
                    slot::enter(slot, Id::$export as usize, move |driver| $handler(driver, $($arg),*))
                }
            )*
        }

        /// The functions of one driver, for a library that exports them under their own names.
        #[doc(hidden)]
        #[allow(non_snake_case, clippy::too_many_arguments, clippy::missing_safety_doc, reason = "the functions are the driver's own")]
        pub mod exports {
            use super::*;

            $(
                pub unsafe fn $export(sim: &crate::Sim, $($arg: $ty),*) -> CUresult {
                    // SAFETY: the arguments are passed on with the caller's promise about them.
                    unsafe { entrances::$export(sim.slot(), $($arg),*) }
                }
            )*
        }

        /// Names every function to a macro `export` of the caller: the name under which a library
        /// exports it, its version, and its arguments. The simulator itself exports nothing, since
        /// a program that contains it must not hide a real driver's functions.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! for_each_export {
            () => { $(export! { $export $version ($($arg: $ty),*) })* };
        }

        $($(const _: $type = Some(trampolines::$export::<0>);)?)*

        /// Every function that the simulator has.
        pub(crate) static FUNCTIONS: &[Function] = &[$(
            Function {
                name: $name,
                version: $version,
                early: early!($($early)?),
                addresses: every_slot!($export as *const c_void),
            }
        ),*];
    };
}

/// The function through which the driver of `slot` gives out all others.
pub(crate) fn get_proc_address(slot: usize) -> GetProcAddress {
    const ENTRIES: [GetProcAddress; SLOTS] = every_slot!(cuGetProcAddress_v2 as GetProcAddress);
    ENTRIES[slot]
}

functions! {
    cuInit = "cuInit" 2000 early [PFN_cuInit_v2000] (flags: c_uint) => device::init;
    cuDriverGetVersion = "cuDriverGetVersion" 2020 early [PFN_cuDriverGetVersion_v2020] (out: *mut c_int) => device::driver_get_version;
    cuGetErrorName = "cuGetErrorName" 6000 early [PFN_cuGetErrorName_v6000] (status: CUresult, out: *mut *const c_char) => error_text::get_name;
    cuGetErrorString = "cuGetErrorString" 6000 early [PFN_cuGetErrorString_v6000] (status: CUresult, out: *mut *const c_char) => error_text::get_string;
    cuGetProcAddress = "cuGetProcAddress" 11030 early (name: *const c_char, out: *mut *mut c_void, version: c_int, flags: cuuint64_t) => proc_address::get;
    cuGetProcAddress_v2 = "cuGetProcAddress" 12000 early [PFN_cuGetProcAddress_v12000] (name: *const c_char, out: *mut *mut c_void, version: c_int, flags: cuuint64_t, status: *mut CUdriverProcAddressQueryResult) => proc_address::get_with_status;

    cuDeviceGet = "cuDeviceGet" 2000 [PFN_cuDeviceGet_v2000] (out: *mut CUdevice, ordinal: c_int) => device::get;
    cuDeviceGetCount = "cuDeviceGetCount" 2000 [PFN_cuDeviceGetCount_v2000] (out: *mut c_int) => device::get_count;
    cuDeviceGetName = "cuDeviceGetName" 2000 [PFN_cuDeviceGetName_v2000] (out: *mut c_char, len: c_int, device: CUdevice) => device::get_name;
    cuDeviceGetUuid = "cuDeviceGetUuid" 9020 (out: *mut CUuuid, device: CUdevice) => device::get_uuid;
    cuDeviceGetUuid_v2 = "cuDeviceGetUuid" 11040 [PFN_cuDeviceGetUuid_v11040] (out: *mut CUuuid, device: CUdevice) => device::get_uuid;
    cuDeviceTotalMem_v2 = "cuDeviceTotalMem" 3020 [PFN_cuDeviceTotalMem_v3020] (out: *mut usize, device: CUdevice) => device::total_mem;
    cuDeviceGetAttribute = "cuDeviceGetAttribute" 2000 [PFN_cuDeviceGetAttribute_v2000] (out: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) => device::get_attribute;
    cuDeviceGetPCIBusId = "cuDeviceGetPCIBusId" 4010 [PFN_cuDeviceGetPCIBusId_v4010] (out: *mut c_char, len: c_int, device: CUdevice) => device::get_pci_bus_id;
    cuDeviceGetByPCIBusId = "cuDeviceGetByPCIBusId" 4010 [PFN_cuDeviceGetByPCIBusId_v4010] (out: *mut CUdevice, id: *const c_char) => device::get_by_pci_bus_id;
    cuDeviceGetLuid = "cuDeviceGetLuid" 10000 (luid: *mut c_char, mask: *mut c_uint, device: CUdevice) => device::get_luid;
    cuDeviceComputeCapability = "cuDeviceComputeCapability" 2000 (major: *mut c_int, minor: *mut c_int, device: CUdevice) => device::compute_capability;
    cuDeviceGetProperties = "cuDeviceGetProperties" 2000 (out: *mut c_int, device: CUdevice) => device::get_properties;
    cuDeviceGetExecAffinitySupport = "cuDeviceGetExecAffinitySupport" 11040 (out: *mut c_int, kind: c_uint, device: CUdevice) => device::get_exec_affinity_support;
    cuDeviceCanAccessPeer = "cuDeviceCanAccessPeer" 4000 [PFN_cuDeviceCanAccessPeer_v4000] (out: *mut c_int, device: CUdevice, peer: CUdevice) => peer::can_access;
    cuDeviceGetDefaultMemPool = "cuDeviceGetDefaultMemPool" 11020 [PFN_cuDeviceGetDefaultMemPool_v11020] (out: *mut CUmemoryPool, device: CUdevice) => memory::pool::get_default;
    cuDeviceGetMemPool = "cuDeviceGetMemPool" 11020 [PFN_cuDeviceGetMemPool_v11020] (out: *mut CUmemoryPool, device: CUdevice) => memory::pool::get_current;
    cuDeviceSetMemPool = "cuDeviceSetMemPool" 11020 [PFN_cuDeviceSetMemPool_v11020] (device: CUdevice, pool: CUmemoryPool) => memory::pool::set_current;
    cuDeviceGetDevResource = "cuDeviceGetDevResource" 12040 [PFN_cuDeviceGetDevResource_v12040] (device: CUdevice, out: *mut CUdevResource, kind: CUdevResourceType) => resource::of_device;

    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" 7000 [PFN_cuDevicePrimaryCtxRetain_v7000] (out: *mut CUcontext, device: CUdevice) => context::primary_retain;
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease" 7000 (device: CUdevice) => context::primary_release;
    cuDevicePrimaryCtxSetFlags = "cuDevicePrimaryCtxSetFlags" 7000 (device: CUdevice, flags: c_uint) => settings::set_flags_of_inactive;
    cuDevicePrimaryCtxReset = "cuDevicePrimaryCtxReset" 7000 (device: CUdevice) => context::primary_reset;
    cuDevicePrimaryCtxRelease_v2 = "cuDevicePrimaryCtxRelease" 11000 [PFN_cuDevicePrimaryCtxRelease_v11000] (device: CUdevice) => context::primary_release;
    cuDevicePrimaryCtxSetFlags_v2 = "cuDevicePrimaryCtxSetFlags" 11000 [PFN_cuDevicePrimaryCtxSetFlags_v11000] (device: CUdevice, flags: c_uint) => context::primary_set_flags;
    cuDevicePrimaryCtxGetState = "cuDevicePrimaryCtxGetState" 7000 [PFN_cuDevicePrimaryCtxGetState_v7000] (device: CUdevice, flags: *mut c_uint, active: *mut c_int) => context::primary_get_state;
    cuDevicePrimaryCtxReset_v2 = "cuDevicePrimaryCtxReset" 11000 [PFN_cuDevicePrimaryCtxReset_v11000] (device: CUdevice) => context::primary_reset;

    cuCtxCreate_v2 = "cuCtxCreate" 3020 (out: *mut CUcontext, flags: c_uint, device: CUdevice) => created::create;
    cuCtxCreate_v3 = "cuCtxCreate" 11040 (out: *mut CUcontext, params: *mut c_void, count: c_int, flags: c_uint, device: CUdevice) => created::create_with_affinity;
    cuCtxCreate_v4 = "cuCtxCreate" 12050 (out: *mut CUcontext, params: *mut c_void, flags: c_uint, device: CUdevice) => created::create_with_params;
    cuCtxAttach = "cuCtxAttach" 2000 (out: *mut CUcontext, flags: c_uint) => created::attach;
    cuCtxDetach = "cuCtxDetach" 2000 (context: CUcontext) => created::detach;
    cuCtxPushCurrent_v2 = "cuCtxPushCurrent" 4000 [PFN_cuCtxPushCurrent_v4000] (context: CUcontext) => context::push_current;
    cuCtxPopCurrent_v2 = "cuCtxPopCurrent" 4000 [PFN_cuCtxPopCurrent_v4000] (out: *mut CUcontext) => context::pop_current;
    cuCtxSetCurrent = "cuCtxSetCurrent" 4000 [PFN_cuCtxSetCurrent_v4000] (context: CUcontext) => context::set_current;
    cuCtxGetCurrent = "cuCtxGetCurrent" 4000 [PFN_cuCtxGetCurrent_v4000] (out: *mut CUcontext) => context::get_current;
    cuCtxGetDevice = "cuCtxGetDevice" 2000 [PFN_cuCtxGetDevice_v2000] (out: *mut CUdevice) => context::get_device;
    cuCtxGetDevice_v2 = "cuCtxGetDevice" 13000 (out: *mut CUdevice, context: CUcontext) => context::get_device_of;
    cuCtxGetFlags = "cuCtxGetFlags" 7000 [PFN_cuCtxGetFlags_v7000] (out: *mut c_uint) => context::get_flags;
    cuCtxSetFlags = "cuCtxSetFlags" 12010 (flags: c_uint) => settings::set_flags;
    cuCtxSynchronize = "cuCtxSynchronize" 2000 [PFN_cuCtxSynchronize_v2000] () => context::synchronize;
    cuCtxSynchronize_v2 = "cuCtxSynchronize" 13000 (context: CUcontext) => context::synchronize_this;
    cuCtxGetLimit = "cuCtxGetLimit" 3010 [PFN_cuCtxGetLimit_v3010] (out: *mut usize, limit: CUlimit) => context::get_limit;
    cuCtxSetLimit = "cuCtxSetLimit" 3010 [PFN_cuCtxSetLimit_v3010] (limit: CUlimit, value: usize) => context::set_limit;
    cuCtxGetCacheConfig = "cuCtxGetCacheConfig" 3020 [PFN_cuCtxGetCacheConfig_v3020] (out: *mut CUfunc_cache) => context::get_cache_config;
    cuCtxSetCacheConfig = "cuCtxSetCacheConfig" 3020 [PFN_cuCtxSetCacheConfig_v3020] (config: CUfunc_cache) => context::set_cache_config;
    cuCtxGetSharedMemConfig = "cuCtxGetSharedMemConfig" 4020 (out: *mut c_uint) => settings::get_shared_memory_config;
    cuCtxSetSharedMemConfig = "cuCtxSetSharedMemConfig" 4020 (config: c_uint) => settings::set_shared_memory_config;
    cuCtxResetPersistingL2Cache = "cuCtxResetPersistingL2Cache" 11000 () => settings::reset_persisting_l2_cache;
    cuCtxGetExecAffinity = "cuCtxGetExecAffinity" 11040 (out: *mut c_void, kind: c_uint) => settings::get_exec_affinity;
    cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess" 4000 [PFN_cuCtxEnablePeerAccess_v4000] (peer: CUcontext, flags: c_uint) => peer::enable;
    cuCtxDisablePeerAccess = "cuCtxDisablePeerAccess" 4000 [PFN_cuCtxDisablePeerAccess_v4000] (peer: CUcontext) => peer::disable;
    cuCtxGetApiVersion = "cuCtxGetApiVersion" 3020 [PFN_cuCtxGetApiVersion_v3020] (context: CUcontext, out: *mut c_uint) => context::get_api_version;
    cuCtxGetStreamPriorityRange = "cuCtxGetStreamPriorityRange" 5050 [PFN_cuCtxGetStreamPriorityRange_v5050] (least: *mut c_int, greatest: *mut c_int) => context::get_stream_priority_range;
    cuCtxGetId = "cuCtxGetId" 12000 [PFN_cuCtxGetId_v12000] (context: CUcontext, out: *mut c_ulonglong) => context::get_id;
    cuCtxDestroy_v2 = "cuCtxDestroy" 4000 [PFN_cuCtxDestroy_v4000] (context: CUcontext) => created::destroy;
    cuCtxRecordEvent = "cuCtxRecordEvent" 12050 [PFN_cuCtxRecordEvent_v12050] (context: CUcontext, event: CUevent) => context::record_event;
    cuCtxWaitEvent = "cuCtxWaitEvent" 12050 [PFN_cuCtxWaitEvent_v12050] (context: CUcontext, event: CUevent) => context::wait_event;
    cuCtxGetDevResource = "cuCtxGetDevResource" 12040 [PFN_cuCtxGetDevResource_v12040] (context: CUcontext, out: *mut CUdevResource, kind: CUdevResourceType) => context::get_dev_resource;
    cuCtxFromGreenCtx = "cuCtxFromGreenCtx" 12040 [PFN_cuCtxFromGreenCtx_v12040] (out: *mut CUcontext, green: CUgreenCtx) => green::to_context;

    cuGreenCtxCreate = "cuGreenCtxCreate" 12040 [PFN_cuGreenCtxCreate_v12040] (out: *mut CUgreenCtx, desc: CUdevResourceDesc, device: CUdevice, flags: c_uint) => green::create;
    cuGreenCtxDestroy = "cuGreenCtxDestroy" 12040 [PFN_cuGreenCtxDestroy_v12040] (green: CUgreenCtx) => green::destroy;
    cuGreenCtxGetDevResource = "cuGreenCtxGetDevResource" 12040 [PFN_cuGreenCtxGetDevResource_v12040] (green: CUgreenCtx, out: *mut CUdevResource, kind: CUdevResourceType) => green::get_dev_resource;
    cuGreenCtxRecordEvent = "cuGreenCtxRecordEvent" 12040 [PFN_cuGreenCtxRecordEvent_v12040] (green: CUgreenCtx, event: CUevent) => green::record_event;
    cuGreenCtxWaitEvent = "cuGreenCtxWaitEvent" 12040 [PFN_cuGreenCtxWaitEvent_v12040] (green: CUgreenCtx, event: CUevent) => green::wait_event;
    cuGreenCtxStreamCreate = "cuGreenCtxStreamCreate" 12050 [PFN_cuGreenCtxStreamCreate_v12050] (out: *mut CUstream, green: CUgreenCtx, flags: c_uint, priority: c_int) => green::stream_create;
    cuGreenCtxGetId = "cuGreenCtxGetId" 12090 [PFN_cuGreenCtxGetId_v12090] (green: CUgreenCtx, out: *mut c_ulonglong) => green::get_id;
    cuDevSmResourceSplitByCount = "cuDevSmResourceSplitByCount" 12040 [PFN_cuDevSmResourceSplitByCount_v12040] (result: *mut CUdevResource, groups: *mut c_uint, input: *const CUdevResource, remaining: *mut CUdevResource, flags: c_uint, minimum: c_uint) => resource::split_by_count;
    cuDevSmResourceSplit = "cuDevSmResourceSplit" 13010 [PFN_cuDevSmResourceSplit_v13010] (result: *mut CUdevResource, groups: c_uint, input: *const CUdevResource, remainder: *mut CUdevResource, flags: c_uint, params: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS) => resource::split_structured;
    cuDevResourceGenerateDesc = "cuDevResourceGenerateDesc" 12040 [PFN_cuDevResourceGenerateDesc_v12040] (out: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: c_uint) => resource::generate_desc;

    cuStreamCreate = "cuStreamCreate" 2000 [PFN_cuStreamCreate_v2000] (out: *mut CUstream, flags: c_uint) => stream::create;
    cuStreamCreateWithPriority = "cuStreamCreateWithPriority" 5050 [PFN_cuStreamCreateWithPriority_v5050] (out: *mut CUstream, flags: c_uint, priority: c_int) => stream::create_with_priority;
    cuStreamDestroy_v2 = "cuStreamDestroy" 4000 [PFN_cuStreamDestroy_v4000] (stream: CUstream) => stream::destroy;
    cuStreamQuery = "cuStreamQuery" 2000 [PFN_cuStreamQuery_v2000] (stream: CUstream) => stream::query;
    cuStreamSynchronize = "cuStreamSynchronize" 2000 [PFN_cuStreamSynchronize_v2000] (stream: CUstream) => stream::synchronize;
    cuStreamWaitEvent = "cuStreamWaitEvent" 3020 [PFN_cuStreamWaitEvent_v3020] (stream: CUstream, event: CUevent, flags: c_uint) => stream::wait_event;
    cuStreamGetPriority = "cuStreamGetPriority" 5050 [PFN_cuStreamGetPriority_v5050] (stream: CUstream, out: *mut c_int) => stream::get_priority;
    cuStreamGetFlags = "cuStreamGetFlags" 5050 [PFN_cuStreamGetFlags_v5050] (stream: CUstream, out: *mut c_uint) => stream::get_flags;
    cuStreamGetId = "cuStreamGetId" 12000 [PFN_cuStreamGetId_v12000] (stream: CUstream, out: *mut c_ulonglong) => stream::get_id;
    cuStreamGetCtx = "cuStreamGetCtx" 9020 (stream: CUstream, out: *mut CUcontext) => stream::get_ctx;
    cuStreamGetCtx_v2 = "cuStreamGetCtx" 12050 [PFN_cuStreamGetCtx_v12050] (stream: CUstream, out: *mut CUcontext, green: *mut CUgreenCtx) => stream::get_ctx_v2;
    cuStreamGetGreenCtx = "cuStreamGetGreenCtx" 12040 [PFN_cuStreamGetGreenCtx_v12040] (stream: CUstream, out: *mut CUgreenCtx) => stream::get_green_ctx;
    cuStreamGetDevice = "cuStreamGetDevice" 12080 [PFN_cuStreamGetDevice_v12080] (stream: CUstream, out: *mut CUdevice) => stream::get_device;
    cuStreamGetDevResource = "cuStreamGetDevResource" 13010 [PFN_cuStreamGetDevResource_v13010] (stream: CUstream, out: *mut CUdevResource, kind: CUdevResourceType) => stream::get_dev_resource;
    cuStreamGetAttribute = "cuStreamGetAttribute" 11000 [PFN_cuStreamGetAttribute_v11000] (stream: CUstream, id: CUstreamAttrID, out: *mut CUstreamAttrValue_v1) => attribute::get;
    cuStreamSetAttribute = "cuStreamSetAttribute" 11000 [PFN_cuStreamSetAttribute_v11000] (stream: CUstream, id: CUstreamAttrID, value: *const CUstreamAttrValue_v1) => attribute::set;
    cuStreamCopyAttributes = "cuStreamCopyAttributes" 11000 [PFN_cuStreamCopyAttributes_v11000] (to: CUstream, from: CUstream) => attribute::copy;
    cuStreamAddCallback = "cuStreamAddCallback" 5000 [PFN_cuStreamAddCallback_v5000] (stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint) => callback::add;
    cuLaunchHostFunc = "cuLaunchHostFunc" 10000 [PFN_cuLaunchHostFunc_v10000] (stream: CUstream, function: CUhostFn, user_data: *mut c_void) => callback::launch;
    cuStreamWriteValue32 = "cuStreamWriteValue32" 8000 (stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => unsimulated::first_value_32;
    cuStreamWaitValue32 = "cuStreamWaitValue32" 8000 (stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => unsimulated::first_value_32;
    cuStreamWriteValue64 = "cuStreamWriteValue64" 9000 (stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => unsimulated::first_value_64;
    cuStreamWaitValue64 = "cuStreamWaitValue64" 9000 (stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => unsimulated::first_value_64;
    cuStreamWriteValue32_v2 = "cuStreamWriteValue32" 11070 [PFN_cuStreamWriteValue32_v11070] (stream: CUstream, to: CUdeviceptr, value: cuuint32_t, flags: c_uint) => memory::fill::write_value_32;
    cuStreamWriteValue64_v2 = "cuStreamWriteValue64" 11070 [PFN_cuStreamWriteValue64_v11070] (stream: CUstream, to: CUdeviceptr, value: cuuint64_t, flags: c_uint) => memory::fill::write_value_64;
    cuStreamWaitValue32_v2 = "cuStreamWaitValue32" 11070 [PFN_cuStreamWaitValue32_v11070] (stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => unsimulated::wait_value_32;
    cuStreamWaitValue64_v2 = "cuStreamWaitValue64" 11070 [PFN_cuStreamWaitValue64_v11070] (stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => unsimulated::wait_value_64;
    cuStreamBeginCapture = "cuStreamBeginCapture" 10000 (stream: CUstream) => capture::begin_global;
    cuStreamBeginCapture_v2 = "cuStreamBeginCapture" 10010 [PFN_cuStreamBeginCapture_v10010] (stream: CUstream, mode: CUstreamCaptureMode) => capture::begin;
    cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode" 10010 [PFN_cuThreadExchangeStreamCaptureMode_v10010] (mode: *mut CUstreamCaptureMode) => capture::exchange_mode;
    cuStreamEndCapture = "cuStreamEndCapture" 10000 [PFN_cuStreamEndCapture_v10000] (stream: CUstream, out: *mut CUgraph) => capture::end;
    cuStreamIsCapturing = "cuStreamIsCapturing" 10000 [PFN_cuStreamIsCapturing_v10000] (stream: CUstream, out: *mut CUstreamCaptureStatus) => capture::info::is_capturing;

    cuStreamGetCaptureInfo = "cuStreamGetCaptureInfo" 10010 (stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t) => capture::info::get;
    cuStreamGetCaptureInfo_v2 = "cuStreamGetCaptureInfo" 11030 (stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize) => capture::info::get_v2;
    cuStreamGetCaptureInfo_v3 = "cuStreamGetCaptureInfo" 12030 [PFN_cuStreamGetCaptureInfo_v12030] (stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize) => capture::info::get_v3;
    cuStreamBeginCaptureToGraph = "cuStreamBeginCaptureToGraph" 12030 [PFN_cuStreamBeginCaptureToGraph_v12030] (stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) => capture::begin_to_graph;
    cuStreamUpdateCaptureDependencies = "cuStreamUpdateCaptureDependencies" 11030 (stream: CUstream, dependencies: *mut CUgraphNode, count: usize, flags: c_uint) => capture::info::update_dependencies;
    cuStreamUpdateCaptureDependencies_v2 = "cuStreamUpdateCaptureDependencies" 12030 [PFN_cuStreamUpdateCaptureDependencies_v12030] (stream: CUstream, dependencies: *mut CUgraphNode, edges: *const CUgraphEdgeData, count: usize, flags: c_uint) => capture::info::update_dependencies_v2;

    cuEventCreate = "cuEventCreate" 2000 [PFN_cuEventCreate_v2000] (out: *mut CUevent, flags: c_uint) => event::create;
    cuEventDestroy_v2 = "cuEventDestroy" 4000 [PFN_cuEventDestroy_v4000] (event: CUevent) => event::destroy;
    cuEventRecord = "cuEventRecord" 2000 [PFN_cuEventRecord_v2000] (event: CUevent, stream: CUstream) => event::record;
    cuEventRecordWithFlags = "cuEventRecordWithFlags" 11010 [PFN_cuEventRecordWithFlags_v11010] (event: CUevent, stream: CUstream, flags: c_uint) => event::record_with_flags;
    cuEventQuery = "cuEventQuery" 2000 [PFN_cuEventQuery_v2000] (event: CUevent) => event::query;
    cuEventSynchronize = "cuEventSynchronize" 2000 [PFN_cuEventSynchronize_v2000] (event: CUevent) => event::synchronize;
    cuEventElapsedTime = "cuEventElapsedTime" 2000 [PFN_cuEventElapsedTime_v2000] (out: *mut f32, start: CUevent, end: CUevent) => event::elapsed_time;
    cuEventElapsedTime_v2 = "cuEventElapsedTime" 12080 (out: *mut f32, start: CUevent, end: CUevent) => event::elapsed_time;

    cuLibraryLoadData = "cuLibraryLoadData" 12000 [PFN_cuLibraryLoadData_v12000] (out: *mut CUlibrary, image: *const c_void, jit_options: *mut CUjit_option, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut CUlibraryOption, values: *mut *mut c_void, count: c_uint) => library::load;
    cuLibraryLoadFromFile = "cuLibraryLoadFromFile" 12000 [PFN_cuLibraryLoadFromFile_v12000] (out: *mut CUlibrary, name: *const c_char, jit_options: *mut CUjit_option, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut CUlibraryOption, values: *mut *mut c_void, count: c_uint) => library::load_from_file;
    cuLibraryUnload = "cuLibraryUnload" 12000 [PFN_cuLibraryUnload_v12000] (library: CUlibrary) => library::unload;
    cuLibraryGetKernel = "cuLibraryGetKernel" 12000 [PFN_cuLibraryGetKernel_v12000] (out: *mut CUkernel, library: CUlibrary, name: *const c_char) => library::get_kernel;
    cuLibraryGetKernelCount = "cuLibraryGetKernelCount" 12040 [PFN_cuLibraryGetKernelCount_v12040] (out: *mut c_uint, library: CUlibrary) => library::get_kernel_count;
    cuLibraryEnumerateKernels = "cuLibraryEnumerateKernels" 12040 [PFN_cuLibraryEnumerateKernels_v12040] (out: *mut CUkernel, count: c_uint, library: CUlibrary) => library::enumerate_kernels;
    cuLibraryGetModule = "cuLibraryGetModule" 12000 [PFN_cuLibraryGetModule_v12000] (out: *mut CUmodule, library: CUlibrary) => library::get_module;
    cuLibraryGetGlobal = "cuLibraryGetGlobal" 12000 [PFN_cuLibraryGetGlobal_v12000] (address: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) => library::get_global;
    cuKernelGetFunction = "cuKernelGetFunction" 12000 [PFN_cuKernelGetFunction_v12000] (out: *mut CUfunction, kernel: CUkernel) => library::kernel_get_function;
    cuKernelGetLibrary = "cuKernelGetLibrary" 12050 [PFN_cuKernelGetLibrary_v12050] (out: *mut CUlibrary, kernel: CUkernel) => library::kernel_get_library;
    cuKernelGetAttribute = "cuKernelGetAttribute" 12000 [PFN_cuKernelGetAttribute_v12000] (out: *mut c_int, attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice) => library::kernel_get_attribute;
    cuKernelSetAttribute = "cuKernelSetAttribute" 12000 [PFN_cuKernelSetAttribute_v12000] (attribute: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice) => library::kernel_set_attribute;
    cuKernelGetParamInfo = "cuKernelGetParamInfo" 12040 [PFN_cuKernelGetParamInfo_v12040] (kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize) => library::kernel_get_param_info;
    cuKernelGetName = "cuKernelGetName" 12030 [PFN_cuKernelGetName_v12030] (out: *mut *const c_char, kernel: CUkernel) => library::kernel_get_name;
    cuModuleLoad = "cuModuleLoad" 2000 [PFN_cuModuleLoad_v2000] (out: *mut CUmodule, name: *const c_char) => library::module_load;
    cuModuleLoadData = "cuModuleLoadData" 2000 [PFN_cuModuleLoadData_v2000] (out: *mut CUmodule, image: *const c_void) => library::module_load_data;
    cuModuleLoadDataEx = "cuModuleLoadDataEx" 2010 [PFN_cuModuleLoadDataEx_v2010] (out: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void) => library::module_load_data_ex;
    cuModuleLoadFatBinary = "cuModuleLoadFatBinary" 2000 [PFN_cuModuleLoadFatBinary_v2000] (out: *mut CUmodule, image: *const c_void) => library::module_load_data;
    cuModuleUnload = "cuModuleUnload" 2000 [PFN_cuModuleUnload_v2000] (module: CUmodule) => library::module_unload;
    cuModuleGetFunction = "cuModuleGetFunction" 2000 [PFN_cuModuleGetFunction_v2000] (out: *mut CUfunction, module: CUmodule, name: *const c_char) => library::module_get_function;
    cuModuleGetFunctionCount = "cuModuleGetFunctionCount" 12040 [PFN_cuModuleGetFunctionCount_v12040] (out: *mut c_uint, module: CUmodule) => library::module_get_function_count;
    cuModuleEnumerateFunctions = "cuModuleEnumerateFunctions" 12040 [PFN_cuModuleEnumerateFunctions_v12040] (out: *mut CUfunction, count: c_uint, module: CUmodule) => library::module_enumerate_functions;
    cuModuleGetGlobal_v2 = "cuModuleGetGlobal" 3020 [PFN_cuModuleGetGlobal_v3020] (address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char) => library::module_get_global;
    cuModuleGetLoadingMode = "cuModuleGetLoadingMode" 11070 [PFN_cuModuleGetLoadingMode_v11070] (out: *mut CUmoduleLoadingMode) => library::module_get_loading_mode;
    cuFuncGetAttribute = "cuFuncGetAttribute" 2020 [PFN_cuFuncGetAttribute_v2020] (out: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) => library::func_get_attribute;
    cuFuncSetAttribute = "cuFuncSetAttribute" 9000 [PFN_cuFuncSetAttribute_v9000] (function: CUfunction, attribute: CUfunction_attribute, value: c_int) => library::func_set_attribute;
    cuFuncGetName = "cuFuncGetName" 12030 [PFN_cuFuncGetName_v12030] (out: *mut *const c_char, function: CUfunction) => library::func_get_name;
    cuFuncGetModule = "cuFuncGetModule" 11000 [PFN_cuFuncGetModule_v11000] (out: *mut CUmodule, function: CUfunction) => library::func_get_module;
    cuFuncGetParamInfo = "cuFuncGetParamInfo" 12040 [PFN_cuFuncGetParamInfo_v12040] (function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) => library::func_get_param_info;
    cuFuncIsLoaded = "cuFuncIsLoaded" 12040 [PFN_cuFuncIsLoaded_v12040] (out: *mut CUfunctionLoadingState, function: CUfunction) => library::func_is_loaded;
    cuFuncLoad = "cuFuncLoad" 12040 [PFN_cuFuncLoad_v12040] (function: CUfunction) => library::func_load;

    cuLaunchKernel = "cuLaunchKernel" 4000 [PFN_cuLaunchKernel_v4000] (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::plain;
    cuLaunchKernelEx = "cuLaunchKernelEx" 11060 [PFN_cuLaunchKernelEx_v11060] (config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::extended;
    cuLaunchCooperativeKernel = "cuLaunchCooperativeKernel" 9000 [PFN_cuLaunchCooperativeKernel_v9000] (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void) => launch::cooperative;
    cuOccupancyMaxActiveBlocksPerMultiprocessor = "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 [PFN_cuOccupancyMaxActiveBlocksPerMultiprocessor_v6050] (out: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize) => occupancy::max_active_blocks;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 [PFN_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_v7000] (out: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize, flags: c_uint) => occupancy::max_active_blocks_with_flags;
    cuOccupancyMaxPotentialBlockSize = "cuOccupancyMaxPotentialBlockSize" 6050 [PFN_cuOccupancyMaxPotentialBlockSize_v6050] (grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of: CUoccupancyB2DSize, shared_bytes: usize, limit: c_int) => occupancy::max_potential_block_size;
    cuOccupancyMaxPotentialBlockSizeWithFlags = "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 [PFN_cuOccupancyMaxPotentialBlockSizeWithFlags_v7000] (grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of: CUoccupancyB2DSize, shared_bytes: usize, limit: c_int, flags: c_uint) => occupancy::max_potential_block_size_with_flags;
    cuOccupancyAvailableDynamicSMemPerBlock = "cuOccupancyAvailableDynamicSMemPerBlock" 10020 [PFN_cuOccupancyAvailableDynamicSMemPerBlock_v10020] (out: *mut usize, function: CUfunction, blocks: c_int, threads: c_int) => occupancy::available_dynamic_shared;
    cuOccupancyMaxPotentialClusterSize = "cuOccupancyMaxPotentialClusterSize" 11070 [PFN_cuOccupancyMaxPotentialClusterSize_v11070] (out: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) => occupancy::max_potential_cluster_size;
    cuOccupancyMaxActiveClusters = "cuOccupancyMaxActiveClusters" 11070 [PFN_cuOccupancyMaxActiveClusters_v11070] (out: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) => occupancy::max_active_clusters;

    cuMemAlloc_v2 = "cuMemAlloc" 3020 [PFN_cuMemAlloc_v3020] (out: *mut CUdeviceptr, len: usize) => memory::device::alloc;
    cuMemFree_v2 = "cuMemFree" 3020 [PFN_cuMemFree_v3020] (address: CUdeviceptr) => memory::device::free;
    cuMemGetAddressRange_v2 = "cuMemGetAddressRange" 3020 [PFN_cuMemGetAddressRange_v3020] (base: *mut CUdeviceptr, len: *mut usize, address: CUdeviceptr) => memory::device::get_address_range;
    cuMemAllocManaged = "cuMemAllocManaged" 6000 [PFN_cuMemAllocManaged_v6000] (out: *mut CUdeviceptr, len: usize, flags: c_uint) => memory::device::alloc_managed;
    cuMemAllocAsync = "cuMemAllocAsync" 11020 [PFN_cuMemAllocAsync_v11020] (out: *mut CUdeviceptr, len: usize, stream: CUstream) => memory::device::alloc_async;
    cuMemAllocFromPoolAsync = "cuMemAllocFromPoolAsync" 11020 [PFN_cuMemAllocFromPoolAsync_v11020] (out: *mut CUdeviceptr, len: usize, pool: CUmemoryPool, stream: CUstream) => memory::pool::alloc_async;
    cuMemFreeAsync = "cuMemFreeAsync" 11020 [PFN_cuMemFreeAsync_v11020] (address: CUdeviceptr, stream: CUstream) => memory::device::free_async;
    cuMemGetInfo_v2 = "cuMemGetInfo" 3020 [PFN_cuMemGetInfo_v3020] (free: *mut usize, total: *mut usize) => memory::device::get_info;
    cuMemPoolCreate = "cuMemPoolCreate" 11020 [PFN_cuMemPoolCreate_v11020] (out: *mut CUmemoryPool, props: *const CUmemPoolProps) => memory::pool::create;
    cuMemPoolDestroy = "cuMemPoolDestroy" 11020 [PFN_cuMemPoolDestroy_v11020] (pool: CUmemoryPool) => memory::pool::destroy;
    cuMemPoolTrimTo = "cuMemPoolTrimTo" 11020 [PFN_cuMemPoolTrimTo_v11020] (pool: CUmemoryPool, keep: usize) => memory::pool::trim_to;
    cuMemPoolGetAttribute = "cuMemPoolGetAttribute" 11020 [PFN_cuMemPoolGetAttribute_v11020] (pool: CUmemoryPool, attribute: CUmemPool_attribute, out: *mut c_void) => memory::pool::get_attribute;
    cuMemPoolSetAttribute = "cuMemPoolSetAttribute" 11020 [PFN_cuMemPoolSetAttribute_v11020] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) => memory::pool::set_attribute;
    cuMemPoolSetAccess = "cuMemPoolSetAccess" 11020 [PFN_cuMemPoolSetAccess_v11020] (pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) => memory::pool::set_access;
    cuMemPoolGetAccess = "cuMemPoolGetAccess" 11020 [PFN_cuMemPoolGetAccess_v11020] (out: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation) => memory::pool::get_access;
    cuPointerGetAttribute = "cuPointerGetAttribute" 4000 [PFN_cuPointerGetAttribute_v4000] (out: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr) => memory::pointer::get_attribute;
    cuPointerGetAttributes = "cuPointerGetAttributes" 7000 [PFN_cuPointerGetAttributes_v7000] (count: c_uint, attributes: *mut CUpointer_attribute, out: *mut *mut c_void, address: CUdeviceptr) => memory::pointer::get_attributes;
    cuPointerSetAttribute = "cuPointerSetAttribute" 6000 [PFN_cuPointerSetAttribute_v6000] (value: *const c_void, attribute: CUpointer_attribute, address: CUdeviceptr) => memory::pointer::set_attribute;

    cuMemcpy = "cuMemcpy" 4000 [PFN_cuMemcpy_v4000] (to: CUdeviceptr, from: CUdeviceptr, len: usize) => memory::copy::unified;
    cuMemcpyAsync = "cuMemcpyAsync" 4000 [PFN_cuMemcpyAsync_v4000] (to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream) => memory::copy::unified_async;
    cuMemcpyHtoD_v2 = "cuMemcpyHtoD" 3020 [PFN_cuMemcpyHtoD_v3020] (to: CUdeviceptr, from: *const c_void, len: usize) => memory::copy::to_device;
    cuMemcpyDtoH_v2 = "cuMemcpyDtoH" 3020 [PFN_cuMemcpyDtoH_v3020] (to: *mut c_void, from: CUdeviceptr, len: usize) => memory::copy::to_host;
    cuMemcpyDtoD_v2 = "cuMemcpyDtoD" 3020 [PFN_cuMemcpyDtoD_v3020] (to: CUdeviceptr, from: CUdeviceptr, len: usize) => memory::copy::on_device;
    cuMemcpyHtoDAsync_v2 = "cuMemcpyHtoDAsync" 3020 [PFN_cuMemcpyHtoDAsync_v3020] (to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream) => memory::copy::to_device_async;
    cuMemcpyDtoHAsync_v2 = "cuMemcpyDtoHAsync" 3020 [PFN_cuMemcpyDtoHAsync_v3020] (to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream) => memory::copy::to_host_async;
    cuMemcpyDtoDAsync_v2 = "cuMemcpyDtoDAsync" 3020 [PFN_cuMemcpyDtoDAsync_v3020] (to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream) => memory::copy::on_device_async;
    cuMemcpyPeer = "cuMemcpyPeer" 4000 [PFN_cuMemcpyPeer_v4000] (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, len: usize) => memory::copy::between;
    cuMemcpyPeerAsync = "cuMemcpyPeerAsync" 4000 [PFN_cuMemcpyPeerAsync_v4000] (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, len: usize, stream: CUstream) => memory::copy::between_async;
    cuMemcpy2D_v2 = "cuMemcpy2D" 3020 [PFN_cuMemcpy2D_v3020] (copy: *const CUDA_MEMCPY2D_st) => memory::copy::two_dimensional;
    cuMemcpy2DAsync_v2 = "cuMemcpy2DAsync" 3020 [PFN_cuMemcpy2DAsync_v3020] (copy: *const CUDA_MEMCPY2D_st, stream: CUstream) => memory::copy::two_dimensional_async;
    cuMemcpy3D_v2 = "cuMemcpy3D" 3020 [PFN_cuMemcpy3D_v3020] (copy: *const CUDA_MEMCPY3D_st) => memory::copy::three_dimensional;
    cuMemcpy3DAsync_v2 = "cuMemcpy3DAsync" 3020 [PFN_cuMemcpy3DAsync_v3020] (copy: *const CUDA_MEMCPY3D_st, stream: CUstream) => memory::copy::three_dimensional_async;

    cuMemsetD8_v2 = "cuMemsetD8" 3020 [PFN_cuMemsetD8_v3020] (to: CUdeviceptr, value: u8, count: usize) => memory::fill::d8;
    cuMemsetD16_v2 = "cuMemsetD16" 3020 [PFN_cuMemsetD16_v3020] (to: CUdeviceptr, value: u16, count: usize) => memory::fill::d16;
    cuMemsetD32_v2 = "cuMemsetD32" 3020 [PFN_cuMemsetD32_v3020] (to: CUdeviceptr, value: c_uint, count: usize) => memory::fill::d32;
    cuMemsetD8Async = "cuMemsetD8Async" 3020 [PFN_cuMemsetD8Async_v3020] (to: CUdeviceptr, value: u8, count: usize, stream: CUstream) => memory::fill::d8_async;
    cuMemsetD16Async = "cuMemsetD16Async" 3020 [PFN_cuMemsetD16Async_v3020] (to: CUdeviceptr, value: u16, count: usize, stream: CUstream) => memory::fill::d16_async;
    cuMemsetD32Async = "cuMemsetD32Async" 3020 [PFN_cuMemsetD32Async_v3020] (to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) => memory::fill::d32_async;
    cuMemsetD2D8Async = "cuMemsetD2D8Async" 3020 [PFN_cuMemsetD2D8Async_v3020] (to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) => memory::fill::d2d8_async;
    cuMemsetD2D16Async = "cuMemsetD2D16Async" 3020 [PFN_cuMemsetD2D16Async_v3020] (to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) => memory::fill::d2d16_async;
    cuMemsetD2D32Async = "cuMemsetD2D32Async" 3020 [PFN_cuMemsetD2D32Async_v3020] (to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream) => memory::fill::d2d32_async;

    cuMemAllocHost_v2 = "cuMemAllocHost" 3020 [PFN_cuMemAllocHost_v3020] (out: *mut *mut c_void, len: usize) => memory::host::alloc_host;
    cuMemFreeHost = "cuMemFreeHost" 2000 [PFN_cuMemFreeHost_v2000] (pointer: *mut c_void) => memory::host::free;
    cuMemHostAlloc = "cuMemHostAlloc" 2020 [PFN_cuMemHostAlloc_v2020] (out: *mut *mut c_void, len: usize, flags: c_uint) => memory::host::alloc;
    cuMemHostGetDevicePointer_v2 = "cuMemHostGetDevicePointer" 3020 [PFN_cuMemHostGetDevicePointer_v3020] (out: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) => memory::host::get_device_pointer;
    cuMemHostGetFlags = "cuMemHostGetFlags" 2030 [PFN_cuMemHostGetFlags_v2030] (out: *mut c_uint, pointer: *mut c_void) => memory::host::get_flags;
    cuMemHostRegister_v2 = "cuMemHostRegister" 6050 [PFN_cuMemHostRegister_v6050] (pointer: *mut c_void, len: usize, flags: c_uint) => memory::host::register;
    cuMemHostUnregister = "cuMemHostUnregister" 4000 [PFN_cuMemHostUnregister_v4000] (pointer: *mut c_void) => memory::host::unregister;

    cuIpcGetMemHandle = "cuIpcGetMemHandle" 4010 [PFN_cuIpcGetMemHandle_v4010] (out: *mut CUipcMemHandle_st, address: CUdeviceptr) => memory::ipc::get_memory;
    cuIpcOpenMemHandle_v2 = "cuIpcOpenMemHandle" 11000 [PFN_cuIpcOpenMemHandle_v11000] (out: *mut CUdeviceptr, handle: CUipcMemHandle_st, flags: c_uint) => memory::ipc::open_memory;
    cuIpcCloseMemHandle = "cuIpcCloseMemHandle" 4010 [PFN_cuIpcCloseMemHandle_v4010] (address: CUdeviceptr) => memory::ipc::close_memory;
    cuIpcGetEventHandle = "cuIpcGetEventHandle" 4010 [PFN_cuIpcGetEventHandle_v4010] (out: *mut CUipcEventHandle_st, event: CUevent) => memory::ipc::get_event;
    cuIpcOpenEventHandle = "cuIpcOpenEventHandle" 4010 [PFN_cuIpcOpenEventHandle_v4010] (out: *mut CUevent, handle: CUipcEventHandle_st) => memory::ipc::open_event;

    cuProfilerStart = "cuProfilerStart" 4000 [PFN_cuProfilerStart_v4000] () => profiler::start;
    cuProfilerStop = "cuProfilerStop" 4000 [PFN_cuProfilerStop_v4000] () => profiler::stop;

    cuUserObjectCreate = "cuUserObjectCreate" 11030 (out: *mut *mut c_void, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint) => graph::user_object::create;
    cuUserObjectRetain = "cuUserObjectRetain" 11030 (object: *mut c_void, count: c_uint) => graph::user_object::retain;
    cuUserObjectRelease = "cuUserObjectRelease" 11030 (object: *mut c_void, count: c_uint) => graph::user_object::release;
    cuGraphRetainUserObject = "cuGraphRetainUserObject" 11030 (graph: CUgraph, object: *mut c_void, count: c_uint, flags: c_uint) => graph::user_object::retain_from_graph;
    cuGraphReleaseUserObject = "cuGraphReleaseUserObject" 11030 (graph: CUgraph, object: *mut c_void, count: c_uint) => graph::user_object::release_from_graph;
    cuGraphCreate = "cuGraphCreate" 10000 [PFN_cuGraphCreate_v10000] (out: *mut CUgraph, flags: c_uint) => graph::create;
    cuGraphDestroy = "cuGraphDestroy" 10000 [PFN_cuGraphDestroy_v10000] (graph: CUgraph) => graph::destroy;
    cuGraphClone = "cuGraphClone" 10000 [PFN_cuGraphClone_v10000] (out: *mut CUgraph, original: CUgraph) => graph::clone;
    cuGraphNodeFindInClone = "cuGraphNodeFindInClone" 10000 [PFN_cuGraphNodeFindInClone_v10000] (out: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) => graph::find_in_clone;
    cuGraphGetNodes = "cuGraphGetNodes" 10000 [PFN_cuGraphGetNodes_v10000] (graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) => graph::get_nodes;
    cuGraphGetRootNodes = "cuGraphGetRootNodes" 10000 [PFN_cuGraphGetRootNodes_v10000] (graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) => graph::get_root_nodes;
    cuGraphGetEdges = "cuGraphGetEdges" 10000 (graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) => graph::edge::get_all_plain;
    cuGraphGetEdges_v2 = "cuGraphGetEdges" 12030 [PFN_cuGraphGetEdges_v12030] (graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize) => graph::edge::get_all;
    cuGraphNodeGetType = "cuGraphNodeGetType" 10000 [PFN_cuGraphNodeGetType_v10000] (node: CUgraphNode, out: *mut CUgraphNodeType) => graph::node::get_type;
    cuGraphNodeGetDependencies = "cuGraphNodeGetDependencies" 10000 (node: CUgraphNode, out: *mut CUgraphNode, count: *mut usize) => graph::edge::get_dependencies_plain;
    cuGraphNodeGetDependencies_v2 = "cuGraphNodeGetDependencies" 12030 [PFN_cuGraphNodeGetDependencies_v12030] (node: CUgraphNode, out: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize) => graph::edge::get_dependencies;
    cuGraphNodeGetDependentNodes = "cuGraphNodeGetDependentNodes" 10000 (node: CUgraphNode, out: *mut CUgraphNode, count: *mut usize) => graph::edge::get_dependents_plain;
    cuGraphNodeGetDependentNodes_v2 = "cuGraphNodeGetDependentNodes" 12030 [PFN_cuGraphNodeGetDependentNodes_v12030] (node: CUgraphNode, out: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize) => graph::edge::get_dependents;
    cuGraphAddDependencies = "cuGraphAddDependencies" 10000 (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) => graph::edge::add_plain;
    cuGraphAddDependencies_v2 = "cuGraphAddDependencies" 12030 [PFN_cuGraphAddDependencies_v12030] (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize) => graph::edge::add;
    cuGraphRemoveDependencies = "cuGraphRemoveDependencies" 10000 (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) => graph::edge::remove_plain;
    cuGraphRemoveDependencies_v2 = "cuGraphRemoveDependencies" 12030 [PFN_cuGraphRemoveDependencies_v12030] (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize) => graph::edge::remove;
    cuGraphDestroyNode = "cuGraphDestroyNode" 10000 [PFN_cuGraphDestroyNode_v10000] (node: CUgraphNode) => graph::node::destroy;
    cuGraphAddNode = "cuGraphAddNode" 12020 (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *mut CUgraphNodeParams) => graph::generic::add_plain;
    cuGraphAddNode_v2 = "cuGraphAddNode" 12030 [PFN_cuGraphAddNode_v12030] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams) => graph::generic::add;
    cuGraphNodeSetParams = "cuGraphNodeSetParams" 12020 [PFN_cuGraphNodeSetParams_v12020] (node: CUgraphNode, params: *mut CUgraphNodeParams) => graph::generic::set_params;
    cuGraphNodeGetParams = "cuGraphNodeGetParams" 13020 [PFN_cuGraphNodeGetParams_v13020] (node: CUgraphNode, out: *mut CUgraphNodeParams) => graph::generic::get_params;
    cuGraphAddKernelNode_v2 = "cuGraphAddKernelNode" 12000 [PFN_cuGraphAddKernelNode_v12000] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS_v2) => graph::kernel::add;
    cuGraphKernelNodeGetParams_v2 = "cuGraphKernelNodeGetParams" 12000 [PFN_cuGraphKernelNodeGetParams_v12000] (node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v2) => graph::kernel::get_params;
    cuGraphKernelNodeSetParams_v2 = "cuGraphKernelNodeSetParams" 12000 [PFN_cuGraphKernelNodeSetParams_v12000] (node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2) => graph::kernel::set_params;
    cuGraphKernelNodeGetAttribute = "cuGraphKernelNodeGetAttribute" 11000 [PFN_cuGraphKernelNodeGetAttribute_v11000] (node: CUgraphNode, id: CUkernelNodeAttrID, out: *mut CUkernelNodeAttrValue_v1) => graph::kernel::get_attribute;
    cuGraphKernelNodeSetAttribute = "cuGraphKernelNodeSetAttribute" 11000 [PFN_cuGraphKernelNodeSetAttribute_v11000] (node: CUgraphNode, id: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue_v1) => graph::kernel::set_attribute;
    cuGraphKernelNodeCopyAttributes = "cuGraphKernelNodeCopyAttributes" 11000 [PFN_cuGraphKernelNodeCopyAttributes_v11000] (to: CUgraphNode, from: CUgraphNode) => graph::kernel::copy_attributes;
    cuGraphAddMemcpyNode = "cuGraphAddMemcpyNode" 10000 [PFN_cuGraphAddMemcpyNode_v10000] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const CUDA_MEMCPY3D_v2, context: CUcontext) => graph::memcpy::add;
    cuGraphMemcpyNodeGetParams = "cuGraphMemcpyNodeGetParams" 10000 [PFN_cuGraphMemcpyNodeGetParams_v10000] (node: CUgraphNode, out: *mut CUDA_MEMCPY3D_v2) => graph::memcpy::get_params;
    cuGraphMemcpyNodeSetParams = "cuGraphMemcpyNodeSetParams" 10000 [PFN_cuGraphMemcpyNodeSetParams_v10000] (node: CUgraphNode, params: *const CUDA_MEMCPY3D_v2) => graph::memcpy::set_params;
    cuGraphAddMemsetNode = "cuGraphAddMemsetNode" 10000 [PFN_cuGraphAddMemsetNode_v10000] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const CUDA_MEMSET_NODE_PARAMS_v1, context: CUcontext) => graph::memset::add;
    cuGraphMemsetNodeGetParams = "cuGraphMemsetNodeGetParams" 10000 [PFN_cuGraphMemsetNodeGetParams_v10000] (node: CUgraphNode, out: *mut CUDA_MEMSET_NODE_PARAMS_v1) => graph::memset::get_params;
    cuGraphMemsetNodeSetParams = "cuGraphMemsetNodeSetParams" 10000 [PFN_cuGraphMemsetNodeSetParams_v10000] (node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS_v1) => graph::memset::set_params;
    cuGraphAddHostNode = "cuGraphAddHostNode" 10000 [PFN_cuGraphAddHostNode_v10000] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const CUDA_HOST_NODE_PARAMS_v1) => graph::host::add;
    cuGraphHostNodeGetParams = "cuGraphHostNodeGetParams" 10000 [PFN_cuGraphHostNodeGetParams_v10000] (node: CUgraphNode, out: *mut CUDA_HOST_NODE_PARAMS_v1) => graph::host::get_params;
    cuGraphHostNodeSetParams = "cuGraphHostNodeSetParams" 10000 [PFN_cuGraphHostNodeSetParams_v10000] (node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS_v1) => graph::host::set_params;
    cuGraphAddChildGraphNode = "cuGraphAddChildGraphNode" 10000 [PFN_cuGraphAddChildGraphNode_v10000] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, child: CUgraph) => graph::child::add;
    cuGraphChildGraphNodeGetGraph = "cuGraphChildGraphNodeGetGraph" 10000 [PFN_cuGraphChildGraphNodeGetGraph_v10000] (node: CUgraphNode, out: *mut CUgraph) => graph::child::get_graph;
    cuGraphAddEmptyNode = "cuGraphAddEmptyNode" 10000 [PFN_cuGraphAddEmptyNode_v10000] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize) => graph::node::add_empty;
    cuGraphAddEventRecordNode = "cuGraphAddEventRecordNode" 11010 [PFN_cuGraphAddEventRecordNode_v11010] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent) => graph::event::add_record;
    cuGraphEventRecordNodeGetEvent = "cuGraphEventRecordNodeGetEvent" 11010 [PFN_cuGraphEventRecordNodeGetEvent_v11010] (node: CUgraphNode, out: *mut CUevent) => graph::event::get_record;
    cuGraphEventRecordNodeSetEvent = "cuGraphEventRecordNodeSetEvent" 11010 [PFN_cuGraphEventRecordNodeSetEvent_v11010] (node: CUgraphNode, event: CUevent) => graph::event::set_record;
    cuGraphAddEventWaitNode = "cuGraphAddEventWaitNode" 11010 [PFN_cuGraphAddEventWaitNode_v11010] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent) => graph::event::add_wait;
    cuGraphEventWaitNodeGetEvent = "cuGraphEventWaitNodeGetEvent" 11010 [PFN_cuGraphEventWaitNodeGetEvent_v11010] (node: CUgraphNode, out: *mut CUevent) => graph::event::get_wait;
    cuGraphEventWaitNodeSetEvent = "cuGraphEventWaitNodeSetEvent" 11010 [PFN_cuGraphEventWaitNodeSetEvent_v11010] (node: CUgraphNode, event: CUevent) => graph::event::set_wait;
    cuGraphAddMemAllocNode = "cuGraphAddMemAllocNode" 11040 [PFN_cuGraphAddMemAllocNode_v11040] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) => graph::allocation::add;
    cuGraphMemAllocNodeGetParams = "cuGraphMemAllocNodeGetParams" 11040 [PFN_cuGraphMemAllocNodeGetParams_v11040] (node: CUgraphNode, out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) => graph::allocation::get_params;
    cuGraphAddMemFreeNode = "cuGraphAddMemFreeNode" 11040 [PFN_cuGraphAddMemFreeNode_v11040] (out: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, address: CUdeviceptr) => graph::allocation::add_free;
    cuGraphMemFreeNodeGetParams = "cuGraphMemFreeNodeGetParams" 11040 [PFN_cuGraphMemFreeNodeGetParams_v11040] (node: CUgraphNode, out: *mut CUdeviceptr) => graph::allocation::get_free_params;
    cuGraphConditionalHandleCreate = "cuGraphConditionalHandleCreate" 12030 [PFN_cuGraphConditionalHandleCreate_v12030] (out: *mut CUgraphConditionalHandle, graph: CUgraph, context: CUcontext, value: c_uint, flags: c_uint) => graph::conditional::create_handle;
    cuGraphDebugDotPrint = "cuGraphDebugDotPrint" 11030 [PFN_cuGraphDebugDotPrint_v11030] (graph: CUgraph, path: *const c_char, flags: c_uint) => graph::dot::print;

    cuGraphInstantiateWithFlags = "cuGraphInstantiateWithFlags" 11040 [PFN_cuGraphInstantiateWithFlags_v11040] (out: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) => graph::exec::instantiate;
    cuGraphInstantiateWithParams = "cuGraphInstantiateWithParams" 12000 [PFN_cuGraphInstantiateWithParams_v12000] (out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) => graph::exec::instantiate_with_params;
    cuGraphUpload = "cuGraphUpload" 11010 [PFN_cuGraphUpload_v11010] (exec: CUgraphExec, stream: CUstream) => graph::exec::upload;
    cuGraphLaunch = "cuGraphLaunch" 10000 [PFN_cuGraphLaunch_v10000] (exec: CUgraphExec, stream: CUstream) => graph::launch::launch;
    cuGraphExecDestroy = "cuGraphExecDestroy" 10000 [PFN_cuGraphExecDestroy_v10000] (exec: CUgraphExec) => graph::exec::destroy;
    cuGraphExecGetFlags = "cuGraphExecGetFlags" 12000 [PFN_cuGraphExecGetFlags_v12000] (exec: CUgraphExec, out: *mut cuuint64_t) => graph::exec::get_flags;
    cuGraphExecUpdate = "cuGraphExecUpdate" 10020 (exec: CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, result: *mut CUgraphExecUpdateResult) => graph::update::update_plain;
    cuGraphExecUpdate_v2 = "cuGraphExecUpdate" 12000 [PFN_cuGraphExecUpdate_v12000] (exec: CUgraphExec, graph: CUgraph, out: *mut CUgraphExecUpdateResultInfo) => graph::update::update;
    cuGraphExecNodeSetParams = "cuGraphExecNodeSetParams" 12020 [PFN_cuGraphExecNodeSetParams_v12020] (exec: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams) => graph::generic::set_exec_params;
    cuGraphExecKernelNodeSetParams_v2 = "cuGraphExecKernelNodeSetParams" 12000 [PFN_cuGraphExecKernelNodeSetParams_v12000] (exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2) => graph::exec::set_kernel;
    cuGraphExecMemcpyNodeSetParams = "cuGraphExecMemcpyNodeSetParams" 10020 [PFN_cuGraphExecMemcpyNodeSetParams_v10020] (exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMCPY3D_v2, context: CUcontext) => graph::exec::set_memcpy;
    cuGraphExecMemsetNodeSetParams = "cuGraphExecMemsetNodeSetParams" 10020 [PFN_cuGraphExecMemsetNodeSetParams_v10020] (exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS_v1, context: CUcontext) => graph::exec::set_memset;
    cuGraphExecHostNodeSetParams = "cuGraphExecHostNodeSetParams" 10020 [PFN_cuGraphExecHostNodeSetParams_v10020] (exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS_v1) => graph::exec::set_host;
    cuGraphExecChildGraphNodeSetParams = "cuGraphExecChildGraphNodeSetParams" 11010 [PFN_cuGraphExecChildGraphNodeSetParams_v11010] (exec: CUgraphExec, node: CUgraphNode, child: CUgraph) => graph::exec::set_child;
    cuGraphExecEventRecordNodeSetEvent = "cuGraphExecEventRecordNodeSetEvent" 11010 [PFN_cuGraphExecEventRecordNodeSetEvent_v11010] (exec: CUgraphExec, node: CUgraphNode, event: CUevent) => graph::exec::set_record;
    cuGraphExecEventWaitNodeSetEvent = "cuGraphExecEventWaitNodeSetEvent" 11010 [PFN_cuGraphExecEventWaitNodeSetEvent_v11010] (exec: CUgraphExec, node: CUgraphNode, event: CUevent) => graph::exec::set_wait;
    cuGraphNodeGetEnabled = "cuGraphNodeGetEnabled" 11060 [PFN_cuGraphNodeGetEnabled_v11060] (exec: CUgraphExec, node: CUgraphNode, out: *mut c_uint) => graph::exec::get_enabled;
    cuGraphNodeSetEnabled = "cuGraphNodeSetEnabled" 11060 [PFN_cuGraphNodeSetEnabled_v11060] (exec: CUgraphExec, node: CUgraphNode, enabled: c_uint) => graph::exec::set_enabled;

}
