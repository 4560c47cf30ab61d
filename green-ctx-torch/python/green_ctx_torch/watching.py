"""Finds work that runs outside a partition.

    with parts["decode"], green_ctx_torch.watch() as watched:
        step()
    print(watched)      # <Watch the current partition: 3 of 41 kernels ran outside: ...>

Work runs outside the partition if a graph was captured outside it, or if a library submits the work to another stream,
such as a stream of torch's pool or a communicator's stream. torch cannot detect this, but the driver reports the
context that each kernel ran in, and torch's profiler collects these reports. A simulated driver has no profiler: there
the library itself lists the launches of kernels, with their mangled names, but no memsets and no copies.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import TYPE_CHECKING, Any

from green_ctx_torch import _native, _seams
from green_ctx_torch._errors import DriverError, InvalidStateError, UnsupportedError

if TYPE_CHECKING:
    from green_ctx_torch._native import Partition

__all__ = ["Escape", "Oversized", "Watch", "watch"]

_MARKER = "spin_kernel"
"""The kernel that `torch.cuda._sleep` launches. `watch` launches it on streams whose context is known."""

_NO_RESULTS = (
    "the watched block has not ended, or it raised an exception; read the results after a block that succeeds: "
    "`with watch() as watched:`"
)

_COLLECTIVE = re.compile(r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|cross_device", re.IGNORECASE)
"""Names of kernels that wait for other devices: those of NCCL, NVSHMEM, vLLM, SGLang and FlashInfer."""

_MARGIN_SECONDS = 0.005
"""The time, in seconds, from the profiler's start to the first marker, and from the last marker to the profiler's end.
This time allows for clocks that differ."""


@dataclass(frozen=True)
class Escape:
    """Work that ran outside the partition: all operations with the same name, context and stream."""

    name: str
    """The kernel's name, or the profiler's name of a memset or copy."""

    kind: str
    """The kind of work: "kernel", "memset" or "copy"."""

    stream: int
    """The profiler's number of the stream, which is not a handle."""

    context: int
    """The profiler's number of the context, which is not a handle."""

    device: int
    """The device's ordinal."""

    count: int
    """The number of operations that ran."""

    duration_us: float
    """The total duration of these operations in microseconds."""


@dataclass(frozen=True)
class Oversized:
    """Launches of a spinning kernel with more blocks than the partition's SMs can hold at the same time."""

    name: str
    """The kernel's name."""

    blocks: int
    """The number of blocks of the grid."""

    resident: int
    """An upper bound of the number of blocks that fit on the partition's SMs at the same time."""

    count: int
    """The number of launches."""


