import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    Any,
    Literal,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    final,
    overload,
)

import torch
from typing_extensions import disjoint_base

from green_ctx_torch._tuning import Applied

__all__ = [
    "Allocator",
    "Audit",
    "DryRun",
    "DryRunGroup",
    "Fit",
    "GraphCache",
    "GreenContext",
    "Location",
    "NodeAudit",
    "Partition",
    "PartitionReport",
    "PlanSet",
    "Partitions",
    "Plan",
    "Report",
    "RetargetedGraph",
    "SMPartition",
    "Share",
    "TuningOutcome",
    "TuningProgress",
    "TuningVerdict",
    "__version__",
    "_PlainStream",
    "_capture_begins",
    "_compiled_in_partition",
    "_capture_ends",
    "_graph_replayed",
    "_main",
    "_Tuner",
    "_partition_here",
    "_relaxed",
    "_run_handle",
    "_stream_here",
    "audit",
    "current_floor",
    "current_sm_count",
    "dry_run",
    "error_name",
    "error_text",
    "fit",
    "get_num_locality_domains",
    "host_register",
    "host_unregister",
    "info",
    "is_localization_supported",
    "library_path",
    "load_tuning",
    "memory_info",
    "partition",
    "profiler_start",
    "profiler_stop",
    "retarget",
    "sm_limits",
    "split_green",
    "supported",
    "stream_create",
    "stream_destroy",
    "torch_allocator",
    "verify",
]

_T = TypeVar("_T")
_Share: TypeAlias = SupportsIndex | str | Share
_Division: TypeAlias = Mapping[str, _Share] | Sequence[tuple[str, _Share]]
_Device: TypeAlias = SupportsIndex | str | torch.device | None
_Each: TypeAlias = _T | Mapping[str, _T]
_Scope: TypeAlias = Literal["device_ctx", "balanced"]
_Workqueue: TypeAlias = _Scope | tuple[_Scope, SupportsIndex | None]
_Sides: TypeAlias = (
    SupportsIndex
    | tuple[SupportsIndex]
    | tuple[SupportsIndex, SupportsIndex]
    | tuple[SupportsIndex, SupportsIndex, SupportsIndex]
)

class _Graph(Protocol):
    def raw_cuda_graph(self) -> int: ...

__version__: str

@final
class Share:
    """The share of the SMs that a partition gets: a floor and a ceiling.

    The floor is the number of SMs that no other partition may use. The ceiling is the maximum number of SMs that
    the partition may use; None sets no ceiling. Other partitions may use the SMs between the two.

        Share(32)           # "32..": at least 32 SMs, and every SM that is in no other floor
        Share(16, 48)       # "16..48": at least 16 SMs, and at most 48
        Share("25%..")      # a floor of 25 % of the SMs that are divided

    The first argument is a count, or text such as `"32.."`, `"16..48"`, `"..100"`, `".."`, `"16"`, `"25%.."` or
    `"rest"`. The text `"16"` is exclusive: floor and ceiling are both 16. Percentages refer to the SMs that are
    divided.

    A share equals every text that describes it: `Share(32) == "32.."`. Its hash is that of `str(share)`, so a
    dictionary finds a share by that text only. For example, `str(Share("16..48"))` is `"16..=48"`; a look-up with
    `"16..48"` fails.

    Raises ValueError if the text is not a share, if the ceiling is 0, or if the floor is above the ceiling.
    """
    @overload
    def __new__(cls, floor: SupportsIndex = 0, ceiling: SupportsIndex | None = None) -> Share: ...
    @overload
    def __new__(cls, floor: str, ceiling: None = None) -> Share: ...
    @property
    def floor(self) -> int | None:
        """The SMs that no other partition may use; None if the number depends on what is free, or is a percentage."""
    @property
    def ceiling(self) -> int | None:
        """The maximum number of SMs that the partition may use; None if there is no ceiling, or if it is a percentage."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Partition:
    """A group of a GPU's SMs with a green context, and a stream whose work runs on these SMs only.

    `with partition:` makes the partition's stream torch's current stream. The CUDA context does not change: torch's
    default stream and other streams are the same inside the block and outside.
    """
    @property
    def name(self) -> str:
        """The partition's name."""
    @property
    def requested(self) -> int | None:
        """The requested number of SMs; None if the request was not a plain count."""
    @property
    def share(self) -> str | None:
        """The requested share as text: "16", "32..", "..=100" or "rest"."""
    @property
    def floor(self) -> int:
        """The SMs that no other partition may use: the requested floor as the device can give it. A count is
        rounded up, a percentage to a near count.
        """
    @property
    def shared_with(self) -> list[tuple[str, int]]:
        """The other partitions that may use SMs of this one: pairs of a name, and the number of this partition's SMs
        that it may use.
        """
    @property
    def sm_count(self) -> int:
        """The number of SMs that the partition may use, shared SMs included: its ceiling. For an exclusive partition
        it equals the floor.
        """
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def id(self) -> int:
        """The driver's ID of the context. Profilers report it, and `audit` reports it as `context_id`. Partitions of
        several plans with the same SMs have one context. A later partition of the same SMs may have it too.
        """
    @property
    def closed(self) -> bool:
        """Whether the partition is closed."""
    @property
    def stream(self) -> torch.cuda.ExternalStream:
        """The partition's stream as a torch.cuda.ExternalStream, created on first use."""
    @property
    def raw_stream(self) -> int:
        """The driver's handle of the partition's stream, a CUstream."""
    @property
    def raw_context(self) -> int:
        """The driver's handle of the partition's context, a CUcontext."""
    def create_stream(self, priority: SupportsIndex = 0) -> torch.cuda.ExternalStream:
        """Creates another stream of the partition, a torch.cuda.ExternalStream.

        Lower priorities run first. A priority outside the driver's range, which is 0 to -5 on an H200, is clamped
        to it. The partition's SMs stay taken while the stream is alive.
        """
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def close(self) -> None:
        """Gives the SMs back as soon as the program holds no stream of the partition.

        Running work continues, and the next partition of these SMs waits for it on the device. cuBLAS's workspaces
        are freed too, unless a torch graph is alive that may use one.
        """
    def __enter__(self) -> Partition: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Partitions(Mapping[str, Partition]):
    """Partitions by name, in the order of the request.

    `with partition(...) as parts:` closes all partitions at the end of the block. `with parts["decode"]:` runs
    torch's work in one of them.
    """
    def __getitem__(self, name: str, /) -> Partition: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str, /, default: None = None) -> Partition | None:
        """Returns the partition with this name, or `default` if there is none."""
    @overload
    def get(self, key: str, /, default: Partition) -> Partition:
        """Returns the partition with this name, or `default` if there is none."""
    @overload
    def get(self, key: str, /, default: _T) -> Partition | _T:
        """Returns the partition with this name, or `default` if there is none."""
    def close(self) -> None:
        """Closes all partitions."""
    def __enter__(self) -> Partitions: ...
    def __exit__(self, *_exception: object) -> None: ...

