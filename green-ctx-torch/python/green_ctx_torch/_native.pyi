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
_Division: TypeAlias = Mapping[str, _Share] | Iterable[tuple[str, _Share]]
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
    """The SMs that a partition has for itself, its floor, and the most that it may use, its ceiling: None
    for no bound. Between the two it shares with whoever else may use them.

    Takes both, or text such as `"32.."`, `"16..48"`, `"..100"`, `".."`, `"16"`, `"25%.."` or `"rest"`. A plain count,
    `"16"`, is exclusive. Percentages count the SMs that are divided.

    A share equals text that stands for it: `Share(32) == "32.."`. Its hash is that of its own text, `str(share)`, so
    that a share and this text find each other in dictionaries; `"16..48"`, whose own text is `"16..=48"`, does not.
    """
    @overload
    def __new__(cls, floor: SupportsIndex = 0, ceiling: SupportsIndex | None = None) -> Share: ...
    @overload
    def __new__(cls, floor: str, ceiling: None = None) -> Share: ...
    @property
    def floor(self) -> int | None:
        """The SMs that no other partition may use; None if they depend on what is free, or are a percentage."""
    @property
    def ceiling(self) -> int | None:
        """The most SMs that it may use; None if there is no bound, or if it is a percentage."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Partition:
    """Some of a GPU's SMs, and a stream whose work runs on them and nowhere else.

    `with partition:` makes its stream torch's current one, and changes no CUDA context: torch's default stream and
    other streams are the same inside of the block and outside.
    """
    @property
    def name(self) -> str:
        """The name that it was given."""
    @property
    def requested(self) -> int | None:
        """The SMs that were asked for; None where no count was."""
    @property
    def share(self) -> str | None:
        """The share that was asked for, as text: "16", "32..", "..=100", "rest"."""
    @property
    def floor(self) -> int:
        """The SMs that no other partition may use: as many as were asked for, or the next count that the
        device can give.
        """
    @property
    def shared_with(self) -> list[tuple[str, int]]:
        """Who may use SMs of this partition beside it: names, and how many of its SMs each may use."""
    @property
    def sm_count(self) -> int:
        """The SMs that it may use, those that it shares included: its ceiling. For an exclusive partition
        its floor.
        """
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def id(self) -> int:
        """The driver's number of the context, which profilers report, and the `context_id` of an `audit`. Partitions
        of several plans that have the same SMs have one context, and so may a later partition of the same SMs.
        """
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    @property
    def stream(self) -> torch.cuda.ExternalStream:
        """The partition's stream as a torch.cuda.ExternalStream, made when first asked for."""
    @property
    def raw_stream(self) -> int:
        """The driver's handle of the partition's stream, a CUstream."""
    @property
    def raw_context(self) -> int:
        """The driver's handle of the partition's context, a CUcontext."""
    def create_stream(self, priority: SupportsIndex = 0) -> torch.cuda.ExternalStream:
        """Makes one more stream, a torch.cuda.ExternalStream. Lower priorities run first; what is outside
        of the driver's range, 0 to -5 on an H200, is the nearest in it. The partition's SMs stay taken as
        long as the stream lives.
        """
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def close(self) -> None:
        """Gives the SMs back, as soon as no stream of the partition is held any more. Work that is still running
        goes on, and the next partition of these SMs waits for it on the device. cuBLAS's workspaces are freed too,
        unless a graph of torch's lives, which may use one.
        """
    def __enter__(self) -> Partition: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Partitions(Mapping[str, Partition]):
    """Partitions by name, in the order in which they were asked for.

    `with partition(...) as parts:` closes them at the end of the block. `with parts["decode"]:` runs torch's work
    in one of them.
    """
    def __getitem__(self, name: str, /) -> Partition: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str, /, default: None = None) -> Partition | None:
        """The partition of a name, or a default where there is none."""
    @overload
    def get(self, key: str, /, default: Partition) -> Partition:
        """The partition of a name, or a default where there is none."""
    @overload
    def get(self, key: str, /, default: _T) -> Partition | _T:
        """The partition of a name, or a default where there is none."""
    def close(self) -> None:
        """Closes each of them."""
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
    """Divides a device into named partitions, each with a count of SMs, a share, or "rest" for all that
    remain:

        partition({"decode": 16, "prefill": "rest"})
        partition({"decode": "32..", "prefill": "..100"})

    No other partition of the process uses the SMs of its floor: all 16, or 32 of "32..". Above it a
    share may use SMs that others use too, up to its ceiling. A count that the device cannot give is
    rounded up: `requested` is what was asked for, `sm_count` what it became. With `fine` the device
    is cut as finely as the driver can, where clusters of blocks may not fit. `dry_run` says what there
    would be.

    The other keywords are one value for all partitions, or a mapping by name:

    - `priority`: of the partition's stream; lower numbers run first, 0 to -5 on an H200.
    - `workqueue`: queues of its own, "balanced" or "device_ctx", or with a limit, ("balanced", 4): how many
      streams' work is expected to go on at the same time. CUDA 13.1, not yet run on hardware.
    - `coscheduled`: how many SMs are scheduled together, so that clusters fit; 0 is the device's own
      count. `preferred_coscheduled`: into how large pieces the driver may merge them. `backfill`: whether
      SMs that are not scheduled together may fill a partition up. They need CUDA 13.1, have not been run
      on hardware yet, round nothing, and take plain counts of a device of which no SMs are held.
    - `locality_domain`: the number of the domain that the SMs are taken from, or "any". As `coscheduled`,
      from CUDA 13.4 on. `supplemental`: whether a larger domain gives more SMs than the driver counts for
      each, from CUDA 13.5 on.

    With `replace` the partitions that earlier calls, and `TuningOutcome.partitions`, made on the device are closed
    first, all of them, as by `close()`: a cell of a notebook that runs again gives the same partitions again.
    Sets of plans and the drop-ins' contexts stay. Where the request does not fit without those partitions either,
    they stay open. A thread that is inside of one goes on there, and keeps its SMs until it has left; so does a
    stream or a graph that the program still has. RuntimeError says so where that leaves too few SMs, and the former
    partitions are closed then.

    ValueError for what the device cannot give, RuntimeError where other partitions hold what is
    needed, the driver is too old or there is no usable driver. Nothing is created then.
    """

