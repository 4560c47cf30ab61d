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
    "Curve",
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
    "Reserve",
    "RetargetedGraph",
    "SMPartition",
    "Share",
    "TuningOutcome",
    "TuningProgress",
    "TuningVerdict",
    "__version__",
    "_capture_begins",
    "_compiled_in_partition",
    "_graph_replayed",
    "_main",
    "_ordinal",
    "_CurveRequest",
    "_Tuner",
    "_immovable",
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
    "reserve",
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

_Work: TypeAlias = tuple[
    _Graph | int | None, Callable[[int], object] | None, Callable[[int], object] | None
]

__version__: str

@final
class Reserve:
    """The SMs of a device that are reserved for partitions."""
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def sm_count(self) -> int:
        """The number of reserved SMs. Floors of partitions come from these."""
    @property
    def rest(self) -> int:
        """The number of the other SMs, on which all work outside of partitions runs."""

def reserve(amount: SupportsIndex | str, device: _Device = None) -> Reserve:
    """Reserves SMs of every device for partitions: all work of the process outside of partitions, whatever library or
    thread submits it, runs on the other SMs. So a floor holds against the whole process.

        green_ctx_torch.reserve(32)          # before `import torch`, `info` and `dry_run`
        parts = green_ctx_torch.partition({"decode": 32})

    Default streams, autograd, cuBLAS, cuDNN and NCCL run on the other SMs, and are told their number.
    `amount` is a number of SMs, rounded up to whole units like a floor, or a whole percentage such as "25%". It
    cannot be changed afterwards. `cuCtxCreate` is refused. The environment variable GREEN_CTX_RESERVE=32 reserves when
    this module is imported, without a call of the driver, so processes that fork CUDA workers can use it.

    Returns the counts of `device`. Needs Linux and CUDA 12.5.

    Raises RuntimeError if a library has opened the driver already, or if another amount is reserved.
    Raises TypeError for text without a percent sign, and ValueError for an amount that is not valid, or that leaves no
    SMs of a device. In the last case, the amount stays.
    """

@final
class Share:
    """The share of the SMs that a partition gets: a floor and a ceiling.

    The floor is the number of SMs that no other partition may use. The ceiling is the maximum number of SMs that the
    partition may use; None sets no ceiling. Other partitions may also use the SMs between the floor and the ceiling.

        Share(32)           # "32..": at least 32 SMs, and every SM that is in no other floor
        Share(16, 48)       # "16..48": at least 16 SMs, and at most 48
        Share("25%..")      # a floor of 25 % of the SMs that are divided

    The first argument is a count, or text such as `"32.."`, `"16..48"`, `"..100"`, `".."`, `"16"`, `"25%.."` or
    `"rest"`. The text `"16"` is exclusive: floor and ceiling are both 16. Percentages are whole numbers, and
    refer to the SMs that are divided.

    A share equals every text that describes it: `Share(32) == "32.."`. The hash of a share is the hash of
    `str(share)`, so a dictionary finds a share only by exactly that text. For example, `str(Share("16..48"))` is
    `"16..=48"`, so a look-up with `"16..48"` fails.

    Raises ValueError if the text is not a share, if the ceiling is 0, or if the floor is above the ceiling.
    """
    @overload
    def __new__(cls, floor: SupportsIndex = 0, ceiling: SupportsIndex | None = None) -> Share: ...
    @overload
    def __new__(cls, floor: str, ceiling: None = None) -> Share: ...
    @property
    def floor(self) -> int | None:
        """The number of SMs that no other partition may use; None if the floor is a percentage or depends on the number
        of free SMs.
        """
    @property
    def ceiling(self) -> int | None:
        """The maximum number of SMs that the partition may use; None if there is no ceiling, or if the ceiling is a
        percentage.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Partition:
    """A group of a GPU's SMs with a green context, and a stream whose work runs on these SMs only.

    `TuningOutcome.apply` also gives partitions without a green context. Their streams are plain streams, whose work may
    run on all SMs.

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
        """The number of SMs that no other partition may use, for a partition of a plan while that plan is active. A
        requested count is rounded up to one that the device can give, and a requested percentage is rounded to a nearby
        count.
        """
    @property
    def shared_with(self) -> list[tuple[str, int]]:
        """The other partitions that may use SMs of this partition. Each entry is a pair: the name of the other
        partition, and the number of SMs that both partitions may use.
        """
    @property
    def sm_count(self) -> int:
        """The ceiling: the number of SMs that the partition may use, including shared SMs. For an exclusive partition,
        the ceiling equals the floor.
        """
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def id(self) -> int:
        """The driver's ID of the context. Profilers report this ID, and `audit` reports it as `context_id`. Partitions
        of several plans share one context, and so one ID, if they have the same SMs. A later partition of the same
        SMs may have the same ID too.
        """
    @property
    def closed(self) -> bool:
        """Whether the partition is closed."""
    @property
    def stream(self) -> torch.cuda.ExternalStream:
        """The partition's stream as a torch.cuda.ExternalStream. The first access creates this object."""
    @property
    def raw_stream(self) -> int:
        """The driver's handle of the partition's stream, a CUstream."""
    @property
    def raw_context(self) -> int:
        """The driver's handle of the partition's context, a CUcontext."""
    def create_stream(self, priority: SupportsIndex = 0) -> torch.cuda.ExternalStream:
        """Creates another stream in the partition, and returns the stream as a torch.cuda.ExternalStream.

        Work on streams with lower priority numbers runs first. A priority outside the driver's range is clamped to
        that range, which is 0 to -5 on an H200. The SMs of the partition are not free while the stream is alive.
        """
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def close(self) -> None:
        """Closes the partition. Its SMs are free again as soon as no thread is inside it, and the program holds no stream
        of it, no graph that was moved there, and no MemPool of an `Allocator` with memory that was allocated there. A
        torch graph that was captured there does not hold them: after the close, its replay may run on SMs of another
        partition.

        Running work continues, and the next partition of these SMs waits for that work on the device. The workspaces
        of cuBLAS are freed too, unless a captured torch graph is alive.

        Raises RuntimeError for a partition of a plan, which is closed with the plan.
        """
    def __enter__(self) -> Partition: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Partitions(Mapping[str, Partition]):
    """Partitions by name, in the order of the request.

    `with partition(...) as parts:` closes all partitions at the end of the block. `with parts["decode"]:` runs
    torch's work in the partition with this name.
    """
    def __getitem__(self, name: str, /) -> Partition: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def close(self) -> None:
        """Closes all partitions. Raises RuntimeError if they belong to a plan."""
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
    other partitions leave. No other partition of this process uses the SMs of a partition's floor. The floor is 16
    SMs for `16`, and 32 SMs for `"32.."`. Above its floor and up to its ceiling, a partition may use SMs that other
    partitions may use too. A count that the device cannot give is rounded up: `Partition.requested` is the requested
    count, and `Partition.sm_count` is the resulting one. `dry_run` computes the result without taking SMs.

    With `fine=True`, the device is divided into the smallest units that the driver supports. Clusters of thread
    blocks may not fit into these units.

    The following keywords take one value for all partitions, or a mapping from names to values:

    - `priority`: the priority of the partition's stream. Lower numbers run first; the range on an H200 is 0 to -5.
    - `workqueue`: the scope of the partition's workqueues. "balanced" gives the partition separate queues if
      possible, and "device_ctx" gives it the device's common queues. A tuple such as ("balanced", 4) adds a limit:
      the expected number of streams that have work at the same time. This option needs CUDA 13.1 and has not run on
      hardware yet.
    - `coscheduled`: the number of SMs that are scheduled together, so that clusters fit; 0 is the device's default.
    - `preferred_coscheduled`: the size, in SMs, up to which the driver may merge sets of co-scheduled SMs.
    - `backfill`: True if the driver may fill up a partition with SMs that are not scheduled together.
    - `locality_domain`: the number of the locality domain to take SMs from, or "any". Needs CUDA 13.4.
    - `supplemental`: True if a partition may take more SMs of a larger locality domain than the driver counts per
      domain. Needs CUDA 13.5.

    The five options from `coscheduled` to `supplemental` need at least CUDA 13.1 and have not run on hardware yet. If
    one of these five options is given, counts are not rounded, every share must be exclusive (such as 16 or "rest"),
    and all SMs of the device must be free.

    `replace=True` first closes all open partitions of the device that earlier calls of `partition`,
    `TuningOutcome.partitions` or `TuningOutcome.apply` created, so that a notebook cell can run again. Plan sets and
    the contexts of drop-ins, such as `GreenContext`, stay open. If the request would not fit even without the earlier
    partitions, the earlier partitions stay open. A closed partition can still hold its SMs (see `Partition.close`). If
    too few SMs are free, `partition` raises RuntimeError, and the earlier partitions stay closed. A "rest" and a share
    without a ceiling take what is free, without an error: if a notebook keeps or displays `part.stream`, they become
    smaller with each run of the cell.

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
        """The number of SMs that no other partition may use."""
    @property
    def sm_count(self) -> int:
        """The number of SMs that the partition may use: its ceiling."""

