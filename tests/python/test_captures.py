"""Captures of torch, which uses a stream of its own for them, run where the thread is."""

import ctypes
import sys
import types
from contextlib import closing

import driver
import pytest
from dropins import torch as torch_  # noqa: F401
from green_ctx_torch import _captures, info, partition


def context_of(raw_stream):
    """The context of a stream."""
    context = ctypes.c_void_p()
    driver.call("cuStreamGetCtx", ctypes.c_void_p(raw_stream), ctypes.byref(context))
    return context.value


def new_stream():
    """A stream of the primary context."""
    stream = ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


@pytest.fixture
def torch(torch_):
    """torch with graphs: the part of torch.cuda.CUDAGraph that is wrapped."""

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
            driver.destroy_graph(self.raw.value)

        def replay(self):
            self.replays += 1

    torch_.cuda.CUDAGraph = CUDAGraph
    _captures.install()
    # Initialises the driver.
    info()
    with driver.primary_context():
        yield torch_


def capture(torch, graph, stream, work=lambda: None):
    """What torch.cuda.graph does."""
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
            # Who names a stream of a partition means that one.
            assert capture(torch, explicit, b.stream.cuda_stream) == b.raw_context
        inside.replay()
        outside.replay()
        with a:
            inside.replay()
            for graph in (outside, explicit):
                with pytest.raises(RuntimeError, match="capture it inside of the partition's block"):
                    graph.replay()
        torch.make_current(b.raw_stream)
        explicit.replay()
        with pytest.raises(RuntimeError, match="capture it inside"):
            inside.replay()
        torch.make_current(0)
        assert (inside.replays, outside.replays, explicit.replays) == (2, 1, 1)


def test_a_capture_again_is_where_it_is_then(torch):
    side, graph = new_stream(), torch.cuda.CUDAGraph()
    with closing(partition({"a": 8, "b": 16})) as parts:
        for part in parts.values():
            with part:
                assert capture(torch, graph, side) == part.raw_context
                graph.replay()


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
    """torch._inductor.cudagraph_trees.CUDAGraphTreeManager: what is wrapped of it."""

    def __init__(self, device_index):
        self.device_index, self.stream, self.ran, self.calls = device_index, None, [], []
        self.ids_to_funcs, self.id_to_mode = {}, {}
        self.has_live_outputs = False

    def run(self, new_inputs, function_id):
        return self._run(new_inputs, function_id)

    def _run(self, new_inputs, function_id):
        self.ran.append(function_id)
        return self, self.ids_to_funcs[function_id]

    def set_to_running_backward(self):
        self.calls.append("backward")

    def shutdown(self):
        self.calls.append("shutdown")


def test_each_partition_has_graphs_of_its_own_of_what_is_compiled(torch, monkeypatch):
    first = Manager(0)
    trees = types.SimpleNamespace(CUDAGraphTreeManager=Manager, get_manager=lambda *_: first)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
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
        # Functions, and what is said of their outputs, that came later.
        first.ids_to_funcs[2], first.has_live_outputs = "two", True
        # By torch's current stream too, as on the threads of backward.
        torch.make_current(a.raw_stream)
        assert first.run([], 2) == (peer, "two") and peer.has_live_outputs
        torch.make_current(0)
        assert first.run([], 1)[0] is first and trees.get_manager(0) is first
        assert (first.ran, peer.ran, other.ran) == ([1, 1], [1, 2], [1])
        first.set_to_running_backward()
        first.shutdown()
        assert peer.calls == other.calls == first.calls == ["backward", "shutdown"]
