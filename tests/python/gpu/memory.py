"""Checks of the allocator with torch, and of the functions that replace the CUDA runtime."""

import torch
from harness import check, program, raises
from probe import blocks, launch, sms

import green_ctx_torch
from green_ctx_torch import runtime
from green_ctx_torch.allocator import Allocator

MIB = 1 << 20


def allocate(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


@check
def a_limited_pool_of_memory():
    allocator = Allocator()
    allocator.limit = 64 * MIB
    part = green_ctx_torch.partition({"small": 16})["small"]
    pool = allocator.mem_pool()
    with part, torch.cuda.use_mem_pool(pool):
        held = [allocate(8) for _ in range(4)]
        for number, tensor in enumerate(held):
            tensor.fill_(number)
        current = allocator.current_bytes
        assert 32 * MIB <= current <= allocator.limit, current
        message = raises(torch.OutOfMemoryError, lambda: allocate(64), "out of memory")
        # Earlier tensors are intact, and a request that fits still succeeds.
        assert [int(tensor[-1]) for tensor in held] == [0, 1, 2, 3]
        small = allocate(1)
    peak = allocator.peak_bytes
    assert peak <= allocator.limit
    assert allocator.usage("small")["peak_bytes"] == peak
    # Outside the pool there is no limit.
    allocate(128)
    del held, tensor, small, pool
    torch.cuda.empty_cache()
    left = allocator.current_bytes
    allocator.limit = None
    part.close()
    message = message.splitlines()[0]
    return {"current": current, "peak": peak, "left": left, "message": message}


@check
def a_limited_partition():
    allocator = Allocator()
    allocator.set_partition_limit("tight", 16 * MIB)
    parts = green_ctx_torch.partition({"tight": 16, "wide": 16})
    pools = [allocator.mem_pool() for _ in range(2)]
    with parts["tight"], torch.cuda.use_mem_pool(pools[0]):
        raises(torch.OutOfMemoryError, lambda: allocate(32))
    with parts["wide"], torch.cuda.use_mem_pool(pools[1]):
        wide = allocate(32)
    assert allocator.usage("tight")["current_bytes"] == 0
    assert allocator.usage("wide")["current_bytes"] >= 32 * MIB
    allocator.set_partition_limit("tight", None)
    del wide, pools


@check
def a_graph_with_memory_of_ours_moves():
    """Memory that is allocated in a capture is not a node of the graph, because the graph could not be moved
    otherwise."""
    allocator = Allocator()
    part = green_ctx_torch.partition({"small": 16})["small"]
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    out = blocks()
    pool = allocator.mem_pool()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    before = allocator.current_bytes
    with torch.cuda.graph(graph, pool=pool.id):
        result = torch.relu(a @ a) + a
        launch(out, torch.cuda.current_stream())
    used = allocator.current_bytes - before
    assert used > 0, "the capture's memory is not ours"
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    expected = result.clone()
    moved = green_ctx_torch.retarget(graph, part)
    result.zero_()
    out.fill_(-1)
    torch.cuda.synchronize()
    with torch.cuda.stream(part.stream):
        moved.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)
    assert set(out.tolist()) == sms(part.stream)
    return {"bytes_of_the_capture": used}


@check
def handles_for_other_processes():
    allocator = Allocator()
    pool = allocator.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        pooled = allocate(4)
    raises(ValueError, lambda: allocator.ipc_handle(pooled.data_ptr()), "no IPC handles")
    allocator.set_shareable(True)
    shared_pool = allocator.mem_pool()
    with torch.cuda.use_mem_pool(shared_pool):
        shared = allocate(4)
    allocator.set_shareable(False)
    handle = allocator.ipc_handle(shared.data_ptr())
    assert len(handle) == 64 and any(handle)
    del pooled, shared, pool, shared_pool


AS_THE_CURRENT_ALLOCATOR = """
import green_ctx_torch
import torch
from green_ctx_torch.allocator import Allocator, torch_allocator

torch.cuda.memory.change_current_allocator(torch_allocator())
part = green_ctx_torch.partition({"small": 16})["small"]
for round in range(50):
    x = torch.full((1 << 20,), float(round), device="cuda")
    stream = part.stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000)
        y = x + 1
    # Freed while the partition still reads it, and asked for again at once.
    x.record_stream(stream)
    del x
    torch.full((1 << 20,), -1.0, device="cuda")
    torch.cuda.current_stream().wait_stream(stream)
    assert bool((y == round + 1).all()), round
print(Allocator().peak_bytes)
"""


@check
def memory_that_two_streams_use_as_the_current_allocator():
    # In its own process: torch accepts no other allocator after its first allocation.
    return {"peak": int(program(AS_THE_CURRENT_ALLOCATOR).splitlines()[0])}


@check
def what_stands_in_for_the_runtime():
    free, total = runtime.memory_info(0)
    assert total == torch.cuda.mem_get_info(0)[1] and 0 < free <= total
    assert runtime.error_name(2) == "cudaErrorMemoryAllocation"
    runtime.profiler_start()
    runtime.profiler_stop()
    memory = torch.empty(MIB, dtype=torch.uint8)
    assert not memory.is_pinned()
    runtime.host_register(memory.data_ptr(), MIB)
    assert memory.is_pinned()
    runtime.host_unregister(memory.data_ptr())
    assert not memory.is_pinned()
    part = green_ctx_torch.partition({"small": 16})["small"]
    raw = runtime.stream_create(part)
    seen = sms(torch.cuda.ExternalStream(raw))
    runtime.stream_destroy(raw)
    assert len(seen) == 16, seen
