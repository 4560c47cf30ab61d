"""The cache of graphs' copies for partitions."""

from contextlib import closing

import driver
import pytest
from green_ctx_torch import GraphCache, GreenContext, partition


@pytest.fixture
def parts():
    with closing(partition({"a": 8, "b": 16})) as parts:
        yield parts


@pytest.fixture
def graph(parts):
    stream = parts["a"].raw_stream
    graph = driver.capture(stream, lambda: driver.keep_busy(stream))
    yield graph
    driver.destroy_graph(graph)


def test_a_copy_is_made_once(parts, graph):
    cache = GraphCache()
    assert len(cache) == 0 and repr(cache) == "<GraphCache of 0>"
    first = cache.get(graph, parts["a"])
    assert cache.get(graph, parts["a"]) is first and len(cache) == 1
    second = cache.get(graph, parts["b"])
    assert second.partition is parts["b"] and second.raw != first.raw
    assert len(cache) == 2
    first.replay()
    second.replay()
    for part in parts.values():
        driver.synchronize(part.raw_stream)


def test_what_is_forgotten_is_made_again(parts, graph):
    cache = GraphCache()
    a, b = cache.get(graph, parts["a"]), cache.get(graph, parts["b"])
    cache.forget(parts["a"])
    assert len(cache) == 1 and cache.get(graph, parts["b"]) is b
    assert cache.get(graph, parts["a"]) is not a
    cache.forget_graph(graph + 1)
    assert len(cache) == 2
    cache.forget_graph(graph)
    assert len(cache) == 0
    cache.get(graph, parts["a"])
    cache.clear()
    assert len(cache) == 0
    # A copy that is still referenced stays valid.
    a.replay()
    driver.synchronize(parts["a"].raw_stream)


def test_a_partition_is_free_when_it_is_forgotten(graph):
    cache = GraphCache()
    with closing(partition({"late": 100})) as parts:
        cache.get(graph, parts["late"])
    with pytest.raises(RuntimeError, match="late"):
        partition({"next": 108})
    with pytest.raises(RuntimeError, match="partition late is closed"):
        cache.get(graph, parts["late"])
    cache.forget(parts["late"])
    partition({"next": 108}).close()


def test_a_green_context_is_one_partition(graph):
    cache, context = GraphCache(), GreenContext.create(24)
    first, second = context.partition, context.partition
    copy = cache.get(graph, first)
    again = cache.get(graph, second)
    assert again.partition is second and again.raw == copy.raw and len(cache) == 1
    first.close()
    again.replay()
    driver.synchronize(second.raw_stream)
    cache.clear()
