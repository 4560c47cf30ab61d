"""Graphs that `cuda.core` captures in a partition, and one that is moved to another."""

from checks import PTX, ok, run
from cuda.bindings import driver
from cuda.core import ContextOptions, Device, LaunchConfig, ObjectCode, SMResourceOptions, launch
from cuda.core.graph import GraphBuilder

device = Device()
device.set_current()

CONFIG = LaunchConfig(grid=64, block=128)
KERNEL = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL


class Partition:
    """A green context of 16 SMs, a stream of it and a kernel; closed at the end of a `with`."""

    def __enter__(self):
        [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
        self.context = device.create_context(ContextOptions(resources=[group]))
        self.stream = self.context.create_stream()
        self.work = ObjectCode.from_ptx(PTX).get_kernel("work")
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.context.close()


def kernel_nodes(graph):
    """The kernel nodes of a graph."""
    nodes, _ = ok(driver.cuGraphGetNodes(graph, ok(driver.cuGraphGetNodes(graph))[1]))
    return [node for node in nodes if ok(driver.cuGraphNodeGetType(node)) == KERNEL]


def test_a_captured_graph_is_launched():
    with Partition() as part:
        builder = part.stream.create_graph_builder().begin_building()
        assert builder.is_building
        called = []
        launch(builder, CONFIG, part.work, 0, 7)
        builder.callback(lambda: called.append(1))
        launch(builder, CONFIG, part.work, 0, 8)
        graph = builder.end_building().complete()
        assert not builder.is_building and called == []
        graph.upload(part.stream)
        graph.launch(part.stream)
        graph.launch(part.stream)
        part.stream.sync()
        assert called == [1, 1]
        graph.close()
        builder.close()


def test_branches_fork_and_join():
    with Partition() as part:
        builder = device.create_graph_builder().begin_building()
        launch(builder, CONFIG, part.work, 0, 1)
        branches = builder.split(3)
        for branch in branches:
            launch(branch, CONFIG, part.work, 0, 2)
        joined = GraphBuilder.join(*branches)
        launch(joined, CONFIG, part.work, 0, 3)
        definition = joined.end_building().graph_definition
        assert len(definition.nodes()) == 5 and len(definition.edges()) == 6
        graph = joined.complete()
        graph.launch(part.stream)
        part.stream.sync()
        graph.close()


def test_a_graph_is_moved_to_a_partition():
    """Kernel nodes of a capture elsewhere run in a partition once their context says so."""
    with Partition() as part:
        stream = device.create_stream()
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        ok(driver.cuStreamBeginCapture(stream.handle, mode))
        launch(stream, CONFIG, part.work, 0, 7)
        graph = ok(driver.cuStreamEndCapture(stream.handle))
        [node] = kernel_nodes(graph)
        params = ok(driver.cuGraphKernelNodeGetParams(node))
        assert int(params.ctx) == int(device.context.handle)
        params.func = driver.CUfunction(0)
        params.ctx = part.context.handle
        ok(driver.cuGraphKernelNodeSetParams(node, params))
        assert int(ok(driver.cuGraphKernelNodeGetParams(node)).ctx) == int(part.context.handle)
        executable = ok(driver.cuGraphInstantiate(graph, 0))
        ok(driver.cuGraphLaunch(executable, part.stream.handle))
        part.stream.sync()
        ok(driver.cuGraphExecDestroy(executable))
        ok(driver.cuGraphDestroy(graph))
        stream.close()


if __name__ == "__main__":
    run(dict(globals()))
