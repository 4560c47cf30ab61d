"""Makes asyncio's event loops enter a task's partitions whenever the task runs, and leave them when the task waits."""

from __future__ import annotations

from typing import Any

from green_ctx_torch import _native
from green_ctx_torch._errors import InvalidStateError


def watch(loop: Any) -> None:
    """Makes an event loop report when it switches tasks. The first call replaces `asyncio.Handle._run`, which runs
    every step of a task.

    Raises RuntimeError for an event loop of another library, such as uvloop. Such a loop does not report when it
    switches tasks, so other tasks would run in the partition too.
    """
    # A loop runs, so asyncio is imported completely, and this imports nothing.
    import asyncio

    if not isinstance(loop, asyncio.BaseEventLoop):
        raise InvalidStateError(
            f"a partition cannot be entered in a coroutine on a {type(loop).__module__} event loop, which "
            "does not report when it switches tasks, so other tasks would run in the partition too; "
            "enter it in a function that asyncio.to_thread runs, or run the program on asyncio's own loop"
        )
    original: Any = asyncio.Handle._run
    if getattr(original, "of_green_ctx_torch", False):
        return

    def _run(self: Any) -> None:
        _native._run_handle(original, self)

    _run.of_green_ctx_torch = True  # type: ignore[attr-defined]
    asyncio.Handle._run = _run  # type: ignore[method-assign]
