"""Every device argument defaults to torch's current device. The machine must have two devices.

`current_device.py FOLDER`: the folder of a substitute for torch.
"""

import gc
import sys
from types import SimpleNamespace

import pytest

sys.path.insert(0, sys.argv[1])

import torch

# The number of devices is known once the driver is loaded.
import green_ctx_torch
from green_ctx_torch import PlanSet, partition, runtime, verify
from green_ctx_torch.allocator import Allocator
from green_ctx_torch.green_contexts import GreenContext, SMPartition

assert [device["ordinal"] for device in green_ctx_torch.info()["devices"]] == [0, 1]
PLANS = {"day": {"a": 8}}
CUDA, CPU = (SimpleNamespace(type=kind, index=None) for kind in ("cuda", "cpu"))


def verified(**device):
    parts = partition({"a": 8}, **device)
    (report,) = verify(**device).partitions
    assert report.name in parts
    return parts["a"].device


#: Each function creates something on a device, and returns the device's number if it can be read back.
USES = {
    "device": [
        lambda **device: partition({"a": 8}, **device)["a"].device,
        lambda **device: PlanSet(PLANS, **device).active.partitions["a"].device,
        lambda **device: Allocator(**device).device,
        verified,
        lambda **device: runtime.memory_info(**device) and None,
    ],
    "device_id": [
        lambda **device: GreenContext(num_sms=16, **device).device_id,
        lambda **device: GreenContext.create(num_sms=16, **device).device_id,
        lambda **device: GreenContext.split(num_sms=[16], **device)[0].device_id,
        lambda **device: SMPartition.from_device(**device).device_id,
    ],
}

for current, absent in ((1, False), (0, False), (7, True)):
    torch.cuda.current_device = lambda current=current: current
    for keyword, uses in USES.items():
        for use in uses:
            for device in ({}, {keyword: None}, {keyword: "cuda"}, {keyword: CUDA}):
                if absent:
                    with pytest.raises((ValueError, RuntimeError), match="no device 7"):
                        use(**device)
                else:
                    assert use(**device) in (current, None)
                gc.collect()
            with pytest.raises((ValueError, RuntimeError), match="cpu is not a CUDA device"):
                use(**{keyword: CPU})
            assert use(**{keyword: 0}) in (0, None)
            gc.collect()

# If torch has not initialised CUDA, its current device does not count.
torch.cuda.is_initialized = lambda: False
assert GreenContext.create(num_sms=16).device_id == 0
