"""Frees the workspaces that cuBLAS leaves on streams of closed partitions.

Up to torch 2.14 each pair of a handle and a stream keeps a workspace, 32 MiB on an H200, and nothing frees the one of
a stream that is never used again. torch can free all of them at once: a stream that is used again gets another from
the allocator's cache. A captured graph has its workspace's address in it, so nothing is freed while one lives.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

_graphs: weakref.WeakSet[Any] = weakref.WeakSet()


def note_graph(graph: Any) -> None:
    """Notes that a graph of torch's is captured."""
    _graphs.add(graph)


def release() -> None:
    """Frees all workspaces, unless a captured graph may use one."""
    torch: Any = sys.modules.get("torch")
    clear = getattr(getattr(torch, "_C", None), "_cuda_clearCublasWorkspaces", None)
    if clear is not None and torch.cuda.is_initialized() and not _graphs:
        clear()
