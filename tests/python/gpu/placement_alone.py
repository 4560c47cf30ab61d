"""Checks that run in their own processes, because they end badly or change what the whole process has."""

import asyncio
import contextlib
import ctypes
import gc
import io
import json
import threading
import types
import warnings

import green_ctx_torch
import torch
import torch._dynamo  # noqa: F401  Once, and not in each fork.
from green_ctx_torch import _captures, runtime
from harness import program, raises, skip, warns
from placed import FREE, alone_in_process, capped, captured, compiled, current, graph_of, model, nodes, parts
from placed import sine, tensor, within
from torch import nn

#: The numbers of SMs that functions have seen.
SEEN = set()
#: The arms of a search without partitions.
ARMS = ["sequential", "streams", "priority"]


@alone_in_process
def a_tuned_job_that_replays_a_graph_of_the_whole_device_is_refused():
    x, cuda, replays = tensor(), ctypes.CDLL("libcuda.so.1"), []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.sin(x)

    def green_of(stream):
        green = ctypes.c_void_p()
        assert cuda.cuStreamGetGreenCtx(ctypes.c_void_p(stream), ctypes.byref(green)) == 0
        return green.value

    def replay():
        graph.replay()
        replays.append(green_of(current()) != green_of(0))

    jobs = {"a": replay, "b": lambda: torch.cos(x)}
    raises(RuntimeError, lambda: green_ctx_torch.tune(jobs, budget=1.5, leave_out=ARMS), "did not begin in")
    assert not any(replays), f"{sum(replays)} replays were measured as a partition's"