@final
class DryRunGroup:
    """What one partition would get."""
    @property
    def name(self) -> str:
        """The name."""
    @property
    def share(self) -> str:
        """The share asked for, as text: "16", "32..", "..=100", "rest"."""
    @property
    def floor(self) -> int:
        """The SMs that nobody else may use."""
    @property
    def sm_count(self) -> int:
        """The SMs that it may use: its ceiling."""

@final
class DryRun:
    """What `partition` would give at the moment of the dry run. Nothing is taken, so that others may
    have taken SMs since.
    """
    @property
    def fits(self) -> bool:
        """Whether `partition` would make all partitions."""
    @property
    def reason(self) -> str | None:
        """Why it would not, as its exception says; None where it fits."""
    @property
    def nearest(self) -> list[str]:
        """Where it does not fit, shares that would, in the order asked for and as text; empty where none are
        known.
        """
    @property
    def groups(self) -> dict[str, DryRunGroup]:
        """What each partition would get, by name and in the order asked for; empty where it does not fit."""
    @property
    def unit(self) -> int | None:
        """The smallest piece that the device is cut into, in SMs; None where it does not fit."""
    @property
    def remainder(self) -> int | None:
        """The SMs that no partition would use, or those of the one that takes the rest; None where it does
        not fit.
        """
    @property
    def free_for_floors(self) -> int | None:
        """The SMs that later floors could have; None where it does not fit. An unbounded share ("32..",
        "..") leaves none.
        """
    @property
    def quarantined(self) -> int | None:
        """The SMs in quarantine, since the work of a former user could not be recorded; None where it does not
        fit. `partition` tries again to record it and may have these SMs too; a dry run only reads.
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
    """What `partition` would give for the same arguments. Nothing is taken.

        dry_run({"decode": 17, "prefill": "rest"}).groups["decode"].sm_count   # 24

    Where SMs are missing, or the device is cut otherwise at the moment, the result says so. What
    `partition` could never take is an error here too, with the same message.
    """

@final
class Fit:
    """What fits at once of a kernel in one shape on a partition's SMs, by the driver's account. As text one
    line for each number.

    It is about the SMs when nothing else is on them: work that was submitted before, or to other
    streams of the partition, holds its share until it is done.
    """
    @property
    def kernel(self) -> str:
        """The kernel's name, or its address where the driver does not report it (before CUDA 12.3)."""
    @property
    def blocks(self) -> int:
        """The blocks of the grid."""
    @property
    def threads(self) -> int:
        """The threads of a block."""
    @property
    def shared_memory(self) -> int:
        """The dynamic shared memory of a block, in bytes."""
    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """The blocks of a cluster in each dimension: those asked for, or those that the kernel requires.
        None for a kernel that is launched without clusters.
        """
    @property
    def cooperative(self) -> bool:
        """Whether the launch is cooperative: all blocks of the grid run at the same time."""
    @property
    def sm_count(self) -> int:
        """The partition's SMs."""
    @property
    def shared_sms(self) -> int:
        """How many of them other partitions may use too. They count in full: blocks there come as the
        others leave room.
        """
    @property
    def blocks_per_sm(self) -> int:
        """How many of the blocks one SM holds; 0 for a block that no SM can run."""
    @property
    def resident_blocks(self) -> int:
        """How many of the blocks are on the SMs at once; 0 where not even one, or one cluster, fits."""
    @property
    def clusters(self) -> dict[int, int]:
        """The sizes of clusters that fit, of 1, 2, 4, 8 and 16 blocks, and how many of each there can be at
        once: from blocks to clusters. Empty before compute capability 9.0. A kernel that requires a size
        has that one alone.
        """
    @property
    def largest_cluster(self) -> int:
        """The blocks of the largest cluster that fits, whatever size was asked for; 0 where none does."""
    @property
    def fits(self) -> bool:
        """Whether the launch can run: a cooperative one where all its blocks are on the SMs at once, any
        other where one block or one cluster is.
        """
    @property
    def fits_at_once(self) -> bool:
        """Whether all blocks of the grid are on the SMs at once, so that they can wait for each other."""
    @property
    def cooperative_blocks(self) -> int:
        """The most blocks of a cooperative launch, all of which have to be there at once."""
    @property
    def persistent_grid(self) -> tuple[int, int, int]:
        """The grid that a persistent kernel should have: as many blocks as are there at once, in whole
        clusters. Its first side is 0 where not even one block or cluster fits.
        """
    def collective_blocks(self, concurrent: SupportsIndex = 1) -> int:
        """How many blocks (CTAs) each of so many collectives may use that run on these SMs at the same
        time, on streams that do not wait for each other.
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
    """Asks the driver how many blocks of a kernel a partition has room for, before anything is launched.

        fit(compiled, parts["decode"], grid=64, block=128, cooperative=True).fits

    The kernel is a `CUfunction` or `CUkernel` of cuda.bindings, an object that has one as its `handle`
    (cuda.core) or `function` (Triton's compiled kernels), or an address, of a CUfunction unless
    `handle_type` is "CUkernel". It must be alive, and a CUfunction of the partition's device. Of `grid`,
    `block` and `cluster` each is a number or a tuple of up to three; `shared_memory` is the dynamic shared
    memory of a block in bytes.

    ValueError for sides of 0, for clusters that do not divide the grid and for others than the kernel
    requires. What does not fit is no error: the numbers say so.
    """

@disjoint_base
class SMPartition:
    """Some SMs of a device, described and not reserved: a GreenContext of it takes them.

    `SMPartition.from_device()` describes all SMs of a device, `split` parts of them, and
    `GreenContext.sm_partition` those of a context. No two contexts that are open have SMs of one
    SMPartition, or of one and a part of it.
    """
    @staticmethod
    def from_device(device_id: _Device = None) -> SMPartition:
        """staticmethod(function) -> method

        Convert a function to be a static method.

        A static method does not receive an implicit first argument.
        To declare a static method, use this idiom:

             class C:
                 @staticmethod
                 def f(arg1, arg2, argN):
                     ...

        It can be called either on the class (e.g. C.f()) or on an instance
        (e.g. C().f()). Both the class and the instance are ignored, and
        neither is passed implicitly as the first argument to the method.

        Static methods in Python are similar to those found in Java or C++.
        For a more advanced concept, see the classmethod builtin.
        """
    def split(
        self,
        *,
        num_sms: SupportsIndex | Sequence[SupportsIndex] = 0,
        coscheduled_sm_count: SupportsIndex | Sequence[SupportsIndex] = 0,
        preferred_coscheduled_sm_count: SupportsIndex | Sequence[SupportsIndex] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_ids: SupportsIndex | Sequence[SupportsIndex | None] | None = None,
    ) -> tuple[tuple[SMPartition, ...], SMPartition | None]:
        """Divides the SMs into groups: a tuple of them, and what they leave, or None where nothing is left.

        Each argument is one value, or a sequence with one for each group. `num_sms` is never rounded; 0
        takes as many SMs as can be scheduled together, 120 of the 132 of an H200. `num_sms` alone works
        on every driver. The others need CUDA 13.1, and a locality domain CUDA 13.4; they are for all SMs
        of a device, and while a group of such a split is a context, the device has contexts of that split
        only. They have not run on hardware yet.

        ValueError for what is no count, flag or domain, or for sequences of different lengths;
        RuntimeError for what the device cannot give.
        """
    @property
    def device_id(self) -> int:
        """The device's ordinal."""
    @property
    def sm_count(self) -> int:
        """How many SMs there are."""
    @property
    def coscheduled_sm_count(self) -> int:
        """How many of them are scheduled together, so that clusters fit."""
    @property
    def locality_domain_id(self) -> int | None:
        """The locality domain that was asked for; None where none was. RuntimeError before CUDA 13.4."""

def get_num_locality_domains(device_id: _Device = None) -> int:
    """How many locality domains a device has: 1 where the driver knows none, which is before CUDA 13.4."""
def is_localization_supported(device_id: _Device = None) -> bool:
    """Whether a device has more than one locality domain."""

@disjoint_base
class GreenContext:
    """A CUDA green context: some of a GPU's SMs, which nobody else has unless no count was asked for, for
    torch's work.

    `with context:` makes a stream of the context torch's current one on this thread. Work submitted before the block
    comes before the block's work, and work submitted afterwards comes after it. Blocks nest, also of one context
    within itself, and each thread has its own. They can stand within the capture of a graph. `set_context` and
    `pop_context` are torch's calls for programs that use them: they change the thread's CUDA context too.

    The SMs are free again when the object and its streams are gone, or after `close`.
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
        """staticmethod(function) -> method

        Convert a function to be a static method.

        A static method does not receive an implicit first argument.
        To declare a static method, use this idiom:

             class C:
                 @staticmethod
                 def f(arg1, arg2, argN):
                     ...

        It can be called either on the class (e.g. C.f()) or on an instance
        (e.g. C().f()). Both the class and the instance are ignored, and
        neither is passed implicitly as the first argument to the method.

        Static methods in Python are similar to those found in Java or C++.
        For a more advanced concept, see the classmethod builtin.
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
        """staticmethod(function) -> method

        Convert a function to be a static method.

        A static method does not receive an implicit first argument.
        To declare a static method, use this idiom:

             class C:
                 @staticmethod
                 def f(arg1, arg2, argN):
                     ...

        It can be called either on the class (e.g. C.f()) or on an instance
        (e.g. C().f()). Both the class and the instance are ignored, and
        neither is passed implicitly as the first argument to the method.

        Static methods in Python are similar to those found in Java or C++.
        For a more advanced concept, see the classmethod builtin.
        """
    @staticmethod
    def max_workqueue_concurrency(device_id: _Device = None) -> int:
        """staticmethod(function) -> method

        Convert a function to be a static method.

        A static method does not receive an implicit first argument.
        To declare a static method, use this idiom:

             class C:
                 @staticmethod
                 def f(arg1, arg2, argN):
                     ...

        It can be called either on the class (e.g. C.f()) or on an instance
        (e.g. C().f()). Both the class and the instance are ignored, and
        neither is passed implicitly as the first argument to the method.

        Static methods in Python are similar to those found in Java or C++.
        For a more advanced concept, see the classmethod builtin.
        """
    def set_context(self) -> None:
        """Makes the context current on this thread, and a stream of its own torch's current one. That
        stream waits for what was submitted to the one that was current.

        Inside, the handle of a default stream means the context's own default stream: `torch.cuda.default_stream()`
        is another stream than outside, and nothing orders the two. torch deprecated both calls in 2.14 for
        that reason, and they warn with a FutureWarning. `with context:` makes the stream current and no context.

        RuntimeError where this thread is in the context already.
        """
    def pop_context(self) -> None:
        """Restores the context and the stream that were current before `set_context`. That stream waits for the
        work submitted in the context.

        Deprecated as `set_context` is.

        RuntimeError where the context is not the one that this thread set last; nothing changes then.
        """
    def __enter__(self: _T) -> _T: ...
    def __exit__(self, *_raised: object) -> None: ...
    def Stream(self) -> torch.cuda.ExternalStream:
        """A torch.cuda.ExternalStream of the context. There are at most 32, which then come again in
        order, as torch's do. Other streams do not wait for it, nor it for them.
        """
    @property
    def sm_count(self) -> int:
        """The SMs that its work can run on: as many as were asked for, or the next count that the device
        can give.
        """
    @property
    def sm_partition(self) -> SMPartition:
        """The same SMs as an SMPartition, to be described and split. A context can be made of them, or of
        parts of them, when this one is closed.
        """
    @property
    def locality_domain_id(self) -> int | None:
        """The locality domain that was asked for; None where none was. RuntimeError before CUDA 13.4."""
    @property
    def requested(self) -> int | None:
        """The SMs that were asked for; None where it has none of its own."""
    @property
    def device_id(self) -> int:
        """The device's ordinal."""
    @property
    def id(self) -> int:
        """The driver's number of the context, which profilers report, and the `context_id` of an `audit`. A later
        partition of the same SMs may have the same context.
        """
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    @property
    def raw_stream(self) -> int:
        """The driver's handle of the stream that `set_context` makes current, a CUstream."""
    @property
    def raw_context(self) -> int:
        """The driver's handle of the context, a CUcontext."""
    @property
    def partition(self) -> Partition:
        """The same SMs as a Partition, for `verify`, `retarget` and streams of other priorities."""
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def close(self) -> None:
        """Gives the SMs back, as soon as no stream of the context is held any more and it is set
        nowhere. Where it is set, `pop_context` puts back what was current all the same.
        """

def supported() -> bool:
    """Whether the installed driver has green contexts."""
def sm_limits(device: SupportsIndex) -> tuple[int, int, int, int]:
    """A device's SMs, the least of a partition, the alignment, and of what counts are multiples."""
def split_green(
    device: SupportsIndex, counts: Sequence[int], name: str, exact: bool = True
) -> list[GreenContext]:
    """Creates contexts with these numbers of SMs, or with at least as many unless `exact` is set: all of them, or none and an
    error. They share no SMs with each other. Other contexts without a floor may share any of them.
    """

@final
class Plan(Mapping[str, Partition]):
    """A prepared division of a set: its partitions by name."""
    @property
    def name(self) -> str:
        """The name."""
    @property
    def partitions(self) -> Partitions:
        """The partitions by name. Work can be submitted to them while the plan is the active one."""
    def __getitem__(self, name: str, /) -> Partition: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str, /, default: None = None) -> Partition | None:
        """The partition of a name, or a default where there is none."""
    @overload
    def get(self, key: str, /, default: Partition) -> Partition:
        """The partition of a name, or a default where there is none."""
    @overload
    def get(self, key: str, /, default: _T) -> Partition | _T:
        """The partition of a name, or a default where there is none."""

