"""Frees the workspaces that cuBLAS leaves on streams of closed partitions.

Up to torch 2.14 each pair of a handle and a stream keeps a workspace, 32 MiB on an H200, and nothing frees the one of
a stream that is never used again. torch can free all of them at once: a stream that is used again gets another from
the allocator's cache. A captured graph has its workspace's address in it, so nothing is freed while one lives.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from green_ctx_torch import _seams

_graphs: weakref.WeakSet[Any] = weakref.WeakSet()


def note_graph(graph: Any) -> None:
    """Notes that a graph of torch's is captured."""
    _graphs.add(graph)


def release() -> None:
    """Frees all workspaces, unless a captured graph may use one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or _graphs or not torch.cuda.is_initialized():
        return
    clear = _seams.CLEAR_WORKSPACES.find()
    if clear is None:
        lacking = f"{_seams.CLEAR_WORKSPACES} is absent"
        _seams.warn(_seams.misfit([lacking], "cuBLAS's workspaces of closed partitions stay."))
        return
    clear()
