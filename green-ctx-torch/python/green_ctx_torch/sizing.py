"""Reports the number of SMs that work can use, for kernels whose grid size depends on this number.

A persistent kernel has one block per SM. Even in a partition the driver reports all SMs of the device, so the grid is
too large: with 132 blocks on 96 SMs, the last 36 blocks start only when earlier blocks have ended. `sm_count` returns
the number of SMs that torch's current stream can use:

    grid = (min(green_ctx_torch.sm_count(), tiles),)

In a partition with a share such as "32..", some of these SMs are shared with other partitions. A block on such an SM
waits while blocks of another partition occupy it. `floor` returns the number of SMs that no other partition may use:

    grid = (min(green_ctx_torch.floor() or green_ctx_torch.sm_count(), tiles),)

Use `floor` if the blocks stay until the kernel ends and depend on each other, or if the last block determines the
duration. Use `sm_count` if a block that starts late costs little, because the others take its tiles. In an exclusive
partition, and outside partitions, `floor` and `sm_count` return the same number.

`install` makes three functions of torch and Triton report the result of `sm_count`, for kernels that call them:
`torch.cuda.get_device_properties`, Triton's `get_device_properties`, and the function by which torch.compile sizes its
persistent templates. `uninstall` undoes this.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from green_ctx_torch import _native, _seams

if TYPE_CHECKING:
    import torch

__all__ = ["floor", "install", "sm_count", "uninstall"]


def sm_count(stream: torch.cuda.Stream | None = None) -> int:
    """Returns the number of SMs that work on a stream can use: the SMs of the stream's partition. If the stream is in
    no partition, these are all SMs of the device, or under a reserve those that are not reserved.

        grid = (min(sm_count(), tiles),)

    The default for `stream` is torch's current stream of the current device. For a partition with a share, the result
    is the ceiling of the share.
    """
    return _of_stream("sm_count", _native.current_sm_count, stream)


def floor(stream: torch.cuda.Stream | None = None) -> int:
    """Returns the number of SMs that no other partition may use: the floor of the stream's partition. If the stream is
    in no partition, the result is that of `sm_count`.

    If a persistent kernel has this number of blocks, all blocks start at the same time, because no other partition uses
    these SMs. The result is 0 for a share without a floor, such as "..100", and for a partition of an inactive plan.
    There, `floor() or sm_count()` is a usable grid size if the blocks do not wait for each other; if they do, they can
    hang. Outside partitions no SMs are guaranteed, and the result is the usual grid size.

    The default for `stream` is torch's current stream of the current device.
    """
    return _of_stream("floor", _native.current_floor, stream)


def _of_stream(
    function: str, ask: Callable[[int], int | None], stream: torch.cuda.Stream | None
) -> int:
    """Calls the native function `ask` for a stream and returns its result, or all SMs of the device if the stream is in
    no partition."""
    torch = _seams.import_torch("read the sm_count and the floor of the partition")
    if stream is not None:
        if not hasattr(stream, "cuda_stream"):
            raise TypeError(
                f"{function} takes a torch.cuda.Stream, such as parts['decode'].stream, got "
                f"{type(stream).__name__}"
            )
        with torch.cuda.stream(stream):
            return _of_stream(function, ask, None)
    device = torch.cuda.current_device()
    # Code that torch.compile generates contains the count.
    _note_use()
    _note_capture()
    count = ask(device)
    return _sms_of_device(device) if count is None else count


class _State(threading.local):
    """The state of the compilation on this thread."""

    used = False
    """True if the SM count was read, so the compiled code is valid for that count only."""

    of_device = False
    """True while code needs the SM count of the whole device, even in a partition."""


_state = _State()
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_installed = False
_reads: list[list[bool]] = []

_FOLLOWERS = _seams.FOLLOWING_MODULES
"""Modules of torch to which `torch.cuda.get_device_properties` reports the partition's SMs.

The modules of the first entry call the function on behalf of the code that is being compiled. The modules of the second
entry divide their grid by the count. All other modules of torch need the SM count of the whole device: they cache the
count for the process, derive generator offsets from it, or use it to decide whether the GPU is large.
"""


def install() -> None:
    """Makes torch and Triton size kernels by the SMs of the partition that the thread is in.

    Outside partitions nothing changes. In a partition:

    - `torch.cuda.get_device_properties(...).multi_processor_count` is the partition's count for code outside torch, and
      so is the `multiprocessor_count` that Triton reports. Functions that were imported by name earlier are not
      replaced, and values that a program has stored do not change.
    - torch.compile builds the persistent templates of matrix products and cooperative reductions for the partition's
      count. Code that contains a count is compiled again for every other count, and the caches on disk have one entry
      per count. The additional compilations count towards torch.compile's limit per function,
      `torch._dynamo.config.recompile_limit`.

    Call `install` before anything is compiled, because code that was compiled earlier does not record its count.
    `install` needs torch, and imports the modules of torch.compile. A second call does nothing.

    If this version of torch differs from what `install` expects, `install` gives a RuntimeWarning and replaces nothing.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _seams.import_torch("pass the partition's sm_count to each kernel")
        for seam in _seams.SIZES:
            seam.import_module()
        lacking = _seams.misfit(
            _seams.problems(_seams.SIZES),
            "Nothing is replaced: in a partition, torch's and Triton's own functions continue to report all "
            "SMs of the device. Pass green_ctx_torch.sm_count() to kernels that can take it.",
        )
        if lacking is not None:
            _seams.warn(lacking)
            return
        try:
            _replace_properties()
            _replace_triton()
            _replace_inductor()
            _replace_guards()
        except BaseException:
            _revert()
            raise
        _installed = True