@alone_in_process
def a_search_with_a_compiled_job_frees_its_sms():
    x = tensor()
    step = compiled()
    for _ in range(3):
        step(x)
    with green_ctx_torch.partition({"a": 16}) as made, made["a"]:
        torch.sin(x)
    jobs = {"a": lambda: step(x), "b": lambda: torch.cos(x)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        green_ctx_torch.tune(jobs, budget=1.5, leave_out=ARMS)
    # All graphs were released, after a wait for their work. The search's streams no longer exist.
    assert not _captures._closed
    green_ctx_torch.partition({"most": min(100, FREE)}).close()


@alone_in_process
def a_compiled_job_is_recorded_once_for_each_partition():
    x = tensor()
    step = torch.compile(lambda: x + 1, backend="cudagraphs")
    for _ in range(3):
        step()
    with green_ctx_torch.partition({"a": 16}) as made, made["a"]:
        step()
    begin, recorded, calls = torch.cuda.CUDAGraph.capture_begin, [], []

    def noted(graph, *arguments, **options):
        recorded.append(graph)
        return begin(graph, *arguments, **options)

    def job():
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("it is called for each iteration")
        calls.append(None)
        step()

    torch.cuda.CUDAGraph.capture_begin = noted
    green_ctx_torch.curve(job, [64], budget=1)
    # A few for the partition and the whole device each.
    assert len(recorded) < 10 < len(calls), (len(recorded), len(calls))


@alone_in_process
def a_graph_from_before_the_first_partition_keeps_its_workspace():
    x, side = tensor(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x @ x
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        x @ x
    before = torch.cuda.memory_allocated()
    green_ctx_torch.curve(lambda: x + 1, [64], budget=0.2)
    green_ctx_torch.partition({"a": 16}).close()
    assert torch.cuda.memory_allocated() >= before
    graph.replay()


@alone_in_process
def a_search_with_a_job_that_cannot_be_captured_leaves_the_stream():
    layer, x = model(), tensor()
    jobs = {"a": lambda: layer(x).sum().item(), "b": lambda: layer(x)}
    green_ctx_torch.tune(jobs, budget=1.5)
    assert current() == 0


@alone_in_process
def a_reserve_after_torch_is_refused():
    late = """
import torch
import green_ctx_torch
try:
    green_ctx_torch.reserve(16)
except green_ctx_torch.UnavailableError as error:
    print(error)
"""
    assert "before the program uses CUDA" in program(late, GREEN_CTX_RESERVE="")


def race(kind):
    """Returns whether torch's CUDA sanitizer finds a race between a block of an applied verdict and its surroundings."""
    x, y = tensor(), tensor()
    jobs = {"a": lambda: torch.sin(x), "b": lambda: torch.cos(y)}
    others = [other for other in [*ARMS, "partition"] if other != kind]
    outcome = green_ctx_torch.tune(jobs, budget=1, leave_out=others)
    assert outcome.verdict.kind == kind, outcome.verdict
    # Importing it activates torch's hooks.
    from torch.cuda import _sanitizer

    _sanitizer.enable_cuda_sanitizer()
    with outcome.apply() as applied, contextlib.redirect_stderr(io.StringIO()):
        try:
            x.add_(1)
            with applied["a"]:
                x.add_(1)
            x.add_(1)
        except _sanitizer.CUDASanitizerErrors:
            return True
    return False


for verdict in [*ARMS, "partition"]:

    def applied(verdict=verdict):
        assert not race(verdict)

    applied.__name__ = f"a_block_of_the_verdict_{verdict}_is_ordered"
    alone_in_process(applied)


@alone_in_process
def a_stream_that_is_set_in_a_block_stays_across_an_await():
    async def task():
        stream = parts()["a"].create_stream()
        with parts()["a"], torch.cuda.stream(stream):
            await asyncio.sleep(0)
            assert torch.cuda.current_stream() == stream

    asyncio.run(task())


@alone_in_process
def a_device_that_is_set_in_a_block_stays_across_an_await():
    async def task():
        with parts()["a"], torch.cuda.device(1):
            await asyncio.sleep(0)
            assert torch.cuda.current_device() == 1

    if torch.cuda.device_count() < 2:
        return skip("there is one device")
    asyncio.run(task())


@alone_in_process
def an_await_in_a_capture_leaves_it_valid():
    x = tensor()

    async def captures(graph):
        with parts()["a"], torch.cuda.graph(graph):
            x.add_(1)
            await asyncio.sleep(0)
            x.add_(1)

    async def other():
        assert current() == 0
        x.mul_(2)
        with parts()["b"]:
            await asyncio.sleep(0)
            x.mul_(2)

    async def both(graph):
        await asyncio.gather(captures(graph), other())

    graph = graph_of()
    asyncio.run(both(graph))
    torch.cuda.synchronize()
    assert nodes(graph) == {"a"} and len(green_ctx_torch.audit(graph).nodes) == 2


@alone_in_process
def a_task_inherits_the_block_but_not_the_streams_inside():
    async def child(seen):
        seen.append(current())
        await asyncio.sleep(0)
        seen.append(current())

    async def task():
        seen = []
        with parts()["a"], torch.cuda.stream(parts()["a"].create_stream()):
            await asyncio.sleep(0)
            await asyncio.create_task(child(seen))
            inside = current()
        assert inside not in seen and set(seen) == {parts()["a"].raw_stream}, (inside, seen)

    asyncio.run(task())


@alone_in_process
def a_stream_between_two_blocks_stays_across_an_await():
    async def task():
        stream = parts()["a"].create_stream()
        with parts()["a"], torch.cuda.stream(stream):
            with parts()["b"]:
                await asyncio.sleep(0)
                assert current() == parts()["b"].raw_stream
            assert torch.cuda.current_stream() == stream
        assert current() == 0

    asyncio.run(task())


@alone_in_process
def a_stream_of_another_device_belongs_to_its_task():
    if torch.cuda.device_count() < 2:
        return skip("there is one device")

    async def inside():
        stream = torch.cuda.Stream(1)
        with parts()["a"], torch.cuda.stream(stream):
            for _ in range(3):
                await asyncio.sleep(0)
                assert torch.cuda.current_stream(1) == stream
        assert current(1) == 0

    async def outside():
        for _ in range(4):
            assert current(1) == 0
            await asyncio.sleep(0)

    async def all_of():
        await asyncio.gather(inside(), outside(), inside())

    asyncio.run(all_of())


@alone_in_process
def a_search_leaves_no_workspaces():
    layer, x = nn.Linear(64, 64, device="cuda"), tensor()
    jobs = {"a": lambda: layer(x), "b": lambda: layer(x).sum().item()}
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        green_ctx_torch.tune(jobs, budget=1)
        assert torch.cuda.memory_allocated() <= before


@alone_in_process
def a_task_that_starts_eagerly_is_refused_in_the_first_block():
    if not hasattr(asyncio, "eager_task_factory"):
        return skip("this Python starts no task eagerly")

    async def eager():
        with parts()["a"]:
            await asyncio.sleep(0)

    async def creator():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        task = asyncio.create_task(eager())
        assert current() == 0
        await asyncio.wait([task])
        return str(task.exception())

    parts()
    message = asyncio.run(creator())
    assert "started eagerly" in message, message


@alone_in_process
def a_block_of_every_verdict_belongs_to_its_task():
    async def inside(part):
        with part:
            await asyncio.sleep(0)
            assert current() == part.raw_stream
            part.create_stream(-1)
        assert current() == 0

    async def outside():
        for _ in range(3):
            assert current() == 0
            await asyncio.sleep(0)

    async def all_of(parts):
        await asyncio.gather(*map(inside, parts), outside())

    x = tensor()
    jobs = {"a": lambda: torch.sin(x), "b": lambda: torch.cos(x)}
    for kind in [*ARMS, "partition"]:
        others = [other for other in [*ARMS, "partition"] if other != kind]
        with green_ctx_torch.tune(jobs, budget=1, leave_out=others).apply() as applied:
            assert applied.verdict.kind == kind
            asyncio.run(all_of(applied.values()))
            names = [(part.name, part.sm_count > 0, part.closed) for part in applied.values()]
            assert names == [("a", True, False), ("b", True, False)], names
            if kind != "partition":
                part = applied["a"]
                assert (part.floor, part.share, part.sm_count) == (0, "..", green_ctx_torch.sm_count())
                with part:
                    assert nodes(captured()) == {""}
                    raises(RuntimeError, green_ctx_torch.watch().__enter__, "only in one of a verdict not to partition")
        assert all(part.closed for part in applied.values())


@alone_in_process
def a_stream_of_stream_create_is_in_its_partition():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sine()
    made = green_ctx_torch.partition({"c": capped(32)})
    raw = runtime.stream_create(made["c"])
    with torch.cuda.stream(torch.cuda.ExternalStream(raw)):
        assert green_ctx_torch.sm_count() == 32
        raises(RuntimeError, graph.replay, "did not begin in the partition")
    runtime.stream_destroy(raw)
    raises(ValueError, lambda: runtime.stream_destroy(raw), "was not created by stream_create")


@alone_in_process
def blocks_of_two_devices_end_in_any_order():
    if torch.cuda.device_count() < 2:
        return skip("there is one device")
    a, c = parts()["a"], green_ctx_torch.partition({"c": capped(24)}, device=1)["c"]
    for _ in range(2):
        a.__enter__()
        c.__enter__()
        a.__exit__(None, None, None)
        assert (current(0), current(1), torch.cuda.current_device()) == (0, c.raw_stream, 1)
        c.__exit__(None, None, None)
        assert (current(0), current(1), torch.cuda.current_device()) == (0, 0, 0)


@alone_in_process
def a_wait_invalidates_a_capture():
    # In its own process, since torch's allocator never learns that this capture has ended.
    with parts()["a"]:
        with contextlib.suppress(RuntimeError):
            captured(lambda: tensor().sum().item())
            raise AssertionError("the capture was not invalidated")
    torch.cuda.set_stream(torch.cuda.default_stream())
    with parts()["a"]:
        assert nodes(captured()) == {"a"}


@alone_in_process
def a_hook_that_fails_leaves_the_partition():
    graph = graph_of()
    if not hasattr(graph, "register_capture_start_hook"):
        return skip("this torch has no hooks")
    graph.register_capture_start_hook(lambda *_: 1 / 0)
    with parts()["a"]:
        raises(ZeroDivisionError, torch.cuda.graph(graph).__enter__)
        # torch leaves the capture open.
        assert torch.cuda.current_stream() == torch.cuda.graph.default_capture_stream
        graph.capture_end()


@alone_in_process
def a_tuned_function_that_cannot_be_captured_is_called():
    x, threads, streams = tensor(), set(), set()

    def step():
        threads.add(threading.get_ident())
        x.sum().item()

    job = green_ctx_torch.Job(step, before=lambda: streams.add(current()))
    outcome = green_ctx_torch.tune({"a": job, "b": sine}, budget=1.5)
    assert len(streams) > 2 and 0 not in streams, streams
    words = "a was called for each iteration, because torch did not capture it"
    assert outcome.notes[-1].startswith(words) and len(threads) > 1, outcome.notes


class Counted(torch.autograd.Function):
    """A function whose backward pass, on a thread of torch, asks for the number of SMs."""

    @staticmethod
    def forward(_, x):
        return x * 2

    @staticmethod
    def backward(_, gradient):
        SEEN.add(green_ctx_torch.sm_count())
        return gradient * 2


@alone_in_process
def a_tuned_function_that_asks_for_its_sms_is_called():
    def properties():
        SEEN.add(torch.cuda.get_device_properties(0).multi_processor_count)
        sine()

    x = tensor()
    asking = (
        lambda: (SEEN.add(green_ctx_torch.sm_count()), sine()),
        lambda: (SEEN.add(green_ctx_torch.floor()), sine()),
        lambda: Counted.apply(x.clone().requires_grad_()).sum().backward(),
        properties,
    )
    green_ctx_torch.sizing.install()
    for work in (*asking, sine):
        SEEN.clear()
        notes = json.loads(green_ctx_torch.curve(work, sms=[16], name="work", budget=0.5).to_json())["notes"]
        found = [note for note in notes if "called for each iteration" in note]
        if work is sine:
            assert not found, notes
        else:
            assert 16 in SEEN and "it asked for the number of SMs" in found[0], (SEEN, notes)


@alone_in_process
def a_tuned_function_that_runs_elsewhere_is_noted():
    own = green_ctx_torch.partition({"own": 16})["own"]
    x = tensor()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.sum()

    def inside():
        with own:
            x.sum().item()

    def beside():
        with torch.cuda.stream(side):
            x.sum().item()

    def replayed():
        graph.replay()
        y.item()

    side, elsewhere = torch.cuda.Stream(), "2 of 2 operations of work were on another stream"
    for work, words in (
        (inside, elsewhere),
        (beside, elsewhere),
        (replayed, "the capture of the graph did not begin in the partition"),
        (lambda: x.sum().item(), None),
    ):
        notes = json.loads(green_ctx_torch.curve(work, sms=[16], name="work", budget=1).to_json())["notes"]
        found = [note for note in notes if "was measured" in note]
        assert len(found) == (words is not None) and all(words in note for note in found), notes


@alone_in_process
def an_error_of_a_tuned_function_is_raised():
    for calls, error in ((0, ZeroDivisionError), (1, ArithmeticError), (9, KeyboardInterrupt)):
        left = iter(range(calls))

        def fails(left=left, error=error):
            if next(left, None) is None:
                raise error
            tensor().sum().item()

        raises(error, lambda fails=fails: green_ctx_torch.tune({"a": fails, "b": sine}, budget=1.5))


@alone_in_process
def a_tuned_function_whose_graph_cannot_be_moved_is_called():
    torch.cuda.CUDAGraph.raw_cuda_graph = lambda self: 0
    outcome = green_ctx_torch.tune({"a": sine, "b": sine}, budget=1.5)
    notes = [note for note in outcome.notes if note.endswith("the graph's handle is null")]
    assert len(notes) == 2 and "called for each iteration" in notes[0], outcome.notes


@alone_in_process
def the_first_block_wraps_torchs_captures_once():
    plain = torch.cuda.CUDAGraph.capture_begin
    with parts()["a"]:
        wrapped = torch.cuda.CUDAGraph.capture_begin
    _captures.install()
    assert plain is not wrapped is torch.cuda.CUDAGraph.capture_begin
    assert (wrapped.__name__, wrapped.__doc__) == ("capture_begin", plain.__doc__)


@alone_in_process
def an_error_at_the_beginning_of_a_capture_is_raised():
    def fails():
        raise RuntimeError("no stream")

    with parts()["a"]:
        native = vars(_captures._native) | {"_capture_begins": fails}
        _captures._native = types.SimpleNamespace(**native)
        raises(RuntimeError, captured, "no stream")


class OtherGraph:
    """torch.cuda.CUDAGraph of a release that does not exist."""

    def capture_begin(self, pool, other):
        return "began"

    def capture_end(self):
        pass


@alone_in_process
def graphs_that_do_not_fit_are_refused_in_blocks():
    torch.__version__, torch.cuda.graphs.CUDAGraph = "2.99.0", OtherGraph
    words = "torch 2.99.0", "(self, pool, other)", "CUDAGraph.replay is absent", "Work of CUDA graphs"
    warns(_captures.install, *words)
    assert OtherGraph().capture_begin(None, None) == "began"
    with parts()["a"]:
        raises(RuntimeError, lambda: OtherGraph().capture_begin(None, None), *words)


@alone_in_process
def compiled_functions_that_do_not_fit_are_refused_in_blocks():
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    del CUDAGraphTreeManager.shutdown
    x, step = tensor(), compiled()
    warns(lambda: within(parts()["a"], lambda: None), "shutdown is absent", "max-autotune-no-cudagraphs")
    step(x)
    with parts()["a"]:
        raises(RuntimeError, lambda: [step(x) for _ in range(3)], "would leave the partition")


@alone_in_process
def state_of_compiled_functions_that_is_not_known_is_a_warning():
    from torch._inductor.cudagraph_trees import get_manager

    x, step = tensor(), compiled()
    for _ in range(3):
        step(x)
    manager = get_manager(0)
    manager.new_state = {}
    warns(lambda: within(parts()["a"], lambda: step(x)), "has state that is not known: new_state")
    del manager.ids_to_stack_traces
    with parts()["b"]:
        raises(RuntimeError, lambda: step(x), "has no ids_to_stack_traces", "would leave the partition")


@alone_in_process
def graphs_that_cannot_be_waited_for_are_released_later():
    def fails(_):
        raise RuntimeError("operation not permitted when stream is capturing")

    x, step, made = tensor(), compiled(), green_ctx_torch.partition({"t": 16})
    assert within(made["t"], lambda: step(x), times=3) == {"t"}
    synchronize, torch.cuda.Event.synchronize = torch.cuda.Event.synchronize, fails
    warns(made.close, "keeps the memory", "stream is capturing")
    assert _captures._closed
    torch.cuda.Event.synchronize = synchronize
    with parts()["a"]:
        step(x)
    assert not _captures._closed
