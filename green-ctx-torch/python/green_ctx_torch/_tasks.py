"""What tasks of asyncio have entered: current on the thread only while the task runs."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from green_ctx_torch import _native

#: From the outermost to the innermost. Tasks that are made inside of a block begin there.
_entered: ContextVar[tuple[_native.Entry, ...]] = ContextVar("green_ctx_torch", default=())


def entered(entry: _native.Entry) -> None:
    """Notes a partition that the running task has entered."""
    _install()
    _entered.set((*_entered.get(), entry))


def left(raw_context: int) -> None:
    """Notes that the running task has left a partition."""
    entries = list(_entered.get())
    for place in reversed(range(len(entries))):
        if entries[place].raw_context == raw_context:
            del entries[place]
            break
    _entered.set(tuple(entries))


def _install() -> None:
    """Has asyncio's event loops make current what a task has entered, each time that it runs."""
    original: Any = asyncio.Handle._run
    if getattr(original, "of_green_ctx_torch", False):
        return

    # The parameter is named as in asyncio, for mypy.
    def _run(self: Any) -> None:
        entries = self._context.get(_entered, ())
        if not entries and not _native._task_entered():
            return original(self)  # type: ignore[no-any-return]
        _native._task_resume(list(entries))
        try:
            return original(self)  # type: ignore[no-any-return]
        finally:
            _native._task_suspend()

    _run.of_green_ctx_torch = True  # type: ignore[attr-defined]
    asyncio.Handle._run = _run  # type: ignore[method-assign]