def uninstall() -> None:
    """Undoes `install`. Code that is already compiled keeps the counts that it was compiled for."""
    global _installed
    with _lock:
        _installed = False
        _revert()


def _revert() -> None:
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute, and records how to restore it. Restoring keeps a value that other code has set in the
    meantime."""
    before = owner.__dict__[name]
    setattr(owner, name, value)

    def undo() -> None:
        if owner.__dict__.get(name) is value:
            setattr(owner, name, before)

    _undo.append(undo)


def _count(device: int) -> int | None:
    """Returns the SM count to report instead of the device's count, or None to report the device's count. Always None
    after `uninstall`."""
    if not _installed or _state.of_device:
        return None
    _note_capture()
    count = _native.current_sm_count(device)
    return None if count == _sms_of_device(device) else count


@functools.cache
def _sms_of_device(device: int) -> int:
    import torch

    # Bypasses the function that `install` replaces.
    original = inspect.unwrap(torch.cuda.get_device_properties)
    count: int = original(device).multi_processor_count
    return count


@contextlib.contextmanager
def reads_in_capture() -> Iterator[list[bool]]:
    """Gives a list that is empty until the count is read on a stream that is being captured, on any thread: a graph
    keeps the count of its capture."""
    reads: list[bool] = []
    _reads.append(reads)
    try:
        yield reads
    finally:
        _reads[:] = [each for each in _reads if each is not reads]


def _note_capture() -> None:
    if _reads and sys.modules["torch"].cuda.is_current_stream_capturing():
        for reads in tuple(_reads):
            reads.append(True)


def _note_use() -> None:
    """Records that the compilation on this thread, if any, depends on the count."""
    if _installed and _seams.COMPILATION.find()() is not None:
        _state.used = True


class _Properties:
    """A device's properties with a different SM count."""

    def __init__(self, properties: Any, count: int) -> None:
        self._properties = properties
        self.multi_processor_count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)

    def __repr__(self) -> str:
        count, all_sms = self.multi_processor_count, self._properties.multi_processor_count
        text = repr(self._properties)
        return text.replace(f"multi_processor_count={all_sms}", f"multi_processor_count={count}")


def _replace_properties() -> None:
    original = _seams.DEVICE_PROPERTIES.find()
    device_index = _seams.DEVICE_INDEX.find()

    @functools.wraps(original)
    def get_device_properties(device: Any = None) -> Any:
        properties = original(device)
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if caller.startswith("torch.") and not caller.startswith(_FOLLOWERS):
            return properties
        _note_use()
        count = _count(device_index(device, optional=True))
        return properties if count is None else _Properties(properties, count)

    _fold(get_device_properties, sm_count, floor)
    _replace(_seams.DEVICE_PROPERTIES.owner(), "get_device_properties", get_device_properties)


def _fold(*functions: Any) -> None:
    """Makes torch.compile call these functions while it compiles, and use the results as constants, as it does for
    torch's own `get_device_properties`."""
    # torch creates the map from the functions' names on the first request, so it contains the originals by now.
    rules = _seams.RULE_MAP.find()()
    folded, constants = _seams.FOLDED_FUNCTIONS.find(), _seams.CONSTANT_TYPES.find()
    for function in functions:
        rules[function] = _seams.IN_GRAPH_FUNCTION.find()
        folded[function] = None
    constants.add(_Properties)

    def undo() -> None:
        for function in functions:
            rules.pop(function, None)
            folded.pop(function, None)
        constants.discard(_Properties)

    _undo.append(undo)


