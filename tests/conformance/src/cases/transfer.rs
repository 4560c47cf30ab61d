//! Memsets and copies in streams, and the SMs that they run on, which their duration reveals.

use std::ffi::c_void;

use green_ctx_sys::{CUdeviceptr, CUstream};

use super::Case;
use crate::answer::{Failure, Outcome};
use crate::gpu::{Gpu, compared};

/// Submits work: device memory, memory of the other side, and the stream.
type Submit = fn(&Gpu, CUdeviceptr, Other, CUstream) -> Outcome;

/// The memory on the other side of a copy.
#[derive(Clone, Copy)]
enum Other {
    Device(CUdeviceptr),
    Host(*mut c_void),
}

impl Other {
    fn device(self) -> Result<CUdeviceptr, Failure> {
        match self {
            Other::Device(address) => Ok(address),
            Other::Host(_) => Err(Failure::Other("memory of the host".to_owned())),
        }
    }

    fn host(self) -> Result<*mut c_void, Failure> {
        match self {
            Other::Host(pointer) => Ok(pointer),
            Other::Device(_) => Err(Failure::Other("memory of the device".to_owned())),
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("fill", false, |gpu, memory, _, stream| {
            gpu.cuMemsetD8Async(memory, 7, gpu.timed_bytes(), stream)?.must()
        }),
        case("copy-on-the-device", false, |gpu, memory, other, stream| {
            gpu.cuMemcpyDtoDAsync(memory, other.device()?, gpu.timed_bytes(), stream)?.must()
        }),
        case("copy-from-the-host", true, |gpu, memory, other, stream| {
            gpu.cuMemcpyHtoDAsync(memory, other.host()?, gpu.timed_bytes(), stream)?.must()
        }),
        case("copy-to-the-host", true, |gpu, memory, other, stream| {
            gpu.cuMemcpyDtoHAsync(other.host()?, memory, gpu.timed_bytes(), stream)?.must()
        }),
    ]
}

/// A case that runs the same work in streams of 8 and of 32 SMs, and compares the times with the primary context's.
fn case(what: &str, with_host: bool, submit: Submit) -> Case {
    Case::new(format!("transfer/{what}"), move |gpu, answer| {
        let memory = gpu.cuMemAlloc(gpu.timed_bytes())?.must()?;
        let other = if with_host {
            Other::Host(gpu.cuMemAllocHost(gpu.timed_bytes())?.must()?)
        } else {
            Other::Device(gpu.cuMemAlloc(gpu.timed_bytes())?.must()?)
        };
        let time = |stream| gpu.fastest(stream, || submit(gpu, memory, other, stream));
        let base = time(gpu.stream()?)?;
        for sms in [8, 32] {
            let stream = gpu.stream_of(gpu.green_with(sms)?)?;
            answer.add(format!("{sms}_sms"), compared(time(stream)?, base));
        }
        gpu.cuMemFree(memory)?.must()?;
        match other {
            Other::Device(address) => gpu.cuMemFree(address)?.must(),
            Other::Host(pointer) => gpu.cuMemFreeHost(pointer)?.must(),
        }
    })
}