@final
class DryRun:
    """The result of a dry run: the partitions that `partition` would have created at that moment. A dry run takes no
    SMs, so other code may have taken SMs in the meantime.
    """
    @property
    def fits(self) -> bool:
        """Whether `partition` would create all partitions."""
    @property
    def reason(self) -> str | None:
        """The reason why the request does not fit, with the text with which the exception of `partition` would begin. None
        if the request fits.
        """
    @property
    def nearest(self) -> list[str]:
        """If the request does not fit: shares that would fit instead, as text, in the order of the request. The list is
        empty if the request fits or if no such shares are known.
        """
    @property
    def groups(self) -> dict[str, DryRunGroup]:
        """A dict from the name of each partition to the SMs that the partition would get, in the order of the request.
        The dict is empty if the request does not fit.
        """
    @property
    def unit(self) -> int | None:
        """The smallest number of SMs that the driver gives at a time; None if the request does not fit."""
    @property
    def remainder(self) -> int | None:
        """The number of SMs that no partition would use. If one partition takes the rest, this is the number of SMs of
        that partition. None if the request does not fit.
        """
    @property
    def free_for_floors(self) -> int | None:
        """The number of SMs that would remain for the floors of later requests. None if the request does not fit. An
        unbounded share ("32..", "..") leaves no SMs for later floors.
        """
    @property
    def quarantined(self) -> int | None:
        """The number of SMs in quarantine; None if the request does not fit. No partition gets these SMs, because the
        library could not record the work of the context that used them before. `partition` tries again to record that
        work, and can use the SMs if this succeeds. A dry run does not try.
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
    """Computes the partitions that `partition` would create for the same arguments, without taking SMs.

        dry_run({"decode": 17, "prefill": "rest"}).groups["decode"].sm_count   # 24

    If too few SMs are free, or if open partitions divide the device into units of another size, `fits` is False and
    `reason` explains the cause. An invalid request, such as a share of 0 SMs, raises an exception.
    """

@final
class Fit:
    """The number of blocks of a kernel that fit on a partition's SMs at the same time, according to the driver. `str()`
    of a fit has one line per figure.

    The figures are for SMs on which nothing else runs. Other work in the partition, whether submitted earlier or to
    other streams, occupies part of the SMs until that work is done.
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
        """The number of blocks per cluster in each dimension. The argument `cluster` sets this size, or the kernel
        itself requires it. None if the kernel is launched without clusters.
        """
    @property
    def cooperative(self) -> bool:
        """Whether the launch is cooperative, so that all blocks of the grid must run at the same time."""
    @property
    def sm_count(self) -> int:
        """The number of SMs of the partition."""
    @property
    def shared_sms(self) -> int:
        """The number of the partition's SMs that other partitions may use too. The figures count these shared SMs in
        full, although blocks run there only while the other partitions leave space.
        """
    @property
    def blocks_per_sm(self) -> int:
        """The number of blocks that one SM can hold; 0 if no SM can run such a block."""
    @property
    def resident_blocks(self) -> int:
        """The maximum number of blocks that can be resident on the partition's SMs at the same time; 0 if not even one
        block or cluster fits.
        """
    @property
    def clusters(self) -> dict[int, int]:
        """A dict from each cluster size to the number of clusters that fit at the same time. The keys are the sizes that
        fit, out of 1, 2, 4, 8 and 16. The dict is empty on devices before compute capability 9.0. If the kernel
        requires a cluster size, only that size is a key.
        """
    @property
    def largest_cluster(self) -> int:
        """The number of blocks in the largest cluster that fits, regardless of the argument `cluster`; 0 if no cluster
        fits.
        """
    @property
    def fits(self) -> bool:
        """Whether the launch can run. All blocks of a cooperative launch must fit at the same time; for other
        launches, one block or cluster must fit.
        """
    @property
    def fits_at_once(self) -> bool:
        """Whether all blocks of the grid can be resident on the SMs at the same time, so that the blocks can wait for
        each other.
        """
    @property
    def cooperative_blocks(self) -> int:
        """The maximum number of blocks in a cooperative launch. All blocks of such a launch must be resident at the same
        time.
        """
    @property
    def persistent_grid(self) -> tuple[int, int, int]:
        """The grid for a persistent kernel: as many blocks as fit at the same time, in whole clusters. The first
        dimension of the grid is 0 if not even one block or cluster fits.
        """
    def collective_blocks(self, concurrent: SupportsIndex = 1) -> int:
        """Returns the maximum number of blocks (CTAs) that each of `concurrent` collectives may use. The collectives run
        on these SMs at the same time, on streams that do not wait for each other.
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
    """Asks the driver how many blocks of a kernel fit in a partition, without launching the kernel.

        fit(compiled, parts["decode"], grid=64, block=128, cooperative=True).fits

    `kernel` is a `CUfunction` or `CUkernel` of cuda.bindings, or an object with such a handle in its attribute
    `handle` (cuda.core) or `function` (compiled Triton kernels). `kernel` can also be the address of a CUfunction, or
    the address of a CUkernel if `handle_type` is "CUkernel". The kernel must be alive, and a CUfunction must belong
    to the partition's device.

    `partition` is a Partition or a GreenContext. `grid`, `block` and `cluster` are each a number or a tuple of up to
    three numbers. `shared_memory` is the dynamic shared memory per block, in bytes.

    A launch that does not fit raises no exception, but `fits` of the result is False. Raises ValueError if a
    dimension is 0, if the cluster does not divide the grid, or if the cluster is not the one that the kernel
    requires.
    """

@disjoint_base
class SMPartition:
    """Some SMs of a device, described but not reserved. A GreenContext that is created from the description takes the
    SMs.

    `SMPartition.from_device()` describes all SMs of a device, `split` describes parts of them, and
    `GreenContext.sm_partition` describes those of a context. Two contexts cannot be open at the same time if both
    come from the same SMPartition, or if one comes from an SMPartition and the other from a part of it.
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
        """Divides the SMs into groups. Returns two values: a tuple of the groups, and the remaining SMs. The second
        value is None if no SMs remain.

        Each argument is one value, or a sequence with one value per group. `num_sms` is never rounded. `num_sms=0`
        takes as many SMs as can be scheduled together, which is 120 of the 132 SMs of an H200.

        A split by `num_sms` alone needs CUDA 12.5, and on 12.4 equal counts. The other arguments need 13.1, and locality domains
        need CUDA 13.4. These other arguments have not run on hardware yet, and apply only to a split of all SMs of a
        device. While a context uses a group of such a split, all other contexts of the device must use groups of the
        same split.

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
        """The number of SMs that are scheduled together, so that clusters fit on them."""
    @property
    def locality_domain_id(self) -> int | None:
        """The requested locality domain, or None. Raises RuntimeError if the driver is older than CUDA 13.4."""

def get_num_locality_domains(device_id: _Device = None) -> int:
    """Returns the number of locality domains of a device. If the driver is older than CUDA 13.4, it does not support
    locality domains, and the result is 1.
    """
def is_localization_supported(device_id: _Device = None) -> bool:
    """Returns whether a device has more than one locality domain."""

@disjoint_base
class GreenContext:
    """A CUDA green context: some of a GPU's SMs for torch's work. No other context or partition uses these SMs, except if
    this context was created with neither `num_sms` nor `sm_partition`, or by the replacement for FlashInfer.

        context = GreenContext.create(num_sms=16)
        with context:
            y = a @ b

    `with context:` makes a stream of the context torch's current stream on this thread. Work submitted before the
    block runs before the block's work, and work submitted after the block runs after it. Blocks can be nested, even
    blocks of the same context. A block can also be inside a graph capture. Entering and leaving a block affects only
    the calling thread. `set_context` and `pop_context` are for programs that already use these methods of torch. Both
    methods change the thread's CUDA context too.

    The SMs are free again when the object is dropped or closed and the program holds no stream of the context.
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
        """Creates a context with `num_sms` SMs, rounded up to a count that the device can give, or with the SMs that an
        `SMPartition` describes.

        With `workqueue_scope` alone (CUDA 13.1), the context has no floor. Such a context shares every SM that is in no
        floor at the time of its creation. While such a context is open, no SMs are available for new floors, so create
        this context last. One of the three is required.

        Accepts the arguments of torch 2.11. The arguments that newer versions added are accepted as keywords.
        `device_id=None` selects torch's current device.

        Raises RuntimeError if the device has fewer than `num_sms` SMs, if other partitions hold the SMs, or if the
        device does not exist. Raises ValueError for an unknown workqueue scope. If the call fails, no context is
        created.
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
        """Divides all SMs of a device into groups, as `SMPartition.split` does, and creates a context for each group. If
        one context cannot be created, no context is created. The workqueue arguments apply to each context. SMs that
        belong to no group stay free.
        """
    @staticmethod
    def max_workqueue_concurrency(device_id: _Device = None) -> int:
        """Returns the maximum `workqueue_concurrency_limit` that a device accepts. Needs CUDA 13.1."""
    def set_context(self) -> None:
        """Makes the context current on this thread, and its own stream torch's current stream. The stream waits for
        work already submitted to the previously current stream.

        While the context is current, the handle of a CUDA default stream refers to this context's default stream. So
        `torch.cuda.default_stream()` is one stream inside the context and a different stream outside, and no ordering
        exists between these two streams. For this reason torch 2.14 deprecated `set_context` and `pop_context`, and
        both methods give a FutureWarning. `with context:` changes only the current stream, not the current context.

        Raises RuntimeError if this thread is already in the context.
        """
    def pop_context(self) -> None:
        """Restores the context and the stream that were current before `set_context`. The restored stream waits for the
        work submitted in the context.

        Deprecated, like `set_context`.

        Raises RuntimeError if the context is not the one that this thread set last. If the call fails, nothing
        changes.
        """
    def __enter__(self: _T) -> _T: ...
    def __exit__(self, *_raised: object) -> None: ...
    def Stream(self) -> torch.cuda.ExternalStream:
        """Returns a torch.cuda.ExternalStream of the context. A context has at most 32 such streams; later calls return
        the same streams again in order, as in torch. Work on these streams is not ordered with work on other streams.
        """
    @property
    def sm_count(self) -> int:
        """The number of SMs that the context's work can run on. A requested number is rounded up to one that the device
        can give.
        """
    @property
    def sm_partition(self) -> SMPartition:
        """The context's SMs as an SMPartition, which can be split. Once this context is closed, other contexts can be
        created from this SMPartition or from parts of it.
        """
    @property
    def locality_domain_id(self) -> int | None:
        """The requested locality domain, or None. Raises RuntimeError if the driver is older than CUDA 13.4."""
    @property
    def requested(self) -> int | None:
        """The requested number of SMs; None if no number was requested."""
    @property
    def device_id(self) -> int:
        """The device's ordinal."""
    @property
    def id(self) -> int:
        """The driver's ID of the context. Profilers report this ID, and `audit` reports it as `context_id`. A later
        partition of the same SMs may have the same context and ID.
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
        """Closes the context. Its SMs are free again as soon as the program holds no stream of the context and no thread
        is in the context. A thread in a closed context can still call `pop_context`, which restores the previous
        context and stream.
        """

def supported() -> bool:
    """Returns whether the installed driver has green contexts (CUDA 12.4 or newer)."""
def sm_limits(device: SupportsIndex) -> tuple[int, int, int, int]:
    """Returns four numbers of SMs for a device: all its SMs, the smallest partition, the alignment, and the unit to
    which counts are rounded.
    """
def split_green(
    device: SupportsIndex, counts: Sequence[int], name: str, exact: bool = True
) -> list[GreenContext]:
    """Creates contexts with exactly these numbers of SMs, or with at least as many if `exact` is False. If one context
    cannot be created, no context is created. The contexts share no SMs with each other. Other contexts without a
    floor may use the same SMs.
    """

@final
class Plan(Mapping[str, Partition]):
    """A plan of a `PlanSet`: a mapping from names to the partitions of the plan."""
    @property
    def name(self) -> str:
        """The plan's name."""
    @property
    def partitions(self) -> Partitions:
        """The partitions by name. Work can be submitted to the partitions while the plan is active."""
    def __getitem__(self, name: str, /) -> Partition: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...

