"""Captured graphs in partitions."""

import driver
import pytest
from contextlib import closing
from green_ctx_torch import partition, retarget


@pytest.fixture
def parts():
    with closing(partition({"a": 8, "b": "rest"})) as parts:
        yield parts


@pytest.fixture
def memory(parts):
    stream = parts["b"].raw_stream
    memory = driver.Memory(64, stream)
    memory.fill(0, stream)
    driver.synchronize(stream)
    yield memory
    memory.free(stream)


@pytest.fixture
def graph(parts, memory):
    stream = parts["a"].raw_stream
    graph = driver.capture(stream, lambda: memory.fill(7, stream))
    yield graph
    driver.destroy_graph(graph)


def test_a_graph_is_replayed_in_the_partition(parts, memory, graph):
    b = parts["b"]
    moved = retarget(graph, b)
    assert moved.partition is b and moved.raw != graph
    assert memory.read(b.raw_stream) == bytes(64)
    driver.keep_busy(b.raw_stream)
    moved.replay()
    # A read on another stream would be unordered, which the simulator finds.
    assert memory.read(b.raw_stream) == bytes([7]) * 64


def test_a_closed_partition_takes_no_graph(parts, graph):
    moved = retarget(graph, parts["a"])
    parts["a"].close()
    with pytest.raises(RuntimeError, match="partition a is closed"):
        moved.replay()
    with pytest.raises(RuntimeError, match="partition a is closed"):
        retarget(graph, parts["a"])
