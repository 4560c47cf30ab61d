"""A drop-in replacement for `torch.cuda.green_contexts`. No other context uses the SMs of a context with a number of
SMs.

Code written for torch 2.11 to 2.15 runs unchanged, except for the differences below. `GreenContext` accepts the
arguments of torch 2.11 by position, and those of newer versions as keywords. `SMPartition`, `GreenContext.split` and
the two functions for locality domains have the interface of torch 2.15. Exceptions have the same types as in torch.
Everything works with torch 2.10 and newer.

| | torch | here |
|---|---|---|
| overlap of contexts | contexts of two calls of `create`, or of one `SMPartition`, silently share SMs | two contexts with floors never share SMs: the second is a RuntimeError that names the holder |
| `SMPartition` | describes SMs and reserves none | the same; a context created from it holds the SMs until it is closed or dropped |
| `GreenContext.sm_partition` | keeps the context alive | does not; while the context is open, no other context can be created from it |
| splitting an `SMPartition` | needs CUDA 13.1 | `num_sms` alone needs CUDA 12.5, and on 12.4 equal counts; the other arguments need CUDA 13.1 |
| splitting a part again | only from a context's `sm_partition` | by count, from any `SMPartition` that was split by `num_sms` alone, without a context; parts of a context's SMs can become contexts once it is closed |
| splitting with co-scheduling, backfill or locality domains | any SMs of a context | all SMs of a device, in one split; while a context has one of its groups, all contexts of the device must be of that split |
| `num_sms=0` | as many SMs as can be scheduled together | the same: 120 of the 132 of an H200, which leaves 12 |
| `locality_domain_id` | the domain that the driver reports | the requested domain |
| `is_localization_supported` | asks NVML before the driver is initialised | initialises the driver |
| `workqueue_scope` alone (CUDA 13.1) | the context uses the whole device | it uses every SM that is in no floor when it is created (`sm_count`); several such contexts share SMs, and while one is open no floor can be given, so create contexts with `num_sms` first |
| counts of `create` | rounded up | rounded up or, if that many SMs are not free, to the next count that fits; `requested` is the requested count |
| `create` without `device_id` | device 0 in torch 2.11 | torch's current device |
| `set_context`, `pop_context` | a context can be set once at a time; deprecated since 2.14 | once at a time on each thread; they change the thread's CUDA context as torch's do, and warn as in 2.14 |
| `with context:` | – | makes a stream of the context current and does not change the CUDA context; blocks can be nested |
| `pop_context` out of order, or on another thread | undefined | a RuntimeError that changes nothing; so is use after `close` |
| default stream in a capture | torch's work goes to the context's default stream, which cannot be captured | it goes to a stream of the context: both calls can be inside a capture, or around one |
| failures | may leave the context current | the previous context and stream stay current, or are restored |
| memory | the driver leaks 4 MiB with each context | the next context of the same SMs reuses it |

On an H200, counts from 121 to 128 are rounded up to 132, because one unit has 12 SMs and the other units have 8 SMs.
`GreenContext.split` does not round, and accepts only 124 of these counts.

A context stays alive while its object or one of its streams exists, and until each `set_context` is followed by its
`pop_context`. Keep the context alive while tensors are recorded on its streams (`Tensor.record_stream`).
"""

import sys
from typing import TYPE_CHECKING

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
"""True if the driver supports green contexts and the imported torch, if there is one, can submit work to them."""

#: The oldest torch version whose library has the functions that `set_context` needs.
_TORCH = (2, 10)


def _supported() -> bool:
    torch = sys.modules.get("torch")
    if torch is not None:
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if torch.version.cuda is None or version < _TORCH:
            return False
    return _native.supported()


# A type checker that sees this function accepts every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> bool:
        if name == "SUPPORTED":
            return _supported()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