class Watch:
    """The result of `watch`. The properties can be read after the `with` block has ended."""

    def __init__(self, partition: Partition | None = None, spinning: Iterable[str] = ()) -> None:
        if partition is not None and not isinstance(partition, _native.Partition):
            raise TypeError(
                "watch takes a Partition, such as parts['decode'] or context.partition, got "
                f"{type(partition).__name__}"
            )
        if isinstance(spinning, str):
            raise TypeError(f"spinning takes a list of patterns, such as [{spinning!r}]")
        self._partition = partition
        self._spinning = tuple(spinning)
        self._sms = 0 if partition is None else partition.floor or partition.sm_count
        self._oversized: list[Oversized] = []
        self._name = "" if partition is None else partition.name
        self._device = -1
        self._context: int | None = None
        self._total = 0
        self._confined = 0
        self._escapes: list[Escape] | None = None
        self._collectives: dict[int, int] = {}
        self._profiler: Any = None
        self._properties: Any = None
        self._stream: Any = None

    @property
    def escapes(self) -> list[Escape]:
        """The work that ran outside the partition, the longest first.

        The list includes kernels, memsets and copies within the device, all of which use SMs. Copies from and to the
        host use no SMs and are not included. Under a reserve, work outside of partitions cannot use a floor and is not
        included either.
        """
        if self._escapes is None:
            raise InvalidStateError(_NO_RESULTS)
        return list(self._escapes)

    @property
    def oversized(self) -> list[Oversized]:
        """The launches of spinning kernels, inside or outside the partition, whose blocks cannot all be resident on the
        partition's SMs at once. In the partition, such a kernel can hang: its blocks wait for blocks that cannot begin.

        The SMs that count are those that no other partition may use, or all SMs of the partition if it has no floor.
        The bound comes from the threads, registers and shared memory of a block. Clusters and the device's own limit of
        blocks per SM, which matters for blocks of 32 threads, can lower it further.
        """
        if self._escapes is None:
            raise InvalidStateError(_NO_RESULTS)
        return list(self._oversized)

    @property
    def ok(self) -> bool:
        """True if there are no escapes and no oversized launches."""
        return not self.escapes and not self._oversized

    @property
    def collectives(self) -> dict[int, int]:
        """The number of collective kernels that ran in each context, keyed by the profiler's number of the context.

        If collective kernels ran in two partitions, a warning is given at the end of the block. The kernels of a
        communicator wait for the matching kernels on other devices in launch order. Launches in two partitions do not
        keep a common order, so a communicator that is used from two partitions can hang the GPUs. Use a communicator
        from one partition only, or create one communicator per partition.
        """
        if self._escapes is None:
            raise InvalidStateError(_NO_RESULTS)
        return dict(self._collectives)

    @property
    def total(self) -> int:
        """The number of kernels, memsets and copies within the device that ran, inside and outside the
        partition."""
        if self._escapes is None:
            raise InvalidStateError(_NO_RESULTS)
        return self._total

    def to_json(self) -> str:
        """Returns the results as JSON."""
        escapes = [asdict(escape) for escape in self.escapes]
        result = {
            "ok": self.ok,
            "partition": self._name,
            "device": self._device,
            "context": self._context,
            "total": self._total,
            "collectives": {str(context): count for context, count in self.collectives.items()},
            "escapes": escapes,
            "oversized": [asdict(each) for each in self._oversized],
        }
        return json.dumps(result, indent=1)

    def __repr__(self) -> str:
        name = self._name or "the current partition"
        if self._escapes is None:
            return f"<Watch {name}: not finished>"
        count = sum(escape.count for escape in self._escapes)
        if count:
            lines = [f"<Watch {name}: {count} of {self._total} kernels ran outside:"]
        elif self._confined:
            count = self._total - self._confined
            lines = [f"<Watch {name}: {count} of {self._total} kernels ran inside, the others outside of the reserve"]
        else:
            lines = [f"<Watch {name}: all {self._total} kernels ran inside"]
        for escape in self._escapes:
            where = f"stream {escape.stream} of context {escape.context}"
            lines.append(f"  {escape.count} x {escape.name}, {escape.duration_us:.1f} us, {where}")
        for each in self._oversized:
            most = f"{each.blocks} blocks, but {self._sms} SMs hold at most {each.resident} at once"
            lines.append(f"  {each.count} x {each.name}: {most}")
        return "\n".join(lines) + ">"

    def __enter__(self) -> Watch:
        torch = _seams.import_torch("prove where partitions run with green_ctx_torch.verify")
        if self._profiler is not None:
            raise InvalidStateError("a Watch watches one block only; make another one with watch()")
        part = self._partition
        device = torch.cuda.current_device() if part is None else part.device
        if part is None and _native.current_sm_count(device) is None:
            raise InvalidStateError(
                "the thread is not in a partition, or only in one of a verdict not to partition, which has no SMs of "
                "its own; enter one first, or pass one: watch(partition)"
            )
        profiler = make_profiler(torch)
        if torch.cuda.is_current_stream_capturing():
            raise InvalidStateError("a graph is being captured; watch its replay instead")
        stream = torch.cuda.current_stream(device) if part is None else part.stream
        # torch creates the streams of its pool in the primary context.
        plain = torch.cuda.Stream(device=device)
        # Work submitted earlier is not watched.
        torch.cuda.synchronize(device)
        profiler.start()
        try:
            _mark(torch, device, stream)
            _mark(torch, device, plain)
        except BaseException:
            profiler.stop()
            raise
        self._device, self._profiler, self._stream = device, profiler, stream
        self._sms = self._sms or _native.current_floor(device) or _native.current_sm_count(device) or 0
        self._properties = torch.cuda.get_device_properties(device)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        profiler = self._profiler
        if profiler is None:
            raise InvalidStateError("the watch has not begun; write `with watch() as watched:`")
        import torch

        try:
            if kind is None and torch.cuda.is_current_stream_capturing():
                raise InvalidStateError("a graph capture began in the watched block and has not ended")
            if kind is None:
                torch.cuda.synchronize(self._device)
                # If the profiler loses this marker, it may have lost other records too.
                _mark(torch, self._device, self._stream)
        finally:
            profiler.stop()
            # It would hold the SMs of a partition that is closed later.
            self._stream = None
        if kind is None:
            self._read(profiler.events())

    def _read(self, events: Iterable[dict[str, Any]]) -> None:
        """Computes the results from the events of a trace."""
        work = [event for event in events if _uses_sms(event)]
        work = [event for event in work if event["args"].get("device") == self._device]
        work.sort(key=lambda event: float(event["ts"]))
        marks = [event for event in work if _MARKER in event["name"]]
        if not marks:
            raise DriverError(
                "the driver reported no kernels to torch's profiler, so nothing is known about "
                "where they ran; another profiler may be attached (Nsight Systems, Nsight Compute, "
                "DCGM), or the process lacks the permission to profile"
            )
        # The block may contain kernels of the same name, so only the first two and the last are markers.
        marks = marks[:2] + marks[2:][-1:]
        contexts = [mark["args"].get("context") for mark in marks]
        if len(marks) < 3 or contexts[2] != contexts[0]:
            raise DriverError(
                "torch's profiler lost records of the watched block, so it is unknown where all of its work "
                f"ran (markers in contexts {contexts}); watch less work at a time"
            )
        inside, plain = contexts[:2]
        if not isinstance(inside, int) or not isinstance(plain, int) or inside == plain:
            raise UnsupportedError(
                "this version of CUPTI does not report which green context a kernel ran in, or the partition is a plain "
                f"stream, as under a verdict not to partition (contexts {inside} and {plain}), so it is unknown where the work ran"
            )
        work = [event for event in work if event not in marks]
        is_reserved = "reserve" in _native.info(self._device)["devices"][0]
        collectives: dict[int, int] = {}
        found: dict[tuple[str, str, int, int], tuple[int, float]] = {}
        for event in work:
            arguments = event["args"]
            context = arguments.get("context")
            if not isinstance(context, int):
                raise DriverError(f"the profiler reported no context of {event['name']}")
            if _COLLECTIVE.search(event["name"]):
                collectives[context] = collectives.get(context, 0) + 1
            if context == inside:
                continue
            if context == plain and is_reserved:
                self._confined += 1
                continue
            kind = _KINDS[event["cat"]]
            key = (event["name"], kind, int(arguments.get("stream", -1)), context)
            count, duration = found.get(key, (0, 0.0))
            found[key] = (count + 1, duration + float(event.get("dur", 0)))
        escapes = [
            Escape(name, kind, stream, context, self._device, count, round(duration, 3))
            for (name, kind, stream, context), (count, duration) in found.items()
        ]
        escapes.sort(key=lambda escape: -escape.duration_us)
        self._context, self._total, self._escapes = inside, len(work), escapes
        self._collectives = collectives
        self._oversized = self._find_oversized(work)
        partitions = sorted(collectives.keys() - {plain})
        if len(partitions) > 1:
            warnings.warn(
                f"kernels of collectives ran in {len(partitions)} partitions (contexts {partitions}): a "
                "communicator that is used from two partitions can hang the GPUs; use it from one partition, or "
                "make one for each",
                RuntimeWarning,
                stacklevel=3,
            )

    def _find_oversized(self, work: list[dict[str, Any]]) -> list[Oversized]:
        found: dict[tuple[str, int, int], int] = {}
        for event in work:
            if event["cat"] != "kernel" or not any(fnmatchcase(event["name"], each) for each in self._spinning):
                continue
            blocks = math.prod(event["args"]["grid"])
            resident = self._sms * _resident_per_sm(event["args"], self._properties)
            if blocks > resident:
                key = (event["name"], blocks, resident)
                found[key] = found.get(key, 0) + 1
        return [Oversized(*key, count) for key, count in found.items()]


