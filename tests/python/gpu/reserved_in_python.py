"""Programs in Python for reserved_programs.py: `python reserved_in_python.py waits|cupy`. Each prints its answer.

- waits: work in a partition, and calls outside of it that must wait for the work.
- cupy: CuPy's default stream and its two kinds of streams.
"""

import ctypes
import json
import sys


def waits():
    # First, because it reserves if the environment has GREEN_CTX_RESERVE.
    import green_ctx_torch
    import probe
    import torch

    cuda, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
    parts = green_ctx_torch.partition({"urgent": 32})
    one, other = torch.ones(1, device="cuda"), torch.cuda.Stream()
    context, event, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()

    def check(status):
        assert status == 0, status

    check(cuda.cuCtxGetCurrent(ctypes.byref(context)))
    check(cuda.cuEventCreate(ctypes.byref(event), 0))
    check(runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 20)))

    def record(done):
        check(cuda.cuCtxRecordEvent(context, event))
        check(cuda.cuEventSynchronize(event))

    def wait(done):
        check(cuda.cuCtxWaitEvent(context, ctypes.c_void_p(done.cuda_event)))
        one.add_(1)
        torch.cuda.current_stream().synchronize()

    calls = {
        "torch.cuda.synchronize": lambda done: torch.cuda.synchronize(),
        "cudaDeviceSynchronize": lambda done: check(runtime.cudaDeviceSynchronize()),
        "cuCtxSynchronize": lambda done: check(cuda.cuCtxSynchronize()),
        "cudaFree": lambda done: check(runtime.cudaFree(memory)),
        "cuCtxRecordEvent": record,
        "cuCtxWaitEvent": wait,
        # A control: a wait for another stream covers no partition.
        "stream": lambda done: other.synchronize(),
    }

    def outcome(call):
        with parts["urgent"]:
            # About 0.2 s. Without a first launch, loading the kernel could wait too.
            torch.cuda._sleep(1)
            torch.cuda.current_stream().synchronize()
            torch.cuda._sleep(400_000_000)
            done = torch.cuda.Event()
            done.record()
        if done.query():
            return "the work ended early"
        call(done)
        found = "waits" if done.query() else "returns"
        done.synchronize()
        return found

    found = {"sms": [len(probe.sms())], "calls": {name: outcome(call) for name, call in calls.items()}}
    return {"told": torch.cuda.get_device_properties(0).multi_processor_count} | found


def cupy():
    import cupy as cp

    kernels = r"""
    extern "C" __global__ void late(int* to, int value) {
        for (long long end = clock64() + 40000000; clock64() < end;) {}
        *to = value;
    }
    extern "C" __global__ void probe(unsigned* to) {
        for (long long end = clock64() + 20000; clock64() < end;) {}
        if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(to[blockIdx.x]));
    }
    """
    module = cp.RawModule(code=kernels)
    late, probe = module.get_function("late"), module.get_function("probe")
    written, default = cp.zeros(1, dtype=cp.int32), cp.cuda.Stream.null

    def result(stream, value, ordered):
        """Has the default stream write a value late, and reads it on the stream."""
        late((1,), (1,), (written, cp.int32(value)))
        if ordered:
            stream.wait_event(default.record())
        with stream:
            copied = written + 1
        stream.synchronize()
        right = int(copied[0]) == value + 1
        default.synchronize()
        return "right" if right else "wrong"

    to = cp.zeros(4000, dtype=cp.uint32)
    probe((4000,), (128,), (to,))
    found = {"told": cp.cuda.Device(0).attributes["MultiProcessorCount"], "sms": [len(set(to.tolist()))]}
    # The first use compiles and loads kernels, which could wait for other work.
    result(default, 1, ordered=False)
    found["default"] = result(default, 2, ordered=False)
    other = cp.cuda.Stream(non_blocking=True)
    result(other, 3, ordered=True)
    found["non_blocking"] = result(other, 4, ordered=True)
    found["unordered"] = result(other, 5, ordered=False)
    blocking = cp.cuda.Stream()
    result(blocking, 5, ordered=False)
    return found | {"blocking": result(blocking, 6, ordered=False)}


if __name__ == "__main__":
    print(json.dumps({"waits": waits, "cupy": cupy}[sys.argv[1]]()))