def partition(
    division: _Division,
    device: _Device = None,
    *,
    fine: bool = False,
    coscheduled: _Each[SupportsIndex] | None = None,
    preferred_coscheduled: _Each[SupportsIndex] | None = None,
    backfill: _Each[bool] | None = None,
    locality_domain: _Each[SupportsIndex | Literal["any"]] | None = None,
    supplemental: _Each[bool] | None = None,
    workqueue: _Each[_Workqueue] | None = None,
    priority: _Each[SupportsIndex] | None = None,
    replace: bool = False,
) -> Partitions:
    """Divides a device's SMs into named partitions.

        parts = partition({"decode": 16, "prefill": "rest"})
        parts = partition({"decode": "32..", "prefill": "..100"})

    `division` maps each name to a number of SMs, a share (a `Share` or its text), or "rest" for the SMs that the
    others leave. No other partition of this process uses the SMs of a partition's floor: all 16 of `16`, or 32 of
    `"32.."`. Above its floor and up to its ceiling, a partition may use SMs that others may use too. A count that
    the device cannot give is rounded up: `Partition.requested` is the requested count, and `Partition.sm_count` is
    the resulting one. `dry_run` computes the result without taking SMs.

    With `fine=True` the device is divided into the smallest units that the driver supports, in which clusters of
    thread blocks may not fit.

    The following keywords take one value for all partitions, or a mapping from names to values:

    - `priority`: the priority of the partition's stream. Lower numbers run first; the range on an H200 is 0 to -5.
    - `workqueue`: the scope of the partition's workqueues. "balanced" gives it separate queues if possible, and
      "device_ctx" the device's common queues. A tuple such as ("balanced", 4) adds a limit, the expected number of
      streams that have work at the same time. Needs CUDA 13.1; not yet run on hardware.
    - `coscheduled`: the number of SMs that are scheduled together, so that clusters fit; 0 is the device's default.
    - `preferred_coscheduled`: the size, in SMs, of the pieces into which the driver may merge co-scheduled SMs.
    - `backfill`: True if SMs that are not scheduled together may fill up a partition.
    - `locality_domain`: the number of the locality domain to take SMs from, or "any". Needs CUDA 13.4.
    - `supplemental`: True if a larger locality domain may give more SMs than the driver counts for each domain.
      Needs CUDA 13.5.

    The last five need at least CUDA 13.1 and have not run on hardware yet. If any of them is given, counts are not
    rounded, every share must be exclusive (such as 16 or "rest"), and no SMs of the device may be held.

    With `replace=True` all open partitions of the device that earlier calls and `TuningOutcome.partitions` created
    are closed first, as by `close()`, so that a notebook cell can run again. Plan sets and the contexts of drop-ins
    stay open. If the request would not fit without the earlier partitions either, they stay open too. A thread
    inside an earlier partition, and a stream or graph that the program still holds, keep SMs. If this leaves too
    few SMs, RuntimeError says so, and the earlier partitions are closed nevertheless.

    Raises ValueError if an argument is invalid or the device does not have the requested SMs. Raises RuntimeError
    if other partitions hold the SMs, if the driver is too old, or if there is no usable driver. If the call fails,
    no partition is created.
    """

@final
class DryRunGroup:
    """The SMs that one partition would get."""
    @property
    def name(self) -> str:
        """The partition's name."""
    @property
    def share(self) -> str:
        """The requested share as text: "16", "32..", "..=100" or "rest"."""
    @property
    def floor(self) -> int:
        """The SMs that no other partition may use."""
    @property
    def sm_count(self) -> int:
        """The number of SMs that the partition may use: its ceiling."""

@final
class DryRun:
    """The result of a dry run: the partitions that `partition` would have created at that moment. A dry run takes no
    SMs, so other code may have taken SMs since.
    """
    @property
    def fits(self) -> bool:
        """Whether `partition` would create all partitions."""
    @property
    def reason(self) -> str | None:
        """The reason why the request does not fit, as the exception of `partition` states it; None if it fits."""
    @property
    def nearest(self) -> list[str]:
        """Shares that would fit in place of a request that does not, as text and in the request's order. Empty if none
        are known.
        """
    @property
    def groups(self) -> dict[str, DryRunGroup]:
        """The SMs that each partition would get, by name and in the request's order. Empty if the request does not
        fit.
        """
    @property
    def unit(self) -> int | None:
        """The smallest number of SMs that the driver gives at a time; None if the request does not fit."""
    @property
    def remainder(self) -> int | None:
        """The SMs that no partition would use, or the SMs of the partition that takes the rest; None if the request
        does not fit.
        """
    @property
    def free_for_floors(self) -> int | None:
        """The SMs that later floors could have; None if the request does not fit. An unbounded share ("32..", "..")
        leaves none.
        """
    @property
    def quarantined(self) -> int | None:
        """The SMs in quarantine; None if the request does not fit. They are not given out, because the work of an earlier
        context could not be recorded. `partition` tries again to record it, and can then use these SMs; a dry run
        only reads.
        """

def dry_run(
    division: _Division,
    device: _Device = None,
    *,
    fine: bool = False,
    coscheduled: _Each[SupportsIndex] | None = None,
    preferred_coscheduled: _Each[SupportsIndex] | None = None,
    backfill: _Each[bool] | None = None,
    locality_domain: _Each[SupportsIndex | Literal["any"]] | None = None,
    supplemental: _Each[bool] | None = None,
    workqueue: _Each[_Workqueue] | None = None,
    priority: _Each[SupportsIndex] | None = None,
) -> DryRun:
    """Computes what `partition` would give for the same arguments, without taking SMs.

        dry_run({"decode": 17, "prefill": "rest"}).groups["decode"].sm_count   # 24

    If too few SMs are free, or the device is currently divided into other units, `fits` is False and `reason` says
    why. A request that is not valid, such as a share of 0 SMs, raises an exception.
    """

