"""Functions of the CUDA runtime, implemented with the driver."""

import ctypes
import mmap
from contextlib import closing

import driver
import pytest
from green_ctx_torch import partition, runtime
from green_ctx_torch.runtime import Error


def test_error_codes():
    assert runtime.error_name(2) == "cudaErrorMemoryAllocation"
    assert runtime.error_text(2) == "not enough memory"
    assert runtime.error_name(Error.cudaErrorIllegalAddress) == "cudaErrorIllegalAddress"
    for unknown in [916, -1, 1 << 40]:
        assert runtime.error_name(unknown) is None
        assert "does not have" in runtime.error_text(unknown)


def test_the_enumeration_has_every_code():
    known = {code: runtime.error_name(code) for code in range(10_000)}
    names = {code: name for code, name in known.items() if name is not None}
    assert names == {int(error): error.name for error in Error}
    assert Error(0) is Error.cudaSuccess


def test_memory():
    with closing(partition({"a": 8})) as parts:
        free, total = runtime.memory_info()
        assert 0 < free <= total
        stream = parts["a"].raw_stream
        memory = driver.Memory(64 << 20, stream)
        assert runtime.memory_info() == (free - (64 << 20), total)
        memory.free(stream)


def test_host_memory():
    memory = mmap.mmap(-1, 1 << 16)
    held = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(held)
    runtime.host_register(address, len(memory))
    with pytest.raises(RuntimeError, match="CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"):
        runtime.host_register(address, len(memory))
    runtime.host_unregister(address)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"):
        runtime.host_unregister(address)
    runtime.host_register(address, len(memory), flags=3)
    runtime.host_unregister(address)
    del held
    memory.close()


def green(raw_stream):
    """Returns the green context of a stream, or None."""
    context = ctypes.c_void_p()
    driver.call("cuStreamGetGreenCtx", ctypes.c_void_p(raw_stream), ctypes.byref(context))
    return context.value


def test_streams():
    with closing(partition({"a": 8})) as parts:
        inside, outside = runtime.stream_create(parts["a"]), runtime.stream_create()
        assert green(inside) and green(inside) == green(parts["a"].raw_stream)
        assert green(outside) is None
        for stream in [inside, outside]:
            driver.keep_busy(stream)
            driver.synchronize(stream)
            runtime.stream_destroy(stream)
        parts["a"].close()
        with pytest.raises(RuntimeError, match="partition a is closed"):
            runtime.stream_create(parts["a"])


def test_streams_of_objects_are_not_destroyed(fake_torch):
    with closing(partition({"a": 8})) as parts:
        other = parts["a"].create_stream()
        for raw in [parts["a"].raw_stream, other.cuda_stream]:
            with pytest.raises(ValueError, match="was not created by stream_create"):
                runtime.stream_destroy(raw)
            driver.synchronize(raw)


def test_the_profiler():
    runtime.profiler_start()
    runtime.profiler_stop(device=0)
