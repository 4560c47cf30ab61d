//! The functions that programs call, with what their arguments are.

use super::function::Kind::*;
use super::function::Shape::*;
use super::function::{Function, Kind, Shape};
use super::params::*;

/// The function of this name.
///
/// # Panics
///
/// If there is none: the names are written in this folder.
pub(crate) fn function(export: &str) -> &'static Function {
    find(export).unwrap_or_else(|| panic!("no function {export}"))
}

/// The function of this name.
pub(crate) fn find(export: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.export == export)
}

const fn f(export: &'static str, version: u32, args: &'static [Shape]) -> Function {
    Function { export, version, args }
}

const DEVICE: Shape = Int(&[0], &[7, 0xffff_ffff]);
const ZERO: Shape = Int(&[0], &[1, 77]);
const ONE: Shape = Int(&[1], &[]);
const GRID: Shape = Int(&[1, 2], &[0]);
const BLOCK: Shape = Int(&[1, 32, 64], &[0, 4096]);
const SHARED: Shape = Int(&[0, 0, 64], &[0x1000_0000]);
const LENGTH: Shape = Int(&[1, 64, 256, 512], &[]);
const NONE: Shape = Made(nothing, &[]);
const AFTER: Shape = Made(after, &[]);
const FEW: Shape = Made(after_count, &[]);
const ROOM: Shape = Made(room, COUNT);
const NODES: Shape = Several(AnyNode, 8);
const PARAMS: Shape = Made(kernel_params, &[]);
const IMAGE: Shape = Text(&["image"], &["no code", ""]);
const PATH: Shape = Text(&["file"], &["/no/such/file"]);
const KERNEL: Shape = Text(
    &["params", "params", "params", "empty", "shared", "bounded", "clustered"],
    &["missing", ""],
);
const GLOBAL: Shape = Text(&["table"], &["missing", "empty"]);
const MODE: Shape = Int(&[2, 2, 2, 0, 1], &[3]);
/// Attributes of functions that can be read, and none.
const FUNCTION_ATTRIBUTE: Shape = Int(&[0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15], &[16, 99]);
const SET_ATTRIBUTE: Shape = Int(&[8, 9, 11, 12, 13, 14, 15], &[0, 1, 4, 99]);
const POOL_ATTRIBUTE: Shape = Int(&[1, 2, 3, 4, 6, 8], &[99]);
const SET_POOL_ATTRIBUTE: Shape = Int(&[1, 2, 3, 4], &[5, 99]);
const POINTER_ATTRIBUTE: Shape = Int(&[2, 4, 6, 8, 9, 14], &[0, 9999]);
/// Limits of a context; the one of the cache that persists is left alone.
const LIMIT: Shape = Int(&[0, 1, 2, 3, 4, 5], &[77]);
const LAUNCH_ATTRIBUTE: Shape = Int(&[2, 3, 4, 8], &[99]);
const STREAM_ATTRIBUTE: Shape = Int(&[3, 8], &[0, 99]);
const RESOURCE_KIND: Shape = Int(&[1], &[0, 5]);
/// Attributes of the device that are the same on each board of its kind.
const DEVICE_ATTRIBUTE: Shape = Int(
    &[
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 31, 32, 35, 38, 39, 40,
        41, 75, 76, 78, 79, 80, 81, 82, 83, 86, 87, 90, 91, 95, 96, 97, 106, 108, 109, 111, 115,
        120,
    ],
    &[0, 9999],
);

