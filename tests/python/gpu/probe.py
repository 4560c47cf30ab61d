"""A kernel that reports the SMs on which a stream runs, launched with the driver only."""

import ctypes

import torch

#: Each block stays on its SM for `stay` ns, and then writes the SM's number.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry where(.param .u64 out, .param .u64 stay)
{
    .reg .u64 %out, %offset, %now, %end;
    .reg .u32 %block, %sm;
    .reg .pred %early;
    ld.param.u64 %out, [out];
    ld.param.u64 %end, [stay];
    cvta.to.global.u64 %out, %out;
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
    mov.u32 %sm, %smid;
stays:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra stays;
    mov.u32 %block, %ctaid.x;
    mul.wide.u32 %offset, %block, 4;
    add.u64 %out, %out, %offset;
    st.global.u32 [%out], %sm;
    ret;
}
\0"""

#: Threads per block. An SM holds at most two such blocks.
THREADS = 1024
STAY_NS = 2_000_000

_cuda = ctypes.CDLL("libcuda.so.1")
_kernel = ctypes.c_void_p()


def _check(status):
    if status:
        raise RuntimeError(f"the driver answered {status}")


def _load():
    if not _kernel:
        torch.cuda.init()
        library = ctypes.c_void_p()
        nothing = (None, None, 0, None, None, 0)
        _check(_cuda.cuLibraryLoadData(ctypes.byref(library), PTX, *nothing))
        _check(_cuda.cuLibraryGetKernel(ctypes.byref(_kernel), library, b"where"))
    return _kernel


def launch(out, stream, stay_ns=STAY_NS):
    """Fills a tensor of int32 with the SM of each block, one element per block."""
    values = (ctypes.c_void_p(out.data_ptr()), ctypes.c_uint64(stay_ns))
    arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    grid, block = (out.numel(), 1, 1), (THREADS, 1, 1)
    sizes = [ctypes.c_uint(size) for size in (*grid, *block, 0)]
    raw = ctypes.c_void_p(stream.cuda_stream)
    _check(_cuda.cuLaunchKernel(_load(), *sizes, raw, arguments, None))


def blocks(count=None):
    """Returns a tensor for as many blocks as fit on `count` SMs at the same time, by default on all."""
    count = count or torch.cuda.get_device_properties(0).multi_processor_count
    return torch.full((2 * count,), -1, dtype=torch.int32, device="cuda")


def sms(stream=None):
    """Returns the SMs on which a stream's work runs, by default the current stream's."""
    stream = stream or torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        out = blocks()
        launch(out, stream)
    stream.synchronize()
    return set(out.tolist())