@final
class Fit:
    """The number of blocks of a kernel that fit on a partition's SMs at the same time, according to the driver.
    `str()` gives one line per figure.

    The figures are for SMs on which nothing else runs. Work submitted earlier, or to other streams of the
    partition, occupies its part of the SMs until it is done.
    """
    @property
    def kernel(self) -> str:
        """The kernel's name, or its address if the driver does not report names (before CUDA 12.3)."""
    @property
    def blocks(self) -> int:
        """The number of blocks in the grid."""
    @property
    def threads(self) -> int:
        """The number of threads per block."""
    @property
    def shared_memory(self) -> int:
        """The dynamic shared memory per block, in bytes."""
    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """The number of blocks per cluster in each dimension, as given or as the kernel requires. None if the kernel
        is launched without clusters.
        """
    @property
    def cooperative(self) -> bool:
        """Whether the launch is cooperative: all blocks of the grid run at the same time."""
    @property
    def sm_count(self) -> int:
        """The number of SMs of the partition."""
    @property
    def shared_sms(self) -> int:
        """The number of these SMs that other partitions may use too. They count in full: blocks run on them as soon as
        the other partitions leave room.
        """
    @property
    def blocks_per_sm(self) -> int:
        """The number of blocks that one SM can hold; 0 if no SM can run such a block."""
    @property
    def resident_blocks(self) -> int:
        """The number of blocks that are on the SMs at the same time; 0 if not even one block or cluster fits."""
    @property
    def clusters(self) -> dict[int, int]:
        """The number of clusters that fit at the same time, by cluster size. The keys are those of the sizes 1, 2, 4,
        8 and 16 that fit. Empty before compute capability 9.0. A kernel that requires a cluster size has only that
        key.
        """
    @property
    def largest_cluster(self) -> int:
        """The number of blocks in the largest cluster that fits, whatever `cluster` is; 0 if none fits."""
    @property
    def fits(self) -> bool:
        """Whether the launch can run. All blocks of a cooperative launch must fit at the same time; for other
        launches, one block or cluster must fit.
        """
    @property
    def fits_at_once(self) -> bool:
        """Whether all blocks of the grid are on the SMs at the same time, so that they can wait for each other."""
    @property
    def cooperative_blocks(self) -> int:
        """The maximum number of blocks of a cooperative launch, all of which must be on the SMs at the same time."""
    @property
    def persistent_grid(self) -> tuple[int, int, int]:
        """The grid for a persistent kernel: as many blocks as fit at the same time, in whole clusters. Its first
        dimension is 0 if not even one block or cluster fits.
        """
    def collective_blocks(self, concurrent: SupportsIndex = 1) -> int:
        """Returns the number of blocks (CTAs) that each of `concurrent` collectives may use, if they run on these SMs
        at the same time, on streams that do not wait for each other.
        """
    def __eq__(self, other: object, /) -> bool: ...

def fit(
    kernel: object,
    partition: Partition | GreenContext,
    *,
    grid: _Sides,
    block: _Sides,
    shared_memory: SupportsIndex = 0,
    cluster: _Sides | None = None,
    cooperative: bool = False,
    handle_type: Literal["CUfunction", "CUkernel"] = "CUfunction",
) -> Fit:
    """Asks the driver how many blocks of a kernel fit in a partition, before anything is launched.

        fit(compiled, parts["decode"], grid=64, block=128, cooperative=True).fits

    `kernel` is a `CUfunction` or `CUkernel` of cuda.bindings, or an object that has one as its `handle` (cuda.core)
    or its `function` (Triton's compiled kernels). It can also be an address: of a CUfunction, or of a CUkernel if
    `handle_type` is "CUkernel". The kernel must be alive, and a CUfunction must be of the partition's device.

    `partition` is a Partition or a GreenContext. `grid`, `block` and `cluster` are each a number or a tuple of up
    to three. `shared_memory` is the dynamic shared memory per block, in bytes.

    A launch that does not fit is not an error: the figures of the result show it. Raises ValueError if a dimension
    is 0, if the cluster does not divide the grid, or if it is not the cluster that the kernel requires.
    """

@disjoint_base
class SMPartition:
    """Some SMs of a device, described but not reserved. A GreenContext that is created from it takes the SMs.

    `SMPartition.from_device()` describes all SMs of a device, `split` describes parts of them, and
    `GreenContext.sm_partition` describes those of a context. Two open contexts never have SMs of the same
    SMPartition, or of one SMPartition and a part of it.
    """
    @staticmethod
    def from_device(device_id: _Device = None) -> SMPartition:
        """Describes all SMs of a device. `device_id=None` selects torch's current device."""
    def split(
        self,
        *,
        num_sms: SupportsIndex | Sequence[SupportsIndex] = 0,
        coscheduled_sm_count: SupportsIndex | Sequence[SupportsIndex] = 0,
        preferred_coscheduled_sm_count: SupportsIndex | Sequence[SupportsIndex] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_ids: SupportsIndex | Sequence[SupportsIndex | None] | None = None,
    ) -> tuple[tuple[SMPartition, ...], SMPartition | None]:
        """Divides the SMs into groups. Returns a tuple of the groups, and the remaining SMs, or None if no SMs
        remain.

        Each argument is one value, or a sequence with one value per group. `num_sms` is never rounded. 0 takes as
        many SMs as can be scheduled together, which are 120 of the 132 of an H200.

        `num_sms` alone works with every driver. The other arguments need CUDA 13.1, and locality domains need CUDA
        13.4; they have not run on hardware yet. They apply only to a split of all SMs of a device. While a context
        has a group of such a split, all contexts of the device must be of that split.

        Raises ValueError if a value is not a count, a flag or a domain, or if sequences differ in length. Raises
        RuntimeError if the device cannot give the groups.
        """
    @property
    def device_id(self) -> int:
        """The device's ordinal."""
    @property
    def sm_count(self) -> int:
        """The number of SMs."""
    @property
    def coscheduled_sm_count(self) -> int:
        """The number of these SMs that are scheduled together, so that clusters fit."""
    @property
    def locality_domain_id(self) -> int | None:
        """The requested locality domain, or None. Raises RuntimeError before CUDA 13.4."""

def get_num_locality_domains(device_id: _Device = None) -> int:
    """Returns the number of locality domains of a device: 1 if the driver has no locality domains, before CUDA 13.4."""
