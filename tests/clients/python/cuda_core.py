"""`cuda.core` divides a device into partitions, and runs kernels compiled with NVRTC there."""

import ctypes

from cuda.bindings import driver
from cuda.core import (
    ContextOptions,
    Device,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    Program,
    ProgramOptions,
    SMResourceOptions,
    launch,
)
from cuda.core._utils.cuda_utils import CUDAError
from partition import SM_COUNT

SOURCE = """
template<typename T>
__global__ void scale(T* values, T factor, size_t count) {
    size_t index = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (index < count) values[index] *= factor;
}
"""
COUNT = 1024
CONFIG = LaunchConfig(grid=4, block=256)
TIMED = EventOptions(timing_enabled=True)


def compiled(kind):
    """Compiles the kernel for `float`, as PTX or as a cubin."""
    program = Program(SOURCE, "c++", ProgramOptions(std="c++17", arch="sm_90"))
    code = program.compile(kind, name_expressions=("scale<float>",))
    program.close()
    return code.get_kernel("scale<float>")


def divide(device, version):
    """Creates contexts on two groups of SMs. From CUDA 13.1 on they may differ in size."""
    counts = (16, 40) if version >= 13010 else (16, 16)
    groups, rest = device.resources.sm.split(SMResourceOptions(count=counts))
    assert tuple(group.sm_count for group in groups) == counts
    assert rest.sm_count == SM_COUNT - sum(counts)
    try:
        device.resources.sm.split(SMResourceOptions(count=140))
    except CUDAError as error:
        assert "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" in str(error), error
    else:
        raise AssertionError("the device has fewer SMs")
    resources = [[group] for group in groups]
    if version >= 13010:
        # The first context has its own workqueues too.
        resources[0].append(device.resources.workqueue)
    return [device.create_context(ContextOptions(resources=parts)) for parts in resources]


def pass_a_buffer_on(device, kernel, first, second):
    """Fills memory in one partition, and copies it in another that waits for the first."""
    size = 4 * COUNT
    buffer = device.allocate(size, stream=first)
    pinned = LegacyPinnedMemoryResource().allocate(size, stream=first)
    start = first.record(options=TIMED)
    buffer.fill(b"\1\2\3\4", stream=first)
    launch(first, CONFIG, kernel, buffer, 2.0, COUNT)
    filled = first.record(options=TIMED)
    second.wait(filled)
    buffer.copy_to(pinned, stream=second)
    second.sync()
    assert start.is_done and filled - start > 0
    # Simulated kernels compute nothing, so the copy contains the filled values.
    assert ctypes.string_at(int(pinned.handle), size) == b"\1\2\3\4" * COUNT
    for handle in (buffer, pinned):
        handle.close(second)
    second.sync()


def capture(kernel, stream):
    """Checks that a captured graph runs only when it is launched."""
    called = []
    builder = stream.create_graph_builder().begin_building()
    launch(builder, CONFIG, kernel, 0, 2.0, 0)
    builder.callback(lambda: called.append(1))
    builder.end_building()
    # The captured graph, which `green_ctx_torch.retarget` takes.
    captured = driver.CUgraph(int(builder.graph_definition.handle))
    status, _, count = driver.cuGraphGetNodes(captured)
    assert (status, count) == (0, 2)
    graph = builder.complete()
    assert called == []
    graph.launch(stream)
    graph.launch(stream)
    stream.sync()
    assert called == [1, 1]
    graph.close()
    builder.close()


def main():
    device = Device()
    device.set_current()
    assert device.name == "NVIDIA H200" and device.arch == "90"
    assert device.properties.multiprocessor_count == device.resources.sm.sm_count == SM_COUNT
    version = driver.cuDriverGetVersion()[1]

    contexts = divide(device, version)
    first, second = [context.create_stream() for context in contexts]
    assert first.context == contexts[0] and first.resources.sm.sm_count == 16
    for kind in "ptx", "cubin":
        kernel = compiled(kind)
        arguments = [(info.offset, info.size) for info in kernel.arguments_info]
        assert arguments == [(0, 8), (8, 4), (16, 8)]
        assert kernel.occupancy.max_active_blocks_per_multiprocessor(1024, 0) == 2
        pass_a_buffer_on(device, kernel, first, second)
        capture(kernel, first)
    for handle in (first, second, *contexts):
        handle.close()

    print(f"cuda_core: done on {version}")


if __name__ == "__main__":
    main()
