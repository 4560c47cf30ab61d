"""Checks where torch's work runs in a partition, with one check for each way to submit work.

The proof has two parts. First, kernels of the work write the SM of each block (`stamp` and `where` in stamped.py).
Every block must have run on the partition's SMs. Second, CUPTI reports the context of every kernel, including those
of cuBLAS and torch (kernels.py).

`python workloads.py RESULTS.json` writes the results, and prints them as a table for the documentation. With
`--table` it only prints the results that are already in the file.
"""

import asyncio
import json
import subprocess
import sys
import threading

import torch
from harness import check, run
from kernels import recorded
from probe import sms
from stamped import (
    BLOCKS,
    COUNT,
    SIZE,
    TOTAL,
    Net,
    Traced,
    X,
    clear,
    contexts_of_graphs_are_told,
    one,
    partitions,
    ran_on,
    refusal,
    refused,
    row,
    stamp,
    where,
)

import green_ctx_torch


@check
def workload_baseline():
    """Without a partition the same work reaches every SM. Otherwise the other checks would prove nothing."""
    net, part = Net(), one()
    net(X).sum().backward()
    clear()

    def work():
        net(X).sum().backward()
        return [where(X, BLOCKS)]

    found = recorded(work, part)
    seen = ran_on((0, 1), found.result)
    assert len(seen) == TOTAL, f"only {len(seen)} of {TOTAL} SMs"
    assert all(each["context"] == found.plain for each in found.kernels)
    return {
        "sms": len(seen),
        "kernels": len(found.kernels),
        "graph_contexts_told": contexts_of_graphs_are_told(),
        "args_of_a_kernel": sorted(found.kernels[0]["args"]),
    }


@check
def workload_eager():
    net, part = Net(), one()

    def work():
        with part, torch.no_grad():
            net(X).softmax(-1).sum()
            return [where(X, BLOCKS)]

    work()
    return row("eager", work, part, must=True)


@check
def workload_backward():
    net, part = Net(), one()

    def work():
        with part:
            net(X).square().mean().backward()

    work()
    return row("backward in the block", work, part, must=True, slots=(0, 1))


@check
def workload_backward_after_the_block():
    net, part = Net(), one()

    def work():
        with part:
            loss = net(X).square().mean()
        loss.backward()

    work()
    return row("backward after the block", work, part, must=False, slots=(0, 1))


def backward_after_close():
    """In its own process: prints where the backward pass ran."""
    net = Net()
    net(X).square().mean().backward()
    expected = [each.grad.clone() for each in net.parameters()]
    net.zero_grad()
    parts = partitions()
    part = parts["small"]
    allowed = sms(part.stream)
    clear()
    with part:
        loss = net(X).square().mean()
    part.close()
    parts.close()
    del part, parts
    loss.backward()
    seen = ran_on((1,))
    same = all(
        torch.allclose(each.grad, other, rtol=1e-3, atol=1e-5)
        for each, other in zip(net.parameters(), expected, strict=True)
    )
    print(json.dumps({"sms": len(seen), "inside": seen <= allowed, "same": same}))


@check
def workload_backward_after_close():
    command = [sys.executable, __file__, "--backward-after-close"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-2000:]}"
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["same"], output
    name = "backward after the partition is closed"
    return {"row": name, "of": COUNT, "must": False, "note": "must not crash", **output}


@check
def workload_graph_captured_inside():
    net, part = Net(), one()
    graph = torch.cuda.CUDAGraph()
    with part, torch.no_grad():
        expected = net(X)
        with torch.cuda.graph(graph):
            result = net(X)
    torch.cuda.synchronize()

    def work():
        with part:
            graph.replay()

    result.zero_()
    output = row("torch.cuda.graph captured inside", work, part, must=True, graph=True)
    assert torch.allclose(result, expected, rtol=1e-3, atol=1e-3)
    return output


def _captured_outside(keep_graph, name):
    net, part = Net(), one()
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with torch.no_grad():
        expected = net(X)
        with torch.cuda.graph(graph):
            result = net(X)
    if keep_graph:
        graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()

    def work():
        with part:
            graph.replay()

    if message := refusal(work):
        output = refused(name, message, True)
    else:
        torch.cuda.synchronize()
        result.zero_()
        output = row(name, work, part, must=True, graph=True)
        assert torch.allclose(result, expected, rtol=1e-3, atol=1e-3)
    # Replayed outside, it runs on all SMs again.
    clear()
    graph.replay()
    output["sms_replayed_outside"] = len(ran_on((0,)))
    return output


