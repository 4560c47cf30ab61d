"""Partitions of one GPU's SMs for PyTorch.

    import green_ctx_torch

    parts = green_ctx_torch.partition({"decode": 16, "prefill": "rest"})
    with parts["decode"]:
        ...  # torch's work runs on 16 SMs

What runs in one partition never takes SMs of another. Memory and caches are shared.
"""

from green_ctx_torch._native import (
    Partition,
    PartitionSet,
    Partitions,
    Plan,
    Report,
    RetargetedGraph,
    Stream,
    __version__,
    info,
    partition,
    retarget,
    verify,
)

__all__ = [
    "Partition",
    "PartitionSet",
    "Partitions",
    "Plan",
    "Report",
    "RetargetedGraph",
    "Stream",
    "__version__",
    "info",
    "partition",
    "retarget",
    "verify",
]
