"""Measures jobs beside each other, and says how to divide the GPU between them, or not to.

The search is native. Here functions become graphs, which it moves from partition to partition by itself;
those that torch cannot capture it calls, with its stream as torch's current one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from green_ctx_torch import _native, _seams
from green_ctx_torch._errors import InvalidValueError
from green_ctx_torch._native import Partition, TuningOutcome, TuningProgress, TuningVerdict

if TYPE_CHECKING:
    import torch

__all__ = ["Applied", "Job", "tune", "tuned"]

_log = logging.getLogger("green_ctx_torch")

_JOBS = 'jobs are named, as in {"decode": step, "prefill": graph}, or a list of green_ctx_torch.Job'
_WORK = "a job is a function of no arguments, a torch.cuda.CUDAGraph(keep_graph=True) or the address of a CUgraph"


class Job:
    """A job to tune: a function of no arguments that submits one iteration, or a graph that is one.

    Iterations must be repeatable, since the tuner runs thousands of them, on whichever SMs and beside the
    other jobs. `before` is called before each block of 8 ms or more to reset what would grow or run out, on
    the stream that the iterations follow on; it is not measured.

    `arrival` says when iterations are due: "closed:2", always two in flight, "rate:1000" or
    "poisson:1000:7", so many a second at equal distances or at random moments of seed 7, or a list of
    seconds from the start, a trace. Without it two are in flight or, for the job of a goal's percentile, one.
    `key` says that a job of the same name is the same, such as a model and
    a batch size: what a file keeps for another key is not used. A job of a list is called `name` or, without
    one, as its function is; in a mapping the mapping's name counts.

    A graph must live, with the memory that it uses, until `tune` returns.
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
        # Nothing is both: a graph is replayed, not called.
        if _is_graph(work) == callable(work):
            raise TypeError(f"{_WORK}, and not a {type(work).__name__}")
        if before is not None and not callable(before):
            raise TypeError(f"before is a function of no arguments, and not a {type(before).__name__}")
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


class PlainStream:
    """A job's stream where the verdict is not to partition. `with` makes it torch's current stream."""

    def __init__(self, name: str, native: _native._PlainStream) -> None:
        self.name = name
        self._native = native
        self._thread = threading.local()

    @property
    def stream(self) -> torch.cuda.ExternalStream:
        """The stream as torch has it."""
        return self._native.stream

    @property
    def raw_stream(self) -> int:
        """The driver's handle of the stream, a CUstream."""
        return self._native.raw_stream

    def __enter__(self) -> PlainStream:
        entered = _torch().cuda.stream(self.stream)
        entered.__enter__()
        self._thread.entered = [*getattr(self._thread, "entered", []), entered]
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.entered.pop().__exit__(*exception)

    def __repr__(self) -> str:
        return f"<PlainStream {self.name}>"


class Applied(Mapping[str, "Partition | PlainStream"]):
    """What a verdict says, ready to run: see `TuningOutcome.apply`."""

    def __init__(self, outcome: TuningOutcome, device: Any = None) -> None:
        self.verdict: TuningVerdict = outcome.verdict
        names = [job["name"] for job in outcome.jobs]
        self._parts: Mapping[str, Partition | PlainStream]
        self._close: Callable[[], None] = lambda: None
        if self.verdict.kind == "partition":
            parts = outcome.partitions(device)
            self._parts, self._close = parts, parts.close
            return
        where = outcome.device if device is None else device
        if self.verdict.kind == "sequential":
            one = _native._PlainStream(where, 0)
            self._parts = {name: PlainStream(name, one) for name in names}
        else:
            made = {name: _native._PlainStream(where, self.verdict.priority[name]) for name in names}
            self._parts = {name: PlainStream(name, native) for name, native in made.items()}

    @property
    def gain(self) -> float | None:
        """The verdict's gain."""
        return self.verdict.gain

    @property
    def meets(self) -> bool:
        """Whether the goal's bound is met."""
        return self.verdict.meets

    def __getitem__(self, name: str) -> Partition | PlainStream:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def close(self) -> None:
        """Closes the partitions, if there are any."""
        self._close()

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Applied {self.verdict.kind}: {', '.join(self)}>"