@check
def workload_graph_captured_outside():
    return _captured_outside(False, "torch.cuda.graph captured outside, replayed inside")


@check
def workload_graph_captured_outside_and_kept():
    return _captured_outside(True, "the same with keep_graph=True")


@check
def workload_graph_retargeted():
    net, part = Net(), one()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.no_grad():
        expected = net(X)
        with torch.cuda.graph(graph):
            result = net(X)
    graph.instantiate()
    moved = green_ctx_torch.retarget(graph, part)
    result.zero_()

    def work():
        with part:
            moved.replay()

    output = row("the same, moved with retarget", work, part, must=True, graph=True)
    assert torch.allclose(result, expected, rtol=1e-3, atol=1e-3)
    return output


def _compiled(mode, inside, must, name):
    """Runs, in the partition, a training step that was compiled in this mode inside or outside it."""
    torch._dynamo.reset()
    net, part = Traced(), one()
    compiled = torch.compile(net, mode=mode)
    ids = []

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        net.zero_grad(set_to_none=True)
        output, seen = compiled(X)
        output.square().mean().backward()
        # The next step overwrites the results of a graph tree.
        ids[:] = [seen.clone()]

    def work():
        with part:
            step()
        return ids

    if not inside:
        for _ in range(4):
            step()
        torch.cuda.synchronize()
    for _ in range(4 if inside else 1):
        work()
    graph = mode in ("reduce-overhead", "max-autotune")
    output = row(name, work, part, must=must, slots=(0, 1), graph=graph)
    torch._dynamo.reset()
    return output


@check
def workload_compile_inside():
    return _compiled("default", True, True, "torch.compile, compiled inside")


@check
def workload_compile_outside():
    return _compiled("default", False, True, "torch.compile, compiled outside")


@check
def workload_reduce_overhead_inside():
    return _compiled("reduce-overhead", True, True, "reduce-overhead, compiled inside")


@check
def workload_reduce_overhead_outside():
    return _compiled("reduce-overhead", False, True, "reduce-overhead, compiled outside")


@check
def workload_max_autotune_inside():
    return _compiled("max-autotune", True, False, "max-autotune, compiled inside")


@check
def workload_max_autotune_outside():
    return _compiled("max-autotune", False, False, "max-autotune, compiled outside")


def _beside(name, run, slots_of):
    """Returns the row of work in two partitions at the same time. `slots_of` holds the slots of the first
    partition, the second, and work in none."""
    parts = partitions(a=COUNT, b=24)
    allowed = [sms(part.stream) for part in parts.values()]
    run(parts)
    clear()
    found = recorded(lambda: run(parts), *parts.values())
    seen = [ran_on(slots) for slots in slots_of]
    kernels_outside = found.outside() if len(slots_of) == 2 else {}
    inside = seen[0] <= allowed[0] and seen[1] <= allowed[1] and not kernels_outside
    output = {
        "row": name,
        "sms": len(seen[0]),
        "of": COUNT,
        "second": {"sms": len(seen[1]), "of": 24},
        "kernels": len(found.kernels),
        "outside": kernels_outside,
        "inside": inside,
        "must": True,
    }
    if len(slots_of) > 2:
        # Work outside partitions must not have been drawn into one.
        output["sms_in_none"] = len(seen[2])
        inside = inside and len(seen[2]) == TOTAL
    return {**output, "holds": inside}


