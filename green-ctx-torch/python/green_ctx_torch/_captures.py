"""Makes torch capture and replay graphs in the partition that a thread is in.

`torch.cuda.graph` and `torch.compile(mode="reduce-overhead")` capture on streams that torch creates. Without this
module the captured graphs would run on all SMs, even if the thread is in a partition. The module wraps torch's methods
when torch first receives a stream of a partition.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from typing import Any

from green_ctx_torch import _native, _seams, _workspaces
from green_ctx_torch._errors import InvalidStateError, UnsupportedError

_HOME = "_green_ctx_torch_home"
_ENTERED = "_green_ctx_torch_entered"
_PEERS = "_green_ctx_torch_peers"
_RUNS = "_green_ctx_torch_runs"
_EVENTS = "_green_ctx_torch_events"

_WITHOUT_TREES = (
    "Work of functions that are compiled with CUDA graphs would leave the partition; compile functions that run "
    'in partitions with mode="max-autotune-no-cudagraphs" or "default".'
)

_managers: dict[int, Any] = {}
"""Weak references to inductor's graph managers that have peers (managers for partitions), keyed by the `id` of
inductor's manager."""

_closed: list[Any] = []
"""Graph managers of closed partitions that are still running, or whose outputs are still in use."""


def install() -> None:
    """Wraps the methods of `torch.cuda.CUDAGraph`, and inductor's graph manager if it is imported."""
    graph = _seams.CUDA_GRAPH.find()
    if not hasattr(graph, _HOME):
        _wrap_graph(graph)
    _wrap_trees()


def _wrap_graph(graph: Any) -> None:
    lacking = _seams.misfit(
        _seams.problems(_seams.GRAPHS),
        "Work of CUDA graphs that are captured in a partition would run on all SMs; capture and replay "
        "graphs outside partitions.",
    )
    if lacking is not None:
        _seams.warn(lacking)
        _refuse(graph, ("capture_begin", "replay"), lacking)
        return
    # For graphs that were captured earlier.
    setattr(graph, _HOME, None)
    _workspaces.note_earlier_graphs(are_noted=True)
    begin, replay = graph.capture_begin, graph.replay
    # From torch 2.14 on, `capture_end` calls `capture_end_pre`. From 2.15 on, `torch.cuda.graph` also calls the
    # latter itself if a capture fails to begin.
    end = _seams.CAPTURE_END_PRE.find() or graph.capture_end

    def enter(self: Any) -> None:
        home, stream = _native._capture_begins()
        setattr(self, _HOME, home)
        if stream is not None:
            # torch captures on a stream of the whole device. This stream joins the capture.
            cuda = sys.modules["torch"].cuda
            outer, block = cuda.current_stream(), cuda.stream(stream)
            block.__enter__()
            setattr(self, _ENTERED, (block, stream))
            stream.wait_stream(outer)

    def leave(self: Any) -> None:
        block, stream = getattr(self, _ENTERED, None) or (None, None)
        if block is not None:
            setattr(self, _ENTERED, None)
            block.__exit__(None, None, None)
            sys.modules["torch"].cuda.current_stream().wait_stream(stream)

    def capture_begin(self: Any, *arguments: Any, **named: Any) -> None:
        _workspaces.note_graph(self)
        setattr(self, _HOME, None)
        try:
            begin(self, *arguments, **named)
            # Older versions of torch run no hook, and newer ones ignore its errors.
            if getattr(self, _HOME) is None:
                try:
                    enter(self)
                except BaseException:
                    end(self)
                    raise
        except BaseException:
            leave(self)
            raise
        # Inductor's manager may have been imported since.
        _wrap_trees()

    def capture_end(self: Any) -> None:
        # The partition is left before the capture ends, because torch ends it on the stream on which it began.
        # Public hooks run after the end.
        try:
            leave(self)
        finally:
            end(self)

    def replay_(self: Any) -> None:
        # Not a public hook, because torch ignores the errors of hooks.
        here = _native._partition_here()
        if here and getattr(self, _HOME) != here:
            raise InvalidStateError(
                "the capture of the graph did not begin in the partition in which the graph is replayed, so its "
                "kernels may run elsewhere; put the partition's block around the capture, as in `with part, "
                "torch.cuda.graph(graph):`, or move a CUDAGraph(keep_graph=True) there with green_ctx_torch.retarget"
            )
        replay(self)
        if here:
            _native._graph_replayed()

    register = _seams.CAPTURE_START_HOOK.find()
    if register is not None:
        # A graph's own hooks run after this one, so their work is in the partition too.
        register(enter)
    for wrapper, original in ((capture_begin, begin), (capture_end, end), (replay_, replay)):
        _set(graph, wrapper, original)


