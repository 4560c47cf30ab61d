"""Frees the workspaces of cuBLAS for streams of closed partitions.

Up to torch 2.14 each pair of a handle and a stream has a workspace, 32 MiB on an H200, and torch never frees the
workspace of a stream that is no longer used. torch can only free all workspaces together. A stream that is used
again gets another one from the allocator's cache. A captured graph contains the address of its workspace, so
nothing is freed while a graph is alive.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from green_ctx_torch import _seams

_graphs: weakref.WeakSet[Any] = weakref.WeakSet()


def note_graph(graph: Any) -> None:
    """Records that torch captures a graph."""
    _graphs.add(graph)


def release() -> None:
    """Frees all workspaces, unless a captured graph may use one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or _graphs or not torch.cuda.is_initialized():
        return
    clear = _seams.CLEAR_WORKSPACES.find()
    if clear is None:
        lacking = f"{_seams.CLEAR_WORKSPACES} is absent"
        _seams.warn(_seams.misfit([lacking], "cuBLAS's workspaces of closed partitions are not freed."))
        return
    clear()