def is_localization_supported(device_id: _Device = None) -> bool:
    """Returns whether a device has more than one locality domain."""

@disjoint_base
class GreenContext:
    """A CUDA green context: some of a GPU's SMs for torch's work. No other context or partition uses these SMs, unless
    this context was created without a number of SMs.

        context = GreenContext.create(num_sms=16)
        with context:
            y = a @ b

    `with context:` makes a stream of the context torch's current stream on this thread. Work submitted before the
    block runs before the block's work, and work submitted after the block runs after it. Blocks can be nested,
    including those of one context, and they can be inside the capture of a graph. Each thread enters and leaves for
    itself. `set_context` and `pop_context` are for programs that use torch's calls: they change the thread's CUDA
    context too.

    The SMs are free again when the object is dropped or closed, and no stream of it is held.
    """
    def __init__(
        self,
        *,
        num_sms: SupportsIndex | None = None,
        sm_partition: SMPartition | None = None,
        workqueue_scope: Literal["device_ctx", "balanced"] | None = None,
        workqueue_concurrency_limit: SupportsIndex | None = None,
        device_id: _Device = None,
    ) -> None: ...
    @staticmethod
    def create(
        num_sms: SupportsIndex | None = None,
        device_id: _Device = None,
        *,
        sm_partition: SMPartition | None = None,
        workqueue_scope: Literal["device_ctx", "balanced"] | None = None,
        workqueue_concurrency_limit: SupportsIndex | None = None,
    ) -> GreenContext:
        """Creates a context with at least `num_sms` SMs, rounded up as the driver rounds them, or with the SMs that an
        `SMPartition` describes.

        Without either, the context has no floor: it shares every SM that is in no floor when it is created. While
        it is open, no SMs are available for other floors, so create it last.

        Takes the arguments of torch 2.11, and as keywords those of torch 2.12 to 2.15. `device_id=None` selects
        torch's current device.

        Raises RuntimeError if the device does not have that many SMs, if other partitions hold them, or if there is
        no such device. Raises ValueError for an unknown workqueue scope. If the call fails, no context is created.
        """
    @staticmethod
    def split(
        *,
        num_sms: SupportsIndex | Sequence[SupportsIndex] = 0,
        coscheduled_sm_count: SupportsIndex | Sequence[SupportsIndex] = 0,
        preferred_coscheduled_sm_count: SupportsIndex | Sequence[SupportsIndex] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_ids: SupportsIndex | Sequence[SupportsIndex | None] | None = None,
        workqueue_scope: Literal["device_ctx", "balanced"] | None = None,
        workqueue_concurrency_limit: SupportsIndex | None = None,
        device_id: _Device = None,
    ) -> tuple[GreenContext, ...]:
        """Creates a context for each group into which `SMPartition.split` divides all SMs of a device. If one context
        cannot be created, none is. The workqueue arguments apply to each context. SMs in no group stay free.
        """
    @staticmethod
    def max_workqueue_concurrency(device_id: _Device = None) -> int:
        """Returns the greatest `workqueue_concurrency_limit` of a device. Needs CUDA 13.1."""
    def set_context(self) -> None:
        """Makes the context current on this thread, and its own stream torch's current stream. The stream waits for
        work already submitted to the previously current stream.

        While the context is current, the handle of a default stream means this context's default stream. So
        `torch.cuda.default_stream()` is a different stream inside and outside, and nothing orders the two. For this
        reason torch deprecated both calls in 2.14, and they give a FutureWarning. `with context:` changes the
        current stream only, and no context.

        Raises RuntimeError if this thread is already in the context.
        """
    def pop_context(self) -> None:
        """Restores the context and the stream that were current before `set_context`. That stream waits for the work
        submitted in the context.

        Deprecated, like `set_context`.

        Raises RuntimeError if the context is not the one that this thread set last. In this case nothing changes.
        """
    def __enter__(self: _T) -> _T: ...
    def __exit__(self, *_raised: object) -> None: ...
    def Stream(self) -> torch.cuda.ExternalStream:
        """Returns a torch.cuda.ExternalStream of the context. A context has at most 32 such streams; later calls
        return them again in order, as torch does. They are not ordered with other streams.
        """
    @property
    def sm_count(self) -> int:
        """The number of SMs that the context's work can run on: the requested number, or the next one that the device
        can give.
        """
    @property
    def sm_partition(self) -> SMPartition:
        """The context's SMs as an SMPartition, which can be split. When this context is closed, others can be created
        on these SMs or on parts of them.
        """
    @property
    def locality_domain_id(self) -> int | None:
        """The requested locality domain, or None. Raises RuntimeError before CUDA 13.4."""
    @property
    def requested(self) -> int | None:
        """The requested number of SMs; None if the context has no floor."""
    @property
    def device_id(self) -> int:
        """The device's ordinal."""
    @property
    def id(self) -> int:
        """The driver's ID of the context. Profilers report it, and `audit` reports it as `context_id`. A later
        partition of the same SMs may have the same context.
        """
    @property
    def closed(self) -> bool:
        """Whether the context is closed."""
    @property
    def raw_stream(self) -> int:
        """The driver's handle of the stream that `set_context` makes current, a CUstream."""
    @property
    def raw_context(self) -> int:
        """The driver's handle of the context, a CUcontext."""
    @property
    def partition(self) -> Partition:
        """The context's SMs as a Partition, for `verify`, `retarget` and streams with other priorities."""
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def close(self) -> None:
        """Gives the SMs back as soon as the program holds no stream of the context and no thread is in it. A thread in
        a closed context can still call `pop_context`, which restores what was current before.
        """

def supported() -> bool:
    """Returns whether the installed driver has green contexts (CUDA 12.4 or newer)."""
def sm_limits(device: SupportsIndex) -> tuple[int, int, int, int]:
    """Returns four counts of a device, in SMs: all its SMs, the smallest partition, the alignment, and the unit that
    counts are multiples of.
    """
def split_green(
    device: SupportsIndex, counts: Sequence[int], name: str, exact: bool = True
) -> list[GreenContext]:
    """Creates contexts with exactly these numbers of SMs, or with at least as many if `exact` is False. If one context
    cannot be created, none is. The contexts share no SMs with each other. Other contexts without a floor may share
    them.
    """

