"""Where torch's kernels run: what the checks of `placement.py` have in common."""

import contextlib
import functools
import gc
import os

import green_ctx_torch
import torch
from green_ctx_torch import watching
from harness import alone, check, skip
from torch import nn

#: Outside of all partitions.
OUTSIDE = ""
#: About 50 ms on an H200.
LONG = 80_000_000
#: The reserve under which the checks run, or 0. It has room for `parts` and another 16 SMs.
RESERVED = int(os.environ.get("GREEN_CTX_RESERVE", "0"))
#: The least number of SMs that are free for floors while `parts` exists.
FREE = RESERVED - 16 if RESERVED else 132 - 32 - 40
#: torch's CUDA sanitizer is on from the start. torch then compiles nothing.
SANITIZED = "TORCH_CUDA_SANITIZER" in os.environ


def current(device=None):
    """Returns the handle of torch's current stream."""
    return torch.cuda.current_stream(device).cuda_stream


@functools.cache
def parts():
    """Returns the two partitions of most checks."""
    return green_ctx_torch.partition({"a": 8, "b": 8} if RESERVED else {"a": 32, "b": "8..40"})


def capped(sm_count):
    """Returns a share of this number of SMs. Under a reserve, which is too small, the share has no floor."""
    return f"..{sm_count}" if RESERVED else sm_count


@functools.cache
def model():
    return nn.Sequential(nn.LayerNorm(64), nn.GELU(), nn.LayerNorm(64)).cuda()


def tensor(*shape, **options):
    return torch.zeros(*(shape or (64, 64)), device="cuda", **options)


def sine():
    """A small step of work."""
    torch.sin(tensor())


def ran(work, *more, device=0):
    """Returns the names of the partitions in which the kernels of `work` ran. `more` lists further partitions."""
    known = [*parts().values(), *more] if device == 0 else more
    torch.cuda.synchronize(device)
    profiler = watching.make_profiler(torch)
    profiler.start()
    try:
        for stream in [*(part.stream for part in known), torch.cuda.default_stream(device)]:
            with torch.cuda.device(device), torch.cuda.stream(stream):
                torch.cuda._sleep(1000)
            stream.synchronize()
        work()
        torch.cuda.synchronize(device)
    finally:
        profiler.stop()
    events = [event for event in profiler.events() if event.get("cat") == "kernel"]
    events = [event for event in events if event["args"]["device"] == device]
    events.sort(key=lambda event: float(event["ts"]))
    contexts = [event["args"]["context"] for event in events]
    places = [*(part.name for part in known), OUTSIDE]
    names = dict(zip(contexts, places, strict=False))
    assert len(names) == len(places), contexts
    return {names.get(context, "unknown") for context in contexts[len(places) :]}


def within(part, function, times=0):
    """Returns where a function runs in a block, after some calls in such blocks."""

    def call():
        with part:
            function()

    for _ in range(times):
        call()
    return ran(call, *(() if part in parts().values() or part is PLAIN else (part,)))


PLAIN = contextlib.nullcontext()


def settled(function):
    """Registers a check that must leave the thread as it was: on the default stream, without a capture."""

    @functools.wraps(function)
    def wrapped():
        parts(), model(), torch.cuda.synchronize()
        try:
            output = function()
            assert current() == 0, "another stream is current after the check"
            assert not torch.cuda.is_current_stream_capturing()
            torch.cuda.synchronize()
        finally:
            torch.cuda.set_stream(torch.cuda.default_stream(0))
        return output

    check(wrapped)
    return function


def alone_in_process(function):
    """Registers a check that runs in its own process, with a sanitizer only if the check turns it on."""
    if not SANITIZED:
        check(alone(function))


def compiling(function):
    """Registers a check of compiled functions."""

    @settled
    @functools.wraps(function)
    def run():
        if SANITIZED:
            return skip("nothing is compiled")
        torch._dynamo.reset()
        try:
            return function()
        finally:
            torch._dynamo.reset()
            gc.collect()


def compiled(function=lambda x: torch.sin(x) * 2, backend="cudagraphs", **options):
    """Compiles a function. The backend "cudagraphs" is inductor's graph trees without Triton."""
    return torch.compile(function, backend=backend, **options)


graph_of = functools.partial(torch.cuda.CUDAGraph, keep_graph=True)


def captured(work=sine, **options):
    graph = graph_of()
    with torch.cuda.graph(graph, **options):
        work()
    return graph


def nodes(graph):
    """Returns the names of the partitions of a graph's kernels."""
    found = set()
    for node in green_ctx_torch.audit(graph).nodes:
        names = [part.name for part in parts().values() if f"of {part.name} " in str(node)]
        if node.kind == "kernel":
            found.add(OUTSIDE if "of primary " in str(node) else names[0] if names else "unknown")
    return found