@final
class PlanSet(Mapping[str, Plan]):
    """SMs that are divided by one plan at a time:

        plans = PlanSet({
            "day": {"decode": 16, "prefill": "rest"},
            "night": {"decode": 64, "prefill": "rest"},
        })
        plans.switch("night")["decode"].stream

    It is a mapping of its plans, and a plan is one of its partitions. `with PlanSet(...) as plans:` closes it at the
    end of the block.

    The plans' contexts and streams are there from the start, so that a switch costs a few events. The
    first plan is the active one. The set takes all SMs of the device that are free, or `sm_count`.

    Errors are those of `partition`. Nothing is created then.
    """
    def __new__(
        cls,
        plans: Mapping[str, _Division] | Iterable[tuple[str, _Division]],
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
        """The SMs that the plans divide."""
    @property
    def plans(self) -> tuple[str, ...]:
        """The names of the plans that are prepared."""
    @property
    def active(self) -> Plan:
        """The plan that is active."""
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    def prepare(self, name: str, division: _Division) -> Plan:
        """Prepares one more plan: makes the contexts and streams that no other plan has."""
    def switch(self, name: str | Plan, fence: bool = True, drain_ms: float | None = None) -> Plan:
        """Makes a plan the active one, and returns it. What is submitted to its partitions from now on
        waits, on the device, for the former plan's work on the SMs that they take over; without
        `fence` nothing does. With `drain_ms` the host waits first, at most that long, until the
        former plan's work is done; RuntimeError where it is not, and nothing has changed then, as after an
        interrupt. Takes a plan's name, or a plan of this set.
        """
    def retire(self, name: str) -> None:
        """Forgets a plan, which must not be the active one, and closes its partitions."""
    def close(self) -> None:
        """Closes the partitions of all plans, and gives the SMs back. Work that still runs goes on, and whoever gets
        the SMs next waits for it on the device.
        """
    def __getitem__(self, name: str, /) -> Plan: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str, /, default: None = None) -> Plan | None:
        """The plan of a name, or a default where there is none."""
    @overload
    def get(self, key: str, /, default: Plan) -> Plan:
        """The plan of a name, or a default where there is none."""
    @overload
    def get(self, key: str, /, default: _T) -> Plan | _T:
        """The plan of a name, or a default where there is none."""
    def __enter__(self) -> PlanSet: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class RetargetedGraph:
    """A graph whose kernels run in a partition. It keeps the torch graph, whose memory it uses."""
    @property
    def partition(self) -> Partition:
        """The partition."""
    @property
    def raw(self) -> int:
        """The driver's handle, a CUgraphExec."""
    def replay(self) -> None:
        """Launches the graph on the partition's stream. It waits for what was submitted there before,
        and for nothing else: have that stream wait for whoever wrote the graph's inputs.
        """

