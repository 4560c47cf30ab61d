"""Captures of torch, which use torch's own stream, run in the partition that the thread is in."""

import contextlib
import ctypes
import os
import subprocess
import sys
import types
from contextlib import closing
from pathlib import Path

import driver
import libtorch
import pytest
from dropins import torch as torch_  # noqa: F401
from green_ctx_torch import GreenContext, _captures, info, partition


def context_of(raw_stream):
    """Returns the context of a stream."""
    context = ctypes.c_void_p()
    driver.call("cuStreamGetCtx", ctypes.c_void_p(raw_stream), ctypes.byref(context))
    return context.value


def new_stream():
    """Creates a stream in the primary context."""
    stream = ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


class Current:
    """torch's current stream. Objects for the same stream are equal."""

    waited = []

    def __init__(self, raw):
        self.cuda_stream = raw

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    def __hash__(self):
        return self.cuda_stream

    def synchronize(self):
        Current.waited.append(self.cuda_stream)


@pytest.fixture
def torch(torch_):
    """torch with graphs: the parts of torch.cuda.CUDAGraph that the package wraps."""
    executables = []

    class CUDAGraph:
        def __init__(self):
            self.raw, self.replays = ctypes.c_void_p(), 0

        def capture_begin(self, pool=None, capture_error_mode="global"):
            """Begins."""
            self.stream = torch_.current()
            driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), 0)

        def capture_end(self):
            assert torch_.current() == self.stream, "ends where it began"
            stream = ctypes.c_void_p(self.stream)
            driver.call("cuStreamEndCapture", stream, ctypes.byref(self.raw))
            self.executable = ctypes.c_void_p()
            driver.call("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.raw, 0)
            executables.append(self.executable)
            driver.destroy_graph(self.raw.value)

        def replay(self):
            self.replays += 1
            driver.call("cuGraphLaunch", self.executable, ctypes.c_void_p(torch_.current()))

    torch_.cuda.CUDAGraph = CUDAGraph
    torch_.cuda.graphs = types.SimpleNamespace(CUDAGraph=CUDAGraph)
    torch_.cuda.current_stream = lambda device=None: Current(torch_.current())
    _captures.install()
    # Initialises the driver.
    info()
    with driver.primary_context():
        yield torch_
        for executable in executables:
            driver.call("cuGraphExecDestroy", executable)


def capture(torch, graph, stream, work=lambda: None):
    """Captures a graph as torch.cuda.graph does. Returns the context in which it was captured."""
    before = torch.current()
    torch.make_current(stream)
    graph.capture_begin()
    work()
    inside = context_of(torch.current())
    driver.keep_busy(torch.current())
    graph.capture_end()
    torch.make_current(before)
    return inside


def test_a_capture_runs_in_the_partition_of_the_block(torch):
    side = new_stream()
    with closing(partition({"a": 8, "b": 16})) as parts:
        a, b = parts.values()
        assert a.stream is not None
        outside, inside, explicit = (torch.cuda.CUDAGraph() for _ in range(3))
        assert capture(torch, outside, side) not in (a.raw_context, b.raw_context)
        with a:
            assert capture(torch, inside, side) == a.raw_context
            assert torch.current() == a.raw_stream
            # If the program passes a partition's stream, torch captures on that stream.
            assert capture(torch, explicit, b.stream.cuda_stream) == b.raw_context
        inside.replay()
        outside.replay()
        with a:
            inside.replay()
            for graph in (outside, explicit):
                with pytest.raises(RuntimeError, match="capture it inside the partition's block"):
                    graph.replay()
        torch.make_current(b.raw_stream)
        explicit.replay()
        with pytest.raises(RuntimeError, match="capture it inside"):
            inside.replay()
        torch.make_current(0)
        assert (inside.replays, outside.replays, explicit.replays) == (2, 1, 1)


def test_a_wait_for_the_device_covers_a_replay_in_a_partition(torch):
    side = new_stream()
    with closing(partition({"a": 8})) as parts:
        part = parts["a"]
        graph = torch.cuda.CUDAGraph()
        with part:
            capture(torch, graph, side)
            graph.replay()
            driver.call("cuCtxSynchronize")
            assert driver.is_idle(torch.current())
        # On a stream of a partition that the thread has not entered.
        torch.make_current(part.raw_stream)
        graph.replay()
        driver.call("cuCtxSynchronize")
        assert driver.is_idle(part.raw_stream)
        torch.make_current(0)


def test_a_capture_runs_in_a_context_that_is_set(torch):
    side = new_stream()
    with closing(GreenContext.create(num_sms=8)) as context:
        with context:
            assert capture(torch, torch.cuda.CUDAGraph(), side) == context.raw_context
        with pytest.warns(FutureWarning):
            context.set_context()
        assert capture(torch, torch.cuda.CUDAGraph(), side) == context.raw_context
        with pytest.warns(FutureWarning):
            context.pop_context()


def test_a_capture_again_is_where_it_is_then(torch):
    side, graph = new_stream(), torch.cuda.CUDAGraph()
    with closing(partition({"a": 8, "b": 16})) as parts:
        for part in parts.values():
            with part:
                assert capture(torch, graph, side) == part.raw_context
                graph.replay()


def _replaced(parts):
    return partition({"c": 16}, replace=True)


@pytest.mark.parametrize("end", [lambda parts: parts.close(), lambda parts: None, _replaced])
def test_a_partition_that_ends_within_a_capture_leaves_it_alone(torch, end):
    stream, graph, parts = new_stream(), torch.cuda.CUDAGraph(), partition({"a": 16, "b": 8})
    torch.make_current(stream)
    graph.capture_begin()
    with parts["a"]:
        driver.keep_busy(torch.current())
    later = end(parts)
    del parts
    driver.keep_busy(torch.current())
    graph.capture_end()
    torch.make_current(0)
    if later is not None:
        later.close()
    with closing(partition({"all": 132})) as all_sms:
        assert all_sms["all"].sm_count == 132


def test_an_error_within_a_capture_ends_it(torch):
    side, graph = new_stream(), torch.cuda.CUDAGraph()

    def fails():
        raise ZeroDivisionError

    with closing(partition({"a": 8})) as parts:
        with parts["a"]:
            torch.make_current(side)
            graph.capture_begin()
            with pytest.raises(ZeroDivisionError):
                fails()
            graph.capture_end()
            assert torch.current() == side
            torch.make_current(parts["a"].raw_stream)
        assert torch.current() == 0


def test_wrapping_is_done_once_and_keeps_names(torch):
    with closing(partition({"a": 8})) as parts:
        assert parts["a"].stream is not None
    wrapped = torch.cuda.CUDAGraph.capture_begin
    _captures.install()
    assert torch.cuda.CUDAGraph.capture_begin is wrapped
    assert (wrapped.__name__, wrapped.__doc__) == ("capture_begin", "Begins.")


class Manager:
    """torch._inductor.cudagraph_trees.CUDAGraphTreeManager: the parts that the package wraps."""

    def __init__(self, device_index):
        self.device_index, self.stream, self.graph = device_index, None, object()
        self.ids_to_funcs, self.id_to_mode = {}, {}
        self.ids_to_stack_traces, self.id_to_compile_id = {}, {}
        self.has_live_user_visible_output_cloning = False

    @property
    def ran(self):
        return RAN.get(self, [])

    @property
    def calls(self):
        return CALLS.get(self, [])

    def run(self, new_inputs, function_id):
        return self._run(new_inputs, function_id)

    def _run(self, new_inputs, function_id):
        assert self.graph is not None, "Running CUDAGraph after shutdown"
        RAN.setdefault(self, []).append(function_id)
        function = self.ids_to_funcs[function_id]
        return self, function() if callable(function) else function

    def live_cudagraph_pool_storages_in_curr_execution(self):
        return LIVE.get(self, [])

    def set_to_running_backward(self):
        CALLS.setdefault(self, []).append("backward")

    def shutdown(self):
        self.graph = None
        CALLS.setdefault(self, []).append("shutdown")


# What each manager did, and the outputs that are held. They are not attributes, because torch's managers have no
# such attributes.
RAN, CALLS, LIVE = {}, {}, {}


@pytest.fixture
def trees(torch, monkeypatch):
    """torch._inductor.cudagraph_trees, with the manager of a device."""
    manager = type("Manager", (Manager,), dict(vars(Manager)))
    first = manager(0)
    trees = types.SimpleNamespace(
        CUDAGraphTreeManager=manager,
        get_manager=lambda device_index=None, create_if_none_exists=True: first,
        first=first,
    )
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    yield trees
    for done in (RAN, CALLS, LIVE):
        done.clear()
    Current.waited.clear()


def test_each_partition_has_graphs_of_its_own_of_what_is_compiled(torch, trees):
    first = trees.first
    _captures.install()
    with closing(partition({"a": 8, "b": 16})) as parts:
        a, b = parts.values()
        first.ids_to_funcs[1] = "one"
        assert first.run([], 1) == (first, "one")
        with a:
            peer, function = first.run([], 1)
            assert peer is not first and function == "one"
            assert context_of(peer.stream.cuda_stream) == a.raw_context
            assert trees.get_manager(0) is peer
        with b:
            other, _ = first.run([], 1)
            assert other not in (first, peer)
        # Functions and facts about their outputs that were registered later.
        first.ids_to_funcs[2], first.has_live_user_visible_output_cloning = "two", True
        # Torch's current stream also selects the partition, as on the threads of the backward pass.
        torch.make_current(a.raw_stream)
        assert first.run([], 2) == (peer, "two")
        assert peer.has_live_user_visible_output_cloning
        torch.make_current(0)
        assert first.run([], 1)[0] is first and trees.get_manager(0) is first
        assert (first.ran, peer.ran, other.ran) == ([1, 1], [1, 2], [1])
        first.set_to_running_backward()
        first.shutdown()
        assert peer.calls == other.calls == first.calls == ["backward", "shutdown"]


def all_sms():
    """Takes all SMs, which fails while a partition holds some."""
    with closing(partition({"all": 132})):
        pass


def test_a_closed_partition_gives_up_the_graphs_of_what_is_compiled(torch, trees):
    _captures.install()
    first = trees.first
    first.ids_to_funcs[1] = "one"
    parts = partition({"a": 8, "b": 16})
    a, b = parts.values()
    with a:
        closed, _ = first.run([], 1)
    with b:
        other, _ = first.run([], 1)
    raw_stream = a.raw_stream
    a.close()
    assert closed.calls == ["shutdown"] and other.calls == first.calls == []
    # torch may unmap a graph's memory while the graph runs.
    assert Current.waited == [raw_stream]
    with b:
        assert first.run([], 1)[0] is other
    # Nothing closes these partitions explicitly.
    del parts, a, b
    assert other.calls == ["shutdown"]
    all_sms()


def test_a_closed_green_context_does_too(torch, trees):
    _captures.install()
    first = trees.first
    first.ids_to_funcs[1] = "one"
    context = GreenContext.create(16)
    with context:
        peer, _ = first.run([], 1)
    assert peer.calls == []
    context.close()
    assert peer.calls == ["shutdown"]
    all_sms()


def test_graphs_that_cannot_be_waited_for_end_later(torch, trees, monkeypatch):
    _captures.install()
    first = trees.first
    first.ids_to_funcs[1] = "one"
    a, b = partition({"a": 8, "b": 8}).values()
    with a:
        peer, _ = first.run([], 1)

    def fails(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    with monkeypatch.context() as patch:
        patch.setattr(Current, "synchronize", fails)
        with pytest.warns(RuntimeWarning, match="keeps the memory.*stream is capturing"):
            a.close()
    assert peer.calls == []
    with b:
        first.run([], 1)
    assert peer.calls == ["shutdown"]
    b.close()


EXIT = """
import sys
import types

import dropins

torch = dropins.Torch()
torch.__path__ = []
sys.modules["torch"] = torch
import green_ctx_torch

part = green_ctx_torch.partition({"a": 16})["a"]
# Kept to the end, and in a circle.
part_and_itself = [part]
part_and_itself.append(part_and_itself)
context = green_ctx_torch.GreenContext.create(16)
with part, context:
    pass
if sys.argv[1:]:
    part.close()
"""


@pytest.mark.parametrize("arguments", [[], ["close"]])
def test_partitions_that_are_open_at_the_end_leave_in_silence(arguments):
    command = [sys.executable, "-X", "dev", "-c", EXIT, *arguments]
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_graphs_stay_while_they_run_and_while_outputs_are_held(torch, trees):
    _captures.install()
    first = trees.first
    a = partition({"a": 8})["a"]
    first.ids_to_funcs[1] = lambda: (a.close(), list(CALLS))[1]
    with a:
        peer, shut_down = first.run([], 1)
        assert shut_down == [] and peer.calls == ["shutdown"]
    b = partition({"b": 8})["b"]
    first.ids_to_funcs[2] = "two"
    with b:
        held, _ = first.run([], 2)
    LIVE[held] = ["output"]
    b.close()
    # The SMs are free. The memory of the held outputs is not.
    assert held.calls == []
    all_sms()
    LIVE.clear()
    c = partition({"c": 8})["c"]
    with c:
        first.run([], 2)
    assert held.calls == ["shutdown"]
    c.close()



class Hooked:
    """torch.cuda.CUDAGraph from 2.14 on, with hooks and an end in two steps."""

    hooks = []

    def __init__(self):
        self.raw, self.replays, self.own_hooks = ctypes.c_void_p(), 0, []

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        self.stream = libtorch.current()
        driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), 0)
        for hook in Hooked.hooks:
            with contextlib.suppress(Exception):
                hook(self)
        for hook in self.own_hooks:
            hook(self)

    def capture_end_pre(self):
        assert libtorch.current() == self.stream, "ends where it began"
        stream = ctypes.c_void_p(self.stream)
        driver.call("cuStreamEndCapture", stream, ctypes.byref(self.raw))
        driver.destroy_graph(self.raw.value)

    def capture_end(self):
        self.capture_end_pre()

    def replay(self):
        self.replays += 1


