"""Functions of the simulated driver, for tests that submit work."""

import ctypes
from contextlib import contextmanager
from functools import cache

PTX = b".version 7.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }"

_system = ctypes.CDLL(None)
_cuda = ctypes.CDLL("libcuda.so.1")
# Kept until the process ends, because the driver may use them at any time.
_submitted = []


def call(name, *arguments):
    """Calls a driver function and checks that it succeeds."""
    status = getattr(_cuda, name)(*arguments)
    assert status == 0, f"{name} answered {status}"


@cache
def _kernel():
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuLibraryLoadData", ctypes.byref(library), PTX, None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"work")
    return kernel


def kernel():
    """Returns the address of a kernel that does nothing (a CUkernel)."""
    return _kernel().value


def keep_busy(raw_stream):
    """Launches a kernel of many blocks, which the simulated device takes a while to run."""
    grid, block, shared = (1 << 12, 1, 1), (1024, 1, 1), 0
    stream = ctypes.c_void_p(raw_stream)
    call("cuLaunchKernel", _kernel(), *grid, *block, shared, stream, None, None)


def hold(raw_stream):
    """Makes a stream wait until the returned function is called. The simulated driver waits inside the next call
    that any thread makes, whether or not that thread holds the GIL."""
    semaphore = ctypes.create_string_buffer(64)
    assert _system.sem_init(semaphore, 0, 0) == 0
    wait = ctypes.cast(_system.sem_wait, ctypes.c_void_p)
    call("cuLaunchHostFunc", ctypes.c_void_p(raw_stream), wait, semaphore)
    _submitted.append(semaphore)
    return lambda: _system.sem_post(semaphore)


def synchronize(raw_stream):
    """Waits for a stream. ctypes releases the GIL during the call."""
    call("cuStreamSynchronize", ctypes.c_void_p(raw_stream))


def priority(raw_stream):
    """Returns the priority that the driver gave a stream."""
    number = ctypes.c_int()
    call("cuStreamGetPriority", ctypes.c_void_p(raw_stream), ctypes.byref(number))
    return number.value


class Memory:
    """Device memory whose operations run in the order of the given streams."""

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
    """Captures the work that a function submits to a stream, and returns the raw CUgraph."""
    stream, graph = ctypes.c_void_p(raw_stream), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", stream, 0)
    submit()
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph.value


def order(raw_stream, after):
    """Makes a stream wait for the work already submitted to another stream."""
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 2)
    call("cuEventRecord", event, ctypes.c_void_p(after))
    call("cuStreamWaitEvent", ctypes.c_void_p(raw_stream), event, 0)
    call("cuEventDestroy_v2", event)


def destroy_graph(raw):
    call("cuGraphDestroy", ctypes.c_void_p(raw))


@contextmanager
def primary_context():
    """Makes the device's primary context current during the block, as PyTorch does."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxPushCurrent_v2", context)
    yield
    call("cuCtxPopCurrent_v2", ctypes.byref(context))
    call("cuDevicePrimaryCtxRelease_v2", 0)


def current_context():
    """Returns the thread's current context, or None."""
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value
