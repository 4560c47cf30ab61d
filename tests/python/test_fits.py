"""How much of a kernel fits in a partition."""

import ctypes
from contextlib import closing
from types import SimpleNamespace

import driver
import pytest
from green_ctx_torch import GreenContext, fit, partition

CLUSTERED = b"""
.version 8.0 .target sm_90 .address_size 64
.visible .entry pairs() .explicitcluster .reqnctapercluster 2, 1, 1 { ret; }
.visible .entry plain() { ret; }
"""


class CUfunction:
    """Imitates cuda.bindings: an object with this class name that converts to a number."""

    def __init__(self, address):
        self._address = address

    def __int__(self):
        return self._address


class CUkernel(CUfunction):
    """The same for a kernel of a library."""


@pytest.fixture(scope="module")
def kernels():
    """Kernels by name, each as a CUkernel and as a CUfunction."""
    library, context = ctypes.c_void_p(), ctypes.c_void_p()
    call = driver.call
    call("cuInit", 0)
    # Retained while the functions are used, because they belong to this context.
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuLibraryLoadData", ctypes.byref(library), CLUSTERED, None, None, 0, None, None, 0)
    found = {}
    with driver.primary_context():
        for name in ["pairs", "plain"]:
            kernel, function = ctypes.c_void_p(), ctypes.c_void_p()
            call("cuLibraryGetKernel", ctypes.byref(kernel), library, name.encode())
            call("cuKernelGetFunction", ctypes.byref(function), kernel)
            found[name] = kernel.value, function.value
    yield found
    call("cuLibraryUnload", library)
    call("cuDevicePrimaryCtxRelease_v2", 0)


@pytest.fixture
def part():
    with closing(partition({"decode": 16, "prefill": "rest"})) as parts:
        yield parts["decode"]


def test_the_numbers_are_the_partitions(kernels, part):
    found = fit(kernels["plain"][1], part, grid=100, block=1024, shared_memory=64)
    assert (found.kernel, found.blocks, found.threads) == ("plain", 100, 1024)
    assert (found.shared_memory, found.cluster, found.cooperative) == (64, None, False)
    assert (found.sm_count, found.shared_sms, found.blocks_per_sm) == (16, 0, 2)
    assert found.resident_blocks == found.cooperative_blocks == 32
    assert found.fits and not found.fits_at_once
    assert found.persistent_grid == (32, 1, 1)
    assert (found.collective_blocks(), found.collective_blocks(3)) == (32, 10)
    assert list(found.clusters)[0] == 1 and found.clusters[1] == 32
    assert found.largest_cluster in found.clusters
    assert repr(found) == "<Fit of plain: 32 of 100 blocks at once on 16 SMs>"
    assert "largest cooperative grid: 32 blocks" in str(found)


def test_a_cooperative_launch_fits_as_a_whole(kernels, part):
    def ask(grid):
        return fit(kernels["plain"][1], part, grid=grid, block=1024, cooperative=True)

    assert ask(32).fits and ask((8, 4)).fits and ask((4, 4, 2)).fits_at_once
    assert not ask(33).fits and ask(33).cooperative


def test_a_kernel_is_given_in_many_ways(kernels, part):
    for name in ["plain", "pairs"]:
        kernel, function = kernels[name]
        expected = fit(function, part, grid=64, block=(32, 8))
        assert (expected.kernel, expected.threads) == (name, 256)
        assert expected.cluster == (None if name == "plain" else (2, 1, 1))
        for given in [
            CUfunction(function),
            CUkernel(kernel),
            # cuda.core; and Triton, whose kernels also have the program as `kernel`.
            SimpleNamespace(handle=CUkernel(kernel)),
            SimpleNamespace(function=function, kernel=b"cubin"),
        ]:
            assert fit(given, part, grid=64, block=(32, 8)) == expected
        assert fit(kernel, part, grid=64, block=256, handle_type="CUkernel") == expected


def test_clusters_are_the_kernels_or_those_asked_for(kernels, part):
    assert fit(kernels["plain"][1], part, grid=64, block=32, cluster=4).cluster == (4, 1, 1)
    assert fit(kernels["pairs"][1], part, grid=64, block=32, cluster=(2, 1)).cluster == (2, 1, 1)
    with pytest.raises(ValueError, match="requires clusters of 2 blocks and cannot run in clusters of 4"):
        fit(kernels["pairs"][1], part, grid=64, block=32, cluster=4)


def test_a_block_that_no_sm_holds_does_not_fit(kernels, part):
    found = fit(kernels["plain"][1], part, grid=1, block=32, shared_memory=1 << 20)
    assert (found.blocks_per_sm, found.resident_blocks, found.fits) == (0, 0, False)


def test_shared_sms_are_counted(kernels):
    with closing(partition({"decode": "32..", "prefill": "..100"})) as parts:
        found = fit(kernels["plain"][1], parts["decode"], grid=1, block=1024)
        assert (found.sm_count, found.shared_sms) == (132, 100)


def test_a_green_context_is_a_partition(kernels):
    context = GreenContext.create(24)
    assert fit(kernels["plain"][1], context, grid=1, block=1024).resident_blocks == 48
    context.close()
    with pytest.raises(RuntimeError, match="is closed"):
        fit(kernels["plain"][1], context, grid=1, block=1024)