def retarget(graph: _Graph | int, partition: Partition) -> RetargetedGraph:
    """A copy of a captured graph whose kernels, copies and fills run on a partition's SMs, ready to be
    replayed. The graph stays as it is.

    Takes a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph that lives as long as
    the result and what it uses.

    ValueError where a node cannot be moved or does not fit. Nothing is created then.
    """

@final
class GraphCache:
    """Keeps a copy of each graph for each partition that it was asked for in, so that replaying a graph
    elsewhere costs a look-up:

        cache = GraphCache()
        cache.get(graph, parts["decode"]).replay()

    It keeps the graphs, and the partitions' SMs: `forget` a partition before closing it. A copy is of the
    graph as it was: `forget_graph` after changing one, or before resetting it.
    """
    def __new__(cls) -> GraphCache: ...
    def get(self, graph: _Graph | int, partition: Partition) -> RetargetedGraph:
        """The copy of a graph that runs in a partition: the one that is kept, or a new one, which
        `retarget` makes. Takes and raises what `retarget` does; nothing is kept then.
        """
    def forget(self, partition: Partition) -> None:
        """Forgets what is kept for a partition, which may be closed. Who still has a copy keeps it."""
    def forget_graph(self, graph: _Graph | int) -> None:
        """Forgets what is kept for a graph. Who still has a copy keeps it."""
    def clear(self) -> None:
        """Forgets everything."""
    def __len__(self) -> int: ...