@final
class Plan(Mapping[str, Partition]):
    """A plan of a `PlanSet`: a mapping from names to its partitions."""
    @property
    def name(self) -> str:
        """The plan's name."""
    @property
    def partitions(self) -> Partitions:
        """The partitions by name. Work can be submitted to them while the plan is active."""
    def __getitem__(self, name: str, /) -> Partition: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str, /, default: None = None) -> Partition | None:
        """Returns the partition with this name, or `default` if there is none."""
    @overload
    def get(self, key: str, /, default: Partition) -> Partition:
        """Returns the partition with this name, or `default` if there is none."""
    @overload
    def get(self, key: str, /, default: _T) -> Partition | _T:
        """Returns the partition with this name, or `default` if there is none."""

@final
class PlanSet(Mapping[str, Plan]):
    """Several divisions of the same SMs, called plans. One plan is active at a time.

        plans = PlanSet({
            "day": {"decode": 16, "prefill": "rest"},
            "night": {"decode": 64, "prefill": "rest"},
        })
        with plans.switch("night")["decode"]:
            y = a @ b

    `plans` maps the name of each plan to a division, as `partition` takes it. A plan set is a mapping from names to
    plans, and a plan is a mapping from names to partitions. `with PlanSet(...) as plans:` closes the set at the end
    of the block.

    The contexts and streams of all plans are created in advance, so a switch costs a few events. The first plan is
    active at first. The set holds all free SMs of the device, or `sm_count` of them. `fine` means the same as in
    `partition`.

    Raises the same exceptions as `partition`. If the call fails, nothing is created.
    """
    def __new__(
        cls,
        plans: Mapping[str, _Division] | Sequence[tuple[str, _Division]],
        device: _Device = None,
        *,
        sm_count: SupportsIndex | None = None,
        fine: bool = False,
    ) -> PlanSet: ...
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def sm_count(self) -> int:
        """The number of SMs that the plans divide."""
    @property
    def plans(self) -> tuple[str, ...]:
        """The names of the prepared plans."""
    @property
    def active(self) -> Plan:
        """The active plan."""
    @property
    def closed(self) -> bool:
        """Whether the set is closed."""
    def prepare(self, name: str, division: _Division) -> Plan:
        """Prepares another plan, and returns it. Creates the contexts and streams that no other plan has."""
    def switch(self, name: str | Plan, fence: bool = True, drain_ms: float | None = None) -> Plan:
        """Makes a plan active, and returns it. `name` is the name of a plan, or a plan of this set.

        Work submitted to the new plan's partitions from now on waits, on the device, for the previous plan's work
        on the SMs that they take over. With `fence=False` it does not wait. With `drain_ms` the host first waits,
        for at most that many milliseconds, until the previous plan's work is done.

        Raises RuntimeError if the work is not done in that time. In this case, and after an interrupt, nothing has
        changed.
        """
    def retire(self, name: str) -> None:
        """Removes a plan, which must not be active, and closes its partitions."""
    def close(self) -> None:
        """Closes the partitions of all plans, and gives the SMs back. Running work continues, and the next owner of
        the SMs waits for it on the device.
        """
    def __getitem__(self, name: str, /) -> Plan: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str, /, default: None = None) -> Plan | None:
        """Returns the plan with this name, or `default` if there is none."""
    @overload
    def get(self, key: str, /, default: Plan) -> Plan:
        """Returns the plan with this name, or `default` if there is none."""
    @overload
    def get(self, key: str, /, default: _T) -> Plan | _T:
        """Returns the plan with this name, or `default` if there is none."""
    def __enter__(self) -> PlanSet: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class RetargetedGraph:
    """A copy of a graph whose kernels run in a partition. It keeps the original alive, whose memory it uses."""
    @property
    def partition(self) -> Partition:
        """The partition that the graph runs in."""
    @property
    def raw(self) -> int:
        """The driver's handle of the executable graph, a CUgraphExec."""
    def replay(self) -> None:
        """Launches the graph on the partition's stream. It waits for work already submitted to that stream, and for
        nothing else. If another stream writes the graph's inputs, make the partition's stream wait for it.
        """

def retarget(graph: _Graph | int, partition: Partition) -> RetargetedGraph:
    """Copies a captured graph so that its kernels, copies and fills run on a partition's SMs, and makes the copy ready
    to replay. The original does not change.

        retarget(graph, parts["decode"]).replay()

    `graph` is a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. In the latter case the
    CUgraph, and everything that it uses, must live as long as the result.

    Raises ValueError if a node cannot be moved or does not fit in the partition. In this case nothing is created.
    """

@final
class GraphCache:
    """A cache of retargeted graphs, one copy for each graph and partition. Replaying a graph in another partition then
    costs a look-up.

        cache = GraphCache()
        cache.get(graph, parts["decode"]).replay()

    The cache keeps the graphs and the partitions' SMs alive: call `forget` before closing a partition. A copy is a
    snapshot: call `forget_graph` after changing a graph, and before resetting it.
    """
    def __new__(cls) -> GraphCache: ...
    def get(self, graph: _Graph | int, partition: Partition) -> RetargetedGraph:
        """Returns the copy of a graph that runs in a partition. The first call creates it with `retarget`; later calls
        return it again. Takes the arguments of `retarget`, and raises its exceptions. If it fails, nothing is
        cached.
        """
    def forget(self, partition: Partition) -> None:
        """Drops the copies for a partition, which may be closed. The program can still use a copy that it holds."""
    def forget_graph(self, graph: _Graph | int) -> None:
        """Drops the copies of a graph. The program can still use a copy that it holds."""
    def clear(self) -> None:
        """Drops all copies."""
    def __len__(self) -> int: ...

@final
class Location:
    """The context that work runs in, and so the SMs that it may use."""
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def context(self) -> str:
        """The partition's name. "primary" is the primary context, in which torch works outside partitions, and
        "borrowed" is a context that this library did not create.
        """
    @property
    def context_id(self) -> int:
        """The ID of the context, as in `Partition.id` and `GreenContext.id`."""
    @property
    def sm_count(self) -> int:
        """The number of SMs of the context."""
    @property
    def foreign(self) -> bool:
        """Whether this is a green context that this library did not create. Its SMs may be in the floor of any
        partition.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class NodeAudit:
    """One node of a graph. `str()` gives a line."""
    @property
    def node(self) -> str:
        """The node's position in the graph, such as "3". The first node in the child graph of node 3 is "3.0"."""
    @property
    def kind(self) -> str:
        """The kind of node: "kernel", "memcpy", "memset", "host function", "child graph" or another one."""
    @property
    def kernel(self) -> str | None:
        """The name of the kernel, if the driver reports it."""
    @property
    def location(self) -> Location | None:
        """The context that the node runs in. None if the node uses no SMs, or if the driver does not report the
        context: before CUDA 13.2 it reports those of kernels only.
        """

