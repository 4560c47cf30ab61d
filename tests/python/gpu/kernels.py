"""The context in which each kernel ran, as CUPTI reports it through torch's profiler.

A kernel in the exported trace has `device`, `context` and `stream` in its `args`. The numbers are CUPTI's own.
Marker kernels show which context is the partition's: `spin_kernel`, the kernel of `torch.cuda._sleep`, is launched
on the partition's stream and then on a stream of torch's pool.
"""

import json
import os
import tempfile
import time
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

MARKER = "spin_kernel"

#: Time before and after the work, so that small differences between clocks lose no kernel.
MARGIN_SECONDS = 0.005

#: Categories of the trace that can use SMs.
CATEGORIES = ("kernel", "gpu_memset", "gpu_memcpy")


def trace(work):
    """Returns the result of the work, and the trace's events on the GPU in the order of their start."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        time.sleep(MARGIN_SECONDS)
        result = work()
        torch.cuda.synchronize()
        time.sleep(MARGIN_SECONDS)
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    finally:
        os.unlink(path)
    found = []
    for event in events:
        if event.get("cat") in CATEGORIES:
            args = event.get("args", {})
            found.append(
                {
                    "category": event["cat"],
                    "name": event["name"],
                    "start": event["ts"],
                    "us": event.get("dur", 0),
                    "device": args.get("device"),
                    "context": args.get("context"),
                    "stream": args.get("stream"),
                    "correlation": args.get("correlation"),
                    "args": args,
                }
            )
    return result, sorted(found, key=lambda event: event["start"])


def mark(stream):
    """Launches the marker on a stream and waits for it."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1000)
    stream.synchronize()


class Recorded:
    """The kernels of some work, and the contexts of the partitions and of torch's own streams."""

    def __init__(self, result, kernels, copies, contexts, plain):
        self.result = result
        self.kernels = kernels
        #: Copies and memsets.
        self.copies = copies
        #: In the order of the partitions.
        self.contexts = contexts
        self.plain = plain

    def outside(self, contexts=None):
        """Returns the number of kernels, by name, that ran in none of the partitions' contexts."""
        contexts = self.contexts if contexts is None else contexts
        names = (each["name"] for each in self.kernels if each["context"] not in contexts)
        return dict(Counter(short(name) for name in names))

    def places(self, word):
        """Returns where the kernels ran whose name contains a word: counts by context and stream."""
        names = {context: f"partition {number}" for number, context in enumerate(self.contexts)}
        names[self.plain] = "outside"
        found = Counter(
            (names.get(each["context"], f"context {each['context']}"), each["stream"])
            for each in self.kernels
            if word in each["name"]
        )
        return [
            {"where": where, "stream": stream, "kernels": count}
            for (where, stream), count in sorted(found.items(), key=str)
        ]


def recorded(work, *parts):
    """Records work, and determines the contexts of the partitions."""
    pooled = torch.cuda.Stream()
    streams = [part.stream for part in parts]

    def marked():
        for stream in (*streams, pooled):
            mark(stream)
        return work()

    result, events = trace(marked)
    ordered = [event for event in events if event["category"] == "kernel"]
    marks = [event for event in ordered if MARKER in event["name"]][: len(parts) + 1]
    if len(marks) <= len(parts):
        raise RuntimeError(
            f"CUPTI recorded {len(marks)} of {len(parts) + 1} markers and {len(ordered)} kernels; "
            "is another profiler attached?"
        )
    contexts = [event["context"] for event in marks]
    if None in contexts or len(set(contexts)) < len(contexts):
        raise RuntimeError(
            f"CUPTI does not tell the contexts apart: {contexts}, {marks[0]['args']}"
        )
    kernels = [event for event in ordered if event not in marks]
    copies = [event for event in events if event["category"] != "kernel"]
    return Recorded(result, kernels, copies, contexts[:-1], contexts[-1])


def short(name):
    """Returns a kernel's name, cut after 67 characters if it is longer than 70."""
    return name if len(name) <= 70 else name[:67] + "..."