@final
class Location:
    """The SMs that work may use: those of a context."""
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def context(self) -> str:
        """The partition's name; "primary" for the primary context, where torch works outside of
        partitions, and "borrowed" for one that this library did not make.
        """
    @property
    def context_id(self) -> int:
        """The context's number, as `Partition.id` and `GreenContext.id` give it."""
    @property
    def sm_count(self) -> int:
        """The context's SMs."""
    @property
    def foreign(self) -> bool:
        """Whether it is a green context that this library did not make. Its SMs may be on any partition's floor."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class NodeAudit:
    """One node of a graph. As text a line."""
    @property
    def node(self) -> str:
        """The node's position in the graph: "3", and "3.0" in the child graph that node 3 is."""
    @property
    def kind(self) -> str:
        """What it does: "kernel", "memcpy", "memset", "host function", "child graph", and others."""
    @property
    def kernel(self) -> str | None:
        """The name of a kernel, where the driver reports it."""
    @property
    def location(self) -> Location | None:
        """Where it runs. None for what uses no SMs, and where the driver does not report it: before
        CUDA 13.2 it reports the contexts of kernels only.
        """

@final
class Audit:
    """Where each node of a graph runs. As text a line for each node."""
    @property
    def nodes(self) -> list[NodeAudit]:
        """The nodes in the driver's order, those of a child graph after the child's node."""
    @property
    def locations(self) -> list[Location]:
        """Where nodes run, each place once: one for a graph that stays in one partition."""

