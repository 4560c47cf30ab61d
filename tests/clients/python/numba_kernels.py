"""Kernels that numba-cuda compiles: its arrays, streams and events, and a partition's stream in it."""

import os

# The grids here are small.
os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"

import numpy as np
from checks import ok, run
from cuda.bindings import driver
from cuda.core import ContextOptions, Device, SMResourceOptions
from numba import cuda


@cuda.jit
def increment(values, count):
    index = cuda.grid(1)
    if index < count:
        values[index] += 1


def test_the_device_is_found():
    assert cuda.detect()
    assert cuda.get_current_device().compute_capability == (9, 0)
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total


def test_arrays_are_copied_both_ways():
    values = np.arange(1000, dtype=np.float32)
    memory = cuda.to_device(values)
    assert (memory.copy_to_host() == values).all()
    other = cuda.device_array_like(memory)
    other.copy_to_device(memory)
    assert (other[10:20].copy_to_host() == values[10:20]).all()


def test_kernels_are_compiled_for_their_arguments():
    memory = cuda.to_device(np.zeros(1000, dtype=np.float32))
    increment[4, 256](memory, 1000)
    increment[4, 256](cuda.to_device(np.zeros(1000, dtype=np.int64)), 1000)
    cuda.synchronize()
    assert len(increment.signatures) == 2
    assert all(registers > 0 for registers in increment.get_regs_per_thread().values())


def test_events_time_a_stream():
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    start.record(stream)
    increment[64, 256, stream](cuda.device_array(1 << 14, stream=stream), 1 << 14)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) > 0


def test_a_kernel_runs_in_a_partition():
    device = Device()
    device.set_current()
    [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
    context = device.create_context(ContextOptions(resources=[group]))
    stream = context.create_stream()
    memory = cuda.to_device(np.zeros(1000, dtype=np.float32))
    increment[4, 256, cuda.external_stream(int(stream.handle))](memory, 1000)
    stream.sync()
    # A kernel keeps its last launches' configurations, and with them their streams.
    type(increment).configure.cache_clear()
    stream.close()
    context.close()


def test_closing_releases_the_device():
    """It frees memory that waits to be freed when no context is current any more."""
    memory = cuda.to_device(np.zeros(1000, dtype=np.float32))
    del memory
    cuda.close()
    assert not ok(driver.cuDevicePrimaryCtxGetState(0))[1]


if __name__ == "__main__":
    run(dict(globals()))
