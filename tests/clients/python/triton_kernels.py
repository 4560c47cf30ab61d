"""Triton compiles a kernel without PyTorch and runs it in a partition."""

import os

# The default of the next release.
os.environ["TRITON_DEFAULT_FP_FUSION"] = "0"

import triton
import triton.language as tl
from cuda.core import Device
from partition import SM_COUNT, partition

SIZE = 128

target = triton.runtime.driver.active


class Floats:
    """Numbers in device memory, with the interface that Triton accepts for arrays."""

    dtype = "fp32"

    def __init__(self, count, stream):
        self.buffer = Device().allocate(4 * count, stream=stream)

    def data_ptr(self):
        return int(self.buffer.handle)


@triton.jit
def product(left, right, products, SIZE: tl.constexpr):
    """Needs more than 48 KiB of shared memory, which a launch must request explicitly."""
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    a, b = tl.load(left + rows * SIZE + columns), tl.load(right + rows * SIZE + columns)
    tl.store(products + rows * SIZE + columns, tl.dot(a, b))


def main():
    found = target.get_current_target()
    assert (found.backend, found.arch, found.warp_size) == ("cuda", 90, 32)
    properties = target.utils.get_device_properties(0)
    assert properties["multiprocessor_count"] == SM_COUNT
    assert properties["max_shared_mem"] == 227 * 1024

    with partition(16) as stream:
        handle = int(stream.handle)
        target.get_current_stream = lambda device: handle
        arrays = [Floats(SIZE * SIZE, stream) for _ in range(3)]
        code = product[(4,)](*arrays, SIZE=SIZE)
        for array in arrays:
            array.buffer.close(stream)
        stream.sync()
    assert code.metadata.shared > 48 * 1024
    assert code.asm["cubin"].startswith(b"\x7fELF") and code.n_regs > 0
    print("triton_kernels: done")


if __name__ == "__main__":
    main()
