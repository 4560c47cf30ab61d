"""The cost of the drop-ins compared with the originals, in one process."""

import statistics
import time

import torch
import torch.cuda.green_contexts
from harness import measurement, per_call

import green_ctx_torch
from green_ctx_torch import GreenContext

Torchs = torch.cuda.green_contexts.GreenContext
SIZES = (8, 16, 24, 32)


def free_mib():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] / 2**20


def churn(create, cycles):
    """Returns the device memory lost in MiB, and the time in seconds."""
    before, start = free_mib(), time.perf_counter()
    for cycle in range(cycles):
        context = create(SIZES[cycle % len(SIZES)])
        context.set_context()
        context.pop_context()
        del context
    seconds = time.perf_counter() - start
    lost = round(before - free_mib(), 1)
    return {"cycles": cycles, "lost_mib": lost, "seconds": round(seconds, 2)}


@measurement
def memory_of_many_contexts():
    first = churn(GreenContext.create, len(SIZES))
    ours = churn(GreenContext.create, 10_000)
    theirs = churn(lambda count: Torchs.create(num_sms=count, device_id=0), 200)
    # There is already one context per size. No more memory may be lost.
    return {
        "first_of_each_size": first,
        "ours": ours,
        "torch": theirs,
        "holds": ours["lost_mib"] <= 8,
    }


@measurement
def create_of_a_size_seen_before():
    GreenContext.create(16)
    ours = per_call(lambda: GreenContext.create(16), 2000)
    theirs = per_call(lambda: Torchs.create(num_sms=16, device_id=0), 10, rounds=3)
    output = {"ours_us": ours, "torch_us": theirs, "limit_us": 20, "holds": ours <= 20}
    try:
        from cuda.core import ContextOptions, Device, SMResourceOptions
    except ImportError:
        return output
    device = Device(0)
    device.set_current()

    def cuda_core():
        [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
        device.create_context(ContextOptions(resources=[group])).close()

    output["cuda_core_us"] = per_call(cuda_core, 10, rounds=3)
    return output


@measurement
def set_and_pop():
    ours, theirs = GreenContext.create(16), Torchs.create(num_sms=16, device_id=0)

    def in_ours():
        ours.set_context()
        ours.pop_context()

    def in_theirs():
        theirs.set_context()
        theirs.pop_context()

    # In turns, so that other activity on the machine affects both.
    times = {in_ours: [], in_theirs: []}
    for _ in range(9):
        for both, means in times.items():
            both()
            means.append(per_call(both, 500, 1, torch.cuda.synchronize))
    ours_us, theirs_us = (statistics.median(means) for means in times.values())
    return {"ours_us": ours_us, "torch_us": theirs_us, "holds": ours_us <= theirs_us}


@measurement
def stream_lookup():
    part = green_ctx_torch.partition({"small": 16})["small"]
    part.stream  # noqa: B018
    nanoseconds = round(1000 * per_call(lambda: part.stream, 100_000))
    empty = round(1000 * per_call(lambda: None, 100_000))
    # Without the cost of the lambda around the look-up.
    return {"ns": nanoseconds - empty, "limit_ns": 200, "holds": nanoseconds - empty <= 200}
