"""`watch`, fed with records of the profiler."""

import json
import warnings
from contextlib import closing
from types import SimpleNamespace

import pytest
from green_ctx_torch import Oversized, Watch, partition, watch

INSIDE, PLAIN = 7, 1


def event(name, ts, context, category="kernel", **arguments):
    """Returns a record of the profiler, with a duration of 1.5 µs."""
    arguments = {"device": 0, "stream": 20, "context": context, **arguments}
    return {"name": name, "cat": category, "ts": ts, "dur": 1.5, "args": arguments}


def mark(ts, context):
    return event("spin_kernel(long)", ts, context)


def read(*work, marks=(mark(0, INSIDE), mark(1, PLAIN), mark(99, INSIDE))):
    with closing(partition({"decode": 8})) as parts:
        watched = Watch(parts["decode"])
    watched._device = 0
    watched._read([*marks, *work])
    return watched


def test_all_inside():
    watched = read(
        event("gemm", 5, INSIDE),
        event("Memcpy HtoD", 6, PLAIN, "gpu_memcpy"),
        event("cudaLaunchKernel", 4, PLAIN, "cuda_runtime"),
        event("other", 7, PLAIN, device=1),
    )
    assert watched.ok and watched.escapes == [] and watched.total == 1
    assert repr(watched) == "<Watch decode: all 1 kernels ran inside>"


def test_escapes_are_told_apart():
    watched = read(
        event("gemm", 5, INSIDE),
        event("add", 6, PLAIN),
        event("add", 7, PLAIN),
        event("nccl", 8, 9),
        event("Memset", 9, PLAIN, "gpu_memset"),
        event("Memcpy DtoD", 9, PLAIN, "gpu_memcpy"),
        # It has the same name as the markers.
        event("spin_kernel(long)", 10, PLAIN),
    )
    assert not watched.ok and watched.total == 7
    found = {(escape.name, escape.kind, escape.context): escape.count for escape in watched.escapes}
    assert found == {
        ("add", "kernel", PLAIN): 2,
        ("nccl", "kernel", 9): 1,
        ("Memset", "memset", PLAIN): 1,
        ("Memcpy DtoD", "copy", PLAIN): 1,
        ("spin_kernel(long)", "kernel", PLAIN): 1,
    }
    assert watched.escapes[0].name == "add" and watched.escapes[0].duration_us == 3.0
    assert "6 of 7 kernels ran outside" in repr(watched)
    assert json.loads(watched.to_json())["escapes"][0]["count"] == 2


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ((), "reported no kernels"),
        ((mark(0, INSIDE), mark(1, PLAIN)), "lost records"),
        ((mark(0, INSIDE), mark(1, PLAIN), mark(99, 3)), "lost records"),
        ((mark(0, PLAIN), mark(1, PLAIN), mark(99, PLAIN)), "does not report which green context"),
        ((mark(0, None), mark(1, None), mark(99, None)), "does not report which green context"),
    ],
)
def test_what_is_not_known_is_an_error(marks, words):
    with pytest.raises(RuntimeError, match=words):
        read(event("gemm", 5, INSIDE), marks=marks)


def test_a_kernel_without_a_context_is_an_error():
    with pytest.raises(RuntimeError, match="no context of gemm"):
        read(event("gemm", 5, None))


def test_results_are_there_after_the_block():
    watched = watch()
    for ask in (lambda: watched.escapes, lambda: watched.ok, lambda: watched.total):
        with pytest.raises(RuntimeError, match="has not ended"):
            ask()
    assert "not finished" in repr(watched)


def test_collectives_in_two_partitions_are_a_warning():
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    custom = "void sglang::cross_device_reduce_2stage<half, 2>(...)"
    with pytest.warns(RuntimeWarning, match=r"2 partitions \(contexts \[7, 9\]\)"):
        watched = read(event(nccl, 2, INSIDE), event(custom, 3, 9), event(nccl, 4, INSIDE))
    assert watched.collectives == {INSIDE: 2, 9: 1}
    assert json.loads(watched.to_json())["collectives"] == {str(INSIDE): 2, "9": 1}
    # If NCCL's own streams are outside all partitions, the collectives of one communicator stay in order.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched = read(event(nccl, 2, INSIDE), event(nccl, 3, PLAIN), event("elementwise", 4, 9))
    assert watched.collectives == {INSIDE: 1, PLAIN: 1}


def spun(blocks, threads=128, spinning=("*barrier*",), **arguments):
    """Watches one launch for a partition of 8 SMs, on a GPU with the limits of an H200."""
    with closing(partition({"decode": 8})) as parts:
        watched = watch(parts["decode"], spinning=spinning)
    watched._device = 0
    watched._properties = SimpleNamespace(
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, shared_memory_per_multiprocessor=233472
    )
    kernel = event("grid_barrier(int)", 5, INSIDE, grid=[blocks, 1, 1], block=[threads, 1, 1], **arguments)
    watched._read([mark(0, INSIDE), mark(1, PLAIN), kernel, mark(99, INSIDE)])
    return watched


@pytest.mark.parametrize(
    ("most", "threads", "arguments"),
    [
        (8 * 16, 128, {}),
        (8, 1024, {"registers per thread": 64}),
        # 33 registers of 32 threads are five units of 256.
        (8 * 12, 128, {"registers per thread": 33}),
        (8, 128, {"shared memory": 200_000}),
    ],
)
def test_spinning_kernels_must_be_resident_at_once(most, threads, arguments):
    assert spun(most, threads, **arguments).ok
    watched = spun(most + 1, threads, **arguments)
    assert watched.oversized == [Oversized("grid_barrier(int)", most + 1, most, 1)]
    assert not watched.ok and not watched.escapes
    assert f"{most + 1} blocks, but 8 SMs hold at most {most} at once" in repr(watched)
    assert json.loads(watched.to_json())["oversized"][0]["resident"] == most


def test_other_kernels_may_have_any_grid():
    assert spun(100_000, spinning=["*reduce*"]).ok and spun(100_000, spinning=()).ok
    with pytest.raises(TypeError, match=r"such as \['spin'\]"):
        watch(spinning="spin")