/// Every function that programs call.
pub(crate) static FUNCTIONS: &[Function] = &[
    f("cuInit", 2000, &[ZERO]),
    f("cuDriverGetVersion", 2020, &[Number(4)]),
    f("cuGetErrorName", 6000, &[Int(&[0, 1, 2, 201, 400, 709, 915], &[12345]), Name]),
    f("cuGetErrorString", 6000, &[Int(&[0, 1, 2, 201, 400, 709, 915], &[12345]), Name]),
    f(
        "cuGetProcAddress",
        11030,
        &[
            Text(&["cuInit", "cuMemAlloc"], &["cuNothing"]),
            Skip(8),
            Int(&[12000], &[1]),
            Int(&[0], &[64]),
        ],
    ),
    f(
        "cuGetProcAddress_v2",
        12000,
        &[
            Text(&["cuInit", "cuMemAlloc"], &["cuNothing"]),
            Skip(8),
            Int(&[12000], &[1]),
            Int(&[0], &[64]),
            Number(4),
        ],
    ),
    f("cuDeviceGet", 2000, &[Number(4), DEVICE]),
    f("cuDeviceGetCount", 2000, &[Skip(4)]),
    f("cuDeviceGetName", 2000, &[Skip(64), Int(&[64], &[0]), DEVICE]),
    f("cuDeviceGetUuid", 9020, &[Skip(16), DEVICE]),
    f("cuDeviceGetUuid_v2", 11040, &[Skip(16), DEVICE]),
    f("cuDeviceTotalMem_v2", 3020, &[Skip(8), DEVICE]),
    f("cuDeviceGetAttribute", 2000, &[Number(4), DEVICE_ATTRIBUTE, DEVICE]),
    f("cuDeviceGetPCIBusId", 4010, &[Skip(64), Int(&[64], &[0]), DEVICE]),
    f("cuDeviceGetByPCIBusId", 4010, &[Number(4), Text(&["no bus"], &["ffff:ff:ff.0"])]),
    f("cuDeviceGetLuid", 10000, &[Skip(16), Skip(4), DEVICE]),
    f("cuDeviceComputeCapability", 2000, &[Number(4), Number(4), DEVICE]),
    f("cuDeviceGetProperties", 2000, &[Skip(64), DEVICE]),
    f("cuDeviceGetExecAffinitySupport", 11040, &[Number(4), ZERO, DEVICE]),
    f("cuDeviceGetDefaultMemPool", 11020, &[New(DefaultPool), DEVICE]),
    f("cuDeviceGetMemPool", 11020, &[Find(AnyPool), DEVICE]),
    f("cuDeviceSetMemPool", 11020, &[DEVICE, Lasting(AnyPool)]),
    f("cuDeviceGetDevResource", 12040, &[DEVICE, Resources(Whole, 1), RESOURCE_KIND]),
    f("cuDevicePrimaryCtxRetain", 7000, &[New(Primary), DEVICE]),
    f("cuDevicePrimaryCtxRelease", 7000, &[DEVICE]),
    f("cuDevicePrimaryCtxRelease_v2", 11000, &[DEVICE]),
    f("cuDevicePrimaryCtxSetFlags", 7000, &[DEVICE, Int(&[0, 1, 4], &[99])]),
    f("cuDevicePrimaryCtxSetFlags_v2", 11000, &[DEVICE, Int(&[0, 1, 4], &[99])]),
    f("cuDevicePrimaryCtxGetState", 7000, &[DEVICE, Number(4), Number(4)]),
    f("cuCtxCreate_v2", 3020, &[New(Created), Int(&[0, 1, 4], &[7, 0x1000]), DEVICE]),
    f("cuCtxCreate_v3", 11040, &[New(Created), NONE, Int(&[0], &[]), Int(&[0], &[0x1000]), DEVICE]),
    f("cuCtxCreate_v4", 12050, &[New(Created), NONE, Int(&[0], &[0x1000]), DEVICE]),
    f("cuCtxAttach", 2000, &[New(Attached), ZERO]),
    f("cuCtxDetach", 2000, &[Take(Attached)]),
    f("cuCtxPushCurrent_v2", 4000, &[In(Context)]),
    f("cuCtxPopCurrent_v2", 4000, &[Find(Context)]),
    f("cuCtxSetCurrent", 4000, &[In(Context)]),
    f("cuCtxGetCurrent", 4000, &[Find(Context)]),
    f("cuCtxGetDevice", 2000, &[Number(4)]),
    f("cuCtxGetDevice_v2", 13000, &[Number(4), In(Context)]),
    f("cuCtxGetFlags", 7000, &[Number(4)]),
    f("cuCtxSetFlags", 12010, &[Int(&[0, 1, 4], &[99])]),
    f("cuCtxSynchronize", 2000, &[]),
    f("cuCtxSynchronize_v2", 13000, &[In(Context)]),
    f("cuCtxGetLimit", 3010, &[Number(8), LIMIT]),
    f("cuCtxSetLimit", 3010, &[Int(&[0, 5], &[77]), Int(&[1024, 2048], &[])]),
    f("cuCtxGetCacheConfig", 3020, &[Number(4)]),
    f("cuCtxSetCacheConfig", 3020, &[Int(&[0, 1, 2, 3], &[9])]),
    f("cuCtxGetSharedMemConfig", 4020, &[Number(4)]),
    f("cuCtxSetSharedMemConfig", 4020, &[Int(&[0, 1, 2], &[9])]),
    f("cuCtxResetPersistingL2Cache", 11000, &[]),
    f("cuCtxGetExecAffinity", 11040, &[Fields(16, &[]), ZERO]),
    f("cuCtxGetApiVersion", 3020, &[In(Context), Number(4)]),
    f("cuCtxGetStreamPriorityRange", 5050, &[Number(4), Number(4)]),
    f("cuCtxGetId", 12000, &[In(Context), Skip(8)]),
    f("cuCtxDestroy_v2", 4000, &[Take(Created)]),
    f("cuCtxRecordEvent", 12050, &[In(Context), In(Event)]),
    f("cuCtxWaitEvent", 12050, &[In(Context), In(Event)]),
    f("cuCtxGetDevResource", 12040, &[In(Context), Resources(Whole, 1), RESOURCE_KIND]),
    f("cuCtxFromGreenCtx", 12040, &[New(Derived), In(Green)]),
    f("cuGreenCtxCreate", 12040, &[New(Green), In(Descriptor), DEVICE, Int(&[1], &[0, 2])]),
    f("cuGreenCtxDestroy", 12040, &[Take(Green)]),
    f("cuGreenCtxGetDevResource", 12040, &[In(Green), Resources(Whole, 1), RESOURCE_KIND]),
    f("cuGreenCtxRecordEvent", 12040, &[In(Green), In(Event)]),
    f("cuGreenCtxWaitEvent", 12040, &[In(Green), In(Event)]),
    f(
        "cuGreenCtxStreamCreate",
        12050,
        &[New(Kind::Stream), In(Green), Int(&[1], &[0, 2]), Int(&[0, 0xffff_ffff, 9], &[])],
    ),
    f("cuGreenCtxGetId", 12090, &[In(Green), Skip(8)]),
    f(
        "cuDevSmResourceSplitByCount",
        12040,
        &[
            Resources(Group, 3),
            Made(groups, GROUPS),
            In(Whole),
            Resources(Group, 1),
            Int(&[0], &[1, 3, 0x100]),
            Int(&[8, 16, 24, 17], &[133, 1000]),
        ],
    ),
    f(
        "cuDevSmResourceSplit",
        13010,
        &[
            Fields(RESOURCE, SMS),
            ONE,
            In(Whole),
            Fields(RESOURCE, SMS),
            Int(&[0], &[9]),
            Made(group_params, &[]),
        ],
    ),
    f("cuDevResourceGenerateDesc", 12040, &[New(Descriptor), Made(resources, &[]), ONE]),
    f("cuStreamCreate", 2000, &[New(Kind::Stream), Int(&[0, 1], &[2, 0x100])]),
    f(
        "cuStreamCreateWithPriority",
        5050,
        &[New(Kind::Stream), Int(&[0, 1], &[2]), Int(&[0, 0xffff_ffff, 0xffff_fff0, 5], &[])],
    ),
    f("cuStreamDestroy_v2", 4000, &[Take(Kind::Stream)]),
    f("cuStreamQuery", 2000, &[Shape::Stream]),
    f("cuStreamSynchronize", 2000, &[Shape::Stream]),
    f("cuStreamWaitEvent", 3020, &[Shape::Stream, Lasting(Event), Int(&[0, 0, 1], &[9])]),
    f("cuStreamGetPriority", 5050, &[Shape::Stream, Number(4)]),
    f("cuStreamGetFlags", 5050, &[Shape::Stream, Number(4)]),
    f("cuStreamGetId", 12000, &[Shape::Stream, Skip(8)]),
    f("cuStreamGetCtx", 9020, &[Shape::Stream, Find(Context)]),
    f("cuStreamGetCtx_v2", 12050, &[Shape::Stream, Find(Context), Find(Green)]),
    f("cuStreamGetGreenCtx", 12040, &[Shape::Stream, Find(Green)]),
    f("cuStreamGetDevice", 12080, &[Shape::Stream, Number(4)]),
    f("cuStreamGetDevResource", 13010, &[Shape::Stream, Fields(RESOURCE, SMS), RESOURCE_KIND]),
    f("cuStreamGetAttribute", 11000, &[Shape::Stream, STREAM_ATTRIBUTE, Fields(64, &[])]),
    f("cuStreamSetAttribute", 11000, &[Shape::Stream, STREAM_ATTRIBUTE, Made(value, &[])]),
    f("cuStreamCopyAttributes", 11000, &[Shape::Stream, Shape::Stream]),
    f("cuStreamAddCallback", 5000, &[Shape::Stream, Made(stream_callback, &[]), NONE, ZERO]),
    f(
        "cuLaunchHostFunc_v2",
        13010,
        &[Shape::Stream, Made(host_function, &[]), NONE, Int(&[0], &[9])],
    ),
    f("cuLaunchHostFunc", 10000, &[Shape::Stream, Made(host_function, &[]), NONE]),
    f(
        "cuStreamWriteValue32_v2",
        11070,
        &[Shape::Stream, Lasting(Memory), Int(&[0, 7], &[]), Int(&[0, 1], &[9])],
    ),
    f(
        "cuStreamWriteValue64_v2",
        11070,
        &[Shape::Stream, Lasting(Memory), Int(&[0, 7], &[]), Int(&[0, 1], &[9])],
    ),
    f("cuStreamBeginCapture", 10000, &[Idle]),
    f("cuStreamBeginCapture_v2", 10010, &[Idle, MODE]),
    f("cuThreadExchangeStreamCaptureMode", 10010, &[Made(capture_mode, GROUPS)]),
    f("cuStreamEndCapture", 10000, &[Shape::Stream, New(Graph)]),
    f("cuStreamIsCapturing", 10000, &[Shape::Stream, Number(4)]),
    f("cuStreamGetCaptureInfo", 10010, &[Shape::Stream, Number(4), Skip(8)]),
    f(
        "cuStreamGetCaptureInfo_v2",
        11030,
        &[Shape::Stream, Number(4), Skip(8), Skip(8), Skip(8), Skip(8)],
    ),
    f(
        "cuStreamGetCaptureInfo_v3",
        12030,
        &[Shape::Stream, Number(4), Skip(8), Skip(8), Skip(8), Skip(8), Skip(8)],
    ),
    f("cuStreamBeginCaptureToGraph", 12030, &[Idle, In(Graph), NONE, NONE, Int(&[0], &[]), MODE]),
    f("cuStreamUpdateCaptureDependencies", 11030, &[Shape::Stream, AFTER, FEW, Int(&[0, 1], &[9])]),
    f(
        "cuStreamUpdateCaptureDependencies_v2",
        12030,
        &[Shape::Stream, AFTER, NONE, FEW, Int(&[0, 1], &[9])],
    ),
    f("cuEventCreate", 2000, &[New(Event), Int(&[0, 0, 0, 1, 2, 3], &[4, 0x100])]),
    f("cuEventDestroy_v2", 4000, &[Take(Event)]),
    f("cuEventRecord", 2000, &[In(Event), Shape::Stream]),
    f("cuEventRecordWithFlags", 11010, &[Lasting(Event), Shape::Stream, Int(&[0, 0, 1], &[9])]),
    f("cuEventQuery", 2000, &[In(Event)]),
    f("cuEventSynchronize", 2000, &[In(Event)]),
    f("cuEventElapsedTime", 2000, &[Skip(4), In(Event), In(Event)]),
    f("cuEventElapsedTime_v2", 12080, &[Skip(4), In(Event), In(Event)]),
    f(
        "cuLibraryLoadData",
        12000,
        &[New(Library), IMAGE, NONE, NONE, Int(&[0], &[]), NONE, NONE, Int(&[0], &[])],
    ),
    f(
        "cuLibraryLoadFromFile",
        12000,
        &[New(Library), PATH, NONE, NONE, Int(&[0], &[]), NONE, NONE, Int(&[0], &[])],
    ),
    f("cuLibraryUnload", 12000, &[Take(Library)]),
    f("cuLibraryGetKernel", 12000, &[New(Kernel), In(Library), KERNEL]),
    f("cuLibraryGetKernelCount", 12040, &[Number(4), In(Library)]),
    f("cuLibraryEnumerateKernels", 12040, &[Several(Kernel, 2), Int(&[0, 2], &[]), In(Library)]),
    f("cuLibraryGetModule", 12000, &[New(LibraryModule), In(Library)]),
    f("cuLibraryGetGlobal", 12000, &[Skip(8), Number(8), In(Library), GLOBAL]),
    f("cuKernelGetFunction", 12000, &[New(Kind::Function), In(Kernel)]),
    f("cuKernelGetLibrary", 12050, &[Find(Library), In(Kernel)]),
    f("cuKernelGetAttribute", 12000, &[Number(4), FUNCTION_ATTRIBUTE, In(Kernel), DEVICE]),
    f(
        "cuKernelSetAttribute",
        12000,
        &[SET_ATTRIBUTE, Int(&[0, 1, 64], &[0xffff_ffff]), In(Kernel), DEVICE],
    ),
    f("cuKernelGetParamInfo", 12040, &[In(Kernel), Int(&[0], &[9]), Number(8), Number(8)]),
    f("cuKernelGetName", 12030, &[Name, In(Kernel)]),
    f("cuModuleLoad", 2000, &[New(Module), PATH]),
    f("cuModuleLoadData", 2000, &[New(Module), IMAGE]),
    f("cuModuleLoadDataEx", 2010, &[New(Module), IMAGE, Int(&[0], &[]), NONE, NONE]),
    f("cuModuleLoadFatBinary", 2000, &[New(Module), IMAGE]),
    f("cuModuleUnload", 2000, &[Take(Module)]),
    f("cuModuleGetFunction", 2000, &[New(Kind::Function), In(AnyModule), KERNEL]),
    f("cuModuleGetFunctionCount", 12040, &[Number(4), In(AnyModule)]),
    f(
        "cuModuleEnumerateFunctions",
        12040,
        &[Several(Kind::Function, 2), Int(&[0, 2], &[]), In(AnyModule)],
    ),
    f("cuModuleGetGlobal_v2", 3020, &[Skip(8), Number(8), In(AnyModule), GLOBAL]),
    f("cuModuleGetLoadingMode", 11070, &[Number(4)]),
    f("cuFuncGetAttribute", 2020, &[Number(4), FUNCTION_ATTRIBUTE, In(Kind::Function)]),
    f(
        "cuFuncSetAttribute",
        9000,
        &[In(Kind::Function), SET_ATTRIBUTE, Int(&[0, 1, 64], &[0xffff_ffff])],
    ),
    f("cuFuncGetName", 12030, &[Name, In(Kind::Function)]),
    f("cuFuncGetModule", 11000, &[Find(AnyModule), In(Kind::Function)]),
    f("cuFuncGetParamInfo", 12040, &[In(Kind::Function), Int(&[0], &[9]), Number(8), Number(8)]),
    f("cuFuncIsLoaded", 12040, &[Number(4), In(Kind::Function)]),
    f("cuFuncSetCacheConfig", 3000, &[In(Kind::Function), Int(&[0, 1, 2, 3], &[9])]),
    f("cuFuncSetSharedMemConfig", 4020, &[In(Kind::Function), Int(&[0, 1, 2], &[9])]),
    f("cuKernelSetCacheConfig", 12000, &[In(Kernel), Int(&[0, 1, 2, 3], &[9]), DEVICE]),
    f("cuFuncLoad", 12040, &[In(Kind::Function)]),
    f(
        "cuLaunchKernel",
        4000,
        &[
            Lasting(Launchable),
            GRID,
            ONE,
            ONE,
            BLOCK,
            ONE,
            ONE,
            SHARED,
            Shape::Stream,
            PARAMS,
            NONE,
        ],
    ),
    f("cuLaunchKernelEx", 11060, &[Made(launch_config, &[]), Lasting(Launchable), PARAMS, NONE]),
    f(
        "cuLaunchCooperativeKernel",
        9000,
        &[Lasting(Launchable), GRID, ONE, ONE, BLOCK, ONE, ONE, SHARED, Shape::Stream, PARAMS],
    ),
    f(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        6050,
        &[Number(4), In(Launchable), BLOCK, Int(&[0, 1024], &[0x1000_0000])],
    ),
    f(
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        7000,
        &[Number(4), In(Launchable), BLOCK, Int(&[0, 1024], &[0x1000_0000]), Int(&[0, 1], &[9])],
    ),
    f(
        "cuOccupancyMaxPotentialBlockSize",
        6050,
        &[Number(4), Number(4), In(Launchable), NONE, Int(&[0, 1024], &[]), Int(&[0, 256], &[])],
    ),
    f(
        "cuOccupancyMaxPotentialBlockSizeWithFlags",
        7000,
        &[
            Number(4),
            Number(4),
            In(Launchable),
            NONE,
            Int(&[0, 1024], &[]),
            Int(&[0, 256], &[]),
            Int(&[0, 1], &[9]),
        ],
    ),
    f(
        "cuOccupancyAvailableDynamicSMemPerBlock",
        10020,
        &[Number(8), In(Launchable), Int(&[1, 2], &[0, 1000]), BLOCK],
    ),
    f(
        "cuOccupancyMaxPotentialClusterSize",
        11070,
        &[Number(4), In(Launchable), Made(cluster_config, &[])],
    ),
    f(
        "cuOccupancyMaxActiveClusters",
        11070,
        &[Number(4), In(Launchable), Made(cluster_config, &[])],
    ),
    f("cuMemAlloc_v2", 3020, &[New(Memory), Int(&[4096], &[0])]),
    f("cuMemFree_v2", 3020, &[Take(Memory)]),
    f("cuMemGetAddressRange_v2", 3020, &[Find(AnyMemory), Number(8), In(Memory)]),
    f("cuMemAllocAsync", 11020, &[New(PoolMemory), Int(&[4096], &[0]), Idle]),
    f("cuMemAllocFromPoolAsync", 11020, &[New(PoolMemory), Int(&[4096], &[0]), In(AnyPool), Idle]),
    f("cuMemFreeAsync", 11020, &[Take(PoolMemory), Idle]),
    f("cuMemGetInfo_v2", 3020, &[Skip(8), Skip(8)]),
    f("cuMemPoolCreate", 11020, &[New(Pool), Made(pool_props, &[])]),
    f("cuMemPoolDestroy", 11020, &[Take(Pool)]),
    f("cuMemPoolTrimTo", 11020, &[In(AnyPool), Int(&[0, 4096], &[])]),
    f("cuMemPoolGetAttribute", 11020, &[In(AnyPool), POOL_ATTRIBUTE, Skip(8)]),
    f("cuMemPoolSetAttribute", 11020, &[In(AnyPool), SET_POOL_ATTRIBUTE, Made(value, &[])]),
    f("cuMemPoolSetAccess", 11020, &[In(AnyPool), Made(access, &[]), ONE]),
    f("cuMemPoolGetAccess", 11020, &[Number(4), In(AnyPool), Made(location, &[])]),
    f("cuPointerGetAttribute", 4000, &[Skip(64), POINTER_ATTRIBUTE, In(Memory)]),
    f(
        "cuPointerGetAttributes",
        7000,
        &[Int(&[1, 2], &[0]), Made(pointer_attributes, &[]), Made(two_places, &[]), In(Memory)],
    ),
    f("cuPointerSetAttribute", 6000, &[Made(value, &[]), Int(&[6], &[2, 99]), In(Memory)]),
    f("cuMemcpy", 4000, &[In(Memory), In(Memory), LENGTH]),
    f("cuMemcpyAsync", 4000, &[Lasting(Memory), Lasting(Memory), LENGTH, Shape::Stream]),
    f("cuMemcpyHtoD_v2", 3020, &[In(Memory), Made(pageable, &[]), LENGTH]),
    f("cuMemcpyDtoH_v2", 3020, &[Made(pageable, &[]), In(Memory), LENGTH]),
    f("cuMemcpyDtoD_v2", 3020, &[In(Memory), In(Memory), LENGTH]),
    f("cuMemcpyHtoDAsync_v2", 3020, &[Lasting(Memory), Made(pageable, &[]), LENGTH, Shape::Stream]),
    f("cuMemcpyDtoHAsync_v2", 3020, &[Made(pageable, &[]), Lasting(Memory), LENGTH, Shape::Stream]),
    f("cuMemcpyDtoDAsync_v2", 3020, &[Lasting(Memory), Lasting(Memory), LENGTH, Shape::Stream]),
    f("cuMemcpy2D_v2", 3020, &[Made(copy_2d, &[])]),
    f("cuMemcpy2DAsync_v2", 3020, &[Made(copy_2d, &[]), Shape::Stream]),
    f("cuMemcpy3D_v2", 3020, &[Made(copy_3d, &[])]),
    f("cuMemcpy3DAsync_v2", 3020, &[Made(copy_3d, &[]), Shape::Stream]),
    f("cuMemsetD8_v2", 3020, &[In(Memory), Int(&[0, 255], &[]), LENGTH]),
    f("cuMemsetD16_v2", 3020, &[In(Memory), Int(&[0, 255], &[]), LENGTH]),
    f("cuMemsetD32_v2", 3020, &[In(Memory), Int(&[0, 255], &[]), LENGTH]),
    f("cuMemsetD8Async", 3020, &[Lasting(Memory), Int(&[0, 255], &[]), LENGTH, Shape::Stream]),
    f("cuMemsetD16Async", 3020, &[Lasting(Memory), Int(&[0, 255], &[]), LENGTH, Shape::Stream]),
    f("cuMemsetD32Async", 3020, &[Lasting(Memory), Int(&[0, 255], &[]), LENGTH, Shape::Stream]),
    f(
        "cuMemsetD2D8Async",
        3020,
        &[
            Lasting(Memory),
            Int(&[256], &[8]),
            Int(&[7], &[]),
            Int(&[16, 64], &[]),
            Int(&[1, 4], &[]),
            Shape::Stream,
        ],
    ),
    f(
        "cuMemsetD2D16Async",
        3020,
        &[
            Lasting(Memory),
            Int(&[256], &[8]),
            Int(&[7], &[]),
            Int(&[16, 64], &[]),
            Int(&[1, 4], &[]),
            Shape::Stream,
        ],
    ),
    f(
        "cuMemsetD2D32Async",
        3020,
        &[
            Lasting(Memory),
            Int(&[256], &[8]),
            Int(&[7], &[]),
            Int(&[16, 64], &[]),
            Int(&[1, 4], &[]),
            Shape::Stream,
        ],
    ),
    f("cuMemAllocHost_v2", 3020, &[New(HostMemory), Int(&[4096], &[0])]),
    f("cuMemFreeHost", 2000, &[Take(HostMemory)]),
    f("cuMemHostAlloc", 2020, &[New(HostMemory), Int(&[4096], &[0]), Int(&[0, 1, 2, 4], &[0x100])]),
    f("cuMemHostGetDevicePointer_v2", 3020, &[Skip(8), In(HostMemory), ZERO]),
    f("cuMemHostGetFlags", 2030, &[Number(4), In(HostMemory)]),
    f(
        "cuMemHostRegister_v2",
        6050,
        &[Made(page, &[]), Int(&[4096], &[0]), Int(&[0, 1, 2], &[0x100])],
    ),
    f("cuMemHostUnregister", 4000, &[Made(registered, &[])]),
    f(
        "cuMemGetAllocationGranularity",
        10020,
        &[Number(8), Made(pool_props, &[]), Int(&[0, 1], &[9])],
    ),
    f("cuMemGetDefaultMemPool", 13000, &[Find(AnyPool), Made(location, &[]), Int(&[1], &[0, 9])]),
    f("cuMemGetMemPool", 13000, &[Find(AnyPool), Made(location, &[]), Int(&[1], &[0, 9])]),
    f("cuMemSetMemPool", 13000, &[Made(location, &[]), Int(&[1], &[0, 9]), Lasting(AnyPool)]),
    f("cuProfilerStart", 4000, &[]),
    f("cuProfilerStop", 4000, &[]),
    f(
        "cuUserObjectCreate",
        11030,
        &[New(UserObject), NONE, Made(host_function, &[]), Int(&[8], &[0]), Int(&[1], &[0, 9])],
    ),
    f("cuUserObjectRetain", 11030, &[In(UserObject), Int(&[1, 2], &[0])]),
    f("cuUserObjectRelease", 11030, &[Take(UserObject), Int(&[1], &[0])]),
    f(
        "cuGraphRetainUserObject",
        11030,
        &[In(Graph), In(UserObject), Int(&[1], &[0]), Int(&[0], &[9])],
    ),
    f("cuGraphReleaseUserObject", 11030, &[In(Graph), In(UserObject), Int(&[1], &[0])]),
    f("cuGraphCreate", 10000, &[New(Graph), ZERO]),
    f("cuGraphDestroy", 10000, &[Take(Graph)]),
    f("cuGraphClone", 10000, &[New(Graph), In(Graph)]),
    f("cuGraphNodeFindInClone", 10000, &[Find(AnyNode), In(AnyNode), In(Graph)]),
    f("cuGraphGetNodes", 10000, &[In(Graph), NODES, ROOM]),
    f("cuGraphGetRootNodes", 10000, &[In(Graph), NODES, ROOM]),
    f("cuGraphGetEdges", 10000, &[In(Graph), NODES, NODES, ROOM]),
    f("cuGraphGetEdges_v2", 12030, &[In(Graph), NODES, NODES, Fields(64, &[]), ROOM]),
    f("cuGraphNodeGetType", 10000, &[In(AnyNode), Number(4)]),
    f("cuGraphNodeGetDependencies", 10000, &[In(AnyNode), NODES, ROOM]),
    f("cuGraphNodeGetDependencies_v2", 12030, &[In(AnyNode), NODES, Fields(64, &[]), ROOM]),
    f("cuGraphNodeGetDependentNodes", 10000, &[In(AnyNode), NODES, ROOM]),
    f("cuGraphNodeGetDependentNodes_v2", 12030, &[In(AnyNode), NODES, Fields(64, &[]), ROOM]),
    f("cuGraphAddDependencies", 10000, &[In(Graph), AFTER, AFTER, FEW]),
    f("cuGraphAddDependencies_v2", 12030, &[In(Graph), AFTER, AFTER, NONE, FEW]),
    f("cuGraphRemoveDependencies", 10000, &[In(Graph), AFTER, AFTER, FEW]),
    f("cuGraphRemoveDependencies_v2", 12030, &[In(Graph), AFTER, AFTER, NONE, FEW]),
    f("cuGraphDestroyNode", 10000, &[Take(AnyNode)]),
    f("cuGraphAddNode", 12020, &[New(OtherNode), In(Graph), AFTER, FEW, Made(any_node, &[])]),
    f(
        "cuGraphAddNode_v2",
        12030,
        &[New(OtherNode), In(Graph), AFTER, NONE, FEW, Made(any_node, &[])],
    ),
    // What only newer drivers have makes nothing that later calls use.
    f(
        "cuGraphAddNode_v3",
        13040,
        &[Find(AnyNode), In(Graph), AFTER, NONE, FEW, Made(any_node, &[])],
    ),
    f("cuGraphNodeSetParams_v2", 13040, &[In(KernelNode), Made(kernel_union, &[])]),
    f("cuGraphNodeSetParams", 12020, &[In(KernelNode), Made(kernel_union, &[])]),
    f("cuGraphNodeGetParams", 13020, &[In(KernelNode), Fields(NODE_SIZE, NODE)]),
    f(
        "cuGraphAddKernelNode_v2",
        12000,
        &[New(KernelNode), In(Graph), AFTER, FEW, Made(kernel_node, &[])],
    ),
    f(
        "cuGraphKernelNodeGetParams_v2",
        12000,
        &[In(KernelNode), Fields(KERNEL_NODE_SIZE, KERNEL_NODE)],
    ),
    f("cuGraphKernelNodeSetParams_v2", 12000, &[In(KernelNode), Made(kernel_node, &[])]),
    f("cuGraphKernelNodeGetAttribute", 11000, &[In(KernelNode), LAUNCH_ATTRIBUTE, Fields(64, &[])]),
    f(
        "cuGraphKernelNodeSetAttribute",
        11000,
        &[In(KernelNode), Int(&[8], &[99]), Made(value, &[])],
    ),
    f("cuGraphKernelNodeCopyAttributes", 11000, &[In(KernelNode), In(KernelNode)]),
    f(
        "cuGraphAddMemcpyNode",
        10000,
        &[New(MemcpyNode), In(Graph), AFTER, FEW, Made(copy_3d, &[]), In(Primary)],
    ),
    f("cuGraphMemcpyNodeGetParams", 10000, &[In(MemcpyNode), Fields(COPY_SIZE, COPY)]),
    f("cuGraphMemcpyNodeSetParams", 10000, &[In(MemcpyNode), Made(copy_3d, &[])]),
    f(
        "cuGraphAddMemsetNode",
        10000,
        &[New(MemsetNode), In(Graph), AFTER, FEW, Made(memset_node, &[]), In(Primary)],
    ),
    f("cuGraphMemsetNodeGetParams", 10000, &[In(MemsetNode), Fields(MEMSET_SIZE, MEMSET)]),
    f("cuGraphMemsetNodeSetParams", 10000, &[In(MemsetNode), Made(memset_node, &[])]),
    f("cuGraphAddHostNode", 10000, &[New(HostNode), In(Graph), AFTER, FEW, Made(host_node, &[])]),
    f("cuGraphHostNodeGetParams", 10000, &[In(HostNode), Fields(16, &[])]),
    f("cuGraphHostNodeSetParams", 10000, &[In(HostNode), Made(host_node, &[])]),
    f(
        "cuGraphAddChildGraphNode",
        10000,
        &[New(ChildNode), In(Graph), AFTER, FEW, Made(child_graph, &[])],
    ),
    f("cuGraphChildGraphNodeGetGraph", 10000, &[In(ChildNode), New(ChildGraph)]),
    f("cuGraphAddEmptyNode", 10000, &[New(OtherNode), In(Graph), AFTER, FEW]),
    f(
        "cuGraphAddEventRecordNode",
        11010,
        &[New(RecordNode), In(Graph), AFTER, FEW, Lasting(Event)],
    ),
    f("cuGraphEventRecordNodeGetEvent", 11010, &[In(RecordNode), Find(Event)]),
    f("cuGraphEventRecordNodeSetEvent", 11010, &[In(RecordNode), Lasting(Event)]),
    f("cuGraphAddEventWaitNode", 11010, &[New(WaitNode), In(Graph), AFTER, FEW, Lasting(Event)]),
    f("cuGraphEventWaitNodeGetEvent", 11010, &[In(WaitNode), Find(Event)]),
    f("cuGraphEventWaitNodeSetEvent", 11010, &[In(WaitNode), Lasting(Event)]),
    f(
        "cuGraphAddMemAllocNode",
        11040,
        &[New(AllocNode), In(Graph), AFTER, FEW, Made(alloc_node, ALLOCATED)],
    ),
    f("cuGraphMemAllocNodeGetParams", 11040, &[In(AllocNode), Fields(ALLOC_SIZE, ALLOC)]),
    f("cuGraphAddMemFreeNode", 11040, &[New(FreeNode), In(Graph), AFTER, FEW, In(GraphMemory)]),
    f("cuGraphMemFreeNodeGetParams", 11040, &[In(FreeNode), Find(GraphMemory)]),
    f(
        "cuGraphConditionalHandleCreate",
        12030,
        &[New(Condition), In(Graph), In(Primary), Int(&[0, 1], &[]), Int(&[0, 1], &[9])],
    ),
    f(
        "cuGraphDebugDotPrint",
        11030,
        &[In(Graph), Text(&["/dev/null"], &["/no/such/file"]), Int(&[0, 1], &[])],
    ),
    f("cuGraphInstantiateWithFlags", 11040, &[New(Exec), In(Graph), Int(&[0, 0, 1, 8], &[0x100])]),
    f(
        "cuGraphInstantiateWithParams",
        12000,
        &[New(Exec), In(Graph), Made(instantiate_params, INSTANTIATED)],
    ),
    f("cuGraphUpload", 11010, &[In(Exec), Shape::Stream]),
    f("cuGraphLaunch", 10000, &[In(Exec), Shape::Stream]),
    f("cuGraphExecDestroy", 10000, &[Take(Exec)]),
    f("cuGraphExecGetFlags", 12000, &[In(Exec), Number(8)]),
    f("cuGraphExecUpdate", 10020, &[In(Exec), In(Graph), Skip(8), Number(4)]),
    f("cuGraphExecUpdate_v2", 12000, &[In(Exec), In(Graph), Fields(UPDATED_SIZE, UPDATED)]),
    f("cuGraphExecNodeSetParams", 12020, &[In(Exec), In(KernelNode), Made(kernel_union, &[])]),
    f(
        "cuGraphExecKernelNodeSetParams_v2",
        12000,
        &[In(Exec), In(KernelNode), Made(kernel_node, &[])],
    ),
    f(
        "cuGraphExecMemcpyNodeSetParams",
        10020,
        &[In(Exec), In(MemcpyNode), Made(copy_3d, &[]), In(Primary)],
    ),
    f(
        "cuGraphExecMemsetNodeSetParams",
        10020,
        &[In(Exec), In(MemsetNode), Made(memset_node, &[]), In(Primary)],
    ),
    f("cuGraphExecHostNodeSetParams", 10020, &[In(Exec), In(HostNode), Made(host_node, &[])]),
    f(
        "cuGraphExecChildGraphNodeSetParams",
        11010,
        &[In(Exec), In(ChildNode), Made(child_graph, &[])],
    ),
    f("cuGraphExecEventRecordNodeSetEvent", 11010, &[In(Exec), In(RecordNode), Lasting(Event)]),
    f("cuGraphExecEventWaitNodeSetEvent", 11010, &[In(Exec), In(WaitNode), Lasting(Event)]),
    f("cuGraphNodeGetEnabled", 11060, &[In(Exec), In(KernelNode), Number(4)]),
    f("cuGraphNodeSetEnabled", 11060, &[In(Exec), In(KernelNode), Int(&[0, 1], &[9])]),
];
