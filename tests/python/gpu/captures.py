"""Random captures, replays and drops of graphs, in partitions and outside: `python captures.py [RESULTS.json]`.

GREEN_CTX_SECONDS sets the duration of the random part (20 s by default). GREEN_CTX_SEED repeats a run.
"""

import contextlib
import gc
import os
import random
import time

import torch
from harness import check, main

import green_ctx_torch

SECONDS = float(os.environ.get("GREEN_CTX_SECONDS", "20"))
SEED = int(os.environ.get("GREEN_CTX_SEED", str(time.time_ns() % 1_000_000)))
SHARES = [{"a": 16, "b": "rest"}, {"a": 8, "b": 64}, {"a": "32..", "b": "..100"}]
#: The maximum number of graphs that exist at the same time.
LIVE = 6


def captured(work, **options):
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        output = work()
    return graph, output


@check
def the_allocator_keeps_the_memory_of_a_running_graph():
    part = green_ctx_torch.partition({"a": 8})["a"]
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    _ = a @ a
    captured(lambda: a @ a)[0].replay()
    for _ in range(60):
        with part:
            captured(lambda: a @ a)[0].replay()
    torch.cuda.synchronize()


class Product:
    def __init__(self, rng):
        size = rng.choice([64, 256, 1000, 1024, 2048, 4096])
        dtype = rng.choice([torch.float32, torch.float16, torch.bfloat16])
        self.inputs = torch.randn(size, size, device="cuda", dtype=dtype)
        self.weight = torch.randn(size, size, device="cuda", dtype=dtype)
        self.bias = torch.randn(size, device="cuda", dtype=dtype) if rng.random() < 0.5 else None

    def __call__(self):
        return torch.nn.functional.linear(self.inputs, self.weight, self.bias)


class Module:
    def __init__(self, module, *shape):
        self.module = module.cuda()
        self.inputs = torch.randn(*shape, device="cuda")

    def __call__(self):
        output = self.module(self.inputs)
        return output[0] if isinstance(output, tuple) else output


def lstm(rng):
    size = rng.choice([64, 512])
    return Module(torch.nn.LSTM(size, size, num_layers=2), 16, 8, size)


def convolution(rng):
    channels = rng.choice([16, 64])
    layers = torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.ReLU()
    return Module(torch.nn.Sequential(*layers), 8, channels, 56, 56)


class Sum:
    def __init__(self, rng):
        self.inputs = torch.randn(rng.choice([1000, 1 << 22]), device="cuda")

    def __call__(self):
        return self.inputs + self.inputs


WORK = [Product, Product, Product, lstm, convolution, Sum]


class Live:
    """A graph, its work, the place where it was captured, and the expected result."""

    def __init__(self, rng, place, part):
        self.place, self.part = place, part
        self.work = rng.choice(WORK)(rng)
        with torch.no_grad(), self.entered():
            # Eager work loads modules, which a capture cannot do.
            self.expected = self.work().clone()
            torch.cuda.current_stream().synchronize()
            self.graph, self.output = captured(self.work, keep_graph=rng.random() < 0.3)
        if rng.random() < 0.3:
            # A cycle, so that only the garbage collector frees the graph.
            self.itself = self

    def entered(self):
        return contextlib.nullcontext() if self.part is None else self.part

    def replay(self):
        with self.entered():
            self.graph.replay()

    def renew(self):
        """Changes the inputs of the work."""
        with torch.no_grad(), self.entered():
            self.work.inputs.normal_()
            self.expected = self.work().clone()

    def compare(self):
        with self.entered():
            self.output.zero_()
            self.graph.replay()
            torch.testing.assert_close(self.output, self.expected, rtol=2e-2, atol=2e-1)


class Run:
    def __init__(self, rng):
        self.rng, self.live, self.counts = rng, [], {}
        self.open()

    def open(self):
        self.parts = green_ctx_torch.partition(self.rng.choice(SHARES))

    def capture(self):
        if len(self.live) >= LIVE:
            return self.drop()
        place = self.rng.choice(["outside", "a", "b", "b"])
        part = None if place == "outside" else self.parts[place]
        live = Live(self.rng, place, part)
        if self.rng.random() < 0.4:
            # The graph is dropped while it runs.
            return live.replay()
        self.live.append(live)

    def pick(self):
        return self.rng.choice(self.live) if self.live else None

    def replay(self):
        if live := self.pick():
            live.replay()

    def compare(self):
        if live := self.pick():
            live.compare()

    def renew(self):
        if live := self.pick():
            live.renew()

    def drop(self):
        if self.live:
            live = self.live.pop(self.rng.randrange(len(self.live)))
            if self.rng.random() < 0.7:
                live.replay()

    def move(self):
        live = next((live for live in self.live if live.place == "outside"), None)
        if live is None:
            return
        try:
            raw = live.graph.raw_cuda_graph()
        except RuntimeError:
            return
        assert raw
        part = self.parts[self.rng.choice(["a", "b"])]
        moved = green_ctx_torch.retarget(live.graph, part)
        part.stream.wait_stream(torch.cuda.current_stream())
        moved.replay()
        torch.cuda.current_stream().wait_stream(part.stream)
        torch.testing.assert_close(live.output, live.expected, rtol=2e-2, atol=2e-1)

    def eager(self):
        with torch.no_grad(), self.parts[self.rng.choice(["a", "b"])]:
            Product(self.rng)()

    def collect(self):
        gc.collect()

    def empty(self):
        torch.cuda.empty_cache()

    def wait(self):
        torch.cuda.synchronize()

    def reopen(self):
        """Closes the partitions and creates others."""
        self.live.clear()
        gc.collect()
        self.parts.close()
        self.open()

    def step(self):
        kinds = [self.capture] * 8 + [self.replay] * 4 + [self.compare] * 4 + [self.drop] * 3
        kinds += [self.renew, self.move, self.eager, self.collect, self.empty, self.wait]
        kind = self.reopen if self.rng.random() < 0.02 else self.rng.choice(kinds)
        kind()
        self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1


@check
def random_captures_compute_what_eager_work_computes():
    torch.manual_seed(SEED)
    state, end = Run(random.Random(SEED)), time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            state.step()
        torch.cuda.synchronize()
    except Exception as error:
        raise AssertionError(f"seed {SEED}, after {state.counts}") from error
    return {"seed": SEED, "seconds": SECONDS, "operations": state.counts}


if __name__ == "__main__":
    main()
