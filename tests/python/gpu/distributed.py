"""Partitions with torch.distributed on two GPUs, through NCCL.

    python distributed.py [RESULTS.json]
    torchrun --nproc-per-node 2 distributed.py [RESULTS.json]

The first form starts the second one, and then short programs that end in each of the usual ways. Every rank of each
program must exit with 0. Rank 0 writes the results to the file, and rank 1 writes its own to a second file.
"""

import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import green_ctx_torch  # First, so that GREEN_CTX_RESERVE applies.
import torch
import torch.distributed as dist
from harness import check, measurement, run
from kernels import recorded
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", 1000))
ROUNDS = int(os.environ.get("ROUNDS", 15))
COUNT = 32
WIDTH = 256
MIB = 1 << 20
TIMEOUT = timedelta(seconds=180)

#: Set by torchrun in each rank.
RANK = int(os.environ.get("RANK", 0))
LOCAL = int(os.environ.get("LOCAL_RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))


def partitions():
    """Creates `small` with 32 SMs, and `rest`, on the rank's own device."""
    parts = green_ctx_torch.partition({"small": COUNT, "rest": "rest"})
    assert all(part.device == LOCAL for part in parts.values())
    return parts


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)).cuda()


def batch(step):
    """Returns the batch of a rank and step, created on the current stream."""
    generator = torch.Generator("cuda").manual_seed(1000 * step + RANK)
    return torch.randn(64, WIDTH, device="cuda", generator=generator)


