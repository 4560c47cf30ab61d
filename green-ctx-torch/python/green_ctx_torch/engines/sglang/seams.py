"""What the plug-in expects of SGLang's sources.

A release may change any of it, and SGLang goes on without a plug-in that fails. So the sources that are installed are
compared with this list before anything is hooked, and what does not fit stops the engine. Nothing of SGLang is
imported here: `tests/python/sglang_releases.py` compares any release in the same way, without a GPU.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Seam:
    """A function or class of SGLang."""

    name: str
    """The name that is hooked."""

    path: str
    """Its file within the package, and its name there, as in `srt/plugins/__init__.py:load_plugins`."""

    parameters: tuple[str, ...] | None = None
    """The first parameters; None where any will do."""

    contains: tuple[str, ...] = ()
    """Expressions and statements that the source must contain, as `ast.unparse` writes them."""

    instead: tuple[str, ...] = ()
    """Where other versions have it, in the form of `path`."""

    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.instead)


_LOOP = "srt/multiplex/multiplexing_mixin.py:SchedulerMultiplexMixin"
_CONTEXT = "srt/multiplex/pdmux_context.py"
_OLD_RUNNER = "srt/model_executor/cuda_graph_runner.py:CudaGraphRunner"
_RUNNER = "srt/model_executor/runner/decode_cuda_graph_runner.py:DecodeCudaGraphRunner"
_MODEL = "srt/model_executor/model_runner.py:ModelRunner"

#: What is hooked. The first place that a version has counts.
HOOKED = {
    "arguments": Seam("arguments", "srt/server_args.py:ServerArgs.__post_init__", ("self",)),
    "config": Seam("config", f"{_CONTEXT}:load_pdmux_config", ("config_path",)),
    "groups": Seam("groups", f"{_CONTEXT}:initialize_stream_groups", ("gpu_id", "config")),
    "switch": Seam("switch", f"{_CONTEXT}:set_current_stream_idx", ("idx",)),
    "init": Seam(
        "init",
        f"{_LOOP}.init_pdmux",
        ("self",),
        ("get_stream_groups()", "get_sm_counts()", "len(self.stream_groups)", "self.split_prefill_batch"),
    ),
    "step": Seam(
        "step",
        f"{_LOOP}.update_split_prefill_batch",
        ("self", "sm_count"),
        ("ForwardMode.SPLIT_PREFILL", "self.split_prefill_batch = batch"),
    ),
    "prefill": Seam(
        "prefill",
        "srt/managers/tp_worker.py:TpModelWorker.forward_batch_split_prefill",
        ("self", "batch"),
        ("batch.split_forward_batch", "batch.split_forward_count"),
    ),
    "sample": Seam("sample", f"{_MODEL}.sample", ("self", "logits_output", "forward_batch")),
    "backends": Seam(
        "backends",
        f"{_MODEL}.init_attention_backends",
        ("self",),
        instead=(f"{_MODEL}.init_attention_backend",),
    ),
    "capture": Seam(
        "capture",
        f"{_RUNNER}.maybe_init_pdmux",
        ("self",),
        ("self.stream_groups = get_stream_groups()", "self.model_runner.decode_attn_backend_group"),
        (f"{_OLD_RUNNER}.maybe_init_pdmux",),
    ),
    "graph": Seam(
        "graph",
        f"{_RUNNER}._make_graph_key",
        ("self",),
        instead=(f"{_OLD_RUNNER}._make_graph_key",),
    ),
    "state": Seam("state", "srt/managers/scheduler.py:Scheduler.get_internal_state", ("self", "recv_req")),
}

#: What is called, and what the hooks rest on.
USED = (
    Seam(
        "the loop",
        f"{_LOOP}.event_loop_pdmux",
        ("self",),
        (
            "self.pdmux_config.split_forward_token_budget // self.split_prefill_batch.extend_num_tokens",
            "self.update_split_prefill_batch",
            "self.adjust_stream_groups",
            "prefill_stream.synchronize()",
            "decode_stream.synchronize()",
            "prefill_exe_done.query()",
            "self.run_batch(self.split_prefill_batch)",
        ),
    ),
    Seam(
        "the choice of a group",
        f"{_LOOP}.adjust_stream_groups",
        ("self",),
        (
            "manual_divisions = self.pdmux_config.manual_divisions",
            "_, _, threshold = manual_divisions[i]",
            "decode_bs >= threshold",
            "stream_idx = i + 1",
            "set_current_stream_idx(self.real_sm_group_num - 1)",
            "set_current_stream_idx(0)",
            "self.tp_worker.model_runner.update_decode_attn_backend(stream_idx)",
        ),
    ),
    Seam(
        "the capture of decode's graphs",
        f"{_RUNNER}._capture",
        ("self",),
        ("enumerate(self.stream_groups)", "graph_capture(stream=sg[1])"),
        (f"{_RUNNER}.capture", f"{_OLD_RUNNER}.capture"),
    ),
    Seam("stream groups", f"{_CONTEXT}:get_stream_groups", (), ("return STREAM_GROUPS",)),
    Seam("SM counts", f"{_CONTEXT}:get_sm_counts", (), ("return SM_COUNTS",)),
    Seam(
        "hooks",
        "srt/plugins/hook_registry.py:HookRegistry.register",
        ("cls", "target", "hook", "hook_type"),
    ),
    Seam(
        "hooks that are applied",
        "srt/plugins/hook_registry.py:HookRegistry.apply_hooks",
        ("cls",),
        ("cls._patched.add(target)",),
    ),
    Seam(
        "calls of the scheduler",
        "srt/managers/scheduler.py:Scheduler.handle_rpc_request",
        ("self", "recv_req"),
        ("getattr(self, recv_req.method)",),
    ),
)

#: The argument that pdmux's first prefill fails for, in 0.5.11 and 0.5.12.
WRONG_SAMPLE = "self.model_runner.sample(logits_output, model_worker_batch)"


class Sources:
    """The sources of an installed or unpacked release."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the package: it has the folder `srt`."""
        self.folder = folder
        self._trees: dict[str, ast.Module | None] = {}

    def find(self, path: str) -> ast.AST | None:
        """What defines a name, as in `srt/server_args.py:ServerArgs.__post_init__`; None where nothing does."""
        file, _, name = path.partition(":")
        if file not in self._trees:
            source = self.folder / file
            found = source.is_file()
            self._trees[file] = ast.parse(source.read_text(encoding="utf-8")) if found else None
        node: ast.AST | None = self._trees[file]
        for part in name.split("."):
            node = next((each for each in _definitions(node) if each.name == part), None)
        return node

    def place(self, seam: Seam) -> str | None:
        """The first of a seam's places that this release has."""
        return next((path for path in seam.paths() if self.find(path) is not None), None)

    def problem(self, seam: Seam) -> str | None:
        """How the release differs from what is expected; None where it does not."""
        path = self.place(seam)
        if path is None:
            return f"{' and '.join(seam.paths())} is absent"
        node = self.find(path)
        if isinstance(node, ast.FunctionDef) and seam.parameters is not None:
            takes = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            if tuple(takes[: len(seam.parameters)]) != seam.parameters:
                expected = ", ".join(seam.parameters)
                return f"{path} takes ({', '.join(takes)}) where ({expected}) is expected"
        assert node is not None, "it has a place"
        text = {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.expr | ast.stmt)}
        missing = [each for each in seam.contains if each not in text]
        return f"{path} no longer contains `{missing[0]}`" if missing else None

    def problems(self) -> list[str]:
        """All differences."""
        seams = (*HOOKED.values(), *USED)
        return [problem for problem in map(self.problem, seams) if problem is not None]

    def target(self, seam: Seam) -> str:
        """The dotted name of a seam, as the hook registry takes it."""
        path = self.place(seam)
        assert path is not None, "problems() reports it"
        file, _, name = path.partition(":")
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"sglang.{module}.{name}"

    def has_wrong_sample(self) -> bool:
        """Whether pdmux's first prefill fails for a wrong argument."""
        path = self.place(HOOKED["prefill"])
        node = self.find(path) if path else None
        return any(
            ast.unparse(each) == WRONG_SAMPLE
            for each in (ast.walk(node) if node else ())
            if isinstance(each, ast.Call)
        )


def _definitions(outer: ast.AST | None) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """The functions and classes that a module or class defines, those within `if` and `try` too."""
    for node in getattr(outer, "body", []):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _definitions(node)
