"""cuBLAS workspaces on streams of closed partitions, with a substitute for torch."""

import types
from contextlib import closing

import pytest
from green_ctx_torch import GreenContext, PlanSet, _workspaces, partition


@pytest.fixture
def freed(fake_torch, monkeypatch):
    """Collects torch's calls that free the workspaces."""
    calls = []
    native = types.SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: calls.append(1))
    monkeypatch.setattr(fake_torch, "_C", native, raising=False)
    return calls


def test_closing_frees_them(freed):
    part = partition({"a": 8})["a"]
    part.close()
    assert len(freed) == 1
    partition({"a": 8, "b": 8}).close()
    assert len(freed) == 2
    GreenContext.create(8).close()
    assert len(freed) == 3
    PlanSet({"x": {"a": 8}}).close()
    assert len(freed) == 4


def test_a_captured_graph_keeps_them(freed):
    class Graph:
        pass

    graph = Graph()
    _workspaces.note_graph(graph)
    partition({"a": 8}).close()
    assert not freed
    del graph
    partition({"a": 8}).close()
    assert len(freed) == 1


def test_torch_that_has_not_begun_is_left_alone(freed, fake_torch, monkeypatch):
    monkeypatch.setattr(fake_torch.cuda, "is_initialized", lambda: False)
    with closing(partition({"a": 8})):
        pass
    assert not freed