def audit(graph: _Graph | int, device: _Device = None) -> Audit:
    """Asks the driver where the nodes of a captured graph run: in which partition, or outside of all.

    Takes a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. The contexts of its nodes
    must be alive: keep the partitions that it was captured in. What conditional nodes decide about is not
    looked into. Plans of the same SMs have one context: `Partition.id` says which.
    """

@final
class PartitionReport:
    """Where one partition ran, as its own blocks saw it: alone, and while all partitions did."""
    @property
    def name(self) -> str:
        """The partition's name; of a GreenContext "GreenContext" and a number."""
    @property
    def id(self) -> int:
        """The number of the partition's context, as `Partition.id` and `GreenContext.id` give it."""
    @property
    def share(self) -> str | None:
        """The share that was asked for, as text: "16", "32..", "..=100", "rest"."""
    @property
    def floor(self) -> int:
        """The SMs that no other partition may use."""
    @property
    def sm_count(self) -> int:
        """The SMs that the partition may use: its ceiling."""
    @property
    def observed_sms(self) -> frozenset[int]:
        """The ids of the SMs (`%smid`) that its blocks ran on while all partitions did."""
    @property
    def alone_sms(self) -> frozenset[int]:
        """The ids of the SMs that its blocks ran on alone."""
    @property
    def floor_sms(self) -> frozenset[int]:
        """The ids of the SMs of its floor."""
    @property
    def intruded(self) -> frozenset[int]:
        """The ids of the SMs of its floor on which other partitions ran: none where the floor was kept."""
    @property
    def start_ns(self) -> int:
        """When its first block started beside the others, in nanoseconds of the device's clock
        (`%globaltimer`).
        """
    @property
    def end_ns(self) -> int:
        """When its last block ended, in nanoseconds of the same clock."""
    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """Each block that ran while all partitions did, in the grid's order: the id of its SM, when it
        started and when it ended, in nanoseconds.
        """
    @property
    def complete(self) -> bool:
        """Whether the partition ran alone on as many SMs as it was given, its floor among them."""
    @property
    def within(self) -> bool:
        """Whether it ran beside the others on all of its floor, and only within its ceiling."""
    @property
    def kept(self) -> bool:
        """Whether it kept to its share and had it: it is complete and within its share, and nobody ran on
        its floor.
        """

@final
class Report:
    """Where partitions ran, as the blocks of a probe kernel saw it. Notebooks show it as a picture."""
    @property
    def ok(self) -> bool:
        """Whether every partition ran on all of its SMs and only there, and nobody else on those that are its
        own.
        """
    @property
    def floors_kept(self) -> bool:
        """Whether no partition ran on another's floor."""
    @property
    def partitions(self) -> list[PartitionReport]:
        """What was found of each partition, in the order given; a partition that was given twice is there
        once.
        """
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def device_name(self) -> str:
        """The device's name, such as "NVIDIA H200"."""
    @property
    def sm_count(self) -> int:
        """The device's SMs."""
    @property
    def compute_capability(self) -> tuple[int, int]:
        """The device's compute capability, (9, 0) on Hopper."""
    @property
    def disjoint(self) -> bool:
        """Whether no SM ran blocks of two partitions."""
    @property
    def complete(self) -> bool:
        """Whether every partition, alone, ran on as many SMs as it was given."""
    @property
    def concurrent(self) -> bool:
        """Whether there was a time at which every partition was running. No part of `ok`: disjoint SMs
        promise no concurrency.
        """
    def to_json(self) -> str:
        """The report as JSON, as `green-ctx --json verify` prints it."""
    def to_svg(self) -> str:
        """A picture: the SMs, coloured by partition, over a timeline of blocks."""
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
    """Runs a probe kernel in partitions at the same time, and reports on which SMs its blocks ran: a
    millisecond-long look at what really happens. Work that runs there meanwhile makes it take longer.

    Takes partitions, GreenContexts, a mapping of them, or a set of plans, of which the active one is
    looked at; without, all that are open on the device, the drop-ins' among them.

    ValueError where there are none.
    """

