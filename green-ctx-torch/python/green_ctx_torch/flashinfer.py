"""`flashinfer.green_ctx`.

The functions take, return and round as FlashInfer's do. The partitions of one call share no SMs, those of
different calls may, as FlashInfer's do: a program can keep streams of every size. What differs:

- They never get SMs that a partition or a `GreenContext` has for itself, and nobody gets theirs for
  itself while they live: that is an error with the driver's code 915, which says who has them.
- Resources describe until `create_green_ctx_streams` makes partitions of them. A second call for
  the same resource gives one more stream of its partition, and no second context.
- A partition goes when the last of its resource and its streams does, and its context is used
  again. FlashInfer never destroys one.
- Too few SMs are an error in `split_resource` already, which in FlashInfer gives empty resources.
- An H200 is cut into 15 pieces of 8 SMs and one of 12. Counts that they do not add up to, such as 64,
  64 and a remainder of 4, are made of pieces of 2 SMs, where the driver may fit fewer clusters of
  blocks, and as long as nobody has SMs for itself.
- On devices of capability 8.x counts are multiples of 4. FlashInfer's are multiples of 2.
- There is no `empty_per_locality_domain`: FlashInfer's own allocates memory near to a domain, and its tensors
  are good for the streams of this module.

`CUdevice` is cuda-python's where that is installed. `CUdevResource` is always the one of this
module: cuda-python's cannot own anything, and naming SMs does not keep others away from them.
"""

from __future__ import annotations

import operator
import sys
from enum import IntEnum as _IntEnum
from typing import TYPE_CHECKING

from . import _native

if TYPE_CHECKING:
    from collections.abc import Iterable as _Iterable
    from collections.abc import Sequence as _Sequence
    from typing import Any as _Any

    import torch as _torch

__all__ = [
    "CUdevResource",
    "CUdevResourceType",
    "CUdevSmResource",
    "CUdevice",
    "create_green_ctx_streams",
    "get_compute_capability",
    "get_cudevice",
    "get_device_resource",
    "get_locality_domain_count",
    "get_sm_count_constraint",
    "split_device_green_ctx",
    "split_device_green_ctx_by_locality_domain",
    "split_device_green_ctx_by_sm_count",
    "split_resource",
    "split_resource_by_sm_count",
]

#: What the driver answers where FlashInfer would ask it for too many SMs: programs look for it.
_TOO_MANY = "CUDA error code=915(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)"

_CONSTRAINTS = {6: (1, 1), 7: (2, 2), 8: (4, 2)}


class CUdevice(int):
    """A device, where cuda-python is absent: its ordinal."""

    __slots__ = ()


class CUdevResourceType(_IntEnum):
    """What a resource is, numbered as in `cuda.h`."""

    CU_DEV_RESOURCE_TYPE_INVALID = 0
    CU_DEV_RESOURCE_TYPE_SM = 1


class CUdevSmResource:
    """The SMs of a resource, with the fields of `cuda.h`."""

    __slots__ = ("minSmPartitionSize", "smCoscheduledAlignment", "smCount")

    smCount: int
    minSmPartitionSize: int
    smCoscheduledAlignment: int

    def __init__(self, count: int, minimum: int, alignment: int) -> None:
        self.smCount = count
        self.minSmPartitionSize = minimum
        self.smCoscheduledAlignment = alignment

    def __repr__(self) -> str:
        return f"CUdevSmResource(smCount={self.smCount})"


class CUdevResource:
    """SMs of a device: how many, and from `create_green_ctx_streams` on the partition of them."""

    __slots__ = ("_context", "_device", "sm")

    sm: CUdevSmResource
    _device: int
    _context: _native.GreenContext | None

    def __init__(self, device: int, sm: CUdevSmResource) -> None:
        self.sm = sm
        self._device = device
        self._context = None

    @property
    def type(self) -> CUdevResourceType:
        """That these are SMs; invalid for a remainder of none."""
        return CUdevResourceType(1 if self.sm.smCount else 0)

    @property
    def context(self) -> _native.GreenContext | None:
        """The partition that was made of these SMs, or None."""
        return self._context

    def _piece(self, count: int) -> CUdevResource:
        minimum, alignment = self.sm.minSmPartitionSize, self.sm.smCoscheduledAlignment
        return CUdevResource(self._device, CUdevSmResource(count, minimum, alignment))

    def __repr__(self) -> str:
        return f"CUdevResource(type={self.type.name}, sm={self.sm!r})"


def get_sm_count_constraint(major: int, minor: int) -> tuple[int, int]:
    """The least SMs of a partition and what its count is a multiple of, by compute capability."""
    for name, value in (("major", major), ("minor", minor)):
        if not isinstance(value, int):
            message = f"{name} must be an int, such as 9, and is a {type(value).__name__}"
            raise TypeError(message)
    if major >= 9:
        return (8, 8)
    if major not in _CONSTRAINTS:
        raise ValueError(f"Unsupported CUDA capability: {major}.{minor}; there are 6.0 and newer")
    return _CONSTRAINTS[major]


