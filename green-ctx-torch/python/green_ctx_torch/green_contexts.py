"""A drop-in for `torch.cuda.green_contexts`, with contexts whose SMs no other context uses.

Code written for torch 2.11 to 2.15 runs unchanged. `GreenContext` takes the arguments of 2.11, and as keywords those of
2.12 to 2.14. With `SMPartition`, `GreenContext.split` and the two functions for locality domains it has the interface of
2.15. Exceptions have the original's types. Everything works with torch 2.10 and newer.

| | torch | here |
|---|---|---|
| overlap of contexts | contexts of two calls of `create`, or of one `SMPartition`, silently share SMs | two contexts with floors never share SMs: the second is a RuntimeError that names the holder |
| `SMPartition` | describes SMs and reserves none | the same; a context created from it holds the SMs until it is closed or dropped |
| `GreenContext.sm_partition` | keeps the context alive | does not; while the context is open, no other context can be created from it |
| splitting an `SMPartition` | needs CUDA 13.1 | `num_sms` alone works with every driver; the other arguments need CUDA 13.1 |
| splitting a part again | only from a context's `sm_partition` | by count, from any `SMPartition`, without a context; parts of a context's SMs can become contexts once it is closed |
| splitting with co-scheduling, backfill or locality domains | any SMs of a context | all SMs of a device, in one split; while a context has one of its groups, all contexts of the device must be of that split |
| `num_sms=0` | as many SMs as can be scheduled together | the same: 120 of the 132 of an H200, which leaves 12 |
| `locality_domain_id` | the domain that the driver reports | the requested domain |
| `is_localization_supported` | asks NVML before the driver is initialised | initialises the driver |
| no `num_sms` | the context uses the whole device | it uses every SM that is in no floor when it is created (`sm_count`); several such contexts share SMs, and while one is open no floor can be given, so create contexts with `num_sms` first |
| counts of `create` | rounded up | rounded up or, if that many SMs are not free, to the next count that fits; `requested` is the requested count |
| `create` without `device_id` | device 0 in torch 2.11 | torch's current device |
| `set_context`, `pop_context` | a context can be set once at a time; deprecated since 2.14 | once at a time on each thread; they change the thread's CUDA context as torch's do, and warn as in 2.14 |
| `with context:` | – | makes a stream of the context current and does not change the CUDA context; blocks can be nested |
| `pop_context` out of order, or on another thread | undefined | a RuntimeError that changes nothing; so is use after `close` |
| default stream in a capture | torch's work goes to the context's default stream, which cannot be captured | it goes to a stream of the context: both calls can be inside a capture, or around one |
| failures | may leave the context current | the previous context and stream stay current, or are restored |
| memory | the driver leaks 4 MiB with each context | the next context of the same SMs reuses it |

On an H200, counts from 121 to 128 become 132, because partitions consist of units of 8 SMs and one unit of 12. A split
does not round, and refuses these counts.

A context lives as long as its object, one of its streams, or a `set_context` without its `pop_context`. Keep it alive
for as long as tensors are recorded on its streams (`Tensor.record_stream`).
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

# `__getattr__` computes `SUPPORTED`, so that importing this module loads no driver. As in torch, `__all__` does not
# contain it: `from green_ctx_torch import *` would initialise the driver, which does not survive a fork.
SUPPORTED: bool
"""Whether the driver has green contexts, and torch, if it is imported, can work in them."""

#: The oldest torch version whose library has the functions that `set_context` needs.
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