def tune(
    jobs: Mapping[str, Callable[[], object] | torch.cuda.CUDAGraph | int | Job] | Iterable[Job],
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
    """Measures two to four jobs beside each other, and says how to divide the GPU between them, or not to.

        outcome = tune({"decode": step, "prefill": graph}, "keep:decode:p99:2ms")
        print(outcome.verdict.sentence)
        applied = outcome.apply()

    It tries them one after the other, in plain streams, with priorities and in partitions of many sizes. At the
    end it compares the best partition with the two best of the others, in long blocks in turn: the gain and its
    interval come from these alone. It makes partitions of the SMs that are free, and closes them. Who else uses
    the GPU meanwhile changes what is found; `outcome.drift` says so.

    A function is called once to warm up and once more to be captured in a graph, which is then measured. One
    that cannot be captured is called for each iteration, and `outcome.notes` says why. That happens on other
    threads: torch's modes of this one, such as no_grad and autocast, do not hold there, functions wait for
    each other at Python's lock, and streams end with the block that they are for, so that a function keeps
    nothing of torch's autograd from one call to the next.

    - `goal`: "throughput", the most of all jobs, each by its rate alone, "makespan", the least time for one
      iteration of all, "keep:A:p99:500us", the most of the others while A's latency is within a bound, or
      "least:A:p99:keep:B:0.8", the smallest latency of A while B keeps a part of its rate alone.
    - `weights`: what each job counts for in "throughput"; 1 unless it is given.
    - `budget`: how many seconds tuning may take: 19 for two jobs, and half of that more for each.
    - `step`: counts of SMs are tried in steps of so many, rounded up to what the device can give.
    - `floors`: SMs that a job must have for itself, by name. Only partitions are chosen then.
    - `leave_out`: kinds of arms that are not tried: "sequential", "streams", "priority", "partition".
    - `progress`: called before each block with a TuningProgress. Where it returns False the search ends, and
      the best so far is the outcome. Without it, a bar is drawn where standard error is a terminal.

    An interrupt ends the search before the next block and is raised; what was found until then is lost.

    Raises what a function raised in its first call, or what `progress` raised; ValueError for jobs, a goal
    or a budget that cannot be, RuntimeError where no SMs are free, a graph cannot be moved or the device
    failed, and ImportError where functions are given and torch is not there. Nothing is left behind.
    """
    named = _named(jobs)
    tuner = _tuner(named, goal, weights, device, budget, step, floors, leave_out)
    return _measured(tuner, named, progress)


@contextlib.contextmanager
def tuned(
    path: str | os.PathLike[str],
    jobs: Mapping[str, Callable[[], object] | torch.cuda.CUDAGraph | int | Job] | Iterable[Job],
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
    """The verdict that a file has for these jobs, ready to run until the end of the block, tuned where it has none.

        with tuned("serving.json", {"decode": step, "prefill": graph}, "keep:decode:p99:2ms") as applied:
            with applied["decode"]:
                ...

    The file is used where it was found for jobs of the same names, keys and arrivals, the same goal, weights,
    step, floors and kinds of arms, on such a device with the same driver, and with the version of torch that
    the program has imported, if it has. Otherwise the logger "green_ctx_torch" says at level INFO why it is
    not, the jobs are tuned as `tune` does, and the file keeps the outcome. One that `progress` has ended
    early is used and not kept; that the file cannot be written is a warning.

    A program without the jobs uses what a file has with `load_tuning(path).apply()`.

    A relative path is in the folder that the environment variable GREEN_CTX_TUNE_DIR names, if it does. With
    GREEN_CTX_TUNE_READ_ONLY=1 files are never written.

    Raises what `tune` and `TuningOutcome.apply` raise.
    """
    named = _named(jobs)
    tuner = _tuner(named, goal, weights, device, budget, step, floors, leave_out)
    outcome = tuner.stored(path)
    if isinstance(outcome, str):
        _log.info("%s is not used, and the jobs are tuned: %s", os.fspath(path), outcome)
        outcome = _measured(tuner, named, progress)
        if outcome.complete:
            try:
                outcome.save(path)
            except OSError as error:
                _log.warning("the outcome of tuning is not kept: %s", error)
    with outcome.apply(device) as applied:
        yield applied


def _is_graph(work: object) -> bool:
    return (isinstance(work, int) and not isinstance(work, bool)) or hasattr(work, "raw_cuda_graph")


def _name_of(work: object) -> str | None:
    name = getattr(work, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None


def _named(jobs: Any) -> list[tuple[str, Job]]:
    """Jobs with their names."""
    if isinstance(jobs, Mapping):
        return [(name, job if isinstance(job, Job) else Job(job)) for name, job in jobs.items()]
    try:
        given = iter(jobs)
    except TypeError:
        raise TypeError(f"{_JOBS}, and not a {type(jobs).__name__}") from None
    named: list[tuple[str, Job]] = []
    for job in given:
        if not isinstance(job, Job):
            raise TypeError(f"{_JOBS}, and not one with a {type(job).__name__}")
        name = _name_of(job.work) if job.name is None else job.name
        if name is None:
            place = len(named) + 1
            raise InvalidValueError(f'job {place} of the list has no name; write Job(..., name="decode")')
        named.append((name, job))
    return named


def _tuner(
    named: list[tuple[str, Job]],
    goal: str,
    weights: Mapping[str, float] | None,
    device: Any,
    budget: float | None,
    step: int,
    floors: Mapping[str, int] | None,
    leave_out: str | Iterable[str],
) -> _native._Tuner:
    described = [(name, job.arrival, job.key) for name, job in named]
    return _native._Tuner(described, goal, weights, device, budget, step, floors, leave_out)


def _measured(
    tuner: _native._Tuner,
    named: list[tuple[str, Job]],
    progress: Callable[[TuningProgress], object] | None,
) -> TuningOutcome:
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress is a function that takes a TuningProgress, and not a {type(progress).__name__}"
        )
    works, notes = _prepare(tuner, named)
    with _bar() if progress is None else contextlib.nullcontext(progress) as shown:
        return tuner.run(works, notes, shown)


_Work = tuple[Any, Callable[[int], object] | None, Callable[[int], object] | None]
"""A graph, or what submits an iteration to a raw stream, and what is called before each block."""


def _prepare(tuner: _native._Tuner, named: list[tuple[str, Job]]) -> tuple[list[_Work], list[str]]:
    """Returns what the tuner runs of each job, and notes about it."""
    if not any(callable(job.work) or job.before for _, job in named):
        return [(job.work, None, None) for _, job in named], []
    torch = _torch()
    works: list[_Work] = []
    notes = []
    with torch.cuda.device(tuner.device):
        # One for each: torch has a workspace of cuBLAS's for each stream, which graphs that run at the same
        # time must not share.
        sides = [torch.cuda.Stream() for _ in named]
        if any(callable(job.work) for _, job in named):
            _warm_up(torch, zip(sides, (job for _, job in named), strict=True))
        for side, (name, job) in zip(sides, named, strict=True):
            graph, reason = job.work, None
            if callable(job.work):
                graph, reason = _captured(torch, side, tuner, job.work)
            if reason is None or not callable(job.work):
                before = None if job.before is None else _on_stream(torch, tuner.device, job.before)
                works.append((graph, None, before))
                continue
            notes.append(f"{name} was called for each iteration, since torch did not capture it: {reason}")
            # The first call on a new stream allocates memory, which is not to be measured.
            first = (job.work,) if job.before is None else (job.work, job.before)
            works.append(
                (None, _on_stream(torch, tuner.device, job.work), _on_stream(torch, tuner.device, *first))
            )
    return works, notes


def _torch() -> Any:
    return _seams.import_torch("give graphs alone, which need none", "functions as jobs")


def _warm_up(torch: Any, jobs: Iterable[tuple[Any, Job]]) -> None:
    """Calls each function once, on its stream."""
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
    torch: Any, side: Any, tuner: _native._Tuner, work: Callable[[], object]
) -> tuple[Any, str | None]:
    """The graph of a function, or None and why there is none."""
    failed: BaseException | None = None
    try:
        # Newer versions of torch keep what can be copied only where they are asked to.
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # Other threads of the program may allocate meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            try:
                work()
            except BaseException as error:
                # The end of a capture that has failed raises too.
                failed = error
                raise
    except Exception as error:
        failed = failed or error
    if failed is None:
        reason = tuner.immovable(graph)
        return (graph, None) if reason is None else (None, reason)
    if not isinstance(failed, Exception):
        raise failed
    lines = str(failed).strip().splitlines() or [""]
    return None, f"{type(failed).__name__}: {lines[0].rstrip('.')}".rstrip(": ")


def _on_stream(torch: Any, device: int, *functions: Callable[[], object]) -> Callable[[int], None]:
    """Calls functions with a stream as torch's current one, on whichever thread."""

    def call(raw_stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(raw_stream, device=device)):
            for function in functions:
                function()

    return call


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[TuningProgress], object] | None]:
    """Draws a bar on standard error, where that is a terminal, and removes it at the end."""
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
        # Where it is closed there is nobody to wait.
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=stream, flush=True)

    try:
        yield draw
    finally:
        show("\r\x1b[K")