@final
class PlanSet(Mapping[str, Plan]):
    """Several divisions of the same SMs, called plans. One plan is active at a time.

        plans = PlanSet({
            "day": {"decode": 16, "prefill": "rest"},
            "night": {"decode": 64, "prefill": "rest"},
        })
        with plans.switch("night")["decode"]:
            y = a @ b

    `plans` maps the name of each plan to a division in the form that `partition` takes. A plan set is a mapping from
    names to plans, and a plan is a mapping from names to partitions. `with PlanSet(...) as plans:` closes the set at
    the end of the block.

    The contexts and streams of all plans are created in advance, so a switch costs only a few CUDA events. Initially,
    the first plan is active. The set holds all free SMs of the device, or `sm_count` of them. `fine` means the same
    as in `partition`.

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
        """Prepares another plan, and returns it. Creates only the contexts and streams that no other plan of the set has
        yet.
        """
    def switch(self, name: str | Plan, fence: bool = True, drain_ms: float | None = None) -> Plan:
        """Makes a plan active, and returns it. `name` is the name of a plan, or a plan of this set.

        After the switch, work submitted to the new plan's partitions waits on the device for the previous plan's work
        on the same SMs. With `fence=False`, the new work does not wait. With `drain_ms`, the host first waits, for at
        most this number of milliseconds, until the previous plan's work is done.

        End all blocks of the previous plan first, on this thread and on others. A switch does not end them, and their
        later work still runs on the previous plan's SMs, at the same time as the new plan's work.

        Raises RuntimeError if the previous plan's work is not done within `drain_ms`. After this error or an
        interrupt, nothing has changed.
        """
    def retire(self, name: str) -> None:
        """Removes a plan, which must not be active, and closes its partitions."""
    def close(self) -> None:
        """Closes the partitions of all plans. The SMs are free again as soon as no thread is inside a partition of the
        set, and the program holds none of the objects that `Partition.close` lists. Running work continues, and the
        next owner of the SMs waits for that work on the device.
        """
    def __getitem__(self, name: str, /) -> Plan: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __enter__(self) -> PlanSet: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class RetargetedGraph:
    """A copy of a graph whose kernels run in a partition. The copy uses the memory of the original graph, and keeps the
    original alive.
    """
    @property
    def partition(self) -> Partition:
        """The partition that the graph runs in."""
    @property
    def raw(self) -> int:
        """The driver's handle of the executable graph, a CUgraphExec."""
    def replay(self) -> None:
        """Launches the graph on the partition's stream. The graph waits for work already submitted to that stream, but
        for no other work. If another stream writes the graph's inputs, make the partition's stream wait for the other
        stream.
        """

