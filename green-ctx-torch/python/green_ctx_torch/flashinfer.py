"""A drop-in replacement for `flashinfer.green_ctx`.

The functions have FlashInfer's arguments, results and rounding. As in FlashInfer, the partitions of one call share no
SMs, but partitions of different calls may share SMs. A program can therefore keep streams of every size. The
differences:

- The partitions of this module never use SMs in the floor of a `Partition` or a `GreenContext`. While a partition of
  this module is open, its SMs cannot become part of a floor. A conflict raises an error that has the driver's code 915
  and names the partition that holds the SMs. `split_device_green_ctx` and `split_device_green_ctx_by_sm_count` divide
  the whole device, so they conflict with every floor. Next to one, call `split_resource`, and
  `create_green_ctx_streams` for its groups without the remainder.
- A resource only describes SMs until `create_green_ctx_streams` creates a partition from it. A second call for the same
  resource returns another stream of the same partition, and does not create another context.
- A partition ends when its resource and its streams are dropped, and its context is then reused. FlashInfer never
  destroys a context.
- `split_resource` raises an error if the resource has too few SMs. FlashInfer's function returns empty resources.
- On an H200, which has 15 units of 8 SMs and one unit of 12, counts such as 64, 64 and a remainder of 4 are made of
  units of 2 SMs, where fewer thread-block clusters may fit. Counts that are not made of whole units are possible only
  while no SM is in a floor.
- On devices of compute capability 8.x, counts are multiples of 4. In FlashInfer, counts are multiples of 2.
- This module has no function `empty_per_locality_domain`. FlashInfer's function allocates tensors close to a locality
  domain, and these tensors can be used on the streams of this module.

`CUdevice` is cuda-python's class if cuda-python is installed. `CUdevResource` is always the class of this module,
because cuda-python's class only describes SMs and cannot reserve them.
"""

from __future__ import annotations

import operator
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

#: The driver's error for FlashInfer if it requests too many SMs. Programs look for this text.
_TOO_MANY = "CUDA error code=915(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)"

_CONSTRAINTS = {6: (1, 1), 7: (2, 2), 8: (4, 2)}


class CUdevice(int):
    """A device's ordinal, for programs without cuda-python."""

    __slots__ = ()


class CUdevResourceType(_IntEnum):
    """The type of a resource, with the numbers of `cuda.h`."""

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
    """A number of SMs of a device and, after `create_green_ctx_streams`, the partition that holds these SMs."""

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
        """The type of the resource: SM, or INVALID if the resource is an empty remainder."""
        return CUdevResourceType(1 if self.sm.smCount else 0)

    @property
    def context(self) -> _native.GreenContext | None:
        """The partition that was created from these SMs, or None."""
        return self._context

    def _piece(self, count: int) -> CUdevResource:
        minimum, alignment = self.sm.minSmPartitionSize, self.sm.smCoscheduledAlignment
        return CUdevResource(self._device, CUdevSmResource(count, minimum, alignment))

    def __repr__(self) -> str:
        return f"CUdevResource(type={self.type.name}, sm={self.sm!r})"


def get_sm_count_constraint(major: int, minor: int) -> tuple[int, int]:
    """Returns two numbers for a compute capability: the minimum SMs of a partition, and the step between valid SM
    counts, as FlashInfer gives them. On 8.x, the step of this module is 4."""
    for name, value in (("major", major), ("minor", minor)):
        if not isinstance(value, int):
            message = f"{name} must be an int, such as 9, got {type(value).__name__}"
            raise TypeError(message)
    if major >= 9:
        return (8, 8)
    if major not in _CONSTRAINTS:
        raise ValueError(
            f"Unsupported CUDA capability: {major}.{minor}; the capabilities 6.0 and newer are supported"
        )
    return _CONSTRAINTS[major]


def get_compute_capability(device: _torch.device | int) -> tuple[int, int]:
    """Returns the device's compute capability, such as (9, 0)."""
    capability: str = _native.info(_native._ordinal(device))["devices"][0]["compute_capability"]
    major, minor = capability.split(".")
    return int(major), int(minor)


def get_cudevice(dev: _torch.device | int) -> _Any:
    """Returns the device's handle: cuda-python's `CUdevice` if cuda-python is installed, otherwise this module's."""
    ordinal = _native._ordinal(dev)
    _native.sm_limits(ordinal)
    try:
        from cuda.bindings import driver
    except ImportError:
        return CUdevice(ordinal)
    return driver.CUdevice(ordinal)


def get_device_resource(cu_dev: _Any) -> CUdevResource:
    """Returns all SMs of a device as a resource. Reserves no SMs."""
    ordinal = _handle(cu_dev)
    count, minimum, alignment, _ = _native.sm_limits(ordinal)
    return CUdevResource(ordinal, CUdevSmResource(count, minimum, alignment))


def split_resource(
    resource: CUdevResource, num_groups: int, min_count: int
) -> tuple[list[CUdevResource], CUdevResource]:
    """Splits a resource into `num_groups` groups of at least `min_count` SMs. Returns the groups and the remainder.
    Reserves no SMs."""
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
    """Splits a resource into one group per count, of at least that many SMs. Returns the groups and the remainder.
    Reserves no SMs."""
    groups: list[CUdevResource] = []
    for sm_count in _each("sm_counts", sm_counts, "a list such as [16, 24]"):
        [group], resource = split_resource(resource, 1, sm_count)
        groups.append(group)
    return groups, resource


