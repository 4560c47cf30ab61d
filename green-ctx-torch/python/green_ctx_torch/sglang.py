"""A drop-in replacement for `sgl_kernel.spatial`, SGLang's green-context helper.

`create_greenctx_stream_by_value` has SGLang's arguments and results. As in SGLang, each call returns a pair of streams
that may share SMs with the pairs of other calls. SGLang's multiplexing keeps six pairs, and each pair divides all SMs.
The differences:

- The streams never use SMs in the floor of a `Partition` or a `GreenContext`. While the streams are alive, their SMs
  cannot become part of a floor.
- Both counts are rounded up if the device has enough SMs for both. If the device has fewer SMs, the first count is
  rounded up, and the second stream gets the remaining SMs. SGLang always rounds the sum and the first count, and gives
  the rest to the second stream.
- The SMs are free again when both streams are dropped. SGLang's contexts live as long as the process.
- Devices of compute capability 10 and 12, which SGLang refuses, are supported.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING

from . import _native

if TYPE_CHECKING:
    import torch as _torch

__all__ = ["create_greenctx_stream_by_value", "get_sm_available"]


def create_greenctx_stream_by_value(
    SM_a: int, SM_b: int, device_id: int | None = None
) -> tuple[_torch.cuda.ExternalStream, _torch.cuda.ExternalStream]:
    """Creates two streams, in partitions of about `SM_a` and `SM_b` SMs that share no SMs with each other.

    Raises RuntimeError if a count is not a positive integer, or if the device cannot give the SMs.
    """
    a, b = _integer("SM_a", SM_a), _integer("SM_b", SM_b)
    if a <= 0 or b <= 0:
        raise RuntimeError(f"SM counts must be positive, got {a} and {b}")
    device = _device(device_id)
    total, minimum, _, unit = _native.sm_limits(device)
    if a + b > total:
        raise RuntimeError(
            f"Not enough SMs available for the requested configuration: {a} and {b} SMs were requested, "
            f"but the device has {total}; ask for smaller counts"
        )
    first, second = _pair(device, a, b, total, minimum, unit)
    return first.Stream(), second.Stream()


def _pair(
    device: int, a: int, b: int, total: int, minimum: int, unit: int
) -> list[_native.GreenContext]:
    """Creates two contexts with both counts rounded up. If the device has too few SMs, the second context gets the SMs
    that the first one leaves."""
    counts = [-(-max(count, minimum) // unit) * unit for count in (a, b)]
    if sum(counts) > total:
        counts = [counts[0], total - counts[0]] if counts[0] < total else [a, b]
    try:
        return _native.split_green(device, counts, "sglang", exact=False)
    except RuntimeError as refused:
        try:
            # Without rounding, the counts can include the odd unit, if another partition's floor has left it free.
            return _native.split_green(device, [a, b], "sglang", exact=False)
        except RuntimeError:
            raise refused from None


def get_sm_available(device_id: int | None = None) -> int:
    """Returns the number of SMs of the device, including those that are in use."""
    return _native.sm_limits(_device(device_id))[0]


def _device(device_id: int | None) -> int:
    """Returns the given device, or torch's current device for None."""
    if device_id is not None:
        return _integer("device_id", device_id)
    # Neither name exists while torch is being imported.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    current = getattr(cuda, "current_device", None)
    return 0 if current is None else int(current())


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        # SGLang's operator raises this type for an argument of the wrong type.
        message = f"{name} must be an int, such as 16, got {type(value).__name__}"
        raise RuntimeError(message) from None
