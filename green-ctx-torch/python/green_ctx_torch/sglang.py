"""SGLang's green-context helper, on partitions that own their SMs.

`create_greenctx_stream_by_value` takes and returns what `sgl_kernel.spatial` does. What differs:

- Both counts are rounded up, each for itself. SGLang rounds their sum and the first count, so that
  the second stream can get fewer SMs than asked.
- The SMs are the streams' own until both are gone. SGLang's contexts live as long as the process,
  and a second call shares their SMs in silence. Keep a stream as long as tensors are recorded on it.
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
    """Two streams, each in a partition of at least so many SMs.

    Raises `RuntimeError` for counts that are not positive integers or that the device cannot give.
    """
    a, b = _integer("SM_a", SM_a), _integer("SM_b", SM_b)
    if a <= 0 or b <= 0:
        raise RuntimeError(f"SM counts must be positive, got {a} and {b}")
    device = _device(device_id)
    total, minimum, _, unit = _native.sm_limits(device)
    if a + b > total:
        raise RuntimeError(
            f"Not enough SMs available for the requested configuration: {a} and {b} are asked for "
            f"and the device has {total}; ask for smaller counts"
        )
    counts = [-(-max(count, minimum) // unit) * unit for count in (a, b)]
    if sum(counts) > total:
        # Between them they may use all that there are, of which the last piece is an odd one.
        counts = [a, b]
    first, second = _native.split_green(device, counts, exact=False)
    return first.Stream(), second.Stream()


def get_sm_available(device_id: int | None = None) -> int:
    """The SMs that the device has, whoever holds them."""
    return _native.sm_limits(_device(device_id))[0]


def _device(device_id: int | None) -> int:
    """The device named, or torch's current one."""
    if device_id is not None:
        return _integer("device_id", device_id)
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.cuda.current_device())
    return 0


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        # The operator that SGLang calls raises this type for arguments of a wrong one.
        message = f"{name} must be an int, such as 16, and is a {type(value).__name__}"
        raise RuntimeError(message) from None
