"""Partitions of one GPU's SMs for PyTorch.

    import green_ctx_torch

    parts = green_ctx_torch.partition({"decode": 16, "prefill": "rest"})
    with parts["decode"]:
        ...  # torch's work runs on 16 SMs

What runs in one partition never takes SMs of another. Memory and caches are shared.
"""

from green_ctx_torch import flashinfer, green_contexts, sglang, sizing
from green_ctx_torch._native import (
    GreenContext,
    Partition,
    PlanSet,
    Partitions,
    Plan,
    Report,
    RetargetedGraph,
    Share,
    __version__,
    info,
    partition,
    retarget,
    verify,
)
from green_ctx_torch.sizing import sm_count
from green_ctx_torch.watching import Escape, Watch, watch

__all__ = [
    "SUPPORTED",
    "Escape",
    "GreenContext",
    "Partition",
    "PlanSet",
    "Partitions",
    "Plan",
    "Report",
    "RetargetedGraph",
    "Share",
    "Watch",
    "__version__",
    "flashinfer",
    "green_contexts",
    "info",
    "partition",
    "retarget",
    "sglang",
    "sizing",
    "sm_count",
    "verify",
    "watch",
]

SUPPORTED: bool
"""As `torch.cuda.green_contexts.SUPPORTED`; see `green_contexts`."""


def __getattr__(name: str) -> bool:
    if name == "SUPPORTED":
        return green_contexts.SUPPORTED
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
