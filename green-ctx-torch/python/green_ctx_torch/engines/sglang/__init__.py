"""SGLang with floors and ceilings: prefill and decode share the SMs of one GPU.

SGLang loads this package by itself where it is installed. The environment variable `GREEN_CTX_SGLANG` says how to
share:

    GREEN_CTX_SGLANG='decode=32..,prefill=..100' python -m sglang.launch_server --model-path ...

Decode has 32 SMs of its own and uses all others while prefill leaves them idle; prefill uses 100 at most. The plug-in
turns on SGLang's multiplexing loop (`--enable-pdmux`) and gives it streams in partitions. Without the variable, or
with `off`, nothing is imported and nothing changes. docs/engines.md has the measurements, and what else can be set.
"""

from __future__ import annotations

from typing import Any

from green_ctx_torch.engines.sglang.control import Controller, FixedShares
from green_ctx_torch.engines.sglang.setting import Setting, SettingError, SharePlan

__all__ = [
    "Controller",
    "FixedShares",
    "Setting",
    "SettingError",
    "SharePlan",
    "change",
    "state",
    "turn_off",
    "turn_on",
]


def change(engine: Any, setting: str) -> None:
    """Gives a running `sglang.Engine` other shares: `setting` is what `GREEN_CTX_SGLANG` would say.

    They count from the loop's next change between prefill and decode on. Raises `AssertionError`, as SGLang does,
    where the setting has another number of plans, another priority, or a ceiling of decode that its graphs were not
    captured with. Nothing has changed then.
    """
    engine.collective_rpc("green_ctx_change", text=setting)


def turn_off(engine: Any) -> None:
    """Makes a running `sglang.Engine` use plain streams, from its next change between prefill and decode on.

    Raises `AssertionError`, as SGLang does, where decode has a ceiling: its graphs were captured on those SMs.
    """
    engine.collective_rpc("green_ctx_use", shares=False)


def turn_on(engine: Any) -> None:
    """Makes a running `sglang.Engine` use its shares again."""
    engine.collective_rpc("green_ctx_use", shares=True)


def state(engine: Any) -> dict[str, Any]:
    """What the plug-in of a running `sglang.Engine` does: its plan, SMs, switches, and prefill's layers a step."""
    return engine.get_server_info()["internal_states"][0]["green_ctx"]  # type: ignore[no-any-return]
