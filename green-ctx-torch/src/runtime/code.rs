//! The error codes of the CUDA runtime.

use std::fmt;

use green_ctx::CUresult;

/// An error code of the CUDA runtime (`cudaError_t`). A code that no header defines yet is a valid value too.
///
/// Since CUDA 10.1, an error that exists in both the driver and the runtime has the same number in both (driver_types.h
/// and cuda.h of CUDA 13.5). The names differ.
///
/// # Examples
///
/// ```
/// use green_ctx_torch::runtime::ErrorCode;
///
/// let code = ErrorCode(2);
/// assert_eq!(code.name(), Some("cudaErrorMemoryAllocation"));
/// assert_eq!(code.to_string(), "cudaErrorMemoryAllocation (2): not enough memory");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error.
    pub const SUCCESS: ErrorCode = ErrorCode(0);

    /// Returns every code of CUDA 13.5, in ascending order.
    pub fn all() -> impl ExactSizeIterator<Item = ErrorCode> {
        CODES.iter().map(|(code, ..)| ErrorCode(*code))
    }

    /// Returns the name of the code in driver_types.h, for example `cudaErrorInvalidValue` for 1. Returns `None` for a
    /// code that CUDA 13.5 does not have.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|(_, name, _)| *name)
    }

    /// Returns a short description. For an unknown code the description is `an error code that CUDA 13.5 does not
    /// have`.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.row().map_or("an error code that CUDA 13.5 does not have", |(.., text)| text)
    }

    fn row(self) -> Option<&'static (u32, &'static str, &'static str)> {
        let index = CODES.binary_search_by_key(&self.0, |(code, ..)| *code).ok()?;
        CODES.get(index)
    }
}

impl From<CUresult> for ErrorCode {
    fn from(status: CUresult) -> ErrorCode {
        ErrorCode(status.0)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorCode(code) = self;
        match self.row() {
            Some((_, name, text)) => write!(f, "{name} ({code}): {text}"),
            None => write!(f, "{code}: {}", self.text()),
        }
    }
}