def watch(part: Partition | None = None, *, spinning: Iterable[str] = ()) -> Watch:
    """Finds work in a `with` block that runs outside a partition.

        with parts["decode"], watch() as watched:
            step()
        assert watched.ok, watched

    `part` is the partition to watch. By default it is the partition that the thread is in when the block begins. After
    the block, `watched.ok` is True if all of the device's work ran in the partition, and `watched.escapes` lists the
    work that did not. All work of the process on that device counts, including that of other threads. Under a reserve,
    work outside of partitions is not listed, because it cannot use a floor, and `ok` is True even if no kernel ran in
    the partition. The printed watch says how many did.

    `spinning` names kernels whose blocks wait for each other, with the wildcards of `fnmatch`:

        with watch(parts["decode"], spinning=["*grid_barrier*"]) as watched:
            step()      # on all SMs, where such a kernel ends
        assert not watched.oversized, watched

    Launches whose blocks cannot all be resident on the partition's SMs are listed in `watched.oversized`. Such a kernel
    can hang in the partition, and a block that hangs does not end, so watch it outside of the partition first.

    Profiling slows launches down, so watch one step and not a whole service. The block begins and ends with a
    synchronisation of the device. torch's profiler stays attached to the process: after a block, launches and replays
    of a small graph took a third longer to submit (H200, driver 580.159.04, torch 2.11). With TEARDOWN_CUPTI=1 in the
    environment, torch detaches it, and only replays took longer, by an eighth.

    Raises RuntimeError if the result cannot be determined: no partition is given and the thread is in none, torch
    cannot profile CUDA work, another profiler runs, or the driver does not report contexts.
    """
    return Watch(part, spinning)


