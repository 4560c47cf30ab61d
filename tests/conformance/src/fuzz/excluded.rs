//! The functions that programs do not call, and those that cannot succeed in them.

/// Functions that no program calls, and why.
pub(crate) const EXCLUDED: &[(&str, &str)] = &[
    ("cuDevicePrimaryCtxReset", "it ends the work of everyone who shares the process"),
    ("cuDevicePrimaryCtxReset_v2", "it ends the work of everyone who shares the process"),
    ("cuDeviceCanAccessPeer", "programs use one device"),
    ("cuCtxEnablePeerAccess", "programs use one device"),
    ("cuCtxDisablePeerAccess", "programs use one device"),
    ("cuMemcpyPeer", "programs use one device"),
    ("cuMemcpyPeerAsync", "programs use one device"),
    ("cuIpcGetMemHandle", "what it exports outlives its memory"),
    ("cuIpcOpenMemHandle_v2", "programs use one process"),
    ("cuIpcCloseMemHandle", "programs use one process"),
    ("cuIpcGetEventHandle", "what it exports outlives its event"),
    ("cuIpcOpenEventHandle", "programs use one process"),
    ("cuMemAllocManaged", "managed memory moves under other programs' work"),
    ("cuGetExportTable", "what is in its tables is documented nowhere"),
    ("cuMemAdvise", "it is about managed memory"),
    ("cuMemAdvise_v2", "it is about managed memory"),
    ("cuMemRangeGetAttribute", "it is about managed memory"),
    ("cuMemRangeGetAttributes", "it is about managed memory"),
    ("cuMemPoolExportPointer", "programs use one process"),
    ("cuMemPoolExportToShareableHandle", "programs use one process"),
    ("cuMemPoolImportFromShareableHandle", "programs use one process"),
    ("cuMemPoolImportPointer", "programs use one process"),
    ("cuTensorMapEncodeIm2col", "its arrays depend on each other, which programs do not make yet"),
    ("cuTensorMapEncodeTiled", "its arrays depend on each other, which programs do not make yet"),
    (
        "cuTensorMapReplaceAddress",
        "its arrays depend on each other, which programs do not make yet",
    ),
    ("cuStreamWaitValue32", "the value may never come"),
    ("cuStreamWaitValue64", "the value may never come"),
    ("cuStreamWaitValue32_v2", "the value may never come"),
    ("cuStreamWaitValue64_v2", "the value may never come"),
    (
        "cuStreamWriteValue32",
        "drivers refuse this form unless their kernel module is set up for it",
    ),
    (
        "cuStreamWriteValue64",
        "drivers refuse this form unless their kernel module is set up for it",
    ),
];

/// Functions that cannot succeed in a program, or hardly, and why.
pub(crate) const FAILING: &[(&str, &str)] = &[
    ("cuDevicePrimaryCtxSetFlags", "this form succeeds only before the context is there"),
    ("cuDeviceGetLuid", "only Windows has these numbers"),
    ("cuDeviceGetByPCIBusId", "where a board is plugged in differs from machine to machine"),
];