@pytest.fixture
def hooked(torch, monkeypatch):
    """torch with the graphs of 2.14."""
    graph = type("CUDAGraph", (), dict(vars(Hooked)))
    monkeypatch.setattr(Hooked, "hooks", [])
    graphs = types.SimpleNamespace(
        CUDAGraph=graph, register_graph_capture_start_hook=lambda fn: Hooked.hooks.append(fn)
    )
    monkeypatch.setattr(torch.cuda, "graphs", graphs)
    _captures.install()
    return graph


def test_hooks_of_a_capture_run_in_the_partition(torch, hooked):
    side, graph, seen = new_stream(), hooked(), []
    graph.own_hooks.append(lambda _: seen.append(context_of(torch.current())))
    with closing(partition({"a": 8})) as parts:
        a = parts["a"]
        with a:
            assert capture(torch, graph, side) == a.raw_context
            assert seen == [a.raw_context] and torch.current() == a.raw_stream
            graph.replay()
        graph.replay()
    assert graph.replays == 2


def test_a_capture_that_fails_to_begin_leaves_the_partition(torch, hooked):
    side, graph = new_stream(), hooked()

    def fails(_):
        raise ZeroDivisionError

    graph.own_hooks.append(fails)
    with closing(partition({"a": 8})) as parts, parts["a"]:
        before = torch.current()
        torch.make_current(side)
        with pytest.raises(ZeroDivisionError):
            graph.capture_begin()
        # torch leaves the capture open, on the stream on which it began.
        assert torch.current() == side
        graph.capture_end()
        # `torch.cuda.graph` calls this one if something fails after the beginning.
        graph.own_hooks.clear()
        graph.capture_begin()
        assert torch.current() != side
        graph.capture_end_pre()
        assert torch.current() == side
        torch.make_current(before)


