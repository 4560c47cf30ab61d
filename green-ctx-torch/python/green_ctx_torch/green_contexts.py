"""`torch.cuda.green_contexts`, on partitions that own their SMs.

`GreenContext` has the original's signatures: those of torch 2.11, and by keyword those of torch 2.12
and newer, but for `sm_partition` and `split` of torch 2.15, which `green_ctx_torch.partition` does on
older drivers too. Where the original leaves something undefined, this does not:

- **Overlap.** No two contexts with `num_sms` share SMs. The original's do, from two calls of `create` on; here the
  second is an error where too few SMs are free, and says who holds them.
- **Device.** Without `device_id` it is torch's current device; torch 2.11's `create` means device 0.
- **No `num_sms`.** Such a context, for its workqueue alone, has no SMs of its own. In the original it
  uses the whole device; here it uses every SM that no other context or partition has when it is created,
  as `sm_count` says. Several of them use the same SMs. While one lives, nobody gets SMs of their
  own, and the error says so: create those with `num_sms` first.
- **Counts.** They are rounded up as the driver does or, where so many are not free, to the next count
  that is; `sm_count` is the count and `requested` what was asked for. On an H200, 121 to 128 become
  132, since partitions are made of pieces of 8 and one of 12.
- **`pop_context` without `set_context`**, on another thread or out of order is a `RuntimeError`, and
  changes nothing. So is use after `close`.
- **Setting a context twice** nests: each `set_context` has its `pop_context`.
- **Threads** have a stack of their own each, and one context can be set on several.
- **Captures.** Both calls can stand within the capture of a graph, and `set_context` around one:
  torch's work goes to a stream of the context and not to its default stream, which no graph takes.
- **Failures** leave current what was, or put it back.
- **Memory.** The driver leaks 4 MiB with each context that is destroyed. Here the next context of the
  same SMs gets it, so what is used is bounded by the sizes that are.

A context lives as long as its object, one of its streams or a `set_context` without its
`pop_context`. Keep it as long as tensors are recorded on its streams (`Tensor.record_stream`).
"""

import sys

from green_ctx_torch import _native
from green_ctx_torch._native import GreenContext

__all__ = ["SUPPORTED", "GreenContext"]

# `SUPPORTED` is asked for in `__getattr__`, so that importing the module loads no driver.
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