@final
class TuningVerdict:
    """What to do, and what it brings."""
    @property
    def kind(self) -> Literal["sequential", "streams", "priority", "partition"]:
        """How the jobs should have the device: "sequential", all in one stream, "streams", one each,
        "priority", streams of different priorities, or "partition".
        """
    @property
    def shares(self) -> dict[str, str]:
        """The share of each job, as `partition` takes them. ".." where the verdict is not to partition."""
    @property
    def priority(self) -> dict[str, int]:
        """The priority of each job's stream: lower numbers run first."""
    @property
    def gain(self) -> float | None:
        """How much better the best partition is than the best arm without partitions: the ratio of their scores minus 1.
        None where they were not compared for long enough.
        """
    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the gain's 95 % interval. Where it contains 0, the verdict is not to partition."""
    @property
    def meets(self) -> bool:
        """Whether the goal's bound is met by the upper end of its 95 % interval; True for goals without one."""
    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""

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
    """What tuning found: the verdict, and the figures that it rests on. Notebooks show it as a picture."""
    @property
    def verdict(self) -> TuningVerdict:
        """What to do, and what it brings."""
    @property
    def goal(self) -> str:
        """The goal, as text."""
    @property
    def jobs(self) -> list[_TunedJob]:
        """The jobs, as the JSON has them: a dict each with `name`, `key`, `arrival`, `host_bound`, `rate` and `capacity`
        in iterations a second alone, `references`, and `solo`, the iterations a second alone on so many SMs.
        """
    @property
    def arms(self) -> list[_TunedArm]:
        """Every arm that was looked at, as the JSON has them: a dict each with `kind`, `shares`, `priority`, `stage`,
        `rates` in iterations a second, `latency_us`, `capacity`, `score`, `excess`, `blocks` and `skipped`.
        """
    @property
    def notes(self) -> list[str]:
        """What a reader should know, such as that the device drifted or that a function could not be captured."""
    @property
    def seconds(self) -> float:
        """How many seconds the search took."""
    @property
    def drift(self) -> float:
        """How far a job's rate alone drifted, of the job that drifted most: the greatest to the smallest of its
        rates at the beginning, in the middle and at the end, minus 1.
        """
    @property
    def complete(self) -> bool:
        """Whether the search ran to its end; False where `progress` ended it, and this is the best so far."""
    def svg(self) -> str:
        """A picture: a point for each arm, which shows what it brings to one job and to the others."""
    def _repr_svg_(self) -> str: ...
    def to_json(self) -> str:
        """The outcome as JSON, as `green-ctx --json tune --show` prints it."""
    def save(self, path: str | os.PathLike[str]) -> bool:
        """Writes the outcome to a file, which `tuned` and `load_tuning` read. A relative name is in the folder
        that the environment variable GREEN_CTX_TUNE_DIR names, if it does. Returns False, and writes nothing,
        where GREEN_CTX_TUNE_READ_ONLY is set.

        OSError where the file cannot be written. A former file is as it was then.
        """
    def apply(self, device: _Device = None) -> Applied:
        """What the verdict says, ready to run: a mapping from the names of the jobs. `with applied["decode"]:` makes the
        job's stream torch's current one. It has the verdict's `verdict`, `gain` and `meets`.

        With partitions, each job has its own, and `with outcome.apply() as applied:` closes them. Without, each job has
        a stream of torch's, with its priority, and where the jobs are to run one after the other, all have one. The
        device is as in `partitions`.

        Raises what `partition` raises.
        """
    @property
    def device(self) -> int | None:
        """The ordinal of the device that it was found on; None of a file's."""
    def partitions(self, device: _Device = None) -> Partitions:
        """Partitions for the jobs, by their names, whatever the verdict is: what `green_ctx_torch.partition` returns.

        Where the verdict is not to partition, each may use all SMs and has its stream's priority, so that a
        program is the same for every verdict. The device is the one that it was found on, or, for what
        `load_tuning` returned, torch's current one.

        Raises what `partition` raises.
        """

def load_tuning(path: str | os.PathLike[str]) -> TuningOutcome:
    """Reads what `save` or `tuned` wrote, or the command `green-ctx tune --out`, whatever it was found for.

    FileNotFoundError, or another OSError, where the file cannot be read, ValueError where it holds no outcome.
    """

@final
class _PlainStream:
    def __new__(cls, ordinal: _Device, priority: SupportsIndex) -> _PlainStream: ...
    @property
    def raw_stream(self) -> int:
        """The driver's handle, a CUstream."""
    @property
    def stream(self) -> torch.cuda.ExternalStream:
        """The stream as a torch.cuda.ExternalStream, made when first asked for."""

@final
class TuningProgress:
    """How far a search is."""
    @property
    def step(self) -> str:
        """What is being done."""
    @property
    def spent(self) -> float:
        """The part of the budget that is spent, from 0 to 1."""
    @property
    def blocks(self) -> int:
        """How many blocks were measured."""
    @property
    def best(self) -> str | None:
        """The best arm so far, in words; None where there is none yet."""

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
        """Why copies of a graph cannot be made for partitions; None where they can."""
    def stored(self, path: str | os.PathLike[str]) -> TuningOutcome | str:
        """The outcome in a file for these jobs and this request, or text that says why it cannot be used."""
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
        """Tunes. `progress` is called before each block. These notes are added to the outcome's own."""

def info(device: _Device = None) -> dict[str, Any]:
    """The driver, the devices and what they can be split into, as `green-ctx --json info` prints them."""