def get_compute_capability(device: _torch.device | int) -> tuple[int, int]:
    """The device's compute capability, such as (9, 0)."""
    capability: str = _native.info(_ordinal(device))["devices"][0]["compute_capability"]
    major, minor = capability.split(".")
    return int(major), int(minor)


def get_cudevice(dev: _torch.device | int) -> _Any:
    """The device's handle: cuda-python's `CUdevice` where that is installed."""
    ordinal = _ordinal(dev)
    _native.sm_limits(ordinal)
    try:
        from cuda.bindings import driver
    except ImportError:
        return CUdevice(ordinal)
    return driver.CUdevice(ordinal)


def get_device_resource(cu_dev: _Any) -> CUdevResource:
    """All SMs of a device. Nothing is taken."""
    ordinal = _handle(cu_dev)
    count, minimum, alignment, _ = _native.sm_limits(ordinal)
    return CUdevResource(ordinal, CUdevSmResource(count, minimum, alignment))


def split_resource(
    resource: CUdevResource, num_groups: int, min_count: int
) -> tuple[list[CUdevResource], CUdevResource]:
    """So many equal groups of at least `min_count` SMs, and the remainder. Nothing is taken."""
    num_groups = _count("num_groups", num_groups)
    min_count = _count("min_count", min_count)
    rounded = _rounded(_ours(resource), min_count)
    needed, available = num_groups * rounded, resource.sm.smCount
    if needed > available:
        most = available // rounded
        advice = f"at most {most} groups, or for smaller ones" if most else f"at most {available} SMs"
        raise RuntimeError(
            f"{_TOO_MANY}: {num_groups} groups of {rounded} SMs need {needed} and there are "
            f"{available}; ask for {advice}"
        )
    groups = [resource._piece(rounded) for _ in range(num_groups)]
    return groups, resource._piece(available - needed)


def split_resource_by_sm_count(
    cu_dev: _Any, resource: CUdevResource, sm_counts: _Sequence[int]
) -> tuple[list[CUdevResource], CUdevResource]:
    """A group of at least so many SMs for each count, and the remainder. Nothing is taken."""
    groups: list[CUdevResource] = []
    for sm_count in _each("sm_counts", sm_counts, "a list such as [16, 24]"):
        [group], resource = split_resource(resource, 1, sm_count)
        groups.append(group)
    return groups, resource


def create_green_ctx_streams(
    cu_dev: _Any, resources: _Iterable[CUdevResource]
) -> list[_torch.cuda.Stream]:
    """A stream for each resource, in a partition of that many SMs.

    Partitions are made of the resources that have none yet: of all of them or, with an error, of
    none.
    """
    device = _handle(cu_dev)
    example = "a list of what split_resource returns"
    resources = [_ours(resource) for resource in _each("resources", resources, example)]
    for resource in resources:
        if resource._device != device:
            raise RuntimeError(
                f"the resource is of device {resource._device} and not of {device}; get it with "
                f"get_device_resource of the same device"
            )
        if not resource.sm.smCount:
            raise RuntimeError(
                "CUDA error code=914(CUDA_ERROR_INVALID_RESOURCE_TYPE): a resource has no SMs; "
                "ask for less, so that some remain for it"
            )
    fresh = list({id(piece): piece for piece in resources if piece._context is None}.values())
    try:
        if fresh:
            try:
                counts = [piece.sm.smCount for piece in fresh]
                contexts = _native.split_green(device, counts, "flashinfer")
            except RuntimeError as error:
                raise RuntimeError(f"{_TOO_MANY}: {error}") from None
            for piece, context in zip(fresh, contexts, strict=True):
                piece._context = context
        return [piece._context.Stream() for piece in resources if piece._context is not None]
    except BaseException:
        for piece in fresh:
            piece._context = None
        raise


def split_device_green_ctx(
    dev: _torch.device | int, num_groups: int, min_count: int
) -> tuple[list[_torch.cuda.Stream], list[CUdevResource]]:
    """Partitions of equal groups and of the remainder: `num_groups + 1` streams and resources.

    Raises `RuntimeError` where the device has too few SMs, or none for the remainder.
    """
    cu_dev = get_cudevice(dev)
    groups, remaining = split_resource(get_device_resource(cu_dev), num_groups, min_count)
    resources = [*groups, remaining]
    return create_green_ctx_streams(cu_dev, resources), resources


