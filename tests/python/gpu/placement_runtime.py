"""Calls of the CUDA runtime, most of them wrong. The answers were recorded on an H100 and an H200."""

import ctypes

import torch
from placed import settled, tensor

POINTER, SIZE, UNKNOWN = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p(0x1234)


def raw_stream(cuda):
    stream = POINTER()
    assert cuda.cudaStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    return stream


def raw_event(cuda, flags=2):
    event = POINTER()
    assert cuda.cudaEventCreateWithFlags(ctypes.byref(event), flags) == 0
    return event


def elapsed(cuda, flags, record):
    events = [raw_event(cuda, flags) for _ in range(2)]
    for event in events if record else []:
        cuda.cudaEventRecord(event, None)
    torch.cuda.synchronize()
    return cuda.cudaEventElapsedTime(ctypes.byref(ctypes.c_float()), *events)


def captured(call, mode=2):
    """Returns the status of a call in a capture, the status of the capture's end, and whether there is a graph."""

    def run(cuda):
        stream, graph = raw_stream(cuda), POINTER()
        assert cuda.cudaStreamBeginCapture(stream, mode) == 0
        status = call(cuda, stream)
        return status, cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)), bool(graph)

    return run


def captured_event(cuda, stream):
    event = raw_event(cuda)
    assert cuda.cudaEventRecord(event, stream) == 0
    return cuda.cudaEventQuery(event)


def attributes(cuda, address):
    """Returns the status, the kind of memory and the device of an address."""
    found = (ctypes.c_int * 32)()
    return cuda.cudaPointerGetAttributes(found, POINTER(address)), found[0], found[1]


def out():
    return ctypes.byref(POINTER())


CALLS = {
    "a device that does not exist": (101, lambda cuda: cuda.cudaSetDevice(99)),
    "an unknown attribute": (1, lambda cuda: cuda.cudaDeviceGetAttribute(out(), 100_000, 0)),
    "an attribute of another device": (101, lambda cuda: cuda.cudaDeviceGetAttribute(out(), 16, 99)),
    "wrong flags of a stream": (1, lambda cuda: cuda.cudaStreamCreateWithPriority(out(), 7, 0)),
    "no stream to destroy": (400, lambda cuda: cuda.cudaStreamDestroy(None)),
    "wrong flags of an event": (1, lambda cuda: cuda.cudaEventCreateWithFlags(out(), 64)),
    "no event to record": (400, lambda cuda: cuda.cudaEventRecord(None, raw_stream(cuda))),
    "no event to wait for": (400, lambda cuda: cuda.cudaStreamWaitEvent(raw_stream(cuda), None, 0)),
    "the time between events that were not recorded": (400, lambda cuda: elapsed(cuda, 0, False)),
    "the time between events without times": (400, lambda cuda: elapsed(cuda, 2, True)),
    "the end of no capture": (401, lambda cuda: cuda.cudaStreamEndCapture(raw_stream(cuda), out())),
    "a capture of the default stream": (900, lambda cuda: cuda.cudaStreamBeginCapture(None, 2)),
    "a capture in a capture": ((401, 0, True), captured(lambda cuda, s: cuda.cudaStreamBeginCapture(s, 2))),
    "a wait in a capture": ((900, 901, False), captured(lambda cuda, s: cuda.cudaStreamSynchronize(s))),
    "a query in a capture": ((900, 901, False), captured(lambda cuda, s: cuda.cudaStreamQuery(s))),
    "a query of a captured event": ((907, 901, False), captured(captured_event)),
    "an allocation in a capture": (
        (900, 901, False),
        captured(lambda cuda, _: cuda.cudaMalloc(out(), SIZE(1 << 20)), mode=0),
    ),
    "a free of unknown memory": (1, lambda cuda: cuda.cudaFree(UNKNOWN)),
    "too much memory": (2, lambda cuda: cuda.cudaMalloc(out(), SIZE(1 << 50))),
    "no memory": (0, lambda cuda: cuda.cudaMalloc(out(), SIZE(0)) or cuda.cudaFree(None)),
    "host memory that is not registered": (713, lambda cuda: cuda.cudaHostUnregister(UNKNOWN)),
    "a copy in no direction": (21, lambda cuda: cuda.cudaMemcpyAsync(UNKNOWN, UNKNOWN, SIZE(4), 9, None)),
    "a memset of unknown memory": (1, lambda cuda: cuda.cudaMemsetAsync(UNKNOWN, 0, SIZE(4), None)),
    "host memory": ((0, 0, -2), lambda cuda: attributes(cuda, id(cuda))),
    "device memory": ((0, 2, 0), lambda cuda: attributes(cuda, tensor().data_ptr() + 4)),
    "pinned memory": ((0, 1, 0), lambda cuda: attributes(cuda, torch.zeros(9).pin_memory().data_ptr())),
    "attributes of no kernel": (400, lambda cuda: cuda.cudaFuncGetAttributes((SIZE * 64)(), POINTER(id(cuda)))),
    "no graph to instantiate": (1, lambda cuda: cuda.cudaGraphInstantiateWithFlags(out(), None, SIZE(0))),
}


def answers(name, expected, call):
    def runtime_answers():
        cuda = ctypes.CDLL("libcudart.so.13")
        answer = call(cuda)
        last = cuda.cudaGetLastError()
        assert answer == expected, answer
        assert isinstance(answer, tuple) or last == answer, f"the last error is {last}"

    runtime_answers.__name__ = name
    settled(runtime_answers)


for case, (status, wrong) in CALLS.items():
    answers(case, status, wrong)
