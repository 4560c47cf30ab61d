"""`torch.cuda.green_contexts`, on partitions that own their SMs.

Code written for torch 2.11 to 2.15 runs unchanged: `GreenContext` has the signatures of 2.11, by keyword those of
2.12 to 2.14, and with `SMPartition`, `GreenContext.split` and the two questions about locality domains
those of 2.15. Exceptions are of the original's types. All of it works with torch 2.10 and newer.

| | torch | here |
|---|---|---|
| overlap of contexts | contexts of two calls of `create`, or of one `SMPartition`, share SMs in silence | no two contexts with SMs of their own share any: the second is a RuntimeError that says who holds them |
| `SMPartition` | describes SMs and reserves none | the same; a context of it takes them until it is closed or gone |
| `GreenContext.sm_partition` | keeps the context | does not; while the context is open no other one is made of its SMs |
| splitting an `SMPartition` | needs CUDA 13.1 | `num_sms` alone works on every driver; what else a split takes needs CUDA 13.1 |
| splitting a part again | of a context's `sm_partition` only | by count, of any `SMPartition`, without a context; parts of a context's SMs become contexts when it is closed |
| splitting with co-scheduling, backfill or locality domains | any SMs of a context | all SMs of a device, in one split; while one of its groups is a context, the device has contexts of that split only |
| `num_sms=0` | as many SMs as can be scheduled together | the same: 120 of the 132 of an H200, where 12 remain |
| `locality_domain_id` | what the driver reports | what was asked for |
| `is_localization_supported` | asks NVML before the driver is initialised | initialises the driver |
| no `num_sms` | the context uses the whole device | it uses every SM that no other context or partition has when it is created, as `sm_count` says; several share them, and while one lives nobody gets SMs of their own, so create those with `num_sms` first |
| counts of `create` | rounded up | rounded up or, where so many are not free, to the next count that is; `requested` is what was asked for |
| `create` without `device_id` | device 0 in torch 2.11 | torch's current device |
| `set_context`, `pop_context` | one set of a context at a time, deprecated since 2.14 | one at a time on each thread; they change the thread's CUDA context as torch's do, and warn as in 2.14 |
| `with context:` | – | makes a stream of the context current and changes no CUDA context; blocks nest |
| `pop_context` out of order, or on another thread | undefined | a RuntimeError, and nothing changes; so is use after `close` |
| default stream in a capture | torch's work goes to the context's default stream, which no graph takes | it goes to a stream of the context: both calls can stand within a capture, or around one |
| failures | may leave the context current | what was current stays, or is put back |
| memory | the driver leaks 4 MiB with each context | the next context of the same SMs gets it |

On an H200, counts from 121 to 128 become 132, since partitions are made of pieces of 8 SMs and one of 12; a split,
which rounds nothing, refuses them.

A context lives as long as its object, one of its streams or a `set_context` without its
`pop_context`. Keep it as long as tensors are recorded on its streams (`Tensor.record_stream`).
"""

import sys

from green_ctx_torch import _native
from green_ctx_torch._native import (
    GreenContext,
    SMPartition,
    get_num_locality_domains,
    is_localization_supported,
)

__all__ = [
    "GreenContext",
    "SMPartition",
    "get_num_locality_domains",
    "is_localization_supported",
]

# `SUPPORTED` is asked for in `__getattr__`, so that importing the module loads no driver. As in torch it is not in
# `__all__`: `from green_ctx_torch import *` would initialise the driver, which does not survive a fork.
SUPPORTED: bool
"""Whether the driver has green contexts, and torch, where it is imported, can work in them."""

#: The oldest torch whose library has the functions that `set_context` needs.
_TORCH = (2, 10)


def _supported() -> bool:
    torch = sys.modules.get("torch")
    if torch is not None:
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if torch.version.cuda is None or version < _TORCH:
            return False
    return _native.supported()


def __getattr__(name: str) -> bool:
    if name == "SUPPORTED":
        return _supported()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