def _replace_triton() -> None:
    if not _has_triton():
        return
    utils = _seams.TRITON_DRIVER.find()

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def get_device_properties(device: int) -> Any:
            properties = original(device)
            _note_use()
            count = _count(device)
            return properties if count is None else {**properties, "multiprocessor_count": count}

        return get_device_properties

    initialize = _seams.TRITON_DRIVER_INIT.find()

    # Triton builds the functions behind it with a C compiler on first use.
    @functools.wraps(initialize)
    def __init__(self: Any) -> None:
        initialize(self)
        if hasattr(self, "get_device_properties"):
            self.get_device_properties = wrap(self.get_device_properties)
        else:
            _warn_of_triton([f"{_seams.TRITON_DRIVER}.get_device_properties is absent"])

    _replace(utils, "__init__", __init__)
    instance = utils.__dict__.get("instance")
    if instance is not None and "get_device_properties" in instance.__dict__:
        _replace(instance, "get_device_properties", wrap(instance.get_device_properties))


def _has_triton() -> bool:
    """Returns whether Triton is installed and its driver can be wrapped. Warns if the driver cannot be wrapped."""
    try:
        importlib.import_module("triton")
    except ImportError:
        return False
    for seam in _seams.TRITON:
        seam.import_module()
    lacking = _seams.problems(_seams.TRITON)
    _warn_of_triton(lacking)
    return not any(lacking)


def _warn_of_triton(lacking: list[str | None]) -> None:
    consequence = "In a partition, Triton's driver continues to report all SMs of the device."
    _seams.warn(_seams.misfit(lacking, consequence, "triton"))


def _replace_inductor() -> None:
    import torch

    # `get_num_sms`, which other modules import by name, calls this function.
    original_max = _seams.MAX_NUM_SMS.find()

    @functools.wraps(original_max)
    def get_max_num_sms() -> int:
        _note_use()
        count = _count(torch.cuda.current_device())
        total: int = original_max()
        return total if count is None else count

    _replace(_seams.MAX_NUM_SMS.owner(), "get_max_num_sms", get_max_num_sms)

    # torch does not tune products on fewer than 68 SMs. This decision must not depend on the partition.
    original_big = _seams.IS_BIG_GPU.find()

    @functools.wraps(original_big)
    def is_big_gpu(index_or_device: Any = 0) -> bool:
        if _tunes_products():
            _note_use()
        before, _state.of_device = _state.of_device, True
        try:
            answer: bool = original_big(index_or_device)
        finally:
            _state.of_device = before
        return answer

    _replace(_seams.IS_BIG_GPU.owner(), "is_big_gpu", is_big_gpu)

    # The driver refuses a cooperative grid that is larger than the partition. The other uses of these properties
    # are heuristics, and part of every kernel's source. They are left unchanged, so that partitions of all sizes
    # share compiled kernels.
    original_create = _seams.CREATE_PROPERTIES.find()

    def create(cls: Any, device: Any) -> Any:
        properties = original_create(device)
        cooperative = _seams.COOPERATIVE.find() or _seams.FORCE_COOPERATIVE.find()
        if properties.type != "cuda" or not cooperative:
            return properties
        _note_use()
        count = _count(device.index)
        return properties if count is None else properties._replace(multi_processor_count=count)

    _replace(_seams.CREATE_PROPERTIES.owner(), "create", classmethod(create))

    # The key of compiled graphs in the caches of this process and on disk.
    original_details = _seams.GRAPH_KEY.find()

    @functools.wraps(original_details)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_details(self, *args, **kwargs)
        if _tunes_products():
            # Code from a cache contains a count, although nothing reads the count in this case.
            _note_use()
        count = _count(torch.cuda.current_device()) if torch.cuda.is_available() else None
        if count is not None:
            self.green_ctx_sm_count = count

    _replace(_seams.GRAPH_KEY.owner(), "__init__", __init__)


def _tunes_products() -> bool:
    """Returns whether inductor tries its own templates for matrix products."""
    return bool(_seams.MAX_AUTOTUNE.find() or _seams.MAX_AUTOTUNE_GEMM.find())


class _SameCount:
    """A guard of torch.compile that accepts compiled code only for the SM count that the code was compiled for."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.count = _count(device)
        self.floor = _native.current_floor(device)

    def __call__(self, _values: Any) -> bool:
        # After `uninstall` every count and every floor is accepted.
        same_floor = not _installed or _native.current_floor(self.device) == self.floor
        return same_floor and _count(self.device) == self.count

    def __str__(self) -> str:
        count = "the device's" if self.count is None else self.count
        return f"green_ctx_torch.sm_count() is {count}"


def _replace_guards() -> None:
    import torch

    original = _seams.MAKE_GUARDS.find()

    # The code is compiled by now, so it is known whether it depends on the count.
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
            if _state.used:
                guard = _SameCount(torch.cuda.current_device())
                _add_guard(self.guard_manager.root, guard)
        finally:
            _state.used = False

    _replace(_seams.MAKE_GUARDS.owner(), "__init__", __init__)


def _add_guard(root: Any, guard: _SameCount) -> None:
    try:
        root.add_lambda_guard(guard, [str(guard)], None)
    except TypeError:
        # torch 2.10 does not take the stack of the user's code.
        root.add_lambda_guard(guard, [str(guard)])