def _set(owner: Any, wrapper: Any, original: Any) -> None:
    wrapper.__name__, wrapper.__doc__ = original.__name__, original.__doc__
    setattr(owner, original.__name__, wrapper)


def _refuse(owner: Any, names: tuple[str, ...], message: str) -> None:
    """Makes the named methods raise an error if the thread is in a partition, because their work would run outside the
    partition."""

    def refusing(original: Any) -> Any:
        def refused(self: Any, *arguments: Any, **named: Any) -> Any:
            if _native._partition_here():
                raise InvalidStateError(message)
            return original(self, *arguments, **named)

        return refused

    for name in names:
        if hasattr(owner, name):
            original = getattr(owner, name)
            _set(owner, refusing(original), original)
    if owner is not None:
        setattr(owner, _HOME, None)


def _wrap_trees() -> None:
    """Gives each partition its own CUDA graphs of the functions that `torch.compile` compiled. Inductor has one graph
    manager per device, which warms up, captures and replays on one stream."""
    manager = _seams.TREE_MANAGER.find()
    if manager is None or hasattr(manager, _HOME):
        return
    lacking = _seams.misfit(_seams.problems(_seams.TREES), _WITHOUT_TREES)
    if lacking is not None:
        _seams.warn(lacking)
        _refuse(manager, ("_run",), lacking)
        return
    # The managers that inductor creates are for work outside partitions.
    setattr(manager, _HOME, 0)
    run, get = manager._run, _seams.GET_MANAGER.find()

    def _run(self: Any, new_inputs: Any, function_id: Any) -> Any:
        here = _native._partition_here()
        if here == getattr(self, _HOME):
            return run(self, new_inputs, function_id)
        return _run_in(self, here, new_inputs, function_id)

    def get_manager(*arguments: Any, **named: Any) -> Any:
        found = get(*arguments, **named)
        # The caller needs the manager that ran last, which may be one for a partition.
        here = _native._partition_here() if found is not None else 0
        return _peers(found).get(here, found) if here else found

    def on_all(seam: _seams.Seam) -> None:
        original = seam.find()
        if original is None:
            return

        def call(self: Any, *arguments: Any, **named: Any) -> None:
            for peer in list(_peers(self).values()):
                original(peer, *arguments, **named)
            original(self, *arguments, **named)
            if seam is _seams.TREE_SHUTDOWN:
                _peers(self).clear()

        _set(manager, call, original)

    manager._run = _run
    _seams.GET_MANAGER.owner().get_manager = get_manager
    for seam in (_seams.TREE_BACKWARD, _seams.TREE_SHUTDOWN, _seams.TREE_WARMUP):
        on_all(seam)


def _peers(manager: Any) -> dict[int, Any]:
    """Returns the peers of one of inductor's graph managers: one manager per partition, keyed by the handle of the
    partition's context."""
    peers: dict[int, Any] = vars(manager).setdefault(_PEERS, {})
    return peers