@final
class Audit:
    """The locations of a graph's nodes. `str()` gives one line per node."""
    @property
    def nodes(self) -> list[NodeAudit]:
        """The nodes in the driver's order. The nodes of a child graph follow the child's node."""
    @property
    def locations(self) -> list[Location]:
        """The locations of the nodes, each listed once. A graph that stays in one partition has one location."""

def audit(graph: _Graph | int, device: _Device = None) -> Audit:
    """Asks the driver in which partitions the nodes of a captured graph run.

        print(audit(graph))

    `graph` is a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. The contexts of its nodes must be
    alive, so the partitions in which it was captured must stay open. The bodies of conditional nodes are not included.
    Partitions of several plans with the same SMs have one context; compare `context_id` with `Partition.id`.
    """

@final
class PartitionReport:
    """The SMs that one partition ran on, as its blocks reported them: while it ran alone, and while all partitions
    ran.
    """
    @property
    def name(self) -> str:
        """The partition's name. For a GreenContext it is "GreenContext" and a number."""
    @property
    def id(self) -> int:
        """The ID of the partition's context, as in `Partition.id` and `GreenContext.id`."""
    @property
    def share(self) -> str | None:
        """The requested share as text: "16", "32..", "..=100" or "rest"."""
    @property
    def floor(self) -> int:
        """The SMs that no other partition may use."""
    @property
    def sm_count(self) -> int:
        """The number of SMs that the partition may use: its ceiling."""
    @property
    def observed_sms(self) -> frozenset[int]:
        """The IDs (`%smid`) of the SMs that its blocks ran on while all partitions ran."""
    @property
    def alone_sms(self) -> frozenset[int]:
        """The IDs of the SMs that its blocks ran on while it ran alone."""
    @property
    def floor_sms(self) -> frozenset[int]:
        """The IDs of the SMs of its floor."""
    @property
    def intruded(self) -> frozenset[int]:
        """The IDs of the SMs of its floor on which other partitions ran. Empty if the floor was kept."""
    @property
    def start_ns(self) -> int:
        """The start of its first block while all partitions ran, in nanoseconds of the device's clock
        (`%globaltimer`).
        """
    @property
    def end_ns(self) -> int:
        """The end of its last block while all partitions ran, in nanoseconds of the same clock."""
    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """The blocks that ran while all partitions ran, in the grid's order: for each block the ID of its SM, its
        start and its end, in nanoseconds.
        """
    @property
    def complete(self) -> bool:
        """Whether the partition, while it ran alone, used as many SMs as it was given, including its floor."""
    @property
    def within(self) -> bool:
        """Whether the partition, while all partitions ran, used all of its floor and stayed within its ceiling."""
    @property
    def kept(self) -> bool:
        """Whether the partition had its share and stayed within it: it is complete and within its share, and no other
        partition ran on its floor.
        """

@final
class Report:
    """The SMs that partitions ran on, as the blocks of a probe kernel reported them. Notebooks show it as a picture."""
    @property
    def ok(self) -> bool:
        """Whether every partition ran on all of its SMs and on no others, and no other partition ran on its floor."""
    @property
    def floors_kept(self) -> bool:
        """Whether no partition ran on another partition's floor."""
    @property
    def partitions(self) -> list[PartitionReport]:
        """The results of the partitions, in the order given. A partition that was given twice appears once."""
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def device_name(self) -> str:
        """The device's name, such as "NVIDIA H200"."""
    @property
    def sm_count(self) -> int:
        """The number of SMs of the device."""
    @property
    def compute_capability(self) -> tuple[int, int]:
        """The device's compute capability, such as (9, 0)."""
    @property
    def disjoint(self) -> bool:
        """Whether no SM ran blocks of two partitions."""
    @property
    def complete(self) -> bool:
        """Whether every partition, while it ran alone, used as many SMs as it was given."""
    @property
    def concurrent(self) -> bool:
        """Whether all partitions were running at some moment. `ok` does not require this, because separate SMs do not
        guarantee that work runs concurrently.
        """
    def to_json(self) -> str:
        """Returns the report as JSON, in the format of `green-ctx --json verify`."""
    def to_svg(self) -> str:
        """Returns a picture as SVG: the SMs, coloured by partition, and a timeline of the blocks."""
    def _repr_svg_(self) -> str: ...

def verify(
    partitions: Partition
    | GreenContext
    | Mapping[str, Partition | GreenContext]
    | Iterable[Partition | GreenContext]
    | Plan
    | PlanSet
    | None = None,
    device: _Device = None,
) -> Report:
    """Runs a probe kernel in partitions at the same time, and reports the SMs that its blocks ran on.

        report = verify(parts)
        assert report.ok, report

    `partitions` is a partition, a GreenContext, a mapping or an iterable of these, a plan, or a plan set, whose
    active plan is verified. Without it, everything that is open on the device is verified, including the contexts
    of drop-ins. The probe takes about a millisecond; other work on the same SMs makes it take longer.

    Raises ValueError if there is nothing to verify.
    """

@final
class TuningVerdict:
    """The verdict of tuning: how to run the jobs, and the gain."""
    @property
    def kind(self) -> Literal["sequential", "streams", "priority", "partition"]:
        """How to run the jobs: "sequential" (all in one stream), "streams" (one stream each), "priority" (streams with
        different priorities) or "partition".
        """
    @property
    def shares(self) -> dict[str, str]:
        """The share of each job, as `partition` takes it; ".." if the verdict is not to partition."""
    @property
    def priority(self) -> dict[str, int]:
        """The priority of each job's stream. Lower numbers run first."""
    @property
    def gain(self) -> float | None:
        """The advantage of the best partitions over the best arm without partitions: the ratio of their scores, minus
        1. None if they were not compared long enough.
        """
    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the gain's 95 % interval. If it contains 0, the verdict is not to partition."""
    @property
    def meets(self) -> bool:
        """Whether the upper end of the bounded figure's 95 % interval meets the goal's bound; True for goals without a
        bound.
        """
    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""

class _Latency(TypedDict):
    mean: float
    p50: float
    p99: float | None
    iterations: int

