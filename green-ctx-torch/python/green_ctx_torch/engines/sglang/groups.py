"""The stream groups that SGLang's loop chooses from, in partitions of a `PlanSet`."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from green_ctx_torch._native import PlanSet, Share
from green_ctx_torch.engines.sglang.control import Controller
from green_ctx_torch.engines.sglang.setting import Setting

if TYPE_CHECKING:
    from torch.cuda import Stream


class Groups:
    """Streams for prefill and decode, in the order in which SGLang numbers them.

    Group 0 is for prefill alone and the last one for decode alone: prefill has all SMs there. Those between are the
    plans'. Decode has one stream in all groups, so that its graphs are captured once.
    """

    def __init__(self, setting: Setting, device: int) -> None:
        torch = importlib.import_module("torch")
        self.setting = setting
        self.device = device
        # PyTorch's primary context comes first.
        torch.zeros(1, device=f"cuda:{device}")
        shares = _shares(setting, "plan")
        self.names = list(shares)
        self.plans = PlanSet(shares, device)
        #: The partition that decode's graphs are captured in. It is kept, with its plan.
        self.captured = self.plans[self.names[0]]["decode"]
        try:
            self._check_decode(self.names, setting)
            self.decode = self.captured.create_stream(setting.priority)
            self.prefill = [self.plans[name]["prefill"].stream for name in self.names]
        except BaseException:
            self.plans.close()
            raise
        self._former: list[str] = []
        self._changes = 0
        self.plain = torch.cuda.Stream(device)
        self.plain_decode = torch.cuda.Stream(device)
        self.total = torch.cuda.get_device_properties(device).multi_processor_count
        self.streams: list[tuple[Stream, Stream]] = []
        self.use_shares()
        self.current = 0
        self.switches = 0

    def _check_decode(self, names: list[str], setting: Setting) -> None:
        """Decode's graphs are captured once: its partition must be one context in all plans."""
        contexts = {self.plans[name]["decode"].raw_context for name in names}
        if contexts != {self.captured.raw_context}:
            shares = ", ".join(str(plan.decode) for plan in setting.plans)
            raise ValueError(
                f"decode's graphs are captured on {self.captured.sm_count} SMs, and decode={shares} are others; give "
                "decode the same ceiling in each plan, as in 32.. and 48.."
            )

    def change(self, setting: Setting) -> None:
        """Takes other shares, from the loop's next change of groups on.

        Raises `ValueError` where decode's graphs could not follow, or there are more or fewer plans: the loop has
        counted its groups. Nothing has changed then.
        """
        if len(setting.plans) != len(self.names):
            raise ValueError(
                f"the number of plans stays: the engine has {len(self.names)}, and the setting {len(setting.plans)}"
            )
        if setting.priority != self.setting.priority:
            raise ValueError(f"decode's stream has priority {self.setting.priority}, which stays")
        shares = _shares(setting, f"change {self._changes + 1} plan")
        made: list[str] = []
        try:
            for name, division in shares.items():
                self.plans.prepare(name, division)
                made.append(name)
            self._check_decode(made, setting)
            prefill = [self.plans[name]["prefill"].stream for name in made]
        except BaseException:
            for name in made:
                self.plans.retire(name)
            raise
        is_on = self.is_on
        self._changes += 1
        self._former += self.names
        self.names, self.setting, self.prefill = made, setting, prefill
        if is_on:
            self.use_shares()

    @property
    def is_on(self) -> bool:
        """Whether the loop gets partitions' streams, rather than plain ones."""
        return self.streams[1][0] is not self.plain

    def use_shares(self) -> None:
        """Gives the loop the partitions' streams, from its next change of groups on."""
        plans = [(prefill, self.decode) for prefill in self.prefill]
        # The loop keeps the list.
        self.streams[:] = [(self.plain, self.decode), *plans, (self.plain, self.decode)]

    def use_plain(self) -> None:
        """Gives the loop plain streams. Kernels of decode's graphs stay in decode's partition.

        Raises `RuntimeError` where that has not all SMs.
        """
        if self.captured.sm_count < self.total:
            raise RuntimeError(
                f"decode's graphs were captured on {self.captured.sm_count} of {self.total} SMs and stay there; give decode no "
                "ceiling, as in 32.., or start the engine with GREEN_CTX_SGLANG=off"
            )
        self.streams[:] = [(self.plain, self.plain_decode)] * len(self.streams)

    def sm_counts(self) -> list[tuple[int, int]]:
        """The most SMs of prefill and decode in each group, for SGLang's log."""
        decode = self.captured.sm_count
        plans = [(self.plans[name]["prefill"].sm_count, decode) for name in self.names]
        return [(self.total, 0), *plans, (0, decode)]

    def switched(self, group: int) -> None:
        """Makes the plan of a group active, where it has one."""
        self.current = group
        if not self.is_on or not 0 < group <= len(self.names):
            return
        name = self.names[group - 1]
        if self.plans.active.name != name:
            # The loop has waited for both streams.
            self.plans.switch(name)
            self.switches += 1
        while self._former:
            former = self._former.pop()
            if self.captured not in self.plans[former].values():
                self.plans.retire(former)

    def plan(self) -> int | None:
        """The number of the plan that is active; None while one from before a change still is."""
        name = self.plans.active.name
        return self.names.index(name) if name in self.names else None

    def describe(self) -> list[dict[str, Any]]:
        """The plans' shares and SMs."""
        return [
            {
                "from_decode_batch": plan.batch,
                **{
                    f"{name}_{key}": value
                    for name, partition in self.plans[label].items()
                    for key, value in (
                        ("share", partition.share),
                        ("floor", partition.floor),
                        ("ceiling", partition.sm_count),
                    )
                },
            }
            for label, plan in zip(self.names, self.setting.plans, strict=True)
        ]


def _shares(setting: Setting, prefix: str) -> dict[str, dict[str, Share]]:
    """The plans of a set, by names that begin alike."""
    return {
        f"{prefix} {i}": {"decode": plan.decode, "prefill": plan.prefill}
        for i, plan in enumerate(setting.plans)
    }


class Config:
    """What SGLang's loop reads as its configuration: each step asks the controller."""

    def __init__(self, setting: Setting, controller: Controller) -> None:
        self.setting = setting
        self.controller = controller
        self.sm_group_num = len(setting.plans) + 2
        self.groups: Groups | None = None
        self.batch = 0

    @property
    def manual_divisions(self) -> list[tuple[int, int, float]]:
        """Prefill's and decode's SMs and the least decode batch of each plan: the loop takes the chosen one."""
        if self.groups is None:
            # SGLang's own groups would be made of them.
            raise SystemExit(
                "GREEN_CTX_SGLANG: SGLang's own stream groups are made in place of the plug-in's"
            )
        chosen = self.controller.plan(self.batch)
        counts = self.groups.sm_counts()[1:-1]
        return [(*count, 0 if i == chosen else math.inf) for i, count in enumerate(counts)]

    @property
    def split_forward_token_budget(self) -> _Budget:
        """What the loop divides by a prefill's tokens to know how many layers to submit."""
        return _Budget(self)


class _Budget:
    def __init__(self, config: Config) -> None:
        self._config = config

    def __floordiv__(self, tokens: int) -> int:
        return self._config.controller.layers(tokens, self._config.batch)