_KINDS = {"kernel": "kernel", "gpu_memset": "memset", "gpu_memcpy": "copy"}


def _uses_sms(event: dict[str, Any]) -> bool:
    category = event.get("cat")
    if category == "gpu_memcpy":
        # The copy engines do copies from and to the host.
        return "DtoD" in event["name"]
    return category in _KINDS


def _resident_per_sm(arguments: dict[str, Any], properties: Any) -> int:
    """Returns the most blocks of a kernel that one SM can hold by its threads, registers and shared memory.

    The SM gives each warp registers in units of 256 (CUDA's occupancy tables). What the driver adds to a block's shared
    memory is left out, so the result is never too small.
    """
    warps = -(-math.prod(arguments["block"]) // 32)
    registers = -(-32 * arguments.get("registers per thread", 0) // 256) * 256 * warps
    shared = arguments.get("shared memory", 0)
    bounds = [properties.max_threads_per_multi_processor // (32 * warps)]
    if registers:
        bounds.append(properties.regs_per_multiprocessor // registers)
    if shared:
        bounds.append(properties.shared_memory_per_multiprocessor // shared)
    return int(min(bounds))


class _TorchProfiler:
    """Records what CUPTI reports to torch."""

    def __init__(self, torch: Any) -> None:
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def start(self) -> None:
        try:
            self._profile.start()
        except Exception as error:
            raise DriverError(f"torch's profiler did not start: {error}") from error
        try:
            time.sleep(_MARGIN_SECONDS)
        except BaseException:
            self._profile.stop()
            raise

    def stop(self) -> None:
        try:
            time.sleep(_MARGIN_SECONDS)
        finally:
            self._profile.stop()

    def events(self) -> list[dict[str, Any]]:
        """Returns the events as the profiler exports them."""
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            self._profile.export_chrome_trace(path)
            with open(path, encoding="utf-8", errors="replace") as file:
                events: list[dict[str, Any]] = json.load(file)["traceEvents"]
        finally:
            os.unlink(path)
        return events


class _SimulatedProfiler:
    """Reads the launches from the simulated driver. The events have the form of torch's."""

    running = False

    def __init__(self, read: Any) -> None:
        self._read = read
        self._events = "[]"

    def start(self) -> None:
        _SimulatedProfiler.running = True
        self._read()

    def stop(self) -> None:
        _SimulatedProfiler.running = False
        self._events = self._read().decode()

    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads(self._events)
        return events


def make_profiler(torch: Any) -> _TorchProfiler | _SimulatedProfiler:
    """Returns a profiler, after a check that it can record and that none is running."""
    # Only a simulated library has this function. Every program that has used CUDA has loaded the library.
    read = getattr(ctypes.CDLL("libcuda.so.1"), "greenCtxSimulatedLaunches", None)
    if read is not None and _SimulatedProfiler.running:
        raise InvalidStateError("a block is already being watched; watch outside it")
    if read is not None:
        read.restype = ctypes.c_char_p
        return _SimulatedProfiler(read)
    lacking = _seams.misfit(
        _seams.problems(_seams.WATCHED), "Nothing can be watched; use a version that fits."
    )
    if lacking is not None:
        raise UnsupportedError(lacking)
    activity = torch.profiler.ProfilerActivity.CUDA
    if activity not in torch.profiler.supported_activities():
        raise UnsupportedError("this build of torch cannot profile CUDA activity (no CUPTI)")
    # The first is for this thread, the second for the process.
    if _seams.THREAD_PROFILES.find()() or _seams.PROCESS_PROFILES.find():
        raise InvalidStateError("torch's profiler is already running; watch outside its block")
    return _TorchProfiler(torch)


def _mark(torch: Any, device: int, stream: Any) -> None:
    with torch.cuda.device(device), torch.cuda.stream(stream):
        _seams.SLEEP.find()(1000)
    stream.synchronize()
