"""Makes asyncio's event loops enter a task's partitions whenever the task runs, and leave them when the task waits."""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import FrameType
from typing import Any

from green_ctx_torch import _native
from green_ctx_torch._errors import InvalidStateError

_CONTEXTLIB, _GENERATOR = contextlib.__file__, inspect.CO_GENERATOR
_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ELSEWHERE = (
    "which does not report when it waits, so other tasks would run in the partition too; enter it in a function that "
    "runs in a thread, as with asyncio.to_thread, or run the program on asyncio's own loop"
)


def refuse_others() -> None:
    """Raises RuntimeError in a task that does not report when it waits: in a coroutine that is not an asyncio task, and
    in a greenlet."""
    frame: FrameType | None = sys._getframe(1)
    # A generator, and the functions of contextlib, enter the block for their own caller.
    while frame and ((code := frame.f_code).co_flags & _GENERATOR or code.co_filename == _CONTEXTLIB):
        frame = frame.f_back
    if frame and frame.f_code.co_flags & _COROUTINES and not _task():
        raise InvalidStateError(f"a partition cannot be entered in a coroutine that is not an asyncio task, {_ELSEWHERE}")
    greenlet = sys.modules.get("greenlet")
    if greenlet and greenlet.getcurrent().parent:
        raise InvalidStateError(f"a partition cannot be entered in a greenlet, {_ELSEWHERE}")


def _task() -> Any:
    """Returns the running asyncio task. This function does not import asyncio."""
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio and asyncio._get_running_loop() and asyncio.current_task()


def watch(loop: Any) -> None:
    """Makes an event loop report when it switches tasks. The first call replaces `asyncio.Handle._run`, which runs
    every step of a task.

    Raises RuntimeError for an event loop of another library, such as uvloop.
    """
    # A loop runs, so asyncio is imported completely, and this imports nothing.
    import asyncio

    if not isinstance(loop, asyncio.BaseEventLoop):
        raise InvalidStateError(
            f"a partition cannot be entered in a coroutine on a {type(loop).__module__} event loop, {_ELSEWHERE}"
        )
    original: Any = asyncio.Handle._run
    if hasattr(original, "of_green_ctx_torch"):
        return

    def _run(self: Any) -> None:
        _native._run_handle(original, self)

    _run.of_green_ctx_torch = original  # type: ignore[attr-defined]
    asyncio.Handle._run = _run  # type: ignore[method-assign]


def unwrapped() -> Any:
    """Returns the context of the running handle if the handle began before `watch` replaced `asyncio.Handle._run`."""
    import asyncio

    run: Any = asyncio.Handle._run
    code = getattr(run, "of_green_ctx_torch", run).__code__
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code is not code:
        frame = frame.f_back
    return frame and frame.f_locals["self"]._context


def inside(devices: list[int]) -> tuple[int, list[Any]]:
    """Returns torch's current device, and its current streams of some devices."""
    cuda = sys.modules["torch"].cuda
    return cuda.current_device(), [cuda.current_stream(device) for device in devices]


def put_back(inside: tuple[int, list[Any]]) -> None:
    """Makes a device and streams from `inside` current again."""
    cuda, (device, streams) = sys.modules["torch"].cuda, inside
    for stream in streams:
        cuda.set_stream(stream)
    cuda.set_device(device)