def retarget(graph: _Graph | int, partition: Partition) -> RetargetedGraph:
    """Copies a captured graph so that its kernels, memory copies and memory fills run on a partition's SMs. The copy is
    ready to replay. The original does not change.

        retarget(graph, parts["decode"]).replay()

    `graph` is a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. If `graph` is an address, the
    CUgraph and everything that it uses must live as long as the result.

    Raises ValueError if a node cannot be moved or does not fit in the partition, or if the graph has nodes in several
    partitions: launch such a graph as it is. Nodes outside all partitions do not count. If the call fails, nothing is
    created.
    """

@final
class GraphCache:
    """A cache of retargeted graphs, one copy for each graph and partition. Once a copy exists, finding it costs only a
    dictionary look-up.

        cache = GraphCache()
        cache.get(graph, parts["decode"]).replay()

    The cache keeps the graphs and the partitions' SMs alive: call `forget` before closing a partition. A copy is a
    snapshot: call `forget_graph` after changing a graph, and before resetting it.
    """
    def __new__(cls) -> GraphCache: ...
    def get(self, graph: _Graph | int, partition: Partition) -> RetargetedGraph:
        """Returns the copy of a graph that runs in a partition. The first call creates the copy with `retarget`, and
        later calls return the same copy. `get` takes the arguments of `retarget` and raises the same exceptions. If
        the call fails, nothing is cached.
        """
    def forget(self, partition: Partition) -> None:
        """Drops the copies for a partition, which may already be closed. If the program still holds such a copy, the copy
        remains usable until the partition is closed.
        """
    def forget_graph(self, graph: _Graph | int) -> None:
        """Drops the copies of a graph. If the program still holds such a copy, the copy remains usable."""
    def clear(self) -> None:
        """Drops all copies."""
    def __len__(self) -> int: ...

