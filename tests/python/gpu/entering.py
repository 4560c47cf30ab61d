"""Entering a partition changes torch's current stream only: `python entering.py [RESULTS.json]`.

A block makes the partition's stream torch's current one and changes no context. torch's default stream is therefore
the same stream inside a block and outside, and other libraries find the context that they expect.
"""

import ctypes

import torch
from harness import check, main, program, skip

import green_ctx_torch
from green_ctx_torch import GreenContext

cuda = ctypes.CDLL("libcuda.so.1")
#: About 0.3 s on an H200.
LONG = 500_000_000
DEFAULT = torch.cuda.default_stream()


def current_context():
    context = ctypes.c_void_p()
    assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


def one(share=16):
    return green_ctx_torch.partition({"a": share})["a"]


def blocks_of():
    """Yields a partition and a green context, which can both be entered."""
    yield one()
    yield GreenContext.create(16)


@check
def a_block_changes_no_context():
    torch.zeros(1, device="cuda")
    outside = current_context()
    for entered in blocks_of():
        with entered:
            assert current_context() == outside, entered
        assert current_context() == outside
    context = GreenContext.create(16)
    context.set_context()
    pushed = current_context()
    context.pop_context()
    assert pushed == context.raw_context != outside


@check
def what_is_written_on_the_default_stream_in_a_block_is_read_after_it():
    for entered in blocks_of():
        x = torch.zeros(1 << 20, device="cuda")
        torch.cuda.synchronize()
        with entered:
            with torch.cuda.stream(DEFAULT):
                torch.cuda._sleep(LONG)
                x.fill_(1)
        y = x.clone()
        assert y.min().item() == 1, f"read too early after {entered}"


@check
def a_wait_for_the_default_stream_in_a_block_waits():
    for entered in blocks_of():
        x = torch.zeros(1 << 20, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        with entered:
            torch.cuda.current_stream().wait_stream(DEFAULT)
        x.zero_()
        torch.cuda.synchronize()
        with entered:
            with torch.cuda.stream(DEFAULT):
                torch.cuda._sleep(LONG)
                x.fill_(1)
            torch.cuda.current_stream().wait_stream(DEFAULT)
            y = x.clone()
            assert y.min().item() == 1, f"the wait had no effect in {entered}"


@check
def memory_freed_on_the_default_stream_in_a_block_is_not_given_out_early():
    wrong = 0
    for _ in range(10):
        with one():
            with torch.cuda.stream(DEFAULT):
                a = torch.ones(32 << 20, device="cuda")
                torch.cuda._sleep(LONG // 5)
                b = a.clone()
                del a
        c = torch.full((32 << 20,), 2.0, device="cuda")
        torch.cuda.synchronize()
        wrong += b.max().item() != 1
        del b, c
    assert wrong == 0, f"given out while still being read, {wrong} times of 10"


SANITIZED = """
import torch, green_ctx_torch
part = green_ctx_torch.partition({"a": 16})["a"]
x = torch.ones(1 << 16, device="cuda")
for _ in range(3):
    with part:
        y = x * 2
        with part:
            y += 1
    x = y + x
    y = None
x.sum().item()
print("done")
"""

RACY = """
import torch, green_ctx_torch
part = green_ctx_torch.partition({"a": 16})["a"]
x = torch.ones(1 << 16, device="cuda")
with part:
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    x.add_(1)
"""


@check
def the_sanitizer_finds_no_race_in_a_correct_program():
    output = program(SANITIZED, TORCH_CUDA_SANITIZER="1")
    assert "done" in output and "race" not in output, output[-2000:]
    # The sanitizer is active: it finds this race.
    output = program(RACY, status=None, TORCH_CUDA_SANITIZER="1")
    assert "race" in output, output[-2000:]


NUMBA = """
import numpy, torch, green_ctx_torch
from numba import cuda
part = green_ctx_torch.partition({"a": 16})["a"]
with part:
    assert cuda.current_context() is not None
    x = torch.arange(8, device="cuda")
    assert cuda.as_cuda_array(x).copy_to_host().tolist() == list(range(8))
print("done")
"""


@check
def numba_finds_its_context_in_a_block():
    output = program(NUMBA, status=None)
    if "No module named 'numba'" in output:
        return skip("numba is not installed")
    assert "done" in output, output[-1500:]


RAW = """
import torch, green_ctx_torch
part = green_ctx_torch.partition({"a": 16})["a"]
x = torch.ones(1024, 1024, device="cuda")
stream = torch.cuda.ExternalStream(part.raw_stream)
graph = torch.cuda.CUDAGraph()
x @ x
torch.cuda.synchronize()
# Nothing of green_ctx_torch has used torch so far.
with torch.cuda.graph(graph, stream=stream):
    y = x @ x
with part:
    graph.replay()
torch.cuda.synchronize()
assert y[0, 0].item() == 1024
"""


@check
def a_graph_captured_on_the_partitions_raw_stream_is_replayed_in_it():
    program(RAW)


@check
def a_partition_that_ends_within_a_capture_leaves_it_alone():
    x = torch.ones(256, 256, device="cuda")
    x @ x
    for end in ("close", "drop", "replace"):
        parts, graph = green_ctx_torch.partition({"a": 16, "b": 8}), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            with parts["a"]:
                y = x @ x
            if end == "close":
                parts.close()
            later = green_ctx_torch.partition({"c": 24}, replace=True) if end == "replace" else None
            del parts
            z = y + 1
        graph.replay()
        assert bool((z == 257).all()), end
        del graph, later
    with green_ctx_torch.partition({"all": torch.cuda.get_device_properties(0).multi_processor_count}):
        pass


@check
def closed_partitions_leave_no_workspaces():
    x = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
    x @ x
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    sizes = [8 * (1 + turn % 15) for turn in range(150)]
    for size in sizes:
        part = one(size)
        with part:
            x @ x
        part.close()
        del part
    torch.cuda.synchronize()
    left = torch.cuda.memory_allocated() - before
    assert left < 128 << 20, f"{left >> 20} MiB of workspaces are left"
    return {"left_mib": round(left / (1 << 20), 1)}


@check
def entering_imports_no_compiler():
    program("""
import sys, torch, green_ctx_torch
before = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
with green_ctx_torch.partition({"a": 16})["a"]:
    torch.ones(8, device="cuda")
after = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
assert after == before, sorted(after - before)[:5]
""")


@check
def a_forked_child_leaves_in_a_block():
    program("""
import os, sys, torch, green_ctx_torch
part = green_ctx_torch.partition({"a": 16})["a"]
with part:
    child = os.fork()
    if child == 0:
        sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
""")


if __name__ == "__main__":
    main()
