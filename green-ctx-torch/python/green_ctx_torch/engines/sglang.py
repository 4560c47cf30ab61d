"""Replaces the fixed SM counts of SGLang's prefill and decode multiplexing (`--enable-pdmux`) by shares.

SGLang loads this module automatically, as a plug-in. With `GREEN_CTX_SGLANG=shares` each division (P, D) of SGLang's
configuration becomes a plan: prefill may use at most P SMs, and decode has D SMs for itself and uses the others while
they are idle. No other argument, default or code of SGLang changes. See docs/engines.md.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from green_ctx_torch._native import PlanSet

VARIABLE = "GREEN_CTX_SGLANG"

#: The releases that ran on a GPU with this code.
RAN = ("0.5.12", "0.5.23")

#: Parts of the names of quantisations whose kernels may keep locks or a workspace in each layer, as Marlin's do.
LOCKS = ("auto-round", "awq", "compressed-tensors", "fp4", "gptq", "humming", "mixed", "w4afp8", "wna16")

PDMUX = "sglang.srt.multiplex.pdmux_context"
SCHEDULER = "sglang.srt.multiplex.multiplexing_mixin.SchedulerMultiplexMixin.init_pdmux"

_log = logging.getLogger("sglang.green_ctx_torch")


class Refused(Exception):
    """Raised for a setting with which SGLang's multiplexing computes wrong results, or which was not tested with
    shares."""


def stop(message: str) -> NoReturn:
    """Ends the process, because SGLang logs exceptions of plug-ins and continues without the plug-in."""
    sys.stderr.write(f"{VARIABLE}: {message}\n")
    sys.stderr.flush()
    os._exit(1)


def _or_stop(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Refused as error:
            stop(str(error))
        except Exception:
            traceback.print_exc()
            stop("the plug-in failed; unset the variable to use SGLang's own stream groups")

    return guarded


@_or_stop
def install(text: str) -> None:
    """Registers the hooks. `text` is the value of `GREEN_CTX_SGLANG`."""
    words = [word.strip() for word in text.split(",")]
    if words not in (["shares"], ["shares", "untested"]):
        raise Refused(f"write {VARIABLE}=shares; {text!r} is not a setting (divisions come from SGLang's flags and file)")
    version = importlib.metadata.version("sglang")
    if version not in RAN and words == ["shares"]:
        ran = " and ".join(RAN)
        raise Refused(
            f"SGLang {version} is not among the releases that ran on a GPU with this plug-in ({ran}); "
            f"{VARIABLE}=shares,untested uses it nevertheless"
        )
    pdmux = importlib.import_module(PDMUX)
    for name in ("divide_sm", "initialize_stream_groups", "set_current_stream_idx", "STREAM_GROUPS", "SM_COUNTS"):
        if not hasattr(pdmux, name):
            raise Refused(f"SGLang {version} has no {PDMUX}.{name}, so the plug-in does not fit it")
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    groups = Groups(pdmux)
    for target, hook, kind in (
        (SCHEDULER, functools.partial(check, "untested" in words), "BEFORE"),
        (f"{PDMUX}.initialize_stream_groups", groups.make, "REPLACE"),
        (f"{PDMUX}.set_current_stream_idx", groups.follow, "AFTER"),
    ):
        registry.HookRegistry.register(target, _or_stop(hook), getattr(registry.HookType, kind))


def check(untested: bool, scheduler: Any) -> None:
    """Refuses settings with which multiplexing computes wrong results and, unless `untested`, kernels that were not
    checked for it. Runs before SGLang creates its stream groups and loads the model."""
    arguments, model = scheduler.server_args, scheduler.model_config
    if hasattr(arguments, "_resolved_overrides"):
        # SGLang 0.5.23 keeps the defaults that it chooses apart from the user's arguments.
        arguments = importlib.import_module("sglang.srt.arg_groups.overrides").resolved_view(arguments)
    quantization = model.quantization or arguments.quantization or getattr(arguments, "torchao_config", "") or "none"
    capability = importlib.import_module("torch").cuda.get_device_capability()
    marlin = capability < (8, 9) or os.environ.get("SGLANG_FORCE_FP8_MARLIN", "0").lower() not in ("0", "false")
    locks = any(part in quantization for part in LOCKS) or ("fp8" in quantization and marlin)
    moe, own = arguments.moe_runner_backend, (arguments.prefill_attention_backend, arguments.decode_attention_backend)
    attention = {backend or arguments.attention_backend for backend in own}
    refused = (
        ("tp_size or dp_size", max(arguments.tp_size, arguments.dp_size) > 1, "the plug-in did not run on several GPUs"),
        ("quantization", locks, "prefill and decode may share its kernels' locks or workspace"),
        ("moe_runner_backend", moe == "cutlass" and "fp8" in quantization, "CUTLASS's FP8 experts share a workspace"),
        ("attention_backend", "trtllm_mha" in attention, "trtllm_mha has one workspace for all streams"),
        ("enable_hierarchical_cache", arguments.enable_hierarchical_cache, "prefill does not wait for HiCache's loads"),
        ("is_embedding", arguments.is_embedding, "a split prefill returns no embeddings"),
        ("disable_radix_cache", arguments.disable_radix_cache, "it admits input_embeds, which a split prefill ignores"),
    )
    # FlashInfer, which may compute FP8 from compute capability 10.0 on, has one workspace for all streams.
    checked = (
        ("quantization", quantization == "none" or (quantization == "fp8" and capability < (10, 0))),
        ("fp8_gemm_runner_backend", arguments.fp8_gemm_runner_backend == "auto"),
        ("moe_runner_backend", moe in ("auto", "triton")),
        ("attention_backend", attention <= {"fa3", "flashinfer", "triton"}),
    )
    for name, is_set, reason in refused:
        if is_set:
            raise Refused(f"SGLang's multiplexing is not safe with this setting of {name}: {reason}")
    for name, is_known in checked:
        if not (is_known or untested):
            raise Refused(
                f"this setting of {name} was not checked with SGLang's multiplexing; {VARIABLE}=shares,untested uses "
                f"it nevertheless, and results may be wrong"
            )


class Groups:
    """Stream groups that replace SGLang's own groups. Their streams are in partitions."""

    def __init__(self, pdmux: Any) -> None:
        self.pdmux = pdmux
        self.names: list[str] = []
        self.plans: PlanSet | None = None

    def make(self, gpu_id: int, config: Any) -> None:
        """Replaces `initialize_stream_groups`."""
        torch, pdmux = importlib.import_module("torch"), self.pdmux
        # PyTorch's primary context must be created first.
        torch.zeros(1, device=f"cuda:{gpu_id}")
        total = torch.cuda.get_device_properties(gpu_id).multi_processor_count
        divisions = [(prefill, decode) for prefill, decode, _ in config.manual_divisions]
        if not divisions:
            capability = torch.cuda.get_device_capability(gpu_id)
            divisions = pdmux.divide_sm(total, capability, config.sm_group_num - 2)
        self.names = [f"division {place}" for place in range(1, len(divisions) + 1)]
        # Decode comes first, so that its floor consists of the same SMs in all plans as far as possible.
        shares = [{"decode": f"{decode}..", "prefill": f"..{prefill}"} for prefill, decode in divisions]
        self.plans = plans = PlanSet(dict(zip(self.names, shares, strict=True)), gpu_id)
        # SGLang uses plain streams while only prefill or only decode runs.
        pdmux.STREAM_GROUPS = [
            (torch.cuda.Stream(gpu_id), torch.cuda.Stream(gpu_id)),
            *((plans[name]["prefill"].stream, plans[name]["decode"].create_stream(-1)) for name in self.names),
            (torch.cuda.Stream(gpu_id), torch.cuda.Stream(gpu_id)),
        ]
        pdmux.SM_COUNTS = [(total, 0), *divisions, (0, total)]
        pdmux.CURRENT_STREAM_IDX, pdmux.CURRENT_STREAM_GROUP = 0, pdmux.STREAM_GROUPS[0]
        _log.info("%s: prefill and decode share %d SMs: %s", VARIABLE, total, dict(zip(self.names, shares, strict=True)))

    def follow(self, result: None, idx: int) -> None:
        """Makes the plan of a stream group active. SGLang calls this after `set_current_stream_idx`, when its scheduler
        loop has waited for both streams."""
        if self.plans is not None and 0 < idx <= len(self.names):
            self.plans.switch(self.names[idx - 1])