@final
class Location:
    """The context that work runs in. The context determines the SMs that the work may use."""
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def context(self) -> str:
        """The name of the partition. "primary" means the primary context, which torch uses outside partitions.
        "borrowed" means a context that this library did not create.
        """
    @property
    def context_id(self) -> int:
        """The ID of the context, as in `Partition.id` and `GreenContext.id`."""
    @property
    def sm_count(self) -> int:
        """The number of SMs of the context."""
    @property
    def foreign(self) -> bool:
        """Whether this is a green context that this library did not create. The SMs of such a foreign context may belong
        to the floor of any partition.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class NodeAudit:
    """One node of a graph. `str()` of a node is one line of text."""
    @property
    def node(self) -> str:
        """The node's position in the graph, such as "3". The first node in the child graph of node 3 is "3.0"."""
    @property
    def kind(self) -> str:
        """The kind of node: "kernel", "memcpy", "memset", "host function", "child graph" or another kind."""
    @property
    def kernel(self) -> str | None:
        """The name of the kernel, if the driver reports it."""
    @property
    def location(self) -> Location | None:
        """The context that the node runs in. None if the node uses no SMs, or if the driver does not report the context.
        Before CUDA 13.2, the driver reports the contexts of kernel nodes only.
        """

@final
class Audit:
    """The locations of a graph's nodes. `str()` of an audit has one line per node."""
    @property
    def nodes(self) -> list[NodeAudit]:
        """The nodes, in the order in which the driver lists them. The nodes of a child graph come after the node that
        contains the child graph.
        """
    @property
    def locations(self) -> list[Location]:
        """The locations of the nodes, each listed once. A graph whose nodes all run in one partition has one location."""

def audit(graph: _Graph | int, device: _Device = None) -> Audit:
    """Asks the driver which partition each node of a captured graph runs in.

        print(audit(graph))

    `graph` is a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. The contexts of the graph's
    nodes must be alive, so the partitions in which the graph was captured must stay open. The bodies of conditional
    nodes are not included. If partitions of several plans have the same SMs, they share one context. To identify a
    partition, compare `context_id` with `Partition.id`.
    """

@final
class PartitionReport:
    """The SMs that one partition's blocks reported: first while the partition ran alone, and then while all partitions
    ran.
    """
    @property
    def name(self) -> str:
        """The partition's name. The name of a GreenContext is "GreenContext" followed by a number."""
    @property
    def id(self) -> int:
        """The ID of the partition's context, as in `Partition.id` and `GreenContext.id`."""
    @property
    def share(self) -> str | None:
        """The requested share as text: "16", "32..", "..=100" or "rest"."""
    @property
    def floor(self) -> int:
        """The number of SMs that no other partition may use."""
    @property
    def sm_count(self) -> int:
        """The number of SMs that the partition may use: its ceiling."""
    @property
    def observed_sms(self) -> frozenset[int]:
        """The IDs (`%smid`) of the SMs that the partition's blocks ran on while all partitions ran."""
    @property
    def alone_sms(self) -> frozenset[int]:
        """The IDs of the SMs that the partition's blocks ran on while the partition ran alone."""
    @property
    def floor_sms(self) -> frozenset[int]:
        """The IDs of the SMs of the partition's floor."""
    @property
    def intruded(self) -> frozenset[int]:
        """The IDs of the SMs of the partition's floor on which other partitions ran. The set is empty if no other
        partition ran on the floor.
        """
    @property
    def start_ns(self) -> int:
        """The time at which the partition's first block started while all partitions ran, in nanoseconds of the device's
        clock (`%globaltimer`).
        """
    @property
    def end_ns(self) -> int:
        """The time at which the partition's last block ended while all partitions ran, in nanoseconds of the device's
        clock (`%globaltimer`).
        """
    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """The partition's blocks from the time when all partitions ran, in grid order. Each entry has the ID of the
        block's SM and the block's start and end in nanoseconds.
        """
    @property
    def complete(self) -> bool:
        """Whether the partition, while it ran alone, used as many SMs as its ceiling allows, including its whole floor."""
    @property
    def within(self) -> bool:
        """Whether the partition, while all partitions ran, used its whole floor and only SMs that it had used alone."""
    @property
    def kept(self) -> bool:
        """Whether the partition got its whole share and used no other SMs: `complete` and `within` are True, and no
        other partition ran on its floor.
        """

