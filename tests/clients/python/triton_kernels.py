"""Kernels that Triton compiles and launches without PyTorch, and a partition's stream in it."""

import os

# What the next release has by default.
os.environ["TRITON_DEFAULT_FP_FUSION"] = "0"

import triton
import triton.language as tl
from checks import ok, run
from cuda.bindings import driver
from cuda.core import ContextOptions, Device, SMResourceOptions

target = triton.runtime.driver.active


class Floats:
    """Numbers in device memory, in the form in which Triton takes arrays of any library."""

    dtype = "fp32"

    def __init__(self, count):
        self.address = ok(driver.cuMemAlloc(4 * count))

    def data_ptr(self):
        return int(self.address)

    def free(self):
        ok(driver.cuMemFree(self.address))


@triton.jit
def add(left, right, sums, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    total = tl.load(left + index, mask=inside) + tl.load(right + index, mask=inside)
    tl.store(sums + index, total, mask=inside)


@triton.jit
def product(left, right, products, SIZE: tl.constexpr):
    """Wants more shared memory than a block has without asking for it."""
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    a, b = tl.load(left + rows * SIZE + columns), tl.load(right + rows * SIZE + columns)
    tl.store(products + rows * SIZE + columns, tl.dot(a, b))


def launched(kernel, count, *arguments, **constants):
    """What Triton compiled, after a launch on three arrays of so many numbers."""
    arrays = [Floats(count) for _ in range(3)]
    code = kernel[(4,)](*arrays, *arguments, **constants)
    ok(driver.cuCtxSynchronize())
    for array in arrays:
        array.free()
    return code


def test_the_device_is_found():
    found = target.get_current_target()
    assert (found.backend, found.arch, found.warp_size) == ("cuda", 90, 32)
    properties = target.utils.get_device_properties(0)
    assert properties["multiprocessor_count"] == 132
    assert properties["max_shared_mem"] == 227 * 1024


def test_a_kernel_is_compiled_loaded_and_launched():
    code = launched(add, 4096, 4000, BLOCK=1024)
    assert "add" in code.asm["ptx"] and code.asm["cubin"].startswith(b"\x7fELF")
    assert code.n_regs > 0 and code.n_max_threads == 1024


def test_shared_memory_beyond_the_default():
    code = launched(product, 128 * 128, SIZE=128)
    assert code.metadata.shared > 48 * 1024


def test_a_kernel_runs_in_a_partition():
    device = Device()
    device.set_current()
    [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
    context = device.create_context(ContextOptions(resources=[group]))
    stream = context.create_stream()
    everywhere = target.get_current_stream
    target.get_current_stream = lambda device: int(stream.handle)
    launched(add, 4096, 4000, BLOCK=512)
    target.get_current_stream = everywhere
    stream.sync()
    stream.close()
    context.close()


if __name__ == "__main__":
    run(dict(globals()))
