"""Where captured graphs, compiled functions and tuned jobs run."""

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import green_ctx_torch
import torch
from green_ctx_torch.allocator import Allocator
from harness import raises, skip
from placed import FREE, LONG, OUTSIDE, PLAIN, captured, compiled, compiling, current, graph_of, nodes, parts, ran
from placed import settled, sine, tensor, within
from torch import nn

REFUSED = "the capture of the graph did not begin in the partition"
KINDS = ["streams", "sequential", "priority", "partition"]


def both():
    """Work outside of all blocks, or in the surrounding block, and work in b."""
    sine()
    with parts()["b"]:
        sine()


@settled
def a_capture_in_a_block_stays_in_it():
    with parts()["a"]:
        graph = captured()
    assert nodes(graph) == {"a"}
    graph.instantiate()
    assert ran(graph.replay) == {"a"} == within(parts()["a"], graph.replay)
    with parts()["b"]:
        raises(RuntimeError, graph.replay, REFUSED)
    with torch.cuda.stream(parts()["b"].stream):
        raises(RuntimeError, graph.replay, REFUSED)


@settled
def a_capture_outside_stays_outside():
    graph = captured()
    graph.instantiate()
    assert nodes(graph) == {OUTSIDE} == ran(graph.replay)
    graph = graph_of()
    with torch.cuda.graph(graph), parts()["a"]:
        sine()
    assert nodes(graph) == {"a"}
    for each in (captured(), graph):
        with parts()["a"]:
            raises(RuntimeError, each.replay, REFUSED, "with part, torch.cuda.graph(graph):")


@settled
def a_capture_on_the_partitions_stream():
    for block in (PLAIN, parts()["a"]):
        with block:
            assert nodes(captured(stream=parts()["b"].stream)) == {"b"}


@settled
def a_capture_in_a_context_that_is_set():
    context = green_ctx_torch.GreenContext.create(16)
    context.set_context()
    graph = captured()
    context.pop_context()
    graph.instantiate()
    assert ran(graph.replay, context.partition) == {context.partition.name}


@settled
def a_wait_for_the_device_covers_a_graph_in_a_partition():
    a = parts()["a"]
    with a:
        graph = captured(lambda: torch.cuda._sleep(LONG))
        graph.instantiate()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.current_stream().query()
    moved = green_ctx_torch.retarget(captured(lambda: torch.cuda._sleep(LONG)), a)
    moved.replay()
    torch.cuda.synchronize()
    assert a.stream.query()


@settled
def a_block_in_a_capture():
    graph = captured(both)
    graph.instantiate()
    assert nodes(graph) == {"b", OUTSIDE} == ran(graph.replay)
    with parts()["a"]:
        assert nodes(captured(both)) == {"a", "b"}


@settled
def a_partition_that_ends_in_a_capture_leaves_it_alone():
    def closed():
        with green_ctx_torch.partition({"t": 16}) as made, made["t"]:
            sine()

    def dropped():
        with green_ctx_torch.partition({"t": 16})["t"]:
            sine()

    for work in (closed, dropped):
        captured(work, capture_error_mode="thread_local").instantiate()
    gc.collect()
    green_ctx_torch.partition({"most": min(60, FREE)}).close()


@settled
def captures_by_hand():
    graph, stream = graph_of(), torch.cuda.Stream()
    with parts()["a"], torch.cuda.stream(stream):
        assert not torch.cuda.is_current_stream_capturing()
        graph.capture_begin()
        assert torch.cuda.is_current_stream_capturing()
        sine()
        graph.capture_end()
        assert current() == stream.cuda_stream
    assert nodes(graph) == {"a"}


@settled
def hooks_of_a_capture_run_in_its_partition():
    graph, seen = graph_of(), []
    if not hasattr(graph, "register_capture_start_hook"):
        return skip("this torch has no hooks")
    graph.register_capture_start_hook(lambda *_: seen.append(green_ctx_torch.sm_count()))
    with parts()["a"], torch.cuda.graph(graph):
        sine()
    assert seen == [32] and nodes(graph) == {"a"}


@settled
def an_error_in_a_capture_ends_it():
    def failing():
        sine()
        raise ZeroDivisionError

    with parts()["a"] as a:
        raises(ZeroDivisionError, lambda: captured(failing))
        assert current() == a.raw_stream
        assert nodes(captured()) == {"a"}


@settled
def another_thread_works_during_a_capture():
    def outside():
        for _ in range(20):
            with parts()["b"]:
                torch.sin(tensor(1 << 20))

    thread = threading.Thread(target=outside)

    def work():
        thread.start()
        sine()
        thread.join()

    with parts()["a"]:
        assert nodes(captured(work, capture_error_mode="thread_local")) == {"a"}


@settled
def callables_made_in_a_block():
    net = nn.LayerNorm(64).cuda()
    with parts()["a"]:
        made = torch.cuda.make_graphed_callables(net, (tensor(requires_grad=True),))

    def step():
        made(tensor(requires_grad=True)).sum().backward()

    for _ in range(2):
        # The kernels that add to a gradient are known to run outside.
        assert within(parts()["a"], step) <= {"a", OUTSIDE}
    net.zero_grad()
    assert within(parts()["a"], step) == {"a"}


@settled
def a_graph_moves():
    with parts()["a"]:
        graph = captured()
    moved, cache, alive = green_ctx_torch.retarget(graph, parts()["b"]), green_ctx_torch.GraphCache(), weakref.ref(graph)
    assert cache.get(graph, parts()["b"]) is cache.get(graph, parts()["b"])
    del graph
    gc.collect()
    cache.clear()
    assert ran(moved.replay) == {"b"} == within(parts()["b"], moved.replay)
    assert alive() is not None
    del moved
    assert alive() is None


