"""Kernels that NVRTC compiles, through `cuda.core` and through `cuda.bindings`."""

from checks import fails, ok, raises, run
from cuda.bindings import driver, nvrtc
from cuda.core import (
    ContextOptions,
    Device,
    LaunchConfig,
    Program,
    ProgramOptions,
    SMResourceOptions,
    launch,
)
from cuda.core._utils.cuda_utils import NVRTCError

device = Device()
device.set_current()

SOURCE = """
template<typename T>
__global__ void scale(T* values, T factor, size_t count) {
    size_t index = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (index < count) values[index] *= factor;
}
"""


def compiled(kind):
    """The kernel for `float`, by way of PTX or of a cubin."""
    program = Program(SOURCE, "c++", ProgramOptions(std="c++17", arch="sm_90"))
    code = program.compile(kind, name_expressions=("scale<float>",))
    program.close()
    return code.get_kernel("scale<float>")


def test_ptx_and_cubins_have_the_parameters_of_the_source():
    for kind in "ptx", "cubin":
        scale = compiled(kind)
        arguments = [(info.offset, info.size) for info in scale.arguments_info]
        assert arguments == [(0, 8), (8, 4), (16, 8)]


def test_a_compiled_kernel_runs_in_a_partition():
    [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
    context = device.create_context(ContextOptions(resources=[group]))
    stream = context.create_stream()
    buffer = device.allocate(4096, stream=stream)
    for kind in "ptx", "cubin":
        launch(stream, LaunchConfig(grid=4, block=256), compiled(kind), buffer, 2.0, 1024)
    stream.sync()
    buffer.close(stream)
    stream.close()
    context.close()


def test_errors_of_the_source_are_reported():
    source = "__global__ void broken() { undeclared(); }"
    program = Program(source, "c++", ProgramOptions(arch="sm_90"))
    with raises(NVRTCError, 'identifier "undeclared" is undefined'):
        program.compile("cubin")
    program.close()


def test_ptx_of_the_bindings_is_a_module():
    source = b'extern "C" __global__ void empty() {}'
    program = ok(nvrtc.nvrtcCreateProgram(source, b"empty.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_90"]))
    ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
    ok(nvrtc.nvrtcGetPTX(program, ptx))
    ok(nvrtc.nvrtcDestroyProgram(program))
    module = ok(driver.cuModuleLoadData(ptx))
    empty = ok(driver.cuModuleGetFunction(module, b"empty"))
    fails("NOT_FOUND", driver.cuModuleGetFunction(module, b"full"))
    ok(driver.cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuModuleUnload(module))


if __name__ == "__main__":
    run(dict(globals()))
