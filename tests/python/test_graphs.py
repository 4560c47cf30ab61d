"""Captured graphs in partitions."""

import driver
import pytest
from contextlib import closing
from green_ctx_torch import GraphCache, partition, retarget


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


def test_a_graph_of_two_partitions_does_not_move(parts):
    a, b = (part.raw_stream for part in parts.values())

    def both():
        driver.keep_busy(a)
        driver.order(b, after=a)
        driver.keep_busy(b)
        driver.order(a, after=b)

    with driver.primary_context():
        graph = driver.capture(a, both)
    cache = GraphCache()
    for move in (retarget, cache.get):
        with pytest.raises(ValueError, match=r"several contexts \(a, b\).*separate graph") as raised:
            move(graph, parts["b"])
        assert raised.value.kind == "invalid_request"
    assert len(cache) == 0
    driver.destroy_graph(graph)
