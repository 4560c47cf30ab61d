"""The locations of the nodes of captured graphs."""

from contextlib import closing

import driver
import pytest
from green_ctx_torch import audit, partition
from green_ctx_torch.runtime import stream_create, stream_destroy


@pytest.fixture
def parts():
    with closing(partition({"a": 8, "b": "rest"})) as parts:
        yield parts


@pytest.fixture
def graph(parts):
    """Captures a kernel and a memset in partition a."""
    stream = parts["a"].raw_stream
    memory = driver.Memory(64, stream)
    driver.synchronize(stream)

    def submit():
        driver.keep_busy(stream)
        memory.fill(7, stream)

    graph = driver.capture(stream, submit)
    yield graph
    driver.destroy_graph(graph)
    memory.free(stream)


def test_each_node_has_its_location(parts, graph):
    found = audit(graph)
    kernel, memset = found.nodes
    assert (kernel.node, kernel.kind, kernel.kernel) == ("0", "kernel", "work")
    assert (memset.node, memset.kind, memset.kernel) == ("1", "memset", None)
    location = kernel.location
    assert (location.device, location.context, location.sm_count) == (0, "a", 8)
    assert location.context_id == parts["a"].id
    assert str(location) == "8 SMs of a (device 0)" and repr(location) == f"<Location: {location}>"
    # Before CUDA 13.2 the driver reports the contexts of kernels only.
    assert memset.location is None
    assert found.locations == [location] and len({location, kernel.location}) == 1
    lines = str(found).splitlines()
    assert lines == [str(kernel), str(memset)]
    assert lines[0] == "0  kernel work  8 SMs of a (device 0)"
    assert repr(kernel) == f"<NodeAudit {kernel}>"
    assert repr(found) == (
        "<Audit: 1 node on 8 SMs of a (device 0), 1 node in contexts that the driver does not report>"
    )


def test_what_escapes_a_partition_shows(parts, graph):
    with driver.primary_context():
        # Without a partition, the stream belongs to the primary context.
        stream = stream_create()
        outside = driver.capture(stream, lambda: driver.keep_busy(stream))
        assert [node.location.context for node in audit(outside).nodes] == ["primary"]
        assert audit(outside).locations[0].context_id != parts["a"].id
        driver.destroy_graph(outside)
        stream_destroy(stream)
    inside = audit(graph)
    assert {location.context_id for location in inside.locations} == {parts["a"].id}


def test_an_empty_graph_has_no_nodes(parts):
    stream = parts["a"].raw_stream
    graph = driver.capture(stream, lambda: None)
    assert audit(graph).nodes == [] == audit(graph).locations
    assert repr(audit(graph)) == "<Audit: 0 nodes without SMs>" and str(audit(graph)) == ""
    driver.destroy_graph(graph)