class _TunedJob(TypedDict):
    name: str
    key: str
    arrival: dict[str, Any]
    host_bound: bool
    rate: float
    capacity: float | None
    references: list[float]
    solo: dict[str, float]

class _TunedArm(TypedDict):
    kind: Literal["sequential", "streams", "priority", "partition"]
    shares: dict[str, str]
    priority: dict[str, int]
    stage: Literal["search", "choice", "final"]
    rates: dict[str, float]
    latency_us: dict[str, _Latency]
    capacity: dict[str, float]
    score: float | None
    excess: float
    blocks: int
    skipped: str | None

@final
class TuningOutcome:
    """The result of tuning: the verdict, and the measurements behind it. Notebooks show it as a picture."""
    @property
    def verdict(self) -> TuningVerdict:
        """The verdict: how to run the jobs, and the gain."""
    @property
    def goal(self) -> str:
        """The goal as text."""
    @property
    def jobs(self) -> list[_TunedJob]:
        """The jobs, as dicts with the fields of the JSON: `name`, `key`, `arrival`, `host_bound`, `references`, `rate`
        and `capacity` (iterations per second when the job runs alone), and `solo` (iterations per second alone, by
        number of SMs).
        """
    @property
    def arms(self) -> list[_TunedArm]:
        """All arms that were considered, as dicts with the fields of the JSON: `kind`, `shares`, `priority`, `stage`,
        `rates` (iterations per second), `latency_us`, `capacity`, `score`, `excess`, `blocks` and `skipped`.
        """
    @property
    def notes(self) -> list[str]:
        """Remarks for the reader, for example that the device drifted or that a function could not be captured."""
    @property
    def seconds(self) -> float:
        """The duration of the search, in seconds."""
    @property
    def drift(self) -> float:
        """The largest drift of any job's rate when it runs alone: the greatest of the rates at the beginning, in the
        middle and at the end, divided by the smallest, minus 1.
        """
    @property
    def complete(self) -> bool:
        """Whether the search ran to its end. False if `progress` ended it, in which case this is the best result so
        far.
        """
    def svg(self) -> str:
        """Returns a picture as SVG. Each arm is a point that shows its effect on one job and on the other jobs."""
    def _repr_svg_(self) -> str: ...
    def to_json(self) -> str:
        """Returns the outcome as JSON, in the format of `green-ctx --json tune --show`."""
    def save(self, path: str | os.PathLike[str]) -> bool:
        """Writes the outcome to a file that `tuned` and `load_tuning` read. A relative path is in the directory that
        the environment variable GREEN_CTX_TUNE_DIR names, if it is set. Returns False and writes nothing if
        GREEN_CTX_TUNE_READ_ONLY is set.

        Raises OSError if the file cannot be written. An existing file stays unchanged in this case.
        """
    def apply(self, device: _Device = None) -> Applied:
        """Returns the verdict ready to run, as a mapping from the names of the jobs.

            with outcome.apply() as applied:
                with applied["decode"]:
                    step()

        `with applied["decode"]:` makes the job's stream torch's current stream. If the verdict is to partition,
        each job has its own partition, which the end of the outer block closes. Otherwise each job has a plain
        stream with its priority, or all jobs have the same stream if they are to run one after the other.
        `applied.verdict`, `applied.gain` and `applied.meets` are those of the verdict. `device` is as in
        `partitions`.

        Raises the same exceptions as `partition`.
        """
    @property
    def device(self) -> int | None:
        """The ordinal of the device that the outcome was found on; None if it was read from a file."""
    def partitions(self, device: _Device = None) -> Partitions:
        """Creates partitions for the jobs, by name, whatever the verdict is. The result is that of
        `green_ctx_torch.partition`.

        If the verdict is not to partition, each partition may use all SMs, and its stream has the job's priority,
        so the program is the same for every verdict. By default the device is the one that the outcome was found
        on, or torch's current device for the result of `load_tuning`.

        Raises the same exceptions as `partition`.
        """

def load_tuning(path: str | os.PathLike[str]) -> TuningOutcome:
    """Reads an outcome that `TuningOutcome.save`, `tuned` or the command `green-ctx tune --out` wrote, for any jobs
    and any request.

    Raises FileNotFoundError or another OSError if the file cannot be read, and ValueError if it does not contain an
    outcome.
    """

@final
class _PlainStream:
    def __new__(cls, ordinal: _Device, priority: SupportsIndex) -> _PlainStream: ...
    @property
    def raw_stream(self) -> int:
        """The driver's handle of the stream, a CUstream."""
    @property
    def stream(self) -> torch.cuda.ExternalStream:
        """The stream as a torch.cuda.ExternalStream, created on first use."""

@final
class TuningProgress:
    """The progress of a search."""
    @property
    def step(self) -> str:
        """The current step of the search."""
    @property
    def spent(self) -> float:
        """The fraction of the budget that is spent, from 0 to 1."""
    @property
    def blocks(self) -> int:
        """The number of blocks measured so far."""
    @property
    def best(self) -> str | None:
        """The best arm so far, in words; None if there is none yet."""

@final
class _Tuner:
    def __new__(
        cls,
        jobs: Sequence[tuple[str, str | Iterable[float] | None, str]],
        goal: str,
        weights: Mapping[str, float] | None,
        device: _Device,
        budget: float | None,
        step: SupportsIndex,
        floors: Mapping[str, SupportsIndex] | None,
        leave_out: str | Iterable[str],
    ) -> _Tuner: ...
    @property
    def device(self) -> int:
        """The device's ordinal."""
    def immovable(self, graph: _Graph | int) -> str | None:
        """Returns why copies of a graph cannot be made for partitions, or None if they can."""
    def stored(self, path: str | os.PathLike[str]) -> TuningOutcome | str:
        """Returns the outcome in a file for these jobs and this request, or text that says why the file cannot be
        used.
        """
    def run(
        self,
        works: Sequence[
            tuple[
                _Graph | int | None,
                Callable[[int], object] | None,
                Callable[[int], object] | None,
            ]
        ],
        notes: Sequence[str],
        progress: Callable[[TuningProgress], object] | None,
    ) -> TuningOutcome:
        """Tunes the jobs. `progress` is called before each block. `notes` are added to the notes of the outcome."""

def info(device: _Device = None) -> dict[str, Any]:
    """Returns a description of the driver, the devices and how they can be split, as a dict with the fields of
    `green-ctx --json info`. `device` selects one device.

        info()["driver"]["version"]     # such as "13.0"
    """
