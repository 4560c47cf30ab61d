"""Tuning: measures jobs running together, and recommends how to divide the GPU between them, or advises against it.

The search is native code. This module captures the functions in CUDA graphs, and the search moves the graphs from
partition to partition. A function without a usable graph is called directly, with a stream of the search as torch's
current stream.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from green_ctx_torch import _native, _seams, _workspaces, sizing
from green_ctx_torch._errors import InvalidStateError, InvalidValueError
from green_ctx_torch._native import Curve, Partition, TuningOutcome, TuningProgress, TuningVerdict

if TYPE_CHECKING:
    import torch

__all__ = ["Applied", "Job", "curve", "tune", "tuned"]

_log = logging.getLogger("green_ctx_torch")

_JOBS = 'jobs must be named, as in {"decode": step, "prefill": graph}, or a list of green_ctx_torch.Job'
_WORK = (
    "a job must be a function without arguments, a torch.cuda.CUDAGraph(keep_graph=True) or the address of a "
    "CUgraph"
)

_UNCAPTURED = "torch did not capture it"


class Job:
    """A job to tune: a function without arguments that submits one iteration, or a graph that is one iteration.

        Job(step, name="decode", arrival="closed:1", key="8B, batch 16")

    Iterations must be repeatable. The tuner runs thousands of iterations, on any SMs and concurrently with the other
    jobs. The function `before` resets state that would grow or run out. It is called before each measurement block of 8
    ms or more, on the stream of the iterations, and is not measured.

    `arrival` sets when iterations are due:

    - "closed:2": two iterations are always in flight.
    - "rate:1000": 1000 iterations per second, at equal intervals.
    - "poisson:1000:7": 1000 iterations per second, at random times from the seed 7.
    - a list of seconds from the start: a trace.

    Without `arrival`, two iterations are always in flight. If the goal names a latency percentile of the job, only one
    iteration is in flight.

    `key` distinguishes jobs of the same name, for example by model and batch size. An outcome in a file is used only
    for jobs with the same keys. `name` is the name of a job in a list, by default the function's name, unless it is a
    lambda. If jobs are given as a mapping, the keys of the mapping are their names.

    A graph, and the memory that it uses, must stay alive until `tune` returns.
    """

    def __init__(
        self,
        work: Callable[[], object] | torch.cuda.CUDAGraph | int,
        *,
        name: str | None = None,
        arrival: str | Iterable[float] | None = None,
        key: str = "",
        before: Callable[[], object] | None = None,
    ) -> None:
        # No object is both: a graph is replayed, not called.
        if _is_graph(work) == callable(work):
            raise TypeError(f"{_WORK}, got {type(work).__name__}")
        if before is not None and not callable(before):
            raise TypeError(f"before must be a function without arguments, got {type(before).__name__}")
        self.work = work
        self.name = name
        self.arrival = arrival
        self.key = key
        self.before = before

    def __repr__(self) -> str:
        kind = "graph" if _is_graph(self.work) else "function"
        name = self.name or _name_of(self.work)
        arrival = "" if self.arrival is None else f", {self.arrival}"
        return f"<Job{f' {name}' if name else ''}: a {kind}{arrival}>"


class Applied(Mapping[str, Partition]):
    """A verdict that is ready to run: a mapping from each job's name to its partition. See `TuningOutcome.apply`."""

    def __init__(self, outcome: TuningOutcome, device: Any = None) -> None:
        self.verdict: TuningVerdict = outcome.verdict
        made = outcome.partitions(device) if self.verdict.kind == "partition" else dict(outcome._plain(device))
        self._parts: Mapping[str, Partition] = made

    @property
    def gain(self) -> float | None:
        """The gain of the verdict, as in `TuningVerdict.gain`."""
        return self.verdict.gain

    @property
    def meets(self) -> bool:
        """True if the goal's bound is met, as in `TuningVerdict.meets`."""
        return self.verdict.meets

    def __getitem__(self, name: str) -> Partition:
        try:
            return self._parts[name]
        except KeyError:
            raise KeyError(f"there is no partition {name}; the partitions are {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def close(self) -> None:
        """Closes the partitions."""
        for part in self._parts.values():
            part.close()

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Applied {self.verdict.kind}: {', '.join(self)}>"


def curve(
    work: Callable[[], object] | torch.cuda.CUDAGraph | int | Job,
    sms: Iterable[int] | None = None,
    *,
    name: str | None = None,
    device: Any = None,
    budget: float | None = None,
    progress: Callable[[TuningProgress], object] | None = None,
) -> Curve:
    """Measures how a job scales with its SMs: alone, in partitions of several sizes and on the whole device.

        curve = green_ctx_torch.curve(step)
        print(curve)                  # a table, and what it says; a notebook shows a picture
        floor = curve.within(0.05)    # the number of SMs from which on it is within 5 % of its full speed

    `work` is a function without arguments, a graph or a `Job`, as for `tune`: a function that cannot be captured, or
    that asks for the number of SMs, is called for each iteration. Two iterations are in flight, unless the function
    waits for its own work. The sizes are measured in alternating blocks, so a device that becomes slower does not
    favour one.

    - `sms`: the numbers of SMs to measure, rounded up to whole units. The default is about eight. The whole device is
      always measured, and numbers that are not smaller are left out.
    - `name`: the name in the result, by default the function's name, or "job" for a lambda.
    - `budget`: the duration of the measurement in seconds, by default 10. Each size is measured at least once.
    - `progress`: as for `tune`. If it returns False, the measurement ends, and the curve consists of the blocks so far.
      Without blocks, RuntimeError is raised.

    KeyboardInterrupt (Ctrl-C) ends the measurement too, and is raised only if the sizes so far are too few to say how
    the job scales. If the job fails on some numbers of SMs, the curve gives the reason, and the other points are measured.

    Raises the same exceptions as `tune`.
    """
    job = work if isinstance(work, Job) else Job(work)
    name = name or job.name or _name_of(job.work) or "job"
    if not isinstance(sms, Iterable | None):
        raise TypeError(f"sms takes a list of numbers of SMs, such as [{sms}]")
    sizes = None if sms is None else list(sms)
    request = _native._CurveRequest(name, sizes, device, budget)
    with _prepared(request.device, [(name, job)], progress) as prepared:
        return request.run(*prepared)


def tune(
    jobs: Mapping[str, Callable[[], object] | torch.cuda.CUDAGraph | int | Job] | Sequence[Job],
    goal: str = "throughput",
    *,
    weights: Mapping[str, float] | None = None,
    device: Any = None,
    budget: float | None = None,
    step: int = 1,
    floors: Mapping[str, int] | None = None,
    leave_out: str | Iterable[str] = (),
    progress: Callable[[TuningProgress], object] | None = None,
) -> TuningOutcome:
    """Measures two to four jobs running together, and recommends how to divide the GPU between them, or advises
    against it.

        outcome = tune({"decode": step, "prefill": graph}, "keep:decode:p99:2ms")
        print(outcome.verdict.sentence)
        with outcome.apply() as applied:
            with applied["decode"]:
                step()

    The tuner measures several ways to run all jobs, called arms: one job after the other, plain streams, priorities,
    and partitions of many sizes. At the end it compares the best partitions with the two best arms without partitions,
    in long alternating blocks. The gain and its interval come from these blocks only. The tuner partitions the SMs that
    are free, and closes its partitions at the end. Other work on the GPU distorts the result; `outcome.drift` shows how
    much the jobs' rates changed during the search.

    A function is called once to warm up, and once more to be captured in a graph, which is then measured. A function
    that cannot be captured, or that asks for the number of SMs (`sm_count`, `floor`, `sizing.install`), is called for
    each iteration, and `outcome.notes` gives the reason. The calls for the iterations are made on other threads, where
    the functions compete for the GIL. Modes that this thread has set in torch, such as no_grad and autocast, do not
    apply on those threads. Each block of measurements uses new streams, so a function must not keep state of torch's
    autograd from one call to the next.

    - `goal`: "throughput" maximises the sum of all jobs' rates, each divided by the rate of the job when it runs alone.
      "makespan" minimises the time for one iteration of every job. "keep:A:p99:500us" maximises the other jobs' rates
      while the 99th percentile of A's latency is at most 500 µs. "least:A:p99:keep:B:0.8" minimises the 99th percentile
      of A's latency while B keeps at least 0.8 of the rate that it has when it runs alone.
    - `weights`: the weight of each job's rate in "throughput"; 1 by default.
    - `budget`: the maximum duration of the search in seconds. The default is 19.5 s for two jobs, plus 9.75 s for each
      further job.
    - `step`: the step between the partition sizes to try, in SMs. It is rounded up to whole units.
    - `floors`: the minimum floor of a job, in SMs, by the job's name. With a floor, the verdict is always to partition.
    - `leave_out`: the kinds of arms that are not tried: "sequential", "streams", "priority" or "partition".
    - `progress`: a function that is called before each block with a TuningProgress. If the function returns False, the
      search ends, and the outcome is the best result so far; if `progress.best` is None, RuntimeError is raised. Without `progress`, a progress bar is drawn if standard
      error is a terminal.

    An interrupt such as Ctrl-C ends the search before the next block. The interrupt's exception is raised, and the
    results so far are lost.

    Raises any exception from the first call of a function or from `progress`. Raises ValueError if jobs, goal or budget
    are invalid. Raises RuntimeError if no SMs are free, if a graph cannot be moved, or if the device fails. Raises
    ImportError if a job is a function and torch cannot be imported. If `tune` fails, no partition stays open.
    """
    named = _named(jobs)
    tuner = _native._Tuner(_described(named), goal, weights, device, budget, step, floors, leave_out)
    with _prepared(tuner.device, named, progress) as prepared:
        return tuner.run(*prepared)


@contextlib.contextmanager
def tuned(
    path: str | os.PathLike[str],
    jobs: Mapping[str, Callable[[], object] | torch.cuda.CUDAGraph | int | Job] | Sequence[Job],
    goal: str = "throughput",
    *,
    weights: Mapping[str, float] | None = None,
    device: Any = None,
    budget: float | None = None,
    step: int = 1,
    floors: Mapping[str, int] | None = None,
    leave_out: str | Iterable[str] = (),
    progress: Callable[[TuningProgress], object] | None = None,
) -> Iterator[Applied]:
    """Applies the verdict for these jobs until the end of the `with` block. The verdict is read from a file. If the
    file contains no verdict for these jobs, the jobs are tuned first.

        with tuned("serving.json", {"decode": step, "prefill": graph}, "keep:decode:p99:2ms") as applied:
            with applied["decode"]:
                ...

    `applied` is the result of `TuningOutcome.apply`. The file is used if it was written for jobs of the same names,
    keys and arrivals, with the same goal, weights, step, floors and kinds of arms, for a budget that is not smaller, on
    the same kind of device with as many free and as many reserved SMs, and with the same versions of the driver, of
    green-ctx, and of torch if the program has imported it. If the file is not used, the reason is logged (logger
    "green_ctx_torch", level INFO), the jobs are tuned as by `tune`, and the outcome is saved to the file. An outcome
    that `progress` ended early is used but not saved. If the file cannot be written, a warning is logged.

    A program that cannot run the jobs can apply a saved verdict with `load_tuning(path).apply()`.

    If the environment variable GREEN_CTX_TUNE_DIR names a directory, a relative path is relative to that directory.
    With GREEN_CTX_TUNE_READ_ONLY=1, files are never written.

    Raises the same exceptions as `tune` and `TuningOutcome.apply`.
    """
    named = _named(jobs)
    tuner = _native._Tuner(_described(named), goal, weights, device, budget, step, floors, leave_out)
    outcome = tuner.stored(path)
    if isinstance(outcome, str):
        _log.info("%s is not used, so the jobs are tuned: %s", os.fspath(path), outcome)
        with _prepared(tuner.device, named, progress) as prepared:
            outcome = tuner.run(*prepared)
        if outcome.complete:
            try:
                outcome.save(path)
            except OSError as error:
                _log.warning("the outcome of tuning was not saved: %s", error)
    with outcome.apply(device) as applied:
        yield applied


def _is_graph(work: object) -> bool:
    return (isinstance(work, int) and not isinstance(work, bool)) or hasattr(work, "raw_cuda_graph")


def _name_of(work: object) -> str | None:
    name = getattr(work, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None


def _named(jobs: Any) -> list[tuple[str, Job]]:
    """Returns the jobs with their names."""
    if isinstance(jobs, Mapping):
        return [(name, job if isinstance(job, Job) else Job(job)) for name, job in jobs.items()]
    try:
        given = iter(jobs)
    except TypeError:
        raise TypeError(f"{_JOBS}, got {type(jobs).__name__}") from None
    named: list[tuple[str, Job]] = []
    for job in given:
        if not isinstance(job, Job):
            raise TypeError(f"{_JOBS}, got one with an element of type {type(job).__name__}")
        name = _name_of(job.work) if job.name is None else job.name
        if name is None:
            place = len(named) + 1
            raise InvalidValueError(f'job {place} of the list has no name; write Job(..., name="decode")')
        named.append((name, job))
    return named


def _described(named: list[tuple[str, Job]]) -> list[tuple[str, Any, str]]:
    return [(name, job.arrival, job.key) for name, job in named]


@contextlib.contextmanager
def _prepared(
    device: int, named: list[tuple[str, Job]], progress: Callable[[TuningProgress], object] | None
) -> Iterator[tuple[list[_Work], list[str], Callable[[TuningProgress], object] | None]]:
    """Gives the works of the jobs, notes about them, and the function that shows the progress."""
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress must be a function that takes a TuningProgress, got {type(progress).__name__}"
        )
    works, notes = _prepare(device, named)
    try:
        with _bar() if progress is None else contextlib.nullcontext(progress) as shown:
            yield works, notes, shown
    finally:
        works.clear()
        _workspaces.release()


_Work = tuple[Any, Callable[[int], object] | None, Callable[[int], object] | None]
"""Three entries: a graph or None, a function that submits one iteration to a raw stream or None, and a function to call
before each block or None."""


def _prepare(device: int, named: list[tuple[str, Job]]) -> tuple[list[_Work], list[str]]:
    """Returns the work of each job for the tuner, and notes about the jobs."""
    if not any(callable(job.work) or job.before for _, job in named):
        return [(job.work, None, None) for _, job in named], []
    torch = _torch()
    works: list[_Work] = []
    notes: list[str] = []
    own: list[Any] = []
    # Each block has new streams, and torch allocates a workspace for each.
    release = functools.partial(_workspaces.release, own)
    with torch.cuda.device(device):
        # One stream per job: torch has one cuBLAS workspace per stream, and graphs that run at the same time must
        # not share one.
        sides = [torch.cuda.Stream() for _ in named]
        if any(callable(job.work) for _, job in named):
            _warm_up(torch, zip(sides, (job for _, job in named), strict=True))
            # A capture then takes its workspace from the graph's own memory pool.
            release()
        for side, (name, job) in zip(sides, named, strict=True):
            graph, reason = job.work, None
            if callable(job.work):
                graph, reason = _captured(torch, side, device, job.work)
                own.append(graph)
            if reason is None or not callable(job.work):
                before = None if job.before is None else _on_stream(torch, device, job.before)
                works.append((graph, None, before))
                continue
            notes.append(f"{name} was called for each iteration, because {reason}")
            notes += _elsewhere(torch, device, name, job.work)
            # The first call on a new stream allocates memory, which must not be measured.
            first = (release, job.work) if job.before is None else (release, job.work, job.before)
            works.append(
                (None, _on_stream(torch, device, job.work), _on_stream(torch, device, *first))
            )
    return works, notes


def _torch() -> Any:
    return _seams.import_torch("pass graphs only, which work without torch", "functions as jobs")


def _warm_up(torch: Any, jobs: Iterable[tuple[Any, Job]]) -> None:
    """Calls the functions of each job once, on the job's stream."""
    for side, job in jobs:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            if job.before is not None:
                job.before()
            if callable(job.work):
                job.work()
        torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def _captured(
    torch: Any, side: Any, device: int, work: Callable[[], object]
) -> tuple[Any, str | None]:
    """Returns the graph of a function, or None and the reason why there is none."""
    failed: BaseException | None = None
    # torch does not restore the current stream if a capture fails to end.
    restored = torch.cuda.stream(torch.cuda.current_stream())
    try:
        # Newer versions of torch make a graph that can be copied only on request.
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # Other threads of the program may allocate memory in the meantime.
        captured = torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local")
        with restored, sizing.reads_in_capture() as reads, captured:
            try:
                work()
            except BaseException as error:
                # The end of a failed capture raises another exception.
                failed = error
                raise
    except Exception as error:
        failed = failed or error
    if failed is None:
        if reads:
            return None, "it asked for the number of SMs, and a graph would keep the number of its capture"
        reason = _native._immovable(device, graph)
        return (graph, None) if reason is None else (None, f"{_UNCAPTURED}: {reason}")
    if not isinstance(failed, Exception):
        raise failed
    lines = str(failed).strip().splitlines() or [""]
    reason = f"{type(failed).__name__}: {lines[0].rstrip('.')}".rstrip(": ")
    # Its traceback refers to this function's graph, which would live until the next collection.
    failed = None
    return None, f"{_UNCAPTURED}: {reason}"


def _elsewhere(torch: Any, device: int, name: str, work: Callable[[], object]) -> list[str]:
    """Returns a note if a function submits work to other streams than the current one, or replays a graph that was
    captured elsewhere. That work is not in the partition that is measured. No profiler is used, because torch's profiler
    makes all later launches of the process slower."""
    streams: list[int] = []
    mode: Any = _seams.DISPATCH_MODE.find() or object

    def note(_self: Any, operation: Any, _types: Any, arguments: Any = (), named: Any = None) -> Any:
        streams.append(torch.cuda.current_stream(device).cuda_stream)
        return operation(*arguments, **(named or {}))

    # Not a class statement, since mypy lists local classes as names of the module, and stubtest misses them there.
    noted: Any = type("Noted", (mode,), {"__torch_dispatch__": note})
    smallest = _native.sm_limits(device)[1]
    # The note is an extra: for example, no SMs may be free.
    with contextlib.suppress(Exception):
        with _native.partition({name: smallest}, device=device) as parts, parts[name] as part:
            own = part.raw_stream
            try:
                with noted():
                    work()
            except InvalidStateError as error:
                return [f"not all work of {name} was in the partition that was measured: {error}"]
        others = sum(stream != own for stream in streams)
        if others:
            return [
                f"{others} of {len(streams)} operations of {name} were on another stream than the one that was "
                f"measured, so its times do not show what it needs: call it without a block or stream of its own"
            ]
    return []


def _on_stream(torch: Any, device: int, *functions: Callable[[], object]) -> Callable[[int], None]:
    """Returns a function that calls `functions` with a given stream as torch's current stream, on any thread."""

    def call(raw_stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(raw_stream, device=device)):
            for function in functions:
                function()

    return call


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[TuningProgress], object] | None]:
    """Draws a progress bar on standard error, if that is a terminal, and removes it at the end."""
    stream, drawn = sys.stderr, 0.0
    if stream is None or not stream.isatty():
        yield None
        return

    def draw(progress: TuningProgress) -> None:
        nonlocal drawn
        if time.monotonic() - drawn > 0.1:
            drawn = time.monotonic()
            show(f"\r\x1b[K{progress}")

    def show(text: str) -> None:
        # If standard error is closed, the bar is not drawn.
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=stream, flush=True)

    try:
        yield draw
    finally:
        show("\r\x1b[K")