/// Codes and names of driver_types.h, CUDA 13.5.
const CODES: &[(u32, &str, &str)] = &[
    (0, "cudaSuccess", "no error"),
    (1, "cudaErrorInvalidValue", "an argument is out of range"),
    (2, "cudaErrorMemoryAllocation", "not enough memory"),
    (3, "cudaErrorInitializationError", "the driver or the runtime could not be initialised"),
    (4, "cudaErrorCudartUnloading", "the driver is shutting down"),
    (5, "cudaErrorProfilerDisabled", "no profiler can be started in this run"),
    (6, "cudaErrorProfilerNotInitialized", "the profiler was not initialised (obsolete)"),
    (7, "cudaErrorProfilerAlreadyStarted", "the profiler runs already (obsolete)"),
    (8, "cudaErrorProfilerAlreadyStopped", "the profiler does not run (obsolete)"),
    (9, "cudaErrorInvalidConfiguration", "the launch needs more resources than the device has"),
    (10, "cudaErrorVersionTranslation", "a newer driver returned an unknown value"),
    (12, "cudaErrorInvalidPitchValue", "a pitch is out of range"),
    (13, "cudaErrorInvalidSymbol", "there is no symbol of this name"),
    (16, "cudaErrorInvalidHostPointer", "a pointer does not point to host memory (obsolete)"),
    (17, "cudaErrorInvalidDevicePointer", "a pointer does not point to device memory (obsolete)"),
    (18, "cudaErrorInvalidTexture", "the texture is not valid"),
    (19, "cudaErrorInvalidTextureBinding", "the texture is not bound"),
    (20, "cudaErrorInvalidChannelDescriptor", "the format of the channels is not valid"),
    (21, "cudaErrorInvalidMemcpyDirection", "the direction of the copy is not valid"),
    (22, "cudaErrorAddressOfConstant", "an address of constant memory was taken (obsolete)"),
    (23, "cudaErrorTextureFetchFailed", "a texture could not be read (obsolete)"),
    (24, "cudaErrorTextureNotBound", "a texture that was read is not bound (obsolete)"),
    (25, "cudaErrorSynchronizationError", "waiting failed (obsolete)"),
    (26, "cudaErrorInvalidFilterSetting", "only textures of floats are filtered linearly"),
    (27, "cudaErrorInvalidNormSetting", "the type cannot be read as a normalised float"),
    (28, "cudaErrorMixedDeviceExecution", "device and emulated code were mixed (obsolete)"),
    (31, "cudaErrorNotYetImplemented", "the call is not implemented (obsolete)"),
    (32, "cudaErrorMemoryValueTooLarge", "an address has more than 32 bits (obsolete)"),
    (34, "cudaErrorStubLibrary", "the driver that was loaded is a stub for linking"),
    (35, "cudaErrorInsufficientDriver", "the driver is older than the runtime"),
    (36, "cudaErrorCallRequiresNewerDriver", "the driver is older than the call"),
    (37, "cudaErrorInvalidSurface", "the surface is not valid"),
    (43, "cudaErrorDuplicateVariableName", "several variables have one name"),
    (44, "cudaErrorDuplicateTextureName", "several textures have one name"),
    (45, "cudaErrorDuplicateSurfaceName", "several surfaces have one name"),
    (46, "cudaErrorDevicesUnavailable", "all devices are busy or unavailable to this process"),
    (49, "cudaErrorIncompatibleDriverContext", "the runtime cannot use the current context"),
    (52, "cudaErrorMissingConfiguration", "the launch was not configured"),
    (53, "cudaErrorPriorLaunchFailure", "an earlier launch failed (obsolete)"),
    (65, "cudaErrorLaunchMaxDepthExceeded", "device-side launches are nested too deeply"),
    (66, "cudaErrorLaunchFileScopedTex", "a device-launched kernel uses a file-scoped texture"),
    (67, "cudaErrorLaunchFileScopedSurf", "a device-launched kernel uses a file-scoped surface"),
    (68, "cudaErrorSyncDepthExceeded", "device-side synchronisation is nested too deeply"),
    (69, "cudaErrorLaunchPendingCountExceeded", "too many device-side launches are pending"),
    (98, "cudaErrorInvalidDeviceFunction", "the kernel does not exist for this device"),
    (100, "cudaErrorNoDevice", "the driver finds no device"),
    (101, "cudaErrorInvalidDevice", "there is no such device, or it does not support this"),
    (102, "cudaErrorDeviceNotLicensed", "the device has no licence for this"),
    (103, "cudaErrorSoftwareValidityNotEstablished", "a self-test of the software failed"),
    (127, "cudaErrorStartupFailure", "the runtime could not start"),
    (200, "cudaErrorInvalidKernelImage", "the device code is not valid"),
    (201, "cudaErrorDeviceUninitialized", "no context is current, or it was destroyed"),
    (205, "cudaErrorMapBufferObjectFailed", "the buffer could not be mapped"),
    (206, "cudaErrorUnmapBufferObjectFailed", "the buffer could not be unmapped"),
    (207, "cudaErrorArrayIsMapped", "the array is mapped and cannot be destroyed"),
    (208, "cudaErrorAlreadyMapped", "the resource is already mapped"),
    (209, "cudaErrorNoKernelImageForDevice", "there is no device code for this device"),
    (210, "cudaErrorAlreadyAcquired", "the resource is already acquired"),
    (211, "cudaErrorNotMapped", "the resource is not mapped"),
    (212, "cudaErrorNotMappedAsArray", "the resource is not mapped as an array"),
    (213, "cudaErrorNotMappedAsPointer", "the resource is not mapped as memory"),
    (214, "cudaErrorECCUncorrectable", "an uncorrectable memory error occurred"),
    (215, "cudaErrorUnsupportedLimit", "the device does not have this limit"),
    (216, "cudaErrorDeviceAlreadyInUse", "another thread uses the device exclusively"),
    (217, "cudaErrorPeerAccessUnsupported", "the devices cannot access each other's memory"),
    (218, "cudaErrorInvalidPtx", "the PTX could not be compiled"),
    (219, "cudaErrorInvalidGraphicsContext", "the OpenGL or DirectX context failed"),
    (220, "cudaErrorNvlinkUncorrectable", "an uncorrectable NVLink error occurred"),
    (221, "cudaErrorJitCompilerNotFound", "the PTX compiler was not found"),
    (222, "cudaErrorUnsupportedPtxVersion", "the PTX is newer than the driver's compiler"),
    (223, "cudaErrorJitCompilationDisabled", "PTX compilation is disabled"),
    (224, "cudaErrorUnsupportedExecAffinity", "the device cannot limit SMs this way"),
    (225, "cudaErrorUnsupportedDevSideSync", "the PTX uses device-side synchronisation"),
    (226, "cudaErrorContained", "work failed, and the failure was contained"),
    (227, "cudaErrorInsufficientLoaderVersion", "the loader is too old for the fat binary"),
    (300, "cudaErrorInvalidSource", "the kernel's source is not valid"),
    (301, "cudaErrorFileNotFound", "the file was not found"),
    (302, "cudaErrorSharedObjectSymbolNotFound", "a shared library lacks a symbol"),
    (303, "cudaErrorSharedObjectInitFailed", "a shared library could not be initialised"),
    (304, "cudaErrorOperatingSystem", "a call of the operating system failed"),
    (400, "cudaErrorInvalidResourceHandle", "a handle is not valid"),
    (401, "cudaErrorIllegalState", "an object is in a state that does not allow this"),
    (402, "cudaErrorLossyQuery", "the query would lose information"),
    (500, "cudaErrorSymbolNotFound", "there is no object of this name"),
    (600, "cudaErrorNotReady", "the work is not done yet (not a failure)"),
    (700, "cudaErrorIllegalAddress", "a kernel used an address that is not valid"),
    (
        701,
        "cudaErrorLaunchOutOfResources",
        "a launch needs more registers or memory than there are",
    ),
    (702, "cudaErrorLaunchTimeout", "a kernel took longer than the system allows"),
    (703, "cudaErrorLaunchIncompatibleTexturing", "the launch's texturing mode does not match"),
    (704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    (705, "cudaErrorPeerAccessNotEnabled", "peer access is not enabled"),
    (708, "cudaErrorSetOnActiveProcess", "the setting must be made before CUDA is used"),
    (709, "cudaErrorContextIsDestroyed", "the context was destroyed, or not created yet"),
    (710, "cudaErrorAssert", "an assertion in a kernel failed"),
    (711, "cudaErrorTooManyPeers", "peer access was enabled for too many devices"),
    (712, "cudaErrorHostMemoryAlreadyRegistered", "the host memory is already registered"),
    (713, "cudaErrorHostMemoryNotRegistered", "the host memory is not registered"),
    (714, "cudaErrorHardwareStackError", "a kernel's stack is corrupt or too small"),
    (715, "cudaErrorIllegalInstruction", "a kernel met an instruction that is not valid"),
    (716, "cudaErrorMisalignedAddress", "a kernel used an address that is not aligned"),
    (717, "cudaErrorInvalidAddressSpace", "a kernel used an address of the wrong kind of memory"),
    (718, "cudaErrorInvalidPc", "a kernel's program counter is not valid"),
    (719, "cudaErrorLaunchFailure", "a kernel failed"),
    (
        720,
        "cudaErrorCooperativeLaunchTooLarge",
        "the blocks of a cooperative launch do not all fit on the device",
    ),
    (721, "cudaErrorTensorMemoryLeak", "a kernel ended without freeing its tensor memory"),
    (800, "cudaErrorNotPermitted", "this is not permitted"),
    (801, "cudaErrorNotSupported", "the device or the system does not support this"),
    (802, "cudaErrorSystemNotReady", "the system is not ready; a daemon may not be running"),
    (803, "cudaErrorSystemDriverMismatch", "the display driver and the CUDA driver do not match"),
    (804, "cudaErrorCompatNotSupportedOnDevice", "the device has no forward compatibility"),
    (805, "cudaErrorMpsConnectionFailed", "MPS could not be reached"),
    (806, "cudaErrorMpsRpcFailure", "a call between MPS and this process failed"),
    (807, "cudaErrorMpsServerNotReady", "MPS accepts no new processes now"),
    (808, "cudaErrorMpsMaxClientsReached", "MPS has no room for another process"),
    (809, "cudaErrorMpsMaxConnectionsReached", "MPS has no room for another connection"),
    (810, "cudaErrorMpsClientTerminated", "MPS ended this process's use of the device"),
    (811, "cudaErrorCdpNotSupported", "device-side launches are not supported here"),
    (812, "cudaErrorCdpVersionMismatch", "the versions of device-side launches do not match"),
    (900, "cudaErrorStreamCaptureUnsupported", "this cannot be done while the stream is captured"),
    (901, "cudaErrorStreamCaptureInvalidated", "an earlier error invalidated the capture"),
    (902, "cudaErrorStreamCaptureMerge", "two captures would be merged"),
    (903, "cudaErrorStreamCaptureUnmatched", "the capture began on another stream"),
    (904, "cudaErrorStreamCaptureUnjoined", "a stream of the capture was not joined to the first"),
    (905, "cudaErrorStreamCaptureIsolation", "captured work would wait for work outside"),
    (906, "cudaErrorStreamCaptureImplicit", "the default stream would wait for captured work"),
    (907, "cudaErrorCapturedEvent", "the event was recorded in a capture"),
    (908, "cudaErrorStreamCaptureWrongThread", "the capture began on another thread"),
    (909, "cudaErrorTimeout", "the wait timed out"),
    (910, "cudaErrorGraphExecUpdateFailure", "the executable graph cannot be updated like this"),
    (911, "cudaErrorExternalDevice", "a device other than the GPU failed"),
    (912, "cudaErrorInvalidClusterSize", "the cluster size of the launch is not valid"),
    (913, "cudaErrorFunctionNotLoaded", "the function is not loaded"),
    (914, "cudaErrorInvalidResourceType", "a resource is not of the type that the call takes"),
    (
        915,
        "cudaErrorInvalidResourceConfiguration",
        "the resources cannot be split or combined like this",
    ),
    (917, "cudaErrorStreamDetached", "the stream's green context was destroyed"),
    (918, "cudaErrorGraphRecaptureFailure", "a graph could not be captured again"),
    (919, "cudaErrorFabricNotReady", "the fabric between the GPUs is not ready yet"),
    (999, "cudaErrorUnknown", "an unknown error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(CODES.is_sorted_by(|(one, ..), (next, ..)| one < next));
        let mut names: Vec<_> = ErrorCode::all().filter_map(ErrorCode::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorCode::all().len());
    }

    #[test]
    fn unknown_codes_are_values() {
        let code = ErrorCode(916);
        assert_eq!(code.name(), None);
        assert_eq!(code.to_string(), "916: an error code that CUDA 13.5 does not have");
    }

    #[test]
    fn errors_of_the_driver_have_the_same_numbers() {
        // The driver's names are `CUDA_ERROR_INVALID_CONTEXT` and `CUDA_ERROR_LAUNCH_FAILED`.
        for (status, name) in [
            (CUresult::CUDA_SUCCESS, "cudaSuccess"),
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "cudaErrorMemoryAllocation"),
            (CUresult::CUDA_ERROR_INVALID_CONTEXT, "cudaErrorDeviceUninitialized"),
            (CUresult::CUDA_ERROR_LAUNCH_FAILED, "cudaErrorLaunchFailure"),
            (CUresult::CUDA_ERROR_STREAM_DETACHED, "cudaErrorStreamDetached"),
        ] {
            assert_eq!(ErrorCode::from(status).name(), Some(name));
        }
    }
}
