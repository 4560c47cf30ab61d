"""Process groups whose ranks tune together.

The ranks agree over the group's store, on the CPU: the group's collectives are what is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from green_ctx_torch import _native
from green_ctx_torch._errors import InvalidValueError

_calls: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
"""How often each group was used: all ranks count alike, and each search has texts of its own."""

_PIECE = 1 << 20
"""The most characters of a value: torch's TCPStore takes no more than 8 MiB."""


@contextlib.contextmanager
def joined(group: Any) -> Iterator[_native._Ranks | None]:
    """This process as a rank of a group; None without one. What is raised inside is reported to the other ranks."""
    if group is None:
        yield None
        return
    ranks = _join(group)
    try:
        yield ranks
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        ranks.fail(reason, isinstance(error, (TypeError, ValueError)))
        raise


def _join(group: Any) -> _native._Ranks:
    import torch
    import torch.distributed as dist

    c10d: Any = dist.distributed_c10d
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidValueError("this process is no rank of the group")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"a group is one of torch's, such as torch.distributed.group.WORLD, and not a {type(group).__name__}"
        )
    store = c10d._get_process_group_store(group)
    name = c10d._get_process_group_name(group)
    prefix = f"green_ctx_torch/tune/{name}/{next(_calls[name])}"
    timeout = _timeout(torch, group, store)
    shared = _Store(store, prefix, lambda: _abort(torch, c10d, group))
    return _native._Ranks(shared, dist.get_rank(group), dist.get_world_size(group), timeout.total_seconds())


def _timeout(torch: Any, group: Any, store: Any) -> timedelta:
    """How long a group's collectives may take."""
    for kind in ("cuda", "cpu"):
        with contextlib.suppress(AttributeError, RuntimeError):
            timeout: timedelta = group._get_backend(torch.device(kind)).options._timeout
            return timeout
    timeout = store.timeout
    return timeout


def _abort(torch: Any, c10d: Any, group: Any) -> None:
    """Aborts a group's communicators, and those of all groups where it is the one of all ranks, as torch does.

    NCCL first has the kernels end, and then waits until no graph has the communicator. So nobody waits for it:
    the graphs are freed when the kernels have ended.
    """
    groups = list(c10d._world.pg_map) if group is c10d.GroupMember.WORLD else [group]

    def abort(group: Any) -> None:
        # A group without CUDA has nothing to abort.
        with contextlib.suppress(Exception):
            group._get_backend(torch.device("cuda")).abort()

    # All at once: a communicator's abort may wait for kernels of another.
    for each in groups:
        threading.Thread(target=abort, args=[each], name="green-ctx abort", daemon=True).start()


class _Store:
    """The texts of one search in a group's store."""

    def __init__(self, store: Any, prefix: str, abort: Any) -> None:
        self._store, self._prefix, self.abort = store, prefix, abort
        self._pieces: dict[str, int] = {}

    def set(self, key: str, text: str) -> None:
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        for number, piece in enumerate(pieces[1:], 1):
            self._store.set(f"{self._prefix}/{key}/{number}", piece)
        self._pieces[key] = len(pieces)
        # Last, since the others look for it.
        self._store.set(f"{self._prefix}/{key}", f"{len(pieces)}:{''.join(pieces[:1])}")

    def get(self, keys: list[str], seconds: float) -> list[str | None]:
        names = [f"{self._prefix}/{key}" for key in keys]
        began = time.monotonic()
        # Asks and does not wait in the store: TCPStore warns of each wait whose time is over.
        while not (all_there := self._store.check(names)):
            waited = time.monotonic() - began
            if waited >= seconds:
                break
            time.sleep(min(max(waited / 8, 5e-5), 0.01, seconds - waited))
        return [self._read(name) if all_there or self._store.check([name]) else None for name in names]

    def delete(self, key: str) -> None:
        self._store.delete_key(f"{self._prefix}/{key}")
        for number in range(1, self._pieces.pop(key, 1)):
            self._store.delete_key(f"{self._prefix}/{key}/{number}")

    def _read(self, name: str) -> str:
        count, _, first = self._store.get(name).decode().partition(":")
        further = (self._store.get(f"{name}/{number}").decode() for number in range(1, int(count)))
        return "".join([first, *further])