def test_an_error_of_a_hook_that_torch_ignores_is_raised(torch, hooked, monkeypatch):
    side, graph = new_stream(), hooked()

    def fails():
        raise RuntimeError("no stream")

    with closing(partition({"a": 8})) as parts, parts["a"]:
        before = torch.current()
        monkeypatch.setattr(_captures._native, "_capture_begins", fails)
        torch.make_current(side)
        with pytest.raises(RuntimeError, match="no stream"):
            graph.capture_begin()
        assert graph.raw.value, "the capture has ended"
        torch.make_current(before)


def test_a_torch_that_does_not_fit_is_refused_in_partitions(torch, monkeypatch):
    side = new_stream()

    class CUDAGraph:
        def capture_begin(self, pool, other):
            return "began"

        def capture_end(self):
            pass

    torch.__version__ = "2.99.0"
    monkeypatch.setattr(torch.cuda, "graphs", types.SimpleNamespace(CUDAGraph=CUDAGraph))
    expected = (
        r"torch 2\.99\.0 .*capture_begin takes \(self, pool, other\) where \(self, pool, "
        r"capture_error_mode\) is expected; .*CUDAGraph\.replay is absent;.* is absent\. Work of "
        r"CUDA graphs"
    )
    with pytest.warns(RuntimeWarning, match=expected):
        _captures.install()
    graph = CUDAGraph()
    assert graph.capture_begin(None, None) == "began"
    with closing(partition({"a": 8})) as parts, parts["a"]:
        with pytest.raises(RuntimeError, match=expected):
            graph.capture_begin(None, None)
    # The warning is shown once only.
    _captures.install()


def test_compiled_functions_that_do_not_fit_are_refused_in_partitions(torch, trees):
    first = trees.first
    del trees.get_manager
    first.ids_to_funcs[1] = "one"
    with pytest.warns(RuntimeWarning, match="get_manager is absent.*max-autotune-no-cudagraphs"):
        _captures.install()
    assert first.run([], 1) == (first, "one")
    with closing(partition({"a": 8})) as parts, parts["a"]:
        with pytest.raises(RuntimeError, match="get_manager is absent.*would leave the partition"):
            first.run([], 1)


def test_state_of_a_manager_that_is_not_known_is_a_warning(torch, trees):
    _captures.install()
    first = trees.first
    first.ids_to_funcs[1], first.new_state = "one", {}
    with closing(partition({"a": 8})) as parts, parts["a"]:
        with pytest.warns(RuntimeWarning, match="has state that is not known: new_state"):
            first.run([], 1)
    del first.id_to_mode
    with closing(partition({"b": 8})) as parts, parts["b"]:
        with pytest.raises(RuntimeError, match="has no id_to_mode.*would leave the partition"):
            first.run([], 1)
    first.id_to_mode = {}
