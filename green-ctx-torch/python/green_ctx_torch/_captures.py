"""Has torch capture and replay graphs in the partition that a thread is in.

`torch.cuda.graph` captures on a stream of torch's own, and so does what `torch.compile` does with
`mode="reduce-overhead"`: both would run on all SMs, whatever partition the thread is in. Installed when
torch first gets a stream of a partition.
"""

from __future__ import annotations

import sys
from typing import Any

from green_ctx_torch import _native, _workspaces

_HOME = "_green_ctx_torch_home"
_ENTERED = "_green_ctx_torch_entered"


def install() -> None:
    """Wraps `torch.cuda.CUDAGraph`'s methods, and inductor's manager of graphs where it is imported."""
    torch: Any = sys.modules.get("torch")
    graph: Any = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
    if hasattr(graph, "capture_begin") and not hasattr(graph, _HOME):
        _wrap_graph(graph)
    _wrap_trees()


def _wrap_graph(graph: Any) -> None:
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    def capture_begin(self: Any, *arguments: Any, **named: Any) -> None:
        _workspaces.note_graph(self)
        begin(self, *arguments, **named)
        try:
            home, entered = _native._capture_begins()
        except BaseException:
            end(self)
            raise
        setattr(self, _HOME, home)
        setattr(self, _ENTERED, entered)
        # It may have been imported since.
        _wrap_trees()

    def capture_end(self: Any) -> None:
        try:
            if getattr(self, _ENTERED, False):
                setattr(self, _ENTERED, False)
                _native._capture_ends(getattr(self, _HOME))
        finally:
            end(self)

    def replay_(self: Any) -> None:
        here = _native._partition_here()
        if here and getattr(self, _HOME) != here:
            raise RuntimeError(
                "the graph was not captured in the partition that it is replayed in, so its kernels "
                "would not run there; capture it inside of the partition's block, or move a "
                "CUDAGraph(keep_graph=True) there with green_ctx_torch.retarget"
            )
        replay(self)

    # Of graphs that were captured before.
    setattr(graph, _HOME, None)
    for wrapper, original in ((capture_begin, begin), (capture_end, end), (replay_, replay)):
        wrapper.__name__, wrapper.__doc__ = original.__name__, original.__doc__
        setattr(graph, original.__name__, wrapper)


def _wrap_trees() -> None:
    """Gives each partition graphs of its own of what `torch.compile` made: inductor has one manager of
    them a device, which warms up, captures and replays on one stream."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    manager = getattr(trees, "CUDAGraphTreeManager", None)
    if manager is None or hasattr(manager, _HOME):
        return
    run, get = manager._run, trees.get_manager

    def _run(self: Any, new_inputs: Any, function_id: Any) -> Any:
        here = _native._partition_here()
        if here == getattr(self, _HOME):
            return run(self, new_inputs, function_id)
        return _peer(self, here).run(new_inputs, function_id)

    def get_manager(*arguments: Any, **named: Any) -> Any:
        found = get(*arguments, **named)
        # Who asks wants to know what was run last, and that may have been in a partition.
        here = _native._partition_here() if found is not None else 0
        return _peers(found).get(here, found) if here else found

    def on_all(name: str) -> None:
        original = getattr(manager, name, None)
        if original is None:
            # Of other versions of torch.
            return

        def call(self: Any, *arguments: Any, **named: Any) -> None:
            for peer in list(_peers(self).values()):
                original(peer, *arguments, **named)
            original(self, *arguments, **named)
            if name == "shutdown":
                _peers(self).clear()

        call.__name__, call.__doc__ = name, original.__doc__
        setattr(manager, name, call)

    # The managers that inductor makes are for work in no partition.
    setattr(manager, _HOME, 0)
    manager._run = _run
    trees.get_manager = get_manager
    for name in ("set_to_running_backward", "shutdown", "mark_warmup_incomplete"):
        on_all(name)


def _peers(manager: Any) -> dict[int, Any]:
    """The managers of partitions, by their contexts' handles, beside one of inductor's."""
    peers: dict[int, Any] = vars(manager).setdefault("_green_ctx_torch_peers", {})
    return peers


def _peer(manager: Any, here: int) -> Any:
    """The manager of a partition that runs the same functions."""
    peers = _peers(manager)
    if here not in peers:
        peer = type(manager)(manager.device_index)
        setattr(peer, _HOME, here)
        peer.stream = _native._stream_here()
        # The functions, and what is known of them, by their ids; later ones too.
        for name, value in vars(manager).items():
            if name.startswith("id") and isinstance(value, dict):
                setattr(peer, name, value)
        peers[here] = peer
    peer = peers[here]
    # What functions that were added since say of their outputs.
    for name, value in vars(manager).items():
        if name.startswith("has_") and isinstance(value, bool):
            setattr(peer, name, value)
    return peer
