"""numba-cuda compiles a kernel and runs it in a partition."""

import os

# The small grids of this program would cause warnings.
os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"

import numpy as np
from cuda.bindings import driver
from numba import cuda
from partition import partition


@cuda.jit
def increment(values, count):
    index = cuda.grid(1)
    if index < count:
        values[index] += 1


def run_in_a_partition(values):
    """Launches and copies in a partition's stream, and times the launch."""
    start, end = cuda.event(), cuda.event()
    with partition(16) as stream:
        inside = cuda.external_stream(int(stream.handle))
        memory = cuda.to_device(values, stream=inside)
        start.record(inside)
        increment[4, 256, inside](memory, values.size)
        end.record(inside)
        # Simulated kernels compute nothing, so the numbers are unchanged.
        back = memory.copy_to_host(stream=inside)
        stream.sync()
        assert (back == values).all() and start.elapsed_time(end) > 0
        # A kernel caches the configurations of its last launches, which hold their streams.
        type(increment).configure.cache_clear()


def main():
    assert cuda.detect()
    assert cuda.get_current_device().compute_capability == (9, 0)
    run_in_a_partition(np.arange(1000, dtype=np.float32))

    # numba compiles a separate kernel for each argument type.
    memory = cuda.to_device(np.zeros(1000, dtype=np.int64))
    increment[4, 256](memory, 1000)
    cuda.synchronize()
    assert len(increment.signatures) == 2
    assert all(registers > 0 for registers in increment.get_regs_per_thread().values())

    # Pending memory is freed once no context is current.
    del memory
    cuda.close()
    assert not driver.cuDevicePrimaryCtxGetState(0)[2]
    print("numba_kernels: done")


if __name__ == "__main__":
    main()
