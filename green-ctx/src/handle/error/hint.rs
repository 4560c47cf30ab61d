//! What a driver's answer says about the call, where its own text does not.

use green_ctx_sys::CUresult;

/// Which constraint failed and what would work, as a clause that follows the driver's answer. Empty
/// where the answer speaks for itself.
pub(super) fn clause(status: CUresult) -> &'static str {
    if is_sticky(status) {
        return "; work on the device failed, and no context of the device can be used again in this \
                process: start a new one";
    }
    match status {
        CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER => {
            "; the installed driver is older than the call: update the driver, or do without what \
             needs the call"
        }
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => {
            "; somebody destroyed the context, or reset the device, while handles of it were in use: \
             make a new context, and destroy one only after its streams"
        }
        CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            "; the device or the system lacks this, whatever the driver: ask the device's attributes \
             first"
        }
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => {
            "; a stream that is being captured takes no call that waits, asks or allocates at once, \
             nor does any thread while another captures in the mode `Global`: end the capture first, \
             use a stream that is not part of it, or ask within `graph::RelaxedCapture`"
        }
        CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE => {
            "; the resource is not of the type that the call takes, or is none: SMs are asked for \
             and split as SMs, workqueues as workqueues"
        }
        CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION => {
            "; the resources cannot be cut or combined that way: counts must be what the device's minimum \
             and alignment allow and no more than it has, and the pieces of one context must come \
             from one split; `SmResource::dry_run` returns what fits"
        }
        CUresult::CUDA_ERROR_STREAM_DETACHED => {
            "; the stream's green context was destroyed before the stream, which can only be \
             destroyed now: make a new stream in a living context"
        }
        _ => "",
    }
}

/// Whether an answer means that the device's contexts are lost: from then on every call answers the
/// same, in every context, until the process ends.
pub(super) fn is_sticky(status: CUresult) -> bool {
    // Those of which cuda.h says so. Of an ECC or NVLink error that was not corrected and of an
    // assertion it says less; their contexts cannot be used any more either.
    matches!(
        status,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
    )
}

/// Whether an answer means that the call was wrong at this place or time, and not that it failed.
pub(super) fn is_misuse(status: CUresult) -> bool {
    matches!(
        status,
        CUresult::CUDA_ERROR_INVALID_VALUE
            | CUresult::CUDA_ERROR_NOT_INITIALIZED
            | CUresult::CUDA_ERROR_INVALID_DEVICE
            | CUresult::CUDA_ERROR_INVALID_CONTEXT
            | CUresult::CUDA_ERROR_INVALID_HANDLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_NOT_PERMITTED
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            | CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
            | CUresult::CUDA_ERROR_CAPTURED_EVENT
            | CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE
            | CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
            | CUresult::CUDA_ERROR_STREAM_DETACHED
    )
}
