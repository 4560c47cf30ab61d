"""Frees the workspaces of cuBLAS for streams of closed partitions.

Up to torch 2.14, torch allocates a workspace (32 MiB on an H200) for each pair of a cuBLAS handle and a stream, and
never frees the workspace of a stream that is no longer used. torch can only free all workspaces together. When a stream
is used again, torch takes a new workspace from its allocator's cache. A captured graph contains the address of its
workspace, so this module frees nothing while a captured graph is alive.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Collection
from typing import Any

from green_ctx_torch import _seams

_graphs: weakref.WeakSet[Any] = weakref.WeakSet()
_are_noted = False


def note_earlier_graphs(*, are_noted: bool = False) -> None:
    """Remembers the graphs that exist. From the first call with `are_noted` on, `note_graph` is called for each new
    graph, and this function does nothing."""
    global _are_noted
    if _are_noted:
        return
    _are_noted = are_noted
    kind = _seams.CUDA_GRAPH.find()
    # `isinstance` would run code of proxies.
    if kind is not None:
        _graphs.update(each for each in gc.get_objects() if issubclass(type(each), kind))


def note_graph(graph: Any) -> None:
    """Remembers a graph that torch captures, until the graph is destroyed."""
    _graphs.add(graph)


def release(own: Collection[Any] = ()) -> None:
    """Frees all workspaces, unless a captured graph may use one. The graphs `own` use only workspaces of their own memory
    pools, which exist as long as the graphs."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    note_earlier_graphs()
    if any(graph not in own for graph in _graphs):
        return
    clear = _seams.CLEAR_WORKSPACES.find()
    if clear is None:
        lacking = f"{_seams.CLEAR_WORKSPACES} is absent"
        _seams.warn(_seams.misfit([lacking], "cuBLAS's workspaces of closed partitions are not freed."))
        return
    clear()
