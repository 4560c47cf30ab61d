"""The names of torch and Triton, outside their public interfaces, that this package replaces or calls.

Any release can change these names, so each is listed here once, with the properties that this package expects. The rest
of the package uses only the names in this list. `misfit` describes how the imported torch differs from the list, and
`tests/python/seams.py` compares the list with the sources of any release. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def import_torch(instead: str, purpose: str = "this") -> Any:
    """Imports torch. If the import fails, the error message names an alternative that works without torch."""
    try:
        import torch
    except ImportError as error:
        message = f"torch is needed for {purpose} and cannot be imported; install it, or {instead}"
        # The traceback of the cause would keep the caller's objects alive.
        raise ImportError(message) from error.with_traceback(None)
    return torch


@dataclass(frozen=True)
class Seam:
    """One name in torch or Triton, with the properties that this package expects."""

    module: str
    name: str
    """The name within the module, such as `CUDAGraph.replay`."""

    parameters: tuple[str, ...] | None = None
    """The expected first parameters of a function; all other parameters must have defaults. None if any parameters are
    accepted."""

    optional: tuple[str, ...] = ()
    """Parameters that some versions of torch require and other versions do not have."""

    attributes: tuple[str, ...] = ()
    """Fields of a class, and attributes that its methods set, which this package uses."""

    state: frozenset[str] | None = None
    """All attributes of the object that this package knows."""

    since: str | None = None
    """The version of torch that introduced the name. With older versions, this package works without the name."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def find(self) -> Any:
        """Returns the object, or None if torch lacks it or has not imported its module."""
        found = self._module()
        for name in self.name.split("."):
            found = getattr(found, name, None)
        return found

    def _module(self) -> Any:
        found = sys.modules.get(self.module)
        if found is None:
            found = sys.modules.get("torch")
            for name in self.module.split(".")[1:]:
                # Not with `getattr`: torch imports its compiler on access, which changes how Python ends.
                found = vars(found).get(name) if hasattr(found, "__dict__") else None
        return found

    def owner(self) -> Any:
        """Returns the module or class in which the name can be replaced."""
        outer, _, _ = self.name.rpartition(".")
        return Seam(self.module, outer).find() if outer else self._module()

    def import_module(self) -> None:
        """Imports the module that contains the name, if the module exists."""
        # `problem` reports what torch lacks.
        with contextlib.suppress(ImportError):
            importlib.import_module(self.module)

    def problem(self) -> str | None:
        """Returns text that describes how the imported torch differs from the expectation, or None if there is no
        difference."""
        found = self.find()
        if found is None:
            return None if self.is_newer() else f"{self} is absent"
        if self.parameters is None:
            return None
        try:
            signature = inspect.signature(found)
        except (TypeError, ValueError):
            # Native functions have no signature.
            return None
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        takes = [each for each in signature.parameters.values() if each.kind not in kinds]
        needs = [each.name for each in takes if each.default is inspect.Parameter.empty]
        # The signature of a bound class method does not contain the class.
        expected = self.parameters[inspect.ismethod(found) :]
        return self.differs(expected, [each.name for each in takes], needs)

    def is_newer(self) -> bool:
        """Returns whether the name is newer than the imported torch. If torch's version is unknown, torch counts as
        older."""
        version = getattr(sys.modules.get("torch"), "__version__", "0.0")
        return self.since is not None and _numbers(version) < _numbers(self.since)

    def differs(
        self, expected: tuple[str, ...], takes: list[str], needs: Iterable[str]
    ) -> str | None:
        """Returns text that describes how a function's parameters differ from `expected`, or None. `takes` lists all
        parameters of the function, and `needs` lists the parameters without a default."""
        surplus = set(needs) - set(expected) - set(self.optional)
        if tuple(takes[: len(expected)]) == expected and not surplus:
            return None
        return f"{self} takes ({', '.join(takes)}) where ({', '.join(expected)}) is expected"

    def lacks(self, has: Iterable[str]) -> str | None:
        """Returns text that lists the expected attributes that are missing, or None."""
        missing = sorted(set(self.attributes) - set(has))
        return f"{self} has no {', '.join(missing)}" if missing else None

    def unknown(self, has: Iterable[str]) -> str | None:
        """Returns text that lists the attributes that this package does not know, or None."""
        others = sorted(set(has) - self.state) if self.state is not None else []
        return f"{self} has state that is not known: {', '.join(others)}" if others else None


def _numbers(version: str) -> list[int]:
    """Returns the first two numbers of a version string."""
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


_GRAPHS = "torch.cuda.graphs"
_TREES = "torch._inductor.cudagraph_trees"
_RUN = ("self", "new_inputs", "function_id")