def _run_in(manager: Any, here: int, new_inputs: Any, function_id: Any) -> Any:
    """Runs a compiled function in a partition."""
    while True:
        peer = _peer(manager, here)
        # Another thread may close the partition at any time. A peer that runs is not shut down.
        getattr(peer, _RUNS).append(None)
        if _peers(manager).get(here) is peer:
            break
        getattr(peer, _RUNS).pop()
    try:
        return peer.run(new_inputs, function_id)
    finally:
        # Not the stream, which may not live as long as the peer.
        stream, events = _seams.CURRENT_STREAM.find()(), getattr(peer, _EVENTS)
        events[stream.cuda_stream] = stream.record_event(events.get(stream.cuda_stream))
        getattr(peer, _RUNS).pop()
        _shut_down()


def _peer(manager: Any, here: int) -> Any:
    """Returns the partition's own graph manager, which runs the same functions as `manager`."""
    peers = _peers(manager)
    if here not in peers:
        _check_state(manager)
        peer = type(manager)(manager.device_index)
        setattr(peer, _HOME, here)
        setattr(peer, _RUNS, [])
        setattr(peer, _EVENTS, {})
        peer.stream = _native._stream_here()
        # The functions and their properties, by ID. The dictionaries are shared, so the peer gets later functions
        # too.
        for name, value in vars(manager).items():
            if name.startswith("id") and isinstance(value, dict):
                setattr(peer, name, value)
        peers[here] = peer
        _native._compiled_in_partition()
        key = id(manager)
        _managers[key] = weakref.ref(manager, lambda _: _managers.pop(key, None))
    peer = peers[here]
    # Properties of the outputs of functions that were added since.
    for name, value in vars(manager).items():
        if name.startswith("has_") and isinstance(value, bool):
            setattr(peer, name, value)
    return peer


def _check_state(manager: Any) -> None:
    """Checks that a new peer receives every attribute that it needs. Warns if the manager has attributes that this
    package does not know, because a peer does not share them."""
    has = [name for name in vars(manager) if not name.startswith("_green_ctx_torch")]
    lacking = _seams.misfit([_seams.TREE_MANAGER.lacks(has)], _WITHOUT_TREES)
    if lacking is not None:
        raise UnsupportedError(lacking)
    _seams.warn(
        _seams.misfit(
            [_seams.TREE_MANAGER.unknown(has)],
            "Functions that are compiled with CUDA graphs have this state separately in each partition; if they "
            'misbehave there, compile them with mode="max-autotune-no-cudagraphs".',
        )
    )


def close(context: int) -> None:
    """Releases the graphs that compiled functions captured in a partition, after the partition was closed.

    Graphs that are not released would occupy the partition's SMs and memory. If another open partition has the same
    context, the next call of a compiled function in that partition captures a new graph.
    """
    for reference in list(_managers.values()):
        manager = reference()
        peer = _peers(manager).pop(context, None) if manager is not None else None
        if peer is not None:
            _closed.append(peer)
    _shut_down()


def _shut_down() -> None:
    """Shuts down each graph manager of a closed partition that is not running, if its outputs are no longer in use."""
    for peer in list(_closed):
        if getattr(peer, _RUNS):
            continue
        # The SMs are free even if outputs are in use, because the outputs' memory belongs to the device.
        vars(peer.stream).pop("_green_ctx_owner", None)
        if peer.live_cudagraph_pool_storages_in_curr_execution():
            continue
        try:
            _closed.remove(peer)
        except ValueError:
            # Another thread shuts it down.
            continue
        try:
            # A plain wait would invalidate a graph that another thread captures.
            _native._relaxed(functools.partial(_end, peer))
        except Exception as error:
            _closed.append(peer)
            warnings.warn(
                "a closed partition keeps the memory of its compiled graphs until the next call in a "
                f"partition, because waiting for its work failed: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def _end(peer: Any) -> None:
    # Without this, torch may unmap the memory of a graph that still runs.
    for event in getattr(peer, _EVENTS).values():
        event.synchronize()
    peer.shutdown()