def _main(arguments: list[str]) -> int: ...
def _run_handle(original: Callable[[Any], Any], handle: Any) -> Any: ...
def _partition_here() -> int: ...
def current_floor(device: SupportsIndex) -> int | None:
    """Returns the floor, in SMs, of the partition that torch's current stream belongs to, for a device on this thread.
    Returns None if the stream is not in a partition.
    """
def current_sm_count(device: SupportsIndex) -> int | None:
    """Returns the number of SMs that torch's current stream can use, for a device on this thread. Returns None if the
    stream is not in a partition.
    """
def _stream_here() -> torch.cuda.ExternalStream | None: ...
def _compiled_in_partition() -> None: ...
def _capture_begins() -> tuple[int, bool]: ...
def _capture_ends(raw_context: int) -> None: ...
def _graph_replayed() -> None: ...
def _relaxed(call: Callable[[], None]) -> None: ...

class _Usage(TypedDict):
    current_bytes: int
    peak_bytes: int
    current_blocks: int
    peak_blocks: int
    allocations: int
    refusals: int
    failures: int
    limit_bytes: int | None

class _Block(TypedDict):
    address: int
    bytes: int
    partition: str | None
    foreign: bool
    stream: int
    recorded: list[int]
    graphs: int
    shareable: bool

class _Snapshot(TypedDict):
    device: int
    total: _Usage
    partitions: dict[str, _Usage]
    outside: _Usage
    foreign: _Usage
    pool_bytes: int | None
    shareable: bool
    blocks: list[_Block]
    waiting: list[_Block]
    last_error: str | None

@final
class Allocator:
    """The allocator of a device. All objects for one device, and the library's C functions, share one state.

    allocator = Allocator()
    allocator.set_partition_limit("decode", 2 << 30)
    with torch.cuda.use_mem_pool(allocator.mem_pool()):
        y = a @ b
    """
    def __new__(cls, device: _Device = None) -> Allocator: ...
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def limit(self) -> int | None:
        """The maximum number of bytes in use; None, the default, for no limit. A new limit frees nothing."""
    @limit.setter
    def limit(self, bytes: SupportsIndex | None, /) -> None: ...
    def set_partition_limit(self, name: str, bytes: SupportsIndex | None) -> None:
        """Limits the bytes in use on streams of partitions with this name, now and later. None removes the limit."""
    def set_outside_limit(self, bytes: SupportsIndex | None) -> None:
        """Limits the bytes in use on streams outside any partition. None removes the limit."""
    def set_foreign_limit(self, bytes: SupportsIndex | None) -> None:
        """Limits the bytes in use on streams of other libraries' green contexts, including torch's. None removes the
        limit.
        """
    def set_shareable(self, shareable: bool) -> None:
        """Sets whether new blocks have IPC handles. Blocks that have them are slower to free."""
    def set_release_threshold(self, bytes: SupportsIndex) -> None:
        """Sets how many unused bytes the allocator keeps when the program waits for work: 64 MiB by default."""
    @property
    def current_bytes(self) -> int:
        """The number of bytes in use."""
    @property
    def peak_bytes(self) -> int:
        """The greatest number of bytes in use since the peak was last reset."""
    def reset_peak(self) -> None:
        """Resets all peaks to the current usage."""
    def usage(self, partition: str | None = None) -> _Usage:
        """Returns the bytes and blocks in use, their peaks, the refusals and the limit, as a dict. `partition` is the
        name of the partitions whose streams count; without it, all streams count.

        An account with no limit and nothing in use is kept only for the 64 names that were used last. Raises
        ValueError if there is no account for the name and no open partition has it.
        """
    def usage_outside(self) -> _Usage:
        """Returns the usage on streams outside any partition."""
    def usage_foreign(self) -> _Usage:
        """Returns the usage on streams of other libraries' green contexts, including torch's."""
    def snapshot(self) -> _Snapshot:
        """Returns the state of the allocator at one moment, as a dict: the usage in total, of each partition and
        outside partitions, every block, and the last error of the C functions.
        """
    def ipc_handle(self, address: SupportsIndex) -> bytes:
        """Returns the handle with which another process opens the block that contains this address. The block must
        have been allocated while the allocator was shareable.
        """
    def empty_cache(self) -> None:
        """Returns unused memory to the device. torch keeps freed memory for itself, so call torch.cuda.empty_cache()
        first.
        """
    def mem_pool(self) -> torch.cuda.MemPool:
        """Returns a new torch.cuda.MemPool of the device, for torch.cuda.use_mem_pool."""

def library_path() -> str:
    """Returns the path of the library that exports the allocator's C functions: this module's own file."""
def torch_allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """Returns the allocator as a torch.cuda.memory.CUDAPluggableAllocator for all devices, created on first use. The
    object is never freed, because a torch.cuda.MemPool does not keep its allocator alive.
    """
def error_name(code: SupportsIndex) -> str | None:
    """Returns the name of an error code, such as cudaErrorInvalidValue for 1; None for a code that CUDA 13.5 does not
    have.
    """
def error_text(code: SupportsIndex) -> str:
    """Returns a short description of an error code."""
def profiler_start(device: _Device = None) -> None:
    """Starts collection by the profiler that the program runs under. Without a profiler it does nothing."""
def profiler_stop(device: _Device = None) -> None:
    """Stops collection by the profiler that the program runs under."""
def memory_info(device: _Device = None) -> tuple[int, int]:
    """Returns the free memory and the total memory of a device, in bytes."""
def host_register(
    address: SupportsIndex,
    bytes: SupportsIndex,
    flags: SupportsIndex = 0,
    device: _Device = None,
) -> None:
    """Page-locks host memory. The memory must stay in place until it is unregistered.

    `flags` are those of cudaHostRegister: 1 for all contexts, 2 mapped, 4 memory of an I/O device, 8 read-only.
    """
def host_unregister(address: SupportsIndex, device: _Device = None) -> None:
    """Unregisters the host memory at an address. No work on a device may still use the memory."""
def stream_create(partition: Partition | None = None, device: _Device = None) -> int:
    """Creates a stream in a partition, or in a device's primary context, and returns its handle, a CUstream. The
    caller must destroy it before the partition is closed.
    """
def stream_destroy(stream: SupportsIndex, device: _Device = None) -> None:
    """Destroys a stream that `stream_create` created. The stream must not be used afterwards. Work already submitted
    to it continues.
    """
