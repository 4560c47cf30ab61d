"""Memory and order of one partition, through `cuda.bindings`."""

import ctypes

from checks import PTX, fails, ok, run
from cuda.bindings import driver

NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
SIZE = 4096


class Partition:
    """A green context of 16 SMs, current, with a stream; gone at the end of a `with`."""

    def __enter__(self):
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        groups, _, _ = ok(
            driver.cuDevSmResourceSplitByCount(1, ok(driver.cuDeviceGetDevResource(0, kind)), 0, 16)
        )
        desc = ok(driver.cuDevResourceGenerateDesc(groups[:1], 1))
        self.green = ok(driver.cuGreenCtxCreate(desc, 0, 1))
        self.stream = ok(driver.cuGreenCtxStreamCreate(self.green, NON_BLOCKING, 0))
        ok(driver.cuCtxPushCurrent(ok(driver.cuCtxFromGreenCtx(self.green))))
        return self

    def __exit__(self, *_):
        ok(driver.cuCtxPopCurrent())
        ok(driver.cuStreamDestroy(self.stream))
        ok(driver.cuGreenCtxDestroy(self.green))


def test_initialisation():
    ok(driver.cuInit(0))


def test_copies_both_ways():
    with Partition() as part:
        source, target = bytes(range(256)) * (SIZE // 256), bytearray(SIZE)
        memory = ok(driver.cuMemAlloc(SIZE))
        ok(driver.cuMemcpyHtoDAsync(memory, source, SIZE, part.stream))
        ok(driver.cuMemcpyDtoHAsync(target, memory, SIZE, part.stream))
        ok(driver.cuStreamSynchronize(part.stream))
        assert target == source
        ok(driver.cuMemsetD8Async(memory, 7, SIZE // 2, part.stream))
        ok(driver.cuStreamSynchronize(part.stream))
        ok(driver.cuMemcpyDtoH(target, memory, SIZE))
        assert target == b"\7" * (SIZE // 2) + source[SIZE // 2 :]
        ok(driver.cuMemFree(memory))
        fails("INVALID_VALUE", driver.cuMemFree(memory))


def test_memory_in_stream_order():
    with Partition() as part:
        free, total = ok(driver.cuMemGetInfo())
        assert 0 < free < total == ok(driver.cuDeviceTotalMem(0))
        memory = ok(driver.cuMemAllocAsync(SIZE, part.stream))
        ok(driver.cuMemsetD32Async(memory, 0x01020304, SIZE // 4, part.stream))
        target = bytearray(SIZE)
        ok(driver.cuMemcpyDtoHAsync(target, memory, SIZE, part.stream))
        ok(driver.cuMemFreeAsync(memory, part.stream))
        ok(driver.cuStreamSynchronize(part.stream))
        assert target == b"\4\3\2\1" * (SIZE // 4)


def test_launches_and_events():
    library = ok(driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    kernel = ok(driver.cuLibraryGetKernel(library, b"work"))
    with Partition() as part:
        memory = ok(driver.cuMemAlloc(SIZE))
        start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(start, part.stream))
        arguments = ((memory, 5), (None, ctypes.c_uint32))
        function = ok(driver.cuKernelGetFunction(kernel))
        ok(driver.cuLaunchKernel(function, 64, 1, 1, 128, 1, 1, 0, part.stream, arguments, 0))
        ok(driver.cuEventRecord(end, part.stream))
        ok(driver.cuEventSynchronize(end))
        ok(driver.cuEventQuery(start))
        assert ok(driver.cuEventElapsedTime(start, end)) > 0
        ok(driver.cuEventDestroy(start))
        ok(driver.cuEventDestroy(end))
        ok(driver.cuMemFree(memory))
    ok(driver.cuLibraryUnload(library))


def test_callbacks_run_in_their_turn():
    called = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def note(argument):
        called.append(argument)

    function = driver.CUhostFn(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(note)))
    with Partition() as part:
        ok(driver.cuLaunchHostFunc(part.stream, function, 42))
        ok(driver.cuStreamSynchronize(part.stream))
    assert called == [42]


if __name__ == "__main__":
    run(dict(globals()))