def _main(arguments: list[str]) -> int: ...
def _run_handle(original: Callable[[Any], Any], handle: Any) -> Any: ...
def _partition_here() -> int: ...
def current_floor(device: SupportsIndex) -> int | None:
    """The SMs that nobody but torch's work on this thread's current stream of a device may use, of a partition; None for
    none.
    """
def current_sm_count(device: SupportsIndex) -> int | None:
    """The SMs that torch's work on this thread's current stream of a device can use, of a partition; None for
    none.
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
    """The allocator of a device, which the library's C functions use too: every object for the device
    stands for the same.
    """
    def __new__(cls, device: _Device = None) -> Allocator: ...
    @property
    def device(self) -> int:
        """The device's ordinal."""
    @property
    def limit(self) -> int | None:
        """The most bytes that may be in use; None for no limit, as at first. What is in use stays."""
    @limit.setter
    def limit(self, bytes: SupportsIndex | None, /) -> None: ...
    def set_partition_limit(self, name: str, bytes: SupportsIndex | None) -> None:
        """Limits the bytes that may be in use on streams of partitions of a name, now or later; None for no
        limit.
        """
    def set_outside_limit(self, bytes: SupportsIndex | None) -> None:
        """Limits the bytes that may be in use on streams that are in no partition; None for no limit."""
    def set_foreign_limit(self, bytes: SupportsIndex | None) -> None:
        """Limits the bytes that may be in use on streams of other libraries' green contexts, torch's own
        among them; None for no limit.
        """
    def set_shareable(self, shareable: bool) -> None:
        """Whether blocks are allocated from now on so that they have IPC handles, and are slower to free."""
    def set_release_threshold(self, bytes: SupportsIndex) -> None:
        """How many bytes that are not in use are kept when work is waited for; 64 MiB at first."""
    @property
    def current_bytes(self) -> int:
        """The bytes in use."""
    @property
    def peak_bytes(self) -> int:
        """The most bytes that were in use since the peak was last reset."""
    def reset_peak(self) -> None:
        """Lets all peaks begin again at what is in use."""
    def usage(self, partition: str | None = None) -> _Usage:
        """Bytes and blocks in use, their peaks, what was refused, and the limit: in total, or on streams of
        partitions of a name.

        What has nothing in use and no limit is remembered for the 64 names that were used last. ValueError
        for a name that is not remembered and no open partition has.
        """
    def usage_outside(self) -> _Usage:
        """The usage on streams that are in no partition."""
    def usage_foreign(self) -> _Usage:
        """The usage on streams of other libraries' green contexts, torch's own among them."""
    def snapshot(self) -> _Snapshot:
        """The state of the allocator at one moment: usage in total, of each partition, and outside of
        them, every block, what the C functions could not do last.
        """
    def ipc_handle(self, address: SupportsIndex) -> bytes:
        """The handle by which another process opens the block that an address is in, which was allocated
        while the allocator was shareable.
        """
    def empty_cache(self) -> None:
        """Gives back to the device what is not in use. torch keeps freed memory for itself:
        torch.cuda.empty_cache() comes first.
        """
    def mem_pool(self) -> torch.cuda.MemPool:
        """A new torch.cuda.MemPool of the device, for torch.cuda.use_mem_pool."""

def library_path() -> str:
    """The file of the library that exports the allocator's C functions: this module's own."""
def torch_allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """The allocator as a torch.cuda.memory.CUDAPluggableAllocator, for all devices, made when first asked
    for. It is kept, since a torch.cuda.MemPool does not keep its allocator.
    """
def error_name(code: SupportsIndex) -> str | None:
    """The name of an error code, cudaErrorInvalidValue for 1; None for one that CUDA 13.5 does not have."""
def error_text(code: SupportsIndex) -> str:
    """What an error code means, in a few words."""
def profiler_start(device: _Device = None) -> None:
    """Has the profiler that the program runs under collect from now on; without one nothing happens."""
def profiler_stop(device: _Device = None) -> None:
    """Has the profiler that the program runs under collect no longer."""
def memory_info(device: _Device = None) -> tuple[int, int]:
    """The bytes of a device's memory that are free, and that there are."""
def host_register(
    address: SupportsIndex,
    bytes: SupportsIndex,
    flags: SupportsIndex = 0,
    device: _Device = None,
) -> None:
    """Page-locks memory of the host, which must stay where it is until it is unregistered. The flags are
    cudaHostRegister's: 1 for all contexts, 2 mapped, 4 of a device, 8 only read.
    """
def host_unregister(address: SupportsIndex, device: _Device = None) -> None:
    """Ends what host_register did for an address. No work on a device may use the memory any more."""
def stream_create(partition: Partition | None = None, device: _Device = None) -> int:
    """Makes a stream of a partition, or of a device outside of partitions, and returns its handle, a
    CUstream. It is the caller's to destroy, before the partition is closed.
    """
def stream_destroy(stream: SupportsIndex, device: _Device = None) -> None:
    """Destroys a stream that stream_create made, which nothing may use afterwards. What was submitted to
    it goes on.
    """