# Used by `_captures`.
CUDA_GRAPH = Seam(_GRAPHS, "CUDAGraph")
CAPTURE_BEGIN = Seam(_GRAPHS, "CUDAGraph.capture_begin", ("self", "pool", "capture_error_mode"))
CAPTURE_END = Seam(_GRAPHS, "CUDAGraph.capture_end", ("self",))
CAPTURE_END_PRE = Seam(_GRAPHS, "CUDAGraph.capture_end_pre", ("self",), since="2.14")
REPLAY = Seam(_GRAPHS, "CUDAGraph.replay", ("self",))
CAPTURE_START_HOOK = Seam(_GRAPHS, "register_graph_capture_start_hook", ("fn",), since="2.14")
GRAPHS = (CUDA_GRAPH, CAPTURE_BEGIN, CAPTURE_END, CAPTURE_END_PRE, REPLAY, CAPTURE_START_HOOK)

# The manager that `torch.compile(mode="reduce-overhead")` has for each device.
TREE_MANAGER = Seam(
    _TREES,
    "CUDAGraphTreeManager",
    ("device_index",),
    attributes=(
        "device_index",
        "stream",
        "ids_to_funcs",
        "ids_to_stack_traces",
        "id_to_mode",
        "id_to_compile_id",
    ),
    # The attributes above are shared with peers. The others belong to a manager's own graphs.
    state=frozenset(
        "roots ids_to_funcs ids_to_stack_traces warmed_up_functions warned_functions warned_mutation "
        "graph_counter func_counter non_cudagraph_managed_mutation_hint warmup_node_counter num_rerecord "
        "path_state device_index current_node _current_node current_gen debug_fail_counter "
        "debug_checkpointing_counter id_to_mode id_to_compile_id running_forwards_with_pending_backwards mode "
        "compile_id disable_invalidate_aliases stream graph cuda_graphs_thread_pool active_warmup_function "
        "has_live_user_visible_output_cloning liveness_check_state skip_cudagraph "
        "cudagraph_managed_input_rerecord demoted_cudagraph_managed_idxs".split()
    ),
)
TREE_RUN = Seam(_TREES, "CUDAGraphTreeManager._run", _RUN)
TREE_RUN_PUBLIC = Seam(_TREES, "CUDAGraphTreeManager.run", _RUN)
TREE_SHUTDOWN = Seam(_TREES, "CUDAGraphTreeManager.shutdown", ("self",))
TREE_BACKWARD = Seam(_TREES, "CUDAGraphTreeManager.set_to_running_backward", ("self",))
TREE_LIVE = Seam(
    _TREES, "CUDAGraphTreeManager.live_cudagraph_pool_storages_in_curr_execution", ("self",)
)
TREE_WARMUP = Seam(_TREES, "CUDAGraphTreeManager.mark_warmup_incomplete", ("self",), since="2.14")
GET_MANAGER = Seam(_TREES, "get_manager", ("device_index", "create_if_none_exists"))
CURRENT_STREAM = Seam("torch.cuda", "current_stream", ("device",))
TREES = (
    TREE_MANAGER,
    TREE_RUN,
    TREE_RUN_PUBLIC,
    TREE_SHUTDOWN,
    TREE_BACKWARD,
    TREE_LIVE,
    TREE_WARMUP,
    GET_MANAGER,
    CURRENT_STREAM,
)

# Used by `sizing`.
DEVICE_PROPERTIES = Seam("torch.cuda", "get_device_properties", ("device",))
DEVICE_INDEX = Seam("torch.cuda._utils", "_get_device_index", ("device", "optional"))
RULE_MAP = Seam("torch._dynamo.trace_rules", "get_torch_obj_rule_map", ())
IN_GRAPH_FUNCTION = Seam("torch._dynamo.variables.torch", "TorchInGraphFunctionVariable")
FOLDED_FUNCTIONS = Seam("torch._dynamo.variables.torch", "constant_fold_functions")
CONSTANT_TYPES = Seam("torch._dynamo.utils", "common_constant_types")
MAX_NUM_SMS = Seam("torch._inductor.utils", "get_max_num_sms", ())
IS_BIG_GPU = Seam("torch._inductor.utils", "is_big_gpu", ("index_or_device",))
INDUCTOR_PROPERTIES = Seam(
    "torch._inductor.runtime.hints",
    "DeviceProperties",
    attributes=("type", "index", "multi_processor_count"),
)
CREATE_PROPERTIES = Seam(
    "torch._inductor.runtime.hints", "DeviceProperties.create", ("cls", "device")
)
GRAPH_KEY = Seam("torch._inductor.codecache", "FxGraphHashDetails.__init__")
MAX_AUTOTUNE = Seam("torch._inductor.config", "max_autotune")
MAX_AUTOTUNE_GEMM = Seam("torch._inductor.config", "max_autotune_gemm")
COOPERATIVE = Seam("torch._inductor.config", "triton.cooperative_reductions")
FORCE_COOPERATIVE = Seam("torch._inductor.config", "triton.force_cooperative_reductions")
CHECK_FUNCTION = Seam(
    "torch._dynamo.guards", "CheckFunctionManager", attributes=("guard_manager",)
)
MAKE_GUARDS = Seam("torch._dynamo.guards", "CheckFunctionManager.__init__")
LAMBDA_GUARD = Seam(
    "torch._C._dynamo.guards",
    "GuardManager.add_lambda_guard",
    ("self", "user_lambda", "verbose_code_parts"),
    # torch 2.11 and newer.
    optional=("user_stack",),
)
COMPILATION = Seam("torch._guards", "CompileContext.try_get", ())
FOLLOWING_MODULES = ("torch._dynamo.variables.", "torch._inductor.kernel.flex.")
SIZES = (
    DEVICE_PROPERTIES,
    DEVICE_INDEX,
    RULE_MAP,
    IN_GRAPH_FUNCTION,
    FOLDED_FUNCTIONS,
    CONSTANT_TYPES,
    MAX_NUM_SMS,
    IS_BIG_GPU,
    INDUCTOR_PROPERTIES,
    CREATE_PROPERTIES,
    GRAPH_KEY,
    MAX_AUTOTUNE,
    MAX_AUTOTUNE_GEMM,
    COOPERATIVE,
    FORCE_COOPERATIVE,
    CHECK_FUNCTION,
    MAKE_GUARDS,
    LAMBDA_GUARD,
    COMPILATION,
)

