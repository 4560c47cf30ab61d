"""A substitute for torch's streams and graphs, on the simulated driver."""

import ctypes
import threading
import types
from contextlib import nullcontext

import driver


def equip(torch):
    """Adds streams, events and graphs to a substitute for torch."""
    cuda = torch.cuda

    class CUDAGraph:
        def __init__(self, keep_graph=False):
            assert keep_graph
            self.raw = 0

        def raw_cuda_graph(self):
            return self.raw

        def __del__(self):
            if self.raw:
                driver.destroy_graph(self.raw)

    class stream:
        def __init__(self, stream):
            self.raw = stream.cuda_stream

        def __enter__(self):
            self.before = torch.current()
            torch.make_current(self.raw)

        def __exit__(self, *_exception):
            torch.make_current(self.before)

    class Stream:
        def __init__(self):
            raw = ctypes.c_void_p()
            driver.call("cuStreamCreate", ctypes.byref(raw), 1)
            self.cuda_stream = raw.value

        def wait_stream(self, stream):
            pass

        def __del__(self):
            driver.call("cuStreamDestroy_v2", ctypes.c_void_p(self.cuda_stream))

    cuda.CUDAGraph, cuda.stream, cuda.Stream = CUDAGraph, stream, Stream
    cuda.current_stream = lambda: types.SimpleNamespace(wait_stream=lambda stream: None)
    cuda.graph = lambda *arguments, **named: Capture(torch, *arguments, **named)
    cuda.device, cuda.synchronize = nullcontext, lambda: None
    torch.is_capturing = lambda: _is_capturing(torch.current())


class Capture:
    """torch.cuda.graph: captures the work submitted to a stream."""

    def __init__(self, torch, graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.graph, self.stream, self.inner = graph, stream, torch.cuda.stream(stream)

    def __enter__(self):
        self.inner.__enter__()
        driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream.cuda_stream), 1)

    def __exit__(self, kind, error, trace):
        raw = ctypes.c_void_p()
        driver.call("cuStreamEndCapture", ctypes.c_void_p(self.stream.cuda_stream), ctypes.byref(raw))
        self.inner.__exit__(kind, error, trace)
        self.graph.raw = raw.value
        if error is not None:
            raise RuntimeError("the capture has failed")


def _is_capturing(raw):
    status = ctypes.c_int()
    driver.call("cuStreamIsCapturing", ctypes.c_void_p(raw), ctypes.byref(status))
    return status.value != 0


class Step:
    """A function that launches a kernel on torch's current stream."""

    def __init__(self, torch, capturable=True):
        self.torch, self.capturable, self.calls = torch, capturable, 0
        self.threads, self.streams = set(), set()

    def __call__(self):
        self.calls += 1
        self.threads.add(threading.get_ident())
        self.streams.add(self.torch.current())
        if not self.capturable and self.torch.is_capturing():
            raise RuntimeError("operation not permitted when stream is capturing.\nMore.")
        driver.keep_busy(self.torch.current())
