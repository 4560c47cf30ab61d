"""`sgl_kernel.spatial`: SGLang's green-context helper.

`create_greenctx_stream_by_value` takes and returns what SGLang's does, and its pairs may share SMs with
other pairs, as SGLang's do: its multiplexing keeps six pairs of all SMs at once. What differs:

- They never get SMs that a partition or a `GreenContext` has for itself, and nobody gets theirs for
  itself while they live.
- Both counts are rounded up where the device has as many SMs. SGLang rounds their sum and the first
  count, and the second stream gets what is left; here only where there is no more.
- The SMs are free again when both streams are gone. SGLang's contexts live as long as the process.
- Devices that SGLang refuses, of compute capability 10 and 12, work as others do.
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
    """Two streams, in partitions of about so many SMs that share none with each other.

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
    first, second = _pair(device, a, b, total, minimum, unit)
    return first.Stream(), second.Stream()


def _pair(
    device: int, a: int, b: int, total: int, minimum: int, unit: int
) -> list[_native.GreenContext]:
    """Both counts rounded up or, where the device has too few SMs, the second what the first leaves."""
    counts = [-(-max(count, minimum) // unit) * unit for count in (a, b)]
    if sum(counts) > total:
        counts = [counts[0], total - counts[0]] if counts[0] < total else [a, b]
    try:
        return _native.split_green(device, counts, "sglang", exact=False)
    except RuntimeError as refused:
        try:
            # With the odd piece, which somebody's floor may have left.
            return _native.split_green(device, [a, b], "sglang", exact=False)
        except RuntimeError:
            raise refused from None


def get_sm_available(device_id: int | None = None) -> int:
    """The SMs that the device has, whoever holds them."""
    return _native.sm_limits(_device(device_id))[0]


def _device(device_id: int | None) -> int:
    """The device named, or torch's current one."""
    if device_id is not None:
        return _integer("device_id", device_id)
    # Neither is there while torch is being imported.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    current = getattr(cuda, "current_device", None)
    return 0 if current is None else int(current())


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        # The operator that SGLang calls raises this type for arguments of a wrong one.
        message = f"{name} must be an int, such as 16, and is a {type(value).__name__}"
        raise RuntimeError(message) from None