# Used by `sizing` if Triton is installed. Triton has its own versions.
TRITON_DRIVER = Seam("triton.backends.nvidia.driver", "CudaUtils")
TRITON_DRIVER_INIT = Seam("triton.backends.nvidia.driver", "CudaUtils.__init__", ("self",))
TRITON = (TRITON_DRIVER, TRITON_DRIVER_INIT)

# Used by `watching`.
SLEEP = Seam("torch.cuda", "_sleep", ("cycles",))
THREAD_PROFILES = Seam("torch.autograd", "_profiler_enabled")
PROCESS_PROFILES = Seam("torch.autograd.profiler", "_is_profiler_enabled")
WATCHED = (SLEEP, THREAD_PROFILES, PROCESS_PROFILES)

# Used when a block begins.
IS_EXPORTING = Seam("torch.compiler", "_is_exporting_flag")
EXPORTS = (IS_EXPORTING,)

# Used when a partition is closed, and for torch's CUDA sanitizer.
CLEAR_WORKSPACES = Seam("torch._C", "_cuda_clearCublasWorkspaces", ())
SANITIZER = Seam("torch.cuda._sanitizer", "cuda_sanitizer")
SANITIZER_ENABLED = Seam("torch.cuda._sanitizer", "CUDASanitizer", attributes=("enabled",))
OTHERS = (CLEAR_WORKSPACES, SANITIZER, SANITIZER_ENABLED)

# Used before a measurement, to see which streams a function uses.
DISPATCH_MODE = Seam("torch.utils._python_dispatch", "TorchDispatchMode")
MEASURED = (DISPATCH_MODE,)

ALL = (*GRAPHS, *TREES, *SIZES, *WATCHED, *EXPORTS, *OTHERS, *MEASURED)
"""All names that this package uses from torch."""


def misfit(
    problems: Iterable[str | None], consequence: str, package: str = "torch"
) -> str | None:
    """Returns a message about a package that differs from the expectation: its version, the differences, and the
    consequence. Returns None if `problems` lists no difference."""
    found = [problem for problem in problems if problem]
    if not found:
        return None
    version = getattr(sys.modules.get(package), "__version__", "of an unknown version")
    return (
        f"{package} {version} is not what this version of green_ctx_torch expects: {'; '.join(found)}. "
        f"{consequence}"
    )


def problems(seams: Iterable[Seam]) -> list[str | None]:
    """Returns one entry per name: text that describes how the imported torch differs from the expectation, or None."""
    return [seam.problem() for seam in seams]


def warn(message: str | None) -> None:
    """Gives a RuntimeWarning with a message from `misfit`. Does nothing for None."""
    if message is not None:
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def without_sanitizer() -> None:
    """Warns that torch's CUDA sanitizer does not see how entering and leaving partitions order the work."""
    lacking = f"{SANITIZER}.enabled is absent"
    warn(misfit([lacking], "The CUDA sanitizer reports races in programs that have none."))


def exporting() -> Any:
    """Returns the torch module that has a flag for a running torch.export, or None if torch lacks the flag.

    The caller reads the flag instead of calling torch's function. Python code must not run when a daemon thread enters
    a partition while the interpreter shuts down.
    """
    warn(misfit(problems(EXPORTS), "torch.export drops the blocks of partitions silently."))
    return None if IS_EXPORTING.find() is None else IS_EXPORTING.owner()
