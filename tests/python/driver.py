"""The simulated driver's own functions, for tests that submit work."""

import ctypes
import threading

NOT_READY = 600

_cuda = ctypes.CDLL("libcuda.so.1")
_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_submitted = []


def call(name, *arguments):
    """Calls a driver function, which must succeed."""
    status = getattr(_cuda, name)(*arguments)
    assert status == 0, f"{name} answered {status}"


def launch(raw_stream, function):
    """Has a stream call a Python function, which takes the GIL for that."""
    submitted = _HostFunction(lambda _: function())
    # As long as the process: the driver calls it when it pleases.
    _submitted.append(submitted)
    call("cuLaunchHostFunc", ctypes.c_void_p(raw_stream), submitted, None)


def hold(raw_stream):
    """Holds up what is submitted to a stream from now on, until what is returned is called."""
    go_on = threading.Event()
    launch(raw_stream, go_on.wait)
    return go_on.set


def is_done(raw_stream):
    """Whether a stream has nothing to do."""
    status = _cuda.cuStreamQuery(ctypes.c_void_p(raw_stream))
    assert status in (0, NOT_READY), f"cuStreamQuery answered {status}"
    return status == 0


def synchronize(raw_stream):
    """Waits for a stream; ctypes lets the GIL go."""
    call("cuStreamSynchronize", ctypes.c_void_p(raw_stream))


class Memory:
    """Memory of the device, whose calls are in the order of the streams given."""

    def __init__(self, size, raw_stream):
        self.size = ctypes.c_size_t(size)
        self._address = ctypes.c_uint64()
        call("cuMemAllocAsync", ctypes.byref(self._address), self.size, ctypes.c_void_p(raw_stream))

    def fill(self, value, raw_stream):
        arguments = self._address, ctypes.c_ubyte(value), self.size, ctypes.c_void_p(raw_stream)
        call("cuMemsetD8Async", *arguments)

    def read(self, raw_stream):
        held = ctypes.create_string_buffer(self.size.value)
        arguments = held, self._address, self.size, ctypes.c_void_p(raw_stream)
        call("cuMemcpyDtoHAsync_v2", *arguments)
        synchronize(raw_stream)
        return held.raw

    def free(self, raw_stream):
        call("cuMemFreeAsync", self._address, ctypes.c_void_p(raw_stream))
        synchronize(raw_stream)


def capture(raw_stream, submit):
    """The graph of what a function submits to a stream: a raw CUgraph."""
    stream, graph = ctypes.c_void_p(raw_stream), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", stream, 0)
    submit()
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph.value


def destroy_graph(raw):
    """Ends a graph that was captured."""
    call("cuGraphDestroy", ctypes.c_void_p(raw))