@final
class Report:
    """The SMs that partitions ran on, as the blocks of a probe kernel reported them. Notebooks show the report as a
    picture.
    """
    @property
    def ok(self) -> bool:
        """Whether every partition ran on all of its SMs and on no other SMs, and no partition ran on another partition's
        floor.
        """
    @property
    def floors_kept(self) -> bool:
        """Whether no partition ran on another partition's floor."""
    @property
    def partitions(self) -> list[PartitionReport]:
        """The results of the partitions, in the order in which the caller passed them. A partition that was passed twice
        appears once. Under a reserve, the last result is that of work outside of partitions, which has no floor.
        """
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
        """Whether every partition, while it ran alone, used as many SMs as its ceiling allows."""
    @property
    def concurrent(self) -> bool:
        """Whether there was a moment at which all partitions were running. `ok` does not require this, because separate
        SMs do not guarantee that work runs concurrently.
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
    """Runs a probe kernel in several partitions at the same time, and reports the SMs that the blocks of the kernel ran
    on.

        report = verify(parts)
        assert report.ok, report

    `partitions` is a partition, a GreenContext, a mapping or an iterable of these, a plan, or a plan set. For a plan
    set, the active plan is verified. Without `partitions`, all open partitions and GreenContexts of the device are
    verified, including the contexts of drop-ins. The probe takes about a millisecond; other work on the same SMs
    makes it take longer.

    Raises ValueError if there is nothing to verify.
    """

@final
class TuningVerdict:
    """The verdict of tuning: how to run the jobs, and the gain."""
    @property
    def kind(self) -> Literal["sequential", "streams", "priority", "partition"]:
        """The way to run the jobs: "sequential" (all in one stream), "streams" (one stream per job), "priority" (streams
        with different priorities) or "partition".
        """
    @property
    def shares(self) -> dict[str, str]:
        """The share of each job, in the form that `partition` takes; ".." if the verdict is not to partition."""
    @property
    def priority(self) -> dict[str, int]:
        """The priority of each job's stream. Lower numbers run first."""
    @property
    def gain(self) -> float | None:
        """The advantage of the best partitions over the best arm without partitions: the ratio of their scores, minus 1.
        Under a bound, arms that are certain to meet it come before all others. None if the comparison was too short, or
        if one of the two arms does not exist, cannot keep up or finished no iteration of a job.
        """
    @property
    def interval(self) -> tuple[float, float] | None:
        """The lower and the upper end of the gain's 95 % interval. If the interval contains 0, the verdict is not to
        partition, unless a job has a floor, or partitions meet the bound, or come closest to it, and the rest does not.
        """
    @property
    def meets(self) -> bool:
        """Whether even the upper end of the 95 % interval is within the bound of the goal. True for goals
        without a bound.
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
    certain: bool | None
    blocks: int
    skipped: str | None

@final
class TuningOutcome:
    """The result of tuning: the verdict, and the measurements behind it. Notebooks show the outcome as a picture."""
    @property
    def verdict(self) -> TuningVerdict:
        """The verdict: how to run the jobs, and the gain."""
    @property
    def goal(self) -> str:
        """The goal as text."""
    @property
    def jobs(self) -> list[_TunedJob]:
        """The jobs, as dicts with the fields of the JSON: `name`, `key`, `arrival`, `host_bound`, `references`, `rate`
        and `capacity` (iterations per second when the job runs alone), and `solo` (iterations per second when the job
        runs alone, for each number of SMs).
        """
    @property
    def arms(self) -> list[_TunedArm]:
        """All arms (ways to run the jobs) that the search considered, as dicts with the fields of the JSON: `kind`,
        `shares`, `priority`, `stage`, `rates` (iterations per second), `latency_us`, `capacity`, `score`, `excess`,
        `certain` (whether the final comparison was certain to meet the bound), `blocks` and `skipped`.
        """
    @property
    def notes(self) -> list[str]:
        """Remarks for the reader, for example that the device drifted or that a function could not be captured."""
    @property
    def seconds(self) -> float:
        """The duration of the search, in seconds."""
    @property
    def drift(self) -> float:
        """The largest drift of any job's rate when the job runs alone. The drift compares the rates at the beginning, in
        the middle and at the end of the search: the highest rate divided by the lowest rate, minus 1.
        """
    @property
    def complete(self) -> bool:
        """Whether the search ran to its end. If `progress` ended the search, this is False, and the outcome is the best
        result so far.
        """
    def to_svg(self) -> str:
        """Returns a picture as SVG. Each arm is a point whose position shows the arm's effect on one job and on the
        other jobs.
        """
    def _repr_svg_(self) -> str: ...
    def to_json(self) -> str:
        """Returns the outcome as JSON, in the format of `green-ctx --json tune --show`."""
    def save(self, path: str | os.PathLike[str]) -> bool:
        """Writes the outcome to a file that `tuned` and `load_tuning` can read. If the environment variable
        GREEN_CTX_TUNE_DIR is set, a relative path starts at the directory that this variable names. Returns False and
        writes nothing if GREEN_CTX_TUNE_READ_ONLY is set, but not to 0 or an empty text.

        Raises OSError, and leaves an existing file unchanged, if the file cannot be written.
        """
    def apply(self, device: _Device = None) -> Applied:
        """Creates what the verdict recommends, and returns a mapping from the names of the jobs to partitions.

            with outcome.apply() as applied:
                with applied["decode"]:
                    step()

        If the verdict is to partition, each job has its own partition. Otherwise the partition of each job represents
        the whole device: its floor is 0, and its work may run on all SMs, in a plain stream. If the verdict is to run
        the jobs one after the other, all jobs have the same stream. Otherwise each job has its own stream, with the
        job's priority. So the blocks of a program run unchanged under every verdict; `watch` needs one to partition. The
        end of the outer block closes the partitions.

        `applied.verdict` is the verdict, and `applied.gain` and `applied.meets` are fields of the verdict. `device` has
        the same meaning as in `partitions`.

        Raises the same exceptions as `partition`.
        """
    @property
    def device(self) -> int | None:
        """The ordinal of the device that the outcome is for; None if `load_tuning` read the outcome."""
    def _plain(self, device: _Device) -> list[tuple[str, Partition]]: ...
    def partitions(self, device: _Device = None) -> Partitions:
        """Creates one partition per job, whatever the verdict is. The result is a `Partitions` object with the jobs'
        names, as from `green_ctx_torch.partition`.

        If the verdict is not to partition, each partition may use all SMs, and its stream has the job's priority. The
        same program therefore works for every verdict. By default, the partitions are on the device that the outcome
        is for. If `load_tuning` read the outcome, the default is torch's current device.

        Raises the same exceptions as `partition`.
        """

def load_tuning(path: str | os.PathLike[str]) -> TuningOutcome:
    """Reads an outcome from a file that `TuningOutcome.save`, `tuned` or the command `green-ctx tune --out` wrote. The
    outcome can be for any jobs and any request.

    Raises FileNotFoundError or another OSError if the file cannot be read, and ValueError if it does not contain an
    outcome.
    """

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
        """The number of measurement blocks so far."""
    @property
    def best(self) -> str | None:
        """A description of the best arm so far; None if there is no best arm yet."""

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
    def stored(self, path: str | os.PathLike[str]) -> TuningOutcome | str:
        """Returns the outcome in a file for these jobs and this request, or a text with the reason why the file cannot
        be used.
        """
    def run(
        self,
        works: Sequence[_Work],
        notes: Sequence[str],
        progress: Callable[[TuningProgress], object] | None,
    ) -> TuningOutcome:
        """Tunes the jobs. The tuner calls `progress` before each measurement block, and adds `notes` to the notes of the
        outcome.
        """

@final
class Curve:
    """How a job scales with its SMs. `print` shows a curve as a table, and a notebook shows it as a picture."""
    @property
    def points(self) -> list[tuple[int, float | None]]:
        """The curve as (number of SMs, median time of an iteration in µs), from the fewest SMs to the whole device. The
        time is None if the job does not run on this number of SMs, or if the measurement ended before it.
        """
    def within(self, loss: float = 0.05) -> int | None:
        """Returns the smallest measured number of SMs from which on the job loses at most this fraction of its full speed, or
        None if the spread hides it. Raises ValueError for a fraction below 0 or above 1.
        """
    def to_svg(self) -> str:
        """Returns a picture as SVG, with a mark at the number of SMs from which on the job is within 10 % of its full
        speed.
        """
    def _repr_svg_(self) -> str: ...
    def to_json(self) -> str:
        """Returns the curve as JSON, in the format of `green-ctx --json curve`."""

@final
class _CurveRequest:
    def __new__(
        cls, name: str, sms: Sequence[SupportsIndex] | None, device: _Device, budget: float | None
    ) -> _CurveRequest: ...
    @property
    def device(self) -> int:
        """The device's ordinal."""
    def run(
        self,
        works: Sequence[_Work],
        notes: Sequence[str],
        progress: Callable[[TuningProgress], object] | None,
    ) -> Curve:
        """Measures the curve. `progress` is called before each measurement block. `notes` are added to the curve's notes."""

