//! Advice for driver statuses whose names do not explain the problem.

use green_ctx_sys::CUresult;

/// Returns the violated constraint and the remedy, as a clause that follows the driver's status in a message. The
/// clause is empty if the status needs no explanation.
pub(super) fn clause(status: CUresult) -> &'static str {
    if is_sticky(status) {
        return "; work on the device failed, so no context of the device can be used in this \
                process: start a new process";
    }
    match status {
        CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER => {
            "; the installed driver is older than the call: update the driver, or avoid the \
             feature that needs the call"
        }
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => {
            "; the context was destroyed, or the device was reset, while handles of the context \
             were in use: create a new context, and destroy a context only after its streams"
        }
        CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            "; the device or the system does not support this, with any driver: check the device's \
             attributes first"
        }
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => {
            "; a stream that is being captured accepts no call that waits, queries or allocates \
             outside stream order, and no thread may make such a call while another captures in \
             the mode `Global`: end the capture first, use a stream outside the capture, or make \
             the call within `graph::RelaxedCapture`"
        }
        CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE => {
            "; the resource is empty, or has the wrong type for the call: query and split SMs as \
             SMs, and workqueues as workqueues"
        }
        CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION => {
            "; the resources cannot be split or combined this way: counts must follow the device's \
             minimum and alignment and must not exceed its SMs, and the pieces of one context must \
             come from one split; `SmResource::dry_run` returns what fits"
        }
        CUresult::CUDA_ERROR_STREAM_DETACHED => {
            "; the stream's green context was destroyed before the stream, which can now only be \
             destroyed: create a new stream in a live context"
        }
        _ => "",
    }
}

/// Returns whether the status means that the contexts of the device are lost. Every later call in every context then
/// returns the same status until the process ends.
pub(super) fn is_sticky(status: CUresult) -> bool {
    // The statuses for which cuda.h says this. For uncorrected ECC and NVLink errors and for assertions, cuda.h says
    // less, but their contexts cannot be used afterwards either.
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

/// Returns whether the status means that the caller made an invalid call, or a call at the wrong time. Returns false if
/// the status means that a valid call failed.
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
