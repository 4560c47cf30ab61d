"""The hooks: SGLang's multiplexing loop gets streams, a configuration and graphs of ours, and stays as it is."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from green_ctx_torch.engines.sglang.control import FixedShares
from green_ctx_torch.engines.sglang.groups import Config, Groups
from green_ctx_torch.engines.sglang.metrics import Metrics
from green_ctx_torch.engines.sglang.seams import HOOKED, Sources
from green_ctx_torch.engines.sglang.setting import Setting, SettingError

VARIABLE = "GREEN_CTX_SGLANG"

#: The value that corrects pdmux's first prefill in 0.5.11 and 0.5.12, and does nothing else.
MEND = "mend"

#: In place of the path of pdmux's configuration. SGLang's own loop cannot start with it.
MARK = "/green_ctx_torch:this configuration is for its plug-in"

_log = logging.getLogger("sglang.green_ctx_torch")

#: What the plug-in does not do, by the names of SGLang's arguments: whether a value asks for it, and why not.
REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "pp_size": (lambda value: value > 1, "multiplexing does not support pipeline parallelism"),
    "tp_size": (lambda value: value > 1, "the plug-in has not been tried on several GPUs"),
    "dp_size": (lambda value: value > 1, "the plug-in has not been tried on several GPUs"),
    "disaggregation_mode": (
        lambda value: value not in (None, "null"),
        "prefill and decode already run in different engines",
    ),
    "speculative_algorithm": (bool, "multiplexing does not verify drafted tokens"),
    "enable_lora": (bool, "adapters' memory is not ordered between the two streams"),
    "lora_paths": (bool, "adapters' memory is not ordered between the two streams"),
    "enable_two_batch_overlap": (bool, "multiplexing makes its own overlap"),
    "enable_torch_compile": (bool, "compiled decode steps were not tried in partitions"),
}


Hook = tuple[str, Callable[..., Any], str]


class Mend:
    """Corrects pdmux's first prefill in 0.5.11 and 0.5.12, which passes another object than `ModelRunner.sample`
    expects."""

    def __init__(self) -> None:
        self._running: Any = None
        self._is_said = False

    def run_prefill(self, original: Callable[..., Any], worker: Any, batch: Any) -> Any:
        """Around `forward_batch_split_prefill`."""
        self._running = batch
        try:
            return original(worker, batch)
        finally:
            self._running = None

    def sample(self, runner: Any, logits_output: Any, forward_batch: Any, *rest: Any, **named: Any) -> Any:
        """Before `ModelRunner.sample`."""
        if self._running is not None:
            forward_batch = self._running.split_forward_batch
            if not self._is_said:
                self._is_said = True
                _log.info(
                    "%s: SGLang passed a wrong argument at pdmux's first prefill, which is mended", VARIABLE
                )
        return (runner, logits_output, forward_batch, *rest), named

    def hooks(self, sources: Sources) -> list[Hook]:
        """Targets in SGLang, hooks and their kinds; none where the release needs none."""
        if not sources.has_wrong_sample():
            return []
        return [
            (sources.target(HOOKED["prefill"]), self.run_prefill, "AROUND"),
            (sources.target(HOOKED["sample"]), self.sample, "BEFORE"),
        ]


class Plugin:
    """The hooks of one process, and what they share."""

    def __init__(self, setting: Setting, version: str, sources: Sources) -> None:
        self.setting = setting
        self.version = version
        self.sources = sources
        self.controller = FixedShares(setting)
        self.config = Config(setting, self.controller)
        self.groups: Groups | None = None
        self.metrics: Metrics | None = None
        self.mend = Mend()
        self._submitting = 0.0
        self._last_step: float | None = None
        self._timed: list[tuple[Any, Any, Any, int, int]] = []
        self._last_end: Any = None

    # What is hooked.

    def arguments(self, arguments: Any) -> None:
        """Before `ServerArgs.__post_init__`: what multiplexing requires."""
        for name, (asks, why) in REFUSED.items():
            value = getattr(arguments, name, None)
            if asks(value) if value is not None else False:
                stop(f"{name}={value!r} is not supported: {why}; leave it out, or set {VARIABLE}=off")
        required = {
            "enable_pdmux": True,
            "pdmux_config_path": MARK,
            "sm_group_num": 1,
            "chunked_prefill_size": -1,
            "enable_mixed_chunk": False,
            "disable_overlap_schedule": True,
        }
        changed = []
        for name, value in required.items():
            if not hasattr(arguments, name):
                stop(f"SGLang {self.version} has no argument {name}")
            if getattr(arguments, name) != value:
                changed.append(name if name == "pdmux_config_path" else f"{name}={value}")
                setattr(arguments, name, value)
        plans = "; ".join(f"from {plan.batch} decoding requests on {plan}" for plan in self.setting.plans)
        # SGLang configures its log later, and shows warnings until then.
        _log.warning(
            "%s: %s. Set for it: %s. %s=off switches it off.", VARIABLE, plans, ", ".join(changed), VARIABLE
        )

    def load_config(self, original: Callable[[Any], Any], config_path: Any) -> Any:
        """Around `load_pdmux_config`."""
        return self.config if config_path == MARK else original(config_path)

    def make_groups(self, original: Callable[..., Any], gpu_id: int, config: Any) -> None:
        """Around `initialize_stream_groups`: SGLang's module gets our groups."""
        if config is not self.config:
            original(gpu_id, config)
            return
        try:
            groups = Groups(self.setting, gpu_id)
        except Exception as error:
            stop(f"the GPU cannot be divided as {VARIABLE} says: {error}")
        context = sys.modules["sglang.srt.multiplex.pdmux_context"]
        context.SM_COUNTS = groups.sm_counts()  # type: ignore[attr-defined]
        context.STREAM_GROUPS = groups.streams  # type: ignore[attr-defined]
        context.CURRENT_STREAM_IDX = 0  # type: ignore[attr-defined]
        context.CURRENT_STREAM_GROUP = groups.streams[0]  # type: ignore[attr-defined]
        self.groups = self.config.groups = groups
        for label, plan in zip(groups.names, groups.describe(), strict=True):
            _log.info(
                "%s %s: %s", VARIABLE, label, ", ".join(f"{key} {value}" for key, value in plan.items())
            )

    def switched(self, _result: Any, idx: int) -> None:
        """After `set_current_stream_idx`."""
        if self.groups is not None:
            self.groups.switched(idx)

    def initialized(self, _result: Any, scheduler: Any) -> None:
        """After `init_pdmux`: the loop has our streams and our configuration, or does not begin."""
        groups = self.groups
        if (
            groups is None
            or scheduler.stream_groups is not groups.streams
            or scheduler.pdmux_config is not self.config
        ):
            stop("SGLang's multiplexing did not take the plug-in's stream groups")
        scheduler.green_ctx_use = self.use
        scheduler.green_ctx_change = self.change
        _log.info(
            "%s=off switches the plug-in off, and engines.sglang.turn_off(engine) while it runs", VARIABLE
        )
        self.metrics = Metrics(groups, getattr(scheduler, "enable_metrics", False))

    def step(self, original: Callable[..., Any], scheduler: Any, *arguments: Any, **named: Any) -> Any:
        """Around `update_split_prefill_batch`, which begins a step."""
        running = scheduler.running_batch
        batch = 0 if running is None or running.is_empty() else running.batch_size()
        now = time.perf_counter()
        # Once all layers are submitted, the loop does not come here until they are done. Those steps do not count.
        is_one_step = scheduler.split_prefill_batch is not None and self._submitting > 0
        if self._last_step is not None and is_one_step and batch and self.config.batch:
            self.controller.stepped(now - self._last_step, self._submitting)
        self._last_step, self._submitting = now, 0.0
        self.config.batch = batch
        self._read_times()
        if self.metrics is not None:
            self.metrics.publish(self.controller)
        result = original(scheduler, *arguments, **named)
        changed = self._changes_plan(batch)
        if isinstance(result, tuple):
            return (result[0] or changed, *result[1:])
        return result or changed

    def run_prefill(self, original: Callable[..., Any], worker: Any, batch: Any) -> Any:
        """Around `forward_batch_split_prefill`."""
        torch = sys.modules["torch"]
        stream = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        layers, tokens = batch.split_forward_count, batch.extend_num_tokens
        former = self._last_end if batch.split_index else None
        started = time.perf_counter()
        begin.record(stream)
        try:
            return self.mend.run_prefill(original, worker, batch)
        finally:
            end.record(stream)
            seconds = time.perf_counter() - started
            self._submitting += seconds
            self.controller.submitted(layers, seconds)
            self._last_end = end
            self._timed.append((former, begin, end, layers, tokens))

    def made_backends(self, _result: Any, runner: Any) -> None:
        """After `init_attention_backends`: one backend of decode for all groups, as there is one set of graphs."""
        if not getattr(runner.model, "forward_split_prefill", None):
            stop(
                f"the model {type(runner.model).__name__} has no forward_split_prefill, so SGLang {self.version} cannot "
                f"multiplex it; set {VARIABLE}=off"
            )
        runner.decode_attn_backend_group = _Same(runner.decode_attn_backend_group[0])

    def capturing(self, _result: Any, runner: Any) -> None:
        """After `maybe_init_pdmux`: the graphs of one group are those of all."""
        runner.stream_groups = runner.stream_groups[:1]

    def graph_key(
        self,
        original: Callable[..., Any],
        runner: Any,
        size: Any,
        stream_idx: Any = None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        """Around `_make_graph_key`."""
        return original(runner, size, None if stream_idx is None else 0, *rest, **named)

    def add_state(self, result: Any, *_arguments: Any) -> None:
        """After `Scheduler.get_internal_state`."""
        if self.metrics is not None:
            result.internal_state["green_ctx"] = self.metrics.snapshot(self.controller)

    # What programs call.

    def use(self, shares: bool) -> None:
        """Gives the loop the shares' streams or plain ones."""
        assert self.groups is not None, "init_pdmux has run"
        if shares:
            self.groups.use_shares()
        else:
            self.groups.use_plain()
        _log.info("%s: the loop uses %s now", VARIABLE, "shares" if shares else "plain streams")

    def change(self, text: str) -> None:
        """Gives the loop other shares. Raises `ValueError`, and nothing has changed then."""
        assert self.groups is not None and self.metrics is not None, "init_pdmux has run"
        setting = Setting.parse(text)
        self.groups.change(setting)
        self.controller = self.config.controller = FixedShares(setting)
        self.metrics.changed()
        _log.info("%s: the loop gets %s now", VARIABLE, text)

    # What the hooks share.

    def _changes_plan(self, batch: int) -> bool:
        """Whether another plan is due while prefill and decode run."""
        groups = self.groups
        if groups is None or not batch or not groups.is_on or not 0 < groups.current <= len(groups.names):
            return False
        return self.controller.plan(batch) != groups.current - 1

    def _read_times(self) -> None:
        """Reports the prefills that the GPU has finished."""
        while self._timed and self._timed[0][2].query():
            former, begin, end, layers, tokens = self._timed.pop(0)
            waited = former.elapsed_time(begin) / 1e3 if former is not None else 0.0
            self.controller.computed(layers, tokens, begin.elapsed_time(end) / 1e3, waited)

    def hooks(self) -> list[Hook]:
        """Targets in SGLang, hooks and their kinds."""
        chosen: dict[str, tuple[Callable[..., Any], str]] = {
            "arguments": (self.arguments, "BEFORE"),
            "config": (self.load_config, "AROUND"),
            "groups": (self.make_groups, "AROUND"),
            "switch": (self.switched, "AFTER"),
            "init": (self.initialized, "AFTER"),
            "step": (self.step, "AROUND"),
            "prefill": (self.run_prefill, "AROUND"),
            "backends": (self.made_backends, "AFTER"),
            "capture": (self.capturing, "AFTER"),
            "graph": (self.graph_key, "AROUND"),
            "state": (self.add_state, "AFTER"),
        }
        if self.sources.has_wrong_sample():
            chosen["sample"] = (self.mend.sample, "BEFORE")
        return [(self.sources.target(HOOKED[name]), hook, kind) for name, (hook, kind) in chosen.items()]


class _Same(Sequence[Any]):
    """One object at every index, and once in an iteration."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __getitem__(self, _index: Any) -> Any:
        return self._item

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter((self._item,))


#: The plug-in of this process.
installed: Plugin | None = None


def install(text: str) -> None:
    """Compares SGLang's sources with what is expected, and hooks them. What does not fit ends the process."""
    global installed
    mends = text.lower() == MEND
    try:
        setting = None if mends else Setting.parse(text)
    except SettingError as error:
        stop(f"{VARIABLE}={text!r}: {error}")
    version = _version()
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        stop("SGLang is not installed")
    sources = Sources(Path(spec.origin).parent)
    problems = sources.problems()
    if problems:
        stop(
            f"SGLang {version} is not what green_ctx_torch expects: {'; '.join(problems)}. Install a version that "
            f"docs/engines.md lists, or set {VARIABLE}=off"
        )
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    if setting is None:
        mend = Mend()
        hooks = mend.hooks(sources)
    else:
        installed = Plugin(setting, version, sources)
        hooks = installed.hooks()
    for target, hook, kind in hooks:
        registry.HookRegistry.register(target, hook, registry.HookType[kind])
    _check_when_applied(registry.HookRegistry, version, [target for target, _, _ in hooks])


def _check_when_applied(registry: Any, version: str, targets: list[str]) -> None:
    """Ends the process where the registry could not apply a hook, which it reports in its log alone."""
    original = registry.apply_hooks

    def apply_hooks() -> None:
        original()
        missing = sorted(set(targets) - set(registry._patched))
        if missing:
            stop(f"SGLang {version} did not apply the hooks on {', '.join(missing)}; its log says why")

    registry.apply_hooks = apply_hooks


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def stop(message: str) -> NoReturn:
    """Ends the process. SGLang reports an error of a plug-in and goes on without it; this it does not catch."""
    plugins = sys.modules.get("sglang.srt.plugins")
    if plugins is not None and hasattr(plugins, "_plugins_loaded"):
        # Another engine in this process would start without the plug-in.
        plugins._plugins_loaded = False  # type: ignore[attr-defined]
    raise SystemExit(f"green_ctx_torch: {message}")