def info(device: _Device = None) -> dict[str, Any]:
    """Returns a dict that describes the driver, the devices, and the ways to split each device. The dict has the fields
    of `green-ctx --json info`. `device` restricts the description to one device. Under a reserve, each device has a
    field `reserve` with the number of reserved SMs (`sm_count`) and of the other SMs (`rest`).

        info()["driver"]["version"]     # such as "13.0"
    """
def _immovable(device: int, graph: _Graph | int) -> str | None: ...
def _main(arguments: list[str]) -> int: ...
def _run_handle(original: Callable[[Any], Any], handle: Any) -> Any: ...
def _partition_here() -> int: ...
def current_floor(device: SupportsIndex) -> int | None:
    """Returns the floor, in SMs, of the partition to which torch's current stream of `device` on the calling thread
    belongs. Returns None if the stream is not in a partition.
    """
def current_sm_count(device: SupportsIndex) -> int | None:
    """Returns the number of SMs available to torch's current stream of `device` on the calling thread. Returns None if
    the stream is not in a partition.
    """
def _ordinal(dev: _Device) -> int: ...
def _stream_here() -> torch.cuda.ExternalStream | None: ...
def _compiled_in_partition() -> None: ...
def _capture_begins() -> tuple[int, torch.cuda.ExternalStream | None]: ...
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
    """The memory allocator of a device. All `Allocator` objects of one device share one state, which the allocator's C
    functions use too.

        allocator = Allocator()
        allocator.set_partition_limit("decode", 2 << 30)
        pool = allocator.mem_pool()
        with torch.cuda.use_mem_pool(pool), parts["decode"]:
            y = a @ b

    `use_mem_pool` applies to the calling thread only, and not to captures, which have a pool of their own: pass
    `pool=pool.id` to `torch.cuda.graph`. Functions that are compiled with CUDA graphs, and streams outside of the
    partition, have no limit. Memory that another thread allocates has no limit, unless that thread enters a pool too:
    one of its own, because two threads cannot use a pool at the same time.

    Above a limit, torch raises `torch.OutOfMemoryError`, and `snapshot()["last_error"]` is the reason. A limit also
    counts memory that torch has cached in a pool. torch returns this memory when the pool is deleted, and the memory of
    tensors that live longer in the next `torch.cuda.empty_cache()`. While the pool exists, `empty_cache` returns
    nothing. The memory holds the SMs of its partition, so delete the pool and the tensors before you close the partition.
    """
    def __new__(cls, device: _Device = None) -> Allocator: ...
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def limit(self) -> int | None:
        """The maximum number of bytes in use. None, the default, means no limit. Setting a limit frees no memory."""
    @limit.setter
    def limit(self, bytes: SupportsIndex | None, /) -> None: ...
    def set_partition_limit(self, name: str, bytes: SupportsIndex | None) -> None:
        """Limits the bytes in use on the streams of all partitions with this name, including partitions created later.
        None removes the limit.
        """
    def set_outside_limit(self, bytes: SupportsIndex | None) -> None:
        """Limits the bytes in use on streams outside any partition. None removes the limit."""
    def set_foreign_limit(self, bytes: SupportsIndex | None) -> None:
        """Limits the bytes in use on streams of green contexts that other libraries, including torch, created. None
        removes the limit.
        """
    def set_shareable(self, shareable: bool) -> None:
        """Sets whether new blocks have IPC handles. Freeing a block with an IPC handle takes longer."""
    def set_release_threshold(self, bytes: SupportsIndex) -> None:
        """Sets the number of unused bytes that the allocator keeps when the program synchronises with a stream, an event
        or a context. The default is 64 MiB.
        """
    @property
    def current_bytes(self) -> int:
        """The number of bytes in use."""
    @property
    def peak_bytes(self) -> int:
        """The greatest number of bytes in use since the peak was last reset."""
    def reset_peak(self) -> None:
        """Resets all peaks to the current usage."""
    def usage(self, partition: str | None = None) -> _Usage:
        """Returns a dict with the bytes and blocks in use, their peaks, the limit, and the numbers of allocations,
        refusals and failures. `partition` restricts the usage to streams of partitions with this name. Without
        `partition`, the usage covers all streams.

        The allocator keeps one account per partition name. The allocator drops accounts that have no limit and no
        memory in use, except for the 64 that were used most recently. Raises ValueError if the name has no account
        and belongs to no open partition.
        """
    def usage_outside(self) -> _Usage:
        """Returns the usage on streams outside any partition."""
    def usage_foreign(self) -> _Usage:
        """Returns the usage on streams of green contexts that other libraries, including torch, created."""
    def snapshot(self) -> _Snapshot:
        """Returns the state of the allocator at one moment, as a dict. The dict contains the usage in total, per
        partition and outside partitions, every block, and the last error of the C functions.
        """
    def ipc_handle(self, address: SupportsIndex) -> bytes:
        """Returns an IPC handle for the block that contains this address. Another process can open the block with the
        handle. The block must have been allocated while `set_shareable(True)` was in effect.
        """
    def empty_cache(self) -> None:
        """Returns memory to the device that the allocator keeps and that torch has freed. torch frees the memory of a pool
        only after the pool was deleted.
        """
    def mem_pool(self) -> torch.cuda.MemPool:
        """Returns a new torch.cuda.MemPool on the device, for use with torch.cuda.use_mem_pool in one thread."""