def split_device_green_ctx_by_sm_count(
    dev: _torch.device | int, sm_counts: _Sequence[int]
) -> tuple[list[_torch.cuda.Stream], list[CUdevResource]]:
    """A partition for each count and for the remainder: `len(sm_counts) + 1` streams and resources.

    Raises `ValueError` for no counts and for one that is not positive, `RuntimeError` where the
    device has too few SMs, or none for the remainder.
    """
    counts = [_count("SM count", count) for count in _each("sm_counts", sm_counts, "a list such as [16, 24]")]
    if not counts:
        raise ValueError("sm_counts is empty; name the SMs of one partition at least")
    cu_dev = get_cudevice(dev)
    resource = get_device_resource(cu_dev)
    rounded = [_rounded(resource, count) for count in counts]
    if sum(rounded) > resource.sm.smCount:
        raise RuntimeError(
            f"{_TOO_MANY}: the counts {counts}, rounded to {rounded}, add up to {sum(rounded)} SMs "
            f"and the device has {resource.sm.smCount}; ask for smaller or fewer partitions"
        )
    groups, remaining = split_resource_by_sm_count(cu_dev, resource, counts)
    resources = [*groups, remaining]
    return create_green_ctx_streams(cu_dev, resources), resources


def get_locality_domain_count(dev: _torch.device | int) -> int:
    """How many locality domains the device has: 1 where it is not divided, or the driver knows none."""
    return _native.get_num_locality_domains(_ordinal(dev))


def split_device_green_ctx_by_locality_domain(
    dev: _torch.device | int, backfill: bool = True
) -> tuple[list[_torch.cuda.Stream], list[CUdevResource]]:
    """A partition of each locality domain: as many streams and resources, in the domains' order.

    With `backfill` all SMs are divided evenly, and SMs of no domain make up what a domain lacks. Needs
    CUDA 13.4 and a device of which no other SMs are held; not yet run on hardware.

    Raises `RuntimeError` where the device has fewer than two domains.
    """
    ordinal = _ordinal(dev)
    domains = _native.get_num_locality_domains(ordinal)
    if domains < 2:
        raise RuntimeError(
            f"device {ordinal} has {domains} locality domain; a split by domain needs two, and CUDA 13.4"
        )
    count, minimum, alignment, _ = _native.sm_limits(ordinal)
    try:
        contexts = _native.GreenContext.split(
            num_sms=[count // domains if backfill else 0] * domains,
            coscheduled_sm_count=2,
            backfill=bool(backfill),
            locality_domain_ids=list(range(domains)),
            device_id=ordinal,
        )
    except RuntimeError as error:
        raise RuntimeError(f"{_TOO_MANY}: {error}") from None
    resources = []
    for context in contexts:
        resource = CUdevResource(ordinal, CUdevSmResource(context.sm_count, minimum, alignment))
        resource._context = context
        resources.append(resource)
    return [context.Stream() for context in contexts], resources


def _rounded(resource: CUdevResource, count: int) -> int:
    """The count that the driver would give: up to whole pieces, or to all there are."""
    total, (_, minimum, _, unit) = resource.sm.smCount, _native.sm_limits(resource._device)
    rounded = -(-max(count, minimum) // unit) * unit
    return total if count <= total < rounded else rounded


def _count(name: str, value: int) -> int:
    """A positive count."""
    try:
        count = operator.index(value)
    except TypeError:
        message = f"{name} must be an int, such as 16, and is a {type(value).__name__}"
        raise TypeError(message) from None
    if count <= 0:
        raise ValueError(f"{name} must be positive, got {count}")
    return count


def _each(name: str, values: _Any, example: str) -> _Any:
    """What is iterated over, and no text."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be {example}, and is a {type(values).__name__}")
    return values


def _handle(cu_dev: _Any) -> int:
    """The ordinal of a device's handle: cuda-python's is an int too, by `__int__` alone."""
    if isinstance(cu_dev, (str, bytes, float)) or not hasattr(cu_dev, "__int__"):
        message = f"cu_dev must be a CUdevice, as get_cudevice(0) returns it, and is a {type(cu_dev).__name__}"
        raise TypeError(message)
    return int(cu_dev)


def _ours(resource: CUdevResource) -> CUdevResource:
    """A resource of this module, which alone can own SMs."""
    if not isinstance(resource, CUdevResource):
        raise TypeError(
            f"a {type(resource).__name__} owns no SMs; use the resources of "
            f"green_ctx_torch.flashinfer.get_device_resource and split_resource"
        )
    return resource


def _ordinal(dev: _Any) -> int:
    """Which device a `torch.device` or an ordinal names."""
    if isinstance(dev, int):
        return int(dev)
    kind, index = getattr(dev, "type", None), getattr(dev, "index", None)
    if kind is None or callable(index):
        message = f"dev must be a torch.device such as torch.device('cuda:0'), not {dev!r}"
        raise TypeError(message)
    if kind != "cuda":
        raise ValueError(f"dev is {dev}; only CUDA devices have SMs: pass torch.device('cuda:0')")
    if index is None:
        index = sys.modules["torch"].cuda.current_device()
    try:
        return operator.index(index)
    except TypeError:
        message = f"the index of dev must be an int, such as 0, and is a {type(index).__name__}"
        raise TypeError(message) from None