@settled
def a_graph_without_its_source_does_not_move():
    graph = torch.cuda.CUDAGraph()
    with parts()["a"], torch.cuda.graph(graph):
        sine()
    raises(RuntimeError, lambda: green_ctx_torch.retarget(graph, parts()["b"]), "keep_graph")


@settled
def a_graph_outlives_its_partition():
    with green_ctx_torch.partition({"t": 16}) as made, made["t"]:
        graph = captured()
    graph.instantiate()
    assert ran(graph.replay) == {"unknown"}
    raises(RuntimeError, lambda: green_ctx_torch.retarget(graph, made["t"]), "closed")


@settled
def a_graph_with_memory_of_a_pool():
    with parts()["a"], torch.cuda.use_mem_pool(Allocator().mem_pool()):
        graph = captured()
    graph.instantiate()
    assert ran(graph.replay) == {"a"}


# Compiled functions.


@compiling
def a_compiled_function_runs_where_it_is_called():
    x, step = tensor(), compiled()
    a, b = parts().values()
    for part, place in ((PLAIN, OUTSIDE), (a, "a"), (b, "b"), (a, "a"), (PLAIN, OUTSIDE)):
        assert within(part, lambda: step(x), times=3) == {place}
    with torch.cuda.stream(a.stream):
        assert ran(lambda: step(x)) == {"a"}


@compiling
def compiled_training_stays_in_its_block():
    layer, x = nn.LayerNorm(64).cuda(), tensor()
    step = compiled(layer)

    def train():
        step(x).sum().backward()
        layer.zero_grad(set_to_none=True)

    for part in parts().values():
        assert within(part, train, times=3) == {part.name}


@compiling
def a_compiled_forward_with_its_backward_in_another_block():
    layer, x = nn.LayerNorm(64).cuda(), tensor()
    step = compiled(layer)

    def train():
        with parts()["a"]:
            loss = step(x).sum()
        with parts()["b"]:
            loss.backward()
        layer.zero_grad(set_to_none=True)

    for _ in range(3):
        train()
    assert ran(train) == {"a", "b"}


@compiling
def closed_partitions_release_the_graphs_of_compiled_functions():
    x, step = tensor(), compiled()
    for _ in range(3):
        with green_ctx_torch.partition({"t": 16}) as made:
            assert within(made["t"], lambda: step(x), times=3) == {"t"}
        context = green_ctx_torch.GreenContext.create(16)
        assert within(context.partition, lambda: step(x), times=3) == {context.partition.name}
        context.close()
    gc.collect()
    green_ctx_torch.partition({"most": min(60, FREE)}).close()


@compiling
def outputs_of_compiled_functions_outlive_the_partition():
    x, step = tensor(), compiled()
    with green_ctx_torch.partition({"t": 16}) as made, made["t"]:
        outputs = [step(x) for _ in range(4)][-1:]
    gc.collect()
    green_ctx_torch.partition({"most": min(60, FREE)}).close()
    outputs[0].copy_(torch.ones(64, 64))
    assert outputs[0][0, 0].item() == 1


@compiling
def a_block_in_a_compiled_function_breaks_the_graph():
    a = parts()["a"]

    def step(x):
        x = x + 1
        with a:
            x = x * 2
        return x - 1

    eager = compiled(step, backend="eager")
    assert within(PLAIN, lambda: eager(tensor()), times=3) == {"a", OUTSIDE}
    torch._dynamo.reset()
    whole = compiled(step, backend="eager", fullgraph=True)
    raises(torch._dynamo.exc.Unsupported, lambda: whole(tensor()), "Partition")


@compiling
def an_export_refuses_a_block():
    class InBlock(nn.Module):
        def forward(self, x):
            with parts()["a"]:
                return x * 2

    raises(RuntimeError, lambda: torch.export.export(InBlock(), (tensor(),)), "no `with` blocks")


@compiling
def compiled_functions_in_two_tasks():
    step = compiled()

    async def task(part):
        for _ in range(4):
            with part:
                step(tensor())
                await asyncio.sleep(0)
                assert current() == part.raw_stream

    async def tasks():
        await asyncio.gather(*(task(part) for part in parts().values()))

    asyncio.run(tasks())
    assert ran(lambda: asyncio.run(tasks())) == {"a", "b"}


# Tuned jobs.


def tuned(job, other=sine, **options):
    return green_ctx_torch.tune({"a": job, "b": other}, budget=1, **options)


@settled
def a_tuned_function_is_captured_once():
    x, calls = tensor(), []

    def step():
        calls.append((torch.cuda.is_current_stream_capturing(), current()))
        torch.sin(x)

    outcome = tuned(step, lambda: torch.cos(x))
    # Called once to warm up, and once to capture.
    assert [capturing for capturing, _ in calls] == [False, True] and len(set(calls)) == 2, calls
    assert not [note for note in outcome.notes if "called" in note], outcome.notes


@settled
def blocks_of_an_applied_verdict_nest():
    for kind in KINDS:
        outcome = tuned(sine, leave_out=[other for other in KINDS if other != kind])
        with outcome.apply() as applied:
            with applied["a"] as entered:
                assert current() == entered.raw_stream
                with applied["b"]:
                    assert current() == applied["b"].raw_stream
                assert current() == entered.raw_stream
            assert current() == 0 and applied.verdict.kind == kind


@settled
def threads_leave_the_blocks_of_a_verdict_that_they_entered():
    barrier = threading.Barrier(2, timeout=10)

    def enter(stream):
        with stream:
            barrier.wait()
            assert current() == stream.raw_stream
            barrier.wait()
        return current()

    with tuned(sine, leave_out=KINDS[1:]).apply() as applied, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(enter, [applied["a"], applied["a"]])) == [0, 0]