def create_green_ctx_streams(
    cu_dev: _Any, resources: _Iterable[CUdevResource]
) -> list[_torch.cuda.Stream]:
    """Creates a stream for each resource, in a partition with the resource's SMs.

    If a resource has no partition yet, the call creates one. If one partition cannot be created, no partition is
    created.
    """
    device = _handle(cu_dev)
    example = "a list of resources from split_resource"
    resources = [_ours(resource) for resource in _each("resources", resources, example)]
    for resource in resources:
        if resource._device != device:
            raise RuntimeError(
                f"the resource is of device {resource._device}, but cu_dev is device {device}; get the resource "
                f"with get_device_resource of the same device"
            )
        if not resource.sm.smCount:
            raise RuntimeError(
                "CUDA error code=914(CUDA_ERROR_INVALID_RESOURCE_TYPE): a resource has no SMs; "
                "ask for fewer SMs, so that some remain for it"
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
    """Divides a device into `num_groups` equal partitions, and one with the remainder. Returns `num_groups + 1`
    streams and resources.

    Raises RuntimeError if the device has too few SMs, or if no SMs remain for the last partition.
    """
    cu_dev = get_cudevice(dev)
    groups, remaining = split_resource(get_device_resource(cu_dev), num_groups, min_count)
    resources = [*groups, remaining]
    return create_green_ctx_streams(cu_dev, resources), resources


def split_device_green_ctx_by_sm_count(
    dev: _torch.device | int, sm_counts: _Sequence[int]
) -> tuple[list[_torch.cuda.Stream], list[CUdevResource]]:
    """Divides a device into one partition per count, and one with the remainder. Returns `len(sm_counts) + 1`
    streams and resources.

    Raises ValueError if `sm_counts` is empty or contains a count that is not positive. Raises RuntimeError if the
    device has too few SMs, or if no SMs remain for the last partition.
    """
    counts = [_count("SM count", count) for count in _each("sm_counts", sm_counts, "a list such as [16, 24]")]
    if not counts:
        raise ValueError("sm_counts is empty; give at least one count")
    cu_dev = get_cudevice(dev)
    resource = get_device_resource(cu_dev)
    rounded = [_rounded(resource, count) for count in counts]
    if sum(rounded) > resource.sm.smCount:
        raise RuntimeError(
            f"{_TOO_MANY}: the counts {counts}, rounded to {rounded}, add up to {sum(rounded)} SMs, "
            f"but the device has {resource.sm.smCount}; ask for smaller or fewer partitions"
        )
    groups, remaining = split_resource_by_sm_count(cu_dev, resource, counts)
    resources = [*groups, remaining]
    return create_green_ctx_streams(cu_dev, resources), resources


def get_locality_domain_count(dev: _torch.device | int | str) -> int:
    """Returns the number of locality domains of the device: 1 if the device or the driver does not support several."""
    return _native.get_num_locality_domains(_native._ordinal(dev))


def split_device_green_ctx_by_locality_domain(
    dev: _torch.device | int | str, backfill: bool = True
) -> tuple[list[_torch.cuda.Stream], list[CUdevResource]]:
    """Creates a partition for each locality domain. Returns one stream and one resource per domain, in the domains'
    order.

    With `backfill` all SMs are divided evenly, and SMs that belong to no domain fill up the partitions. Needs CUDA 13.4
    and a device whose SMs no other partition holds. This function has not run on hardware yet.

    Raises RuntimeError if the device has fewer than two domains.
    """
    ordinal = _native._ordinal(dev)
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
    """Returns the count rounded up as the driver rounds it: to whole units, or to all SMs of the resource."""
    total, (_, minimum, _, unit) = resource.sm.smCount, _native.sm_limits(resource._device)
    rounded = -(-max(count, minimum) // unit) * unit
    return total if count <= total < rounded else rounded


def _count(name: str, value: int) -> int:
    """Checks that a value is a positive integer, and returns it."""
    try:
        count = operator.index(value)
    except TypeError:
        message = f"{name} must be an int, such as 16, got {type(value).__name__}"
        raise TypeError(message) from None
    if count <= 0:
        raise ValueError(f"{name} must be positive, got {count}")
    return count


def _each(name: str, values: _Any, example: str) -> _Any:
    """Checks that a value is iterable and not text, and returns it."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be {example}, got {type(values).__name__}")
    return values


def _handle(cu_dev: _Any) -> int:
    """Returns the ordinal of a device's handle. cuda-python's handle can be converted to int only by `__int__`."""
    if isinstance(cu_dev, (str, bytes, float)) or not hasattr(cu_dev, "__int__"):
        message = f"cu_dev must be a CUdevice, as get_cudevice(0) returns it, got {type(cu_dev).__name__}"
        raise TypeError(message)
    return int(cu_dev)


def _ours(resource: CUdevResource) -> CUdevResource:
    """Checks that a resource has this module's class, and returns it. Only such resources can hold SMs."""
    if not isinstance(resource, CUdevResource):
        raise TypeError(
            f"a {type(resource).__name__} cannot own SMs; use the resources of "
            f"green_ctx_torch.flashinfer.get_device_resource and split_resource"
        )
    return resource
