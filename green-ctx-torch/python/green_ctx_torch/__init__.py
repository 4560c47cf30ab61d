"""Partitions of one GPU's SMs for PyTorch.

    import green_ctx_torch

    parts = green_ctx_torch.partition({"decode": "32..", "prefill": "..100"})
    with parts["decode"]:
        ...  # torch's work has 32 SMs for itself, and uses the others while prefill leaves them idle

Each partition has a share of the SMs: a count such as 16, text ("32..", "16..48", "..100", "..", "25%", "rest") or a
`Share`. The floor of a share is the number of SMs that no other partition may use, and the ceiling is the maximum
number of SMs that the partition may use. The SMs above the floor may be shared with other partitions. A count sets both
the floor and the ceiling. All partitions share the device's memory, caches and bandwidth.
"""

import sys
import sysconfig
from typing import TYPE_CHECKING

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError(
        "green_ctx_torch does not support free-threaded Python; use an interpreter with the GIL, such "
        "as python3.13 and not python3.13t"
    )
if sys.version_info < (3, 12):
    # Python 3.12 and newer refuse to import the native module in a subinterpreter.
    import _xxsubinterpreters  # type: ignore[import-not-found]

    if _xxsubinterpreters.get_current() != _xxsubinterpreters.get_main():
        raise ImportError("green_ctx_torch works only in the main interpreter; this is a subinterpreter")

# The native code uses these modules. They are complete before any public name exists, because a signal handler can
# run between two lines of an import and use the names that it finds.
from green_ctx_torch import _captures as _captures
from green_ctx_torch import _errors as _errors
from green_ctx_torch import _seams as _seams
from green_ctx_torch import _tasks as _tasks
from green_ctx_torch import _workspaces as _workspaces

# isort: split
from green_ctx_torch import allocator, flashinfer, green_contexts, sglang, sizing
from green_ctx_torch._errors import (
    ClosedError,
    DriverError,
    Error,
    InvalidRequestError,
    InvalidStateError,
    InvalidValueError,
    NoDriverError,
    UnavailableError,
    UnsupportedError,
)
from green_ctx_torch._native import (
    Audit,
    Curve,
    DryRun,
    DryRunGroup,
    Fit,
    GraphCache,
    GreenContext,
    Location,
    NodeAudit,
    Partition,
    PartitionReport,
    PlanSet,
    Partitions,
    Plan,
    Report,
    Reserve,
    RetargetedGraph,
    Share,
    TuningOutcome,
    TuningProgress,
    TuningVerdict,
    __version__,
    audit,
    dry_run,
    fit,
    info,
    load_tuning,
    partition,
    reserve,
    retarget,
    verify,
)
from green_ctx_torch._tuning import Applied, Job, curve, tune, tuned
from green_ctx_torch.sizing import floor, sm_count
from green_ctx_torch.watching import Escape, Oversized, Watch, watch

__all__ = [
    "Applied",
    "Audit",
    "ClosedError",
    "Curve",
    "DriverError",
    "DryRun",
    "DryRunGroup",
    "Error",
    "Escape",
    "Fit",
    "GraphCache",
    "GreenContext",
    "InvalidRequestError",
    "InvalidStateError",
    "InvalidValueError",
    "Job",
    "Location",
    "NoDriverError",
    "NodeAudit",
    "Oversized",
    "Partition",
    "PartitionReport",
    "PlanSet",
    "Partitions",
    "Plan",
    "Report",
    "Reserve",
    "RetargetedGraph",
    "Share",
    "TuningOutcome",
    "TuningProgress",
    "TuningVerdict",
    "UnavailableError",
    "UnsupportedError",
    "Watch",
    "__version__",
    "allocator",
    "audit",
    "curve",
    "dry_run",
    "fit",
    "flashinfer",
    "floor",
    "green_contexts",
    "info",
    "load_tuning",
    "partition",
    "reserve",
    "retarget",
    "sglang",
    "sizing",
    "sm_count",
    "tune",
    "tuned",
    "verify",
    "watch",
]

SUPPORTED: bool
"""True if green contexts can be used, as `torch.cuda.green_contexts.SUPPORTED`. See `green_contexts`."""


# A type checker that sees this function accepts every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> bool:
        if name == "SUPPORTED":
            return green_contexts.SUPPORTED
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