def library_path() -> str:
    """Returns the path of the shared library that exports the allocator's C functions. This library is the module's own
    file.
    """
def torch_allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """Returns the allocator for all devices as a torch.cuda.memory.CUDAPluggableAllocator. The first call creates the
    object. The object is never freed, because a torch.cuda.MemPool does not keep its allocator alive.
    """
def error_name(code: SupportsIndex) -> str | None:
    """Returns the name of an error code, such as cudaErrorInvalidValue for 1. Returns None for a code that CUDA 13.5
    does not define.
    """
def error_text(code: SupportsIndex) -> str:
    """Returns a short description of an error code."""
def profiler_start(device: _Device = None) -> None:
    """Starts data collection by the profiler under which the program runs. Without a profiler, the call does nothing."""
def profiler_stop(device: _Device = None) -> None:
    """Stops data collection by the profiler under which the program runs."""
def memory_info(device: _Device = None) -> tuple[int, int]:
    """Returns the free memory and the total memory of a device, in bytes."""
def host_register(
    address: SupportsIndex,
    bytes: SupportsIndex,
    flags: SupportsIndex = 0,
    device: _Device = None,
) -> None:
    """Page-locks host memory. The memory must stay in place until it is unregistered.

    `flags` is a combination of the flags of cudaHostRegister: 1 for all contexts (portable), 2 for mapped memory, 4
    for memory of an I/O device, and 8 for read-only memory.
    """
def host_unregister(address: SupportsIndex, device: _Device = None) -> None:
    """Unregisters the host memory at an address. No work on a device may still use the memory."""
def stream_create(partition: Partition | None = None, device: _Device = None) -> int:
    """Creates a stream in a partition, or in a device's primary context, and returns its handle, a CUstream. The SMs of
    the partition are not free until `stream_destroy` destroys the stream.
    """
def stream_destroy(stream: SupportsIndex, device: _Device = None) -> None:
    """Destroys a stream that `stream_create` created. The stream must not be used afterwards. Work already submitted to
    the stream continues.
    """