def trained(net, steps, whole):
    """Trains, and returns copies of all weights. `whole` gathers one weight."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(steps):
        x = batch(step)
        (net(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return [whole(each).detach().clone() for each in net.parameters()]


def with_ddp(steps, group=None):
    net = DistributedDataParallel(model(), device_ids=[LOCAL], process_group=group)
    return trained(net, steps, lambda weight: weight)


def with_fsdp(steps):
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    return trained(net, steps, lambda weight: weight.full_tensor())


def compared(results, expected):
    """Checks that results match those of an unpartitioned run, and returns how exactly they do."""
    torch.cuda.synchronize()
    pairs = list(zip(results, expected, strict=True))
    bitwise = all(torch.equal(a, b) for a, b in pairs)
    worst = max((a - b).abs().max().item() for a, b in pairs)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs), worst
    return {"bitwise": bitwise, "largest_difference": worst}


def reductions(steps, asynchronous, group=None):
    """All-reduces whole numbers, whose sums are exact in any order."""
    x = torch.empty(4096, device="cuda")
    wrong = torch.zeros((), device="cuda")
    numbers = torch.arange(4096, device="cuda", dtype=torch.float32)
    for step in range(steps):
        torch.add(numbers, float(step % 97 + RANK), out=x)
        work = dist.all_reduce(x, async_op=asynchronous, group=group)
        if asynchronous:
            work.wait()
        expected = WORLD * (numbers + step % 97) + WORLD * (WORLD - 1) / 2
        wrong += (x != expected).sum()
    assert wrong.item() == 0, f"{wrong.item()} wrong sums"


@check
def all_reduces_inside():
    parts = partitions()
    for part in parts.values():
        with part:
            reductions(STEPS, False)
            reductions(STEPS, True)
    return {"steps": STEPS}


def steps_inside(trainer):
    """Checks that training in each partition gives the same weights as training without partitions."""
    expected, again = trainer(STEPS), trainer(STEPS)
    deterministic = all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    results = {}
    for name, part in partitions().items():
        with part:
            result = trainer(STEPS)
        results[name] = compared(result, expected)
    return {"steps": STEPS, "unpartitioned_is_deterministic": deterministic, **results}


@check
def ddp_steps_inside():
    return steps_inside(with_ddp)


@check
def fsdp2_steps_inside():
    return steps_inside(with_fsdp)


@check
def a_communicator_made_inside():
    parts = partitions()
    expected = with_ddp(100)
    with parts["small"]:
        # NCCL creates the communicator at the first collective.
        group = dist.new_group(timeout=TIMEOUT)
        reductions(100, False, group)
        reductions(100, True, group)
        result = with_ddp(100, group)
    inside = compared(result, expected)
    # The communicator also works in the other partition and outside partitions.
    with parts["rest"]:
        reductions(100, True, group)
    reductions(100, False, group)
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return inside


@check
def a_graph_with_an_all_reduce_moves():
    parts = partitions()
    x = torch.zeros(4096, device="cuda")
    with parts["small"]:
        dist.all_reduce(x.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with parts["small"], torch.cuda.graph(graph):
        y = x * 2
        dist.all_reduce(y)
        z = y + 1
    graph.instantiate()
    target = parts["rest"]
    moved = green_ctx_torch.retarget(graph, target)
    wrong = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(target.stream):
        for step in range(STEPS):
            x.fill_(float(step % 101 + RANK))
            moved.replay()
            wrong += (z != 2 * (WORLD * (step % 101) + WORLD * (WORLD - 1) / 2) + 1).sum()
    torch.cuda.synchronize()

    # Replayed alone, on the partition's stream.
    found = recorded(moved.replay, target, parts["small"])
    count = wrong.item()
    # destroy_process_group waits forever while a captured graph with NCCL work exists.
    del moved, graph
    gc.collect()
    torch.cuda.synchronize()
    assert count == 0, f"{count} wrong sums"
    return {
        "replays": STEPS,
        "kernels_by_context_partition_0_is_the_target": found.places(""),
    }


def one_after_the_other(x, y):
    """Rank 0 sends `x`, then rank 1 does. Each receives into `y`."""
    for sender in range(2):
        if RANK == sender:
            dist.send(x, 1 - RANK)
        else:
            dist.recv(y, 1 - RANK)


def exchange(x, y):
    """Sends `x` to the other rank and receives into `y` at the same time."""
    pair = [dist.P2POp(dist.isend, x, 1 - RANK), dist.P2POp(dist.irecv, y, 1 - RANK)]
    for handle in dist.batch_isend_irecv(pair):
        handle.wait()


@check
def where_nccls_kernels_run():
    """The kernels of NCCL in `with part:`, by kind of call and by where the communicator was created."""
    part = partitions()["small"]
    outside_group = dist.new_group(timeout=TIMEOUT)
    dist.all_reduce(torch.ones(1, device="cuda"), group=outside_group)
    torch.cuda.synchronize()
    with part:
        inside_group = dist.new_group(timeout=TIMEOUT)
        dist.all_reduce(torch.ones(1, device="cuda"), group=inside_group)
    torch.cuda.synchronize()
    x = torch.ones(MIB, device="cuda")
    result = {}
    for made, group in (("made_outside", outside_group), ("made_inside", inside_group)):
        for asynchronous in (False, True):

            def work(group=group, asynchronous=asynchronous):
                with part:
                    for _ in range(3):
                        handle = dist.all_reduce(x, async_op=asynchronous, group=group)
                        if asynchronous:
                            handle.wait()

            work()
            found = recorded(work, part)
            key = f"communicator_{made}_{'async' if asynchronous else 'sync'}"
            result[key] = found.places("nccl")
            assert result[key], "no kernel of NCCL was recorded"
            dist.barrier()

    y = torch.empty_like(x)
    for name, transfer in (("send_and_recv", one_after_the_other), ("batch_isend_irecv", exchange)):

        def transfers(transfer=transfer):
            with part:
                for _ in range(3):
                    transfer(x, y)

        transfers()
        result[name] = recorded(transfers, part).places("nccl")
        assert result[name], "no kernel of NCCL was recorded"
        dist.barrier()

    for name, trainer in (("ddp", with_ddp), ("fsdp2", with_fsdp)):

        def steps(trainer=trainer):
            with part:
                trainer(3)

        steps()
        found = recorded(steps, part)
        result[name] = {
            "nccl": found.places("nccl"),
            "all": found.places(""),
            "outside": found.outside(),
        }
        dist.barrier()
    for group in (outside_group, inside_group):
        dist.destroy_process_group(group)
    return result


def limited_group(ctas):
    """Returns a communicator whose kernels have at most `ctas` blocks."""
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = ctas
    group = dist.new_group(timeout=TIMEOUT, pg_options=options)
    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    torch.cuda.synchronize()
    return group


@measurement
def all_reduce_beside_products():
    """The time in ms of an all-reduce of 256 MiB and two products of size 8192, by where each runs."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)
    x = torch.ones(256 * MIB // 4, device="cuda")
    groups = {"default": None, "16_ctas": limited_group(16)}
    plain_comm, plain_rest = torch.cuda.Stream(), torch.cuda.Stream()
    parts = green_ctx_torch.partition({"comm": 24, "rest": "rest"})
    assert parts["comm"].sm_count == 24

    def products():
        for _ in range(2):
            torch.matmul(a, b, out=c)

    def reduce(group):
        # Not async, so that NCCL's kernels run on the current stream.
        dist.all_reduce(x, group=group)

    def both(comm, compute, group):
        """Runs both, each on its own stream, after all earlier work."""
        main = torch.cuda.current_stream()
        for stream, work in ((comm, lambda: reduce(group)), (compute, products)):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                work()
        for stream in (comm, compute):
            main.wait_stream(stream)

    def sequential(group):
        reduce(group)
        products()

    comm, rest = parts["comm"].stream, parts["rest"].stream
    kinds = {
        "only_the_all_reduce": reduce,
        "only_the_products": lambda group: products(),
        "sequential": sequential,
        "plain_streams": lambda group: both(plain_comm, plain_rest, group),
        "comm_in_24_products_on_all": lambda group: both(comm, plain_rest, group),
        "disjoint_24_108": lambda group: both(comm, rest, group),
    }
    arms = [
        (f"{kind}/{name}", work, group)
        for kind, work in kinds.items()
        for name, group in groups.items()
    ]
    times = {name: [] for name, _, _ in arms}
    for turn in range(ROUNDS + 2):
        for index in range(len(arms)):
            name, work, group = arms[(index + turn) % len(arms)]
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            work(group)
            torch.cuda.synchronize()
            milliseconds = 1000 * (time.perf_counter() - start)
            # The time of the slower rank.
            slowest = torch.tensor(milliseconds, device="cuda")
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if turn >= 2:
                times[name].append(slowest.item())
        x.fill_(1.0)
    where = recorded(lambda: both(comm, rest, None), parts["comm"], parts["rest"]).places("")
    dist.destroy_process_group(groups["16_ctas"])
    medians = {name: round(statistics.median(each), 3) for name, each in times.items()}
    spread = {name: [round(min(each), 3), round(max(each), 3)] for name, each in times.items()}
    return {"ms": medians, "least_and_most_ms": spread, "disjoint_ran": where}


@measurement
def exchange_beside_products():
    """The time in ms of an exchange of 4 MiB, and the products of size 8192 per second, by where the products run."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)
    x, y = (torch.ones(4 * MIB // 4, device="cuda") for _ in range(2))
    parts = green_ctx_torch.partition({"free": 8, "load": "rest"})
    arms = {
        "without_products": None,
        "plain_stream": torch.cuda.Stream(),
        "products_leave_8_sms": parts["load"].stream,
    }

    def exchanges(stream, count):
        """Returns the time of each exchange, and the products per second. Two products are always in flight."""
        times, ends = [], []
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        for _ in range(count):
            while stream is not None and all(end.query() for end in ends[-2:-1]):
                with torch.cuda.stream(stream):
                    torch.matmul(a, b, out=c)
                ends.append(stream.record_event(torch.cuda.Event(enable_timing=True)))
            begin = time.perf_counter()
            exchange(x, y)
            torch.cuda.current_stream().synchronize()
            times.append(1000 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
        rate = 1000 * (len(ends) - 1) / ends[0].elapsed_time(ends[-1]) if ends else 0.0
        return times, rate

    times = {name: [] for name in arms}
    rates = {name: [] for name in arms}
    for turn in range(ROUNDS + 1):
        for name, stream in arms.items():
            taken, rate = exchanges(stream, 200 if turn else 3)
            if turn:
                times[name] += taken
                rates[name].append(rate)
    parts.close()
    return {
        "exchanges": 200 * ROUNDS,
        "ms": {name: round(statistics.median(each), 3) for name, each in times.items()},
        "p99_ms": {name: round(statistics.quantiles(each, n=100)[98], 3) for name, each in times.items()},
        "products_per_second": {name: round(statistics.median(each), 1) for name, each in rates.items()},
    }


def exit_program(kind):
    """A short program that ends in one of the usual ways."""
    parts = partitions()
    part = parts["small"]
    context = part if kind != "never_entered" else nullcontext()
    with context:
        result = with_ddp(5)
        handle = dist.all_reduce(torch.ones(1024, device="cuda"), async_op=True)
        handle.wait()
        held = torch.ones(MIB, device="cuda")
    held.record_stream(part.stream)
    if kind == "graph":
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with part, torch.cuda.graph(graph):
            y = held * 2
            dist.all_reduce(y)
        graph.replay()
        torch.cuda.synchronize()
        # In this order, see the guide on NCCL.
        del graph
        gc.collect()
    if kind == "closed_before":
        torch.cuda.synchronize()
        part.close()
        parts.close()
    dist.destroy_process_group()
    if kind == "closed_after":
        part.close()
        parts.close()
    # The interpreter frees these objects at exit.
    globals()["_held"] = (result, held, parts, copy.copy(held))
    print(f"rank {RANK} ends: {kind}", flush=True)


KINDS = ("closed_before", "closed_after", "never_closed", "never_entered", "graph")


def torchrun(*arguments):
    """Runs this file on two ranks. Returns torchrun's exit status, which is 0 if every rank's is."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    try:
        done = subprocess.run([*command, __file__, *arguments], timeout=1200)
    except subprocess.TimeoutExpired:
        return 124
    return done.returncode


def parent(arguments):
    if torch.cuda.device_count() < 2:
        print(f"skipped: {torch.cuda.device_count()} GPUs, two are needed", file=sys.stderr)
        return 0
    statuses = {"checks": torchrun(*arguments)}
    for kind in KINDS:
        statuses[kind] = torchrun("--exit", kind)
    print("exit statuses", statuses)
    ok = not any(statuses.values())
    if arguments and Path(arguments[0]).exists():
        path = Path(arguments[0])
        result = json.loads(path.read_text())
        result["exit_statuses"] = statuses
        result["ok"] = result["ok"] and ok
        path.write_text(json.dumps(result, indent=1))
    return 0 if ok else 1


def rank(arguments):
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", timeout=TIMEOUT)
    if arguments[:1] == ["--exit"]:
        exit_program(arguments[1])
        return 0
    path = Path(arguments[0]) if arguments else None
    if path is not None and RANK:
        path = path.with_suffix(f".rank{RANK}.json")
    ok = run(path, rank=RANK, nccl=".".join(map(str, torch.cuda.nccl.version())))
    gc.collect()
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit((rank if "RANK" in os.environ else parent)(sys.argv[1:]))