@check
def workload_threads():
    nets = [Net(0), Net(2)]

    def run(parts):
        failures = []

        def work(part, net):
            try:
                for _ in range(5):
                    with part:
                        net(X).square().mean().backward()
                    torch.cuda.current_stream().synchronize()
            except BaseException as error:
                failures.append(error)

        pairs = zip(parts.values(), nets, strict=True)
        threads = [threading.Thread(target=work, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    return _beside("two threads in two partitions", run, [(0, 1), (2, 3)])


@check
def workload_asyncio():
    nets = [Net(0), Net(2), Net(4)]

    async def task(part, net):
        if part is None:
            for _ in range(5):
                net(X).square().mean().backward()
                await asyncio.sleep(0)
            return
        for _ in range(5):
            with part:
                hidden = torch.relu(net.first(X))
                await asyncio.sleep(0)
                output = net.second(stamp(hidden, net.slot))
                await asyncio.sleep(0)
                output.square().mean().backward()
            await asyncio.sleep(0)

    async def tasks(parts):
        await asyncio.gather(
            task(parts["a"], nets[0]), task(parts["b"], nets[1]), task(None, nets[2])
        )

    def run(parts):
        before = torch.cuda.current_stream()
        asyncio.run(tasks(parts))
        assert torch.cuda.current_stream() == before

    name = "asyncio, awaits inside of the blocks"
    return _beside(name, run, [(0, 1), (2, 3), (4, 5)])


@check
def workload_mem_pool():
    net, part = Net(), one()
    pool = torch.cuda.MemPool()

    def work():
        with part, torch.cuda.use_mem_pool(pool):
            net(X).square().mean().backward()

    work()
    return row("torch.cuda.use_mem_pool", work, part, must=True, slots=(0, 1))


def _graphed(inside, name):
    net, part = Net(), one()
    sample = X.clone()
    if inside:
        with part:
            graphed = torch.cuda.make_graphed_callables(net, (sample,))
    else:
        graphed = torch.cuda.make_graphed_callables(net, (sample,))
    torch.cuda.synchronize()

    def work():
        with part:
            graphed(X).square().mean().backward()

    if message := refusal(work):
        return refused(name, message, False)
    return row(name, work, part, must=False, slots=(0, 1), graph=True)


@check
def workload_graphed_callables_inside():
    return _graphed(True, "make_graphed_callables inside")


@check
def workload_graphed_callables_outside():
    return _graphed(False, "make_graphed_callables outside, called inside")


@check
def workload_checkpoint():
    from torch.utils.checkpoint import checkpoint

    net, part = Net(), one()

    def work():
        with part:
            x = X.clone().requires_grad_()
            checkpoint(net, x, use_reentrant=False).square().mean().backward()

    work()
    return row("torch.utils.checkpoint", work, part, must=False, slots=(0, 1))


@check
def workload_pinned_copy():
    net, part = Net(), one()
    batches = [torch.randn(SIZE, SIZE).pin_memory() for _ in range(4)]
    with torch.no_grad():
        expected = [net(batch.cuda()) for batch in batches]
    results = []

    def work():
        results.clear()
        with part, torch.no_grad():
            for batch in batches:
                results.append(net(batch.to("cuda", non_blocking=True)))

    work()
    output = row("pinned batches, non_blocking=True", work, part, must=False)
    for result, each in zip(results, expected, strict=True):
        assert torch.allclose(result, each, rtol=1e-3, atol=1e-3)
    return output


def table(result):
    """Returns the rows of a result file as a table in Markdown."""
    lines = [
        "| work | SMs it ran on | kernels outside, of all | inside |",
        "|---|---|---|---|",
    ]
    for entry in result["checks"].values():
        if "row" not in entry:
            continue
        if "refused" in entry:
            lines.append(f"| {entry['row']} | – | – | refused with an error |")
            continue
        seen = f"{entry['sms']} of the partition's {entry['of']}"
        if "second" in entry:
            seen += f", {entry['second']['sms']} of {entry['second']['of']}"
        if entry["sms"] > entry["of"]:
            seen = f"{entry['sms']}, the partition has {entry['of']}"
        if "kernels" not in entry or not entry.get("contexts_told", True):
            outside = "–"
        else:
            outside = f"{sum(entry['outside'].values())} of {entry['kernels']}"
        lines.append(
            f"| {entry['row']} | {seen} | {outside} | {'yes' if entry['inside'] else 'no'} |"
        )
    for name, entry in result["checks"].items():
        if name.startswith("workload_") and "error" in entry:
            lines.append(f"| {name.removeprefix('workload_')} | – | – | error: {entry['error']} |")
    return "\n".join(lines)


def main(arguments):
    if arguments == ["--backward-after-close"]:
        backward_after_close()
        return 0
    *how, path = arguments or [None]
    if path is None or how not in ([], ["--table"]):
        print("usage: workloads.py [--table] RESULTS.json", file=sys.stderr)
        return 2
    held = bool(how) or run(path)
    with open(path) as file:
        print(table(json.load(file)))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
