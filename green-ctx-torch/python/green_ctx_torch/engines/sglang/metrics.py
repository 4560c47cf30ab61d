"""What the plug-in reports beside SGLang's own metrics."""

from __future__ import annotations

import importlib
from typing import Any

from green_ctx_torch.engines.sglang.control import Controller
from green_ctx_torch.engines.sglang.groups import Groups

#: The tokens that the reported number of layers is for.
_TOKENS = 1024


class Metrics:
    """The active plan, its SMs, switches and prefill's layers a step: in SGLang's internal state, and for Prometheus
    where SGLang's metrics are enabled."""

    def __init__(self, groups: Groups, enabled: bool) -> None:
        self._groups = groups
        self._plans = groups.describe()
        self._gauges = self._make_gauges() if enabled else {}
        self._published: dict[str, float] = {}

    def changed(self) -> None:
        """Notes that the groups have other shares."""
        self._plans = self._groups.describe()

    def snapshot(self, controller: Controller) -> dict[str, Any]:
        """The state, as SGLang's `get_server_info` returns it."""
        groups, setting = self._groups, self._groups.setting
        return {
            "is_on": groups.is_on,
            "plan": groups.plan(),
            "switches": groups.switches,
            "gap_ms": setting.gap_ms if setting.layers is None else None,
            f"prefill_layers_of_{_TOKENS}_tokens": controller.layers(_TOKENS, 1),
            "measured": controller.means(),
            "plans": self._plans,
        }

    def publish(self, controller: Controller) -> None:
        """Sets the gauges that have changed."""
        if not self._gauges:
            return
        groups = self._groups
        plan = groups.plan()
        if plan is None:
            return
        values: dict[str, float] = {
            "plan": plan,
            "switches": groups.switches,
            "is_on": groups.is_on,
            "prefill_layers": controller.layers(_TOKENS, 1),
            **{key: value for key, value in self._plans[plan].items() if isinstance(value, int)},
        }
        for name, value in values.items():
            if name in self._gauges and self._published.get(name) != value:
                self._published[name] = value
                self._gauges[name].set(value)

    def _make_gauges(self) -> dict[str, Any]:
        # SGLang has set where its processes share their metrics before it starts the scheduler.
        gauge = importlib.import_module("prometheus_client").Gauge
        texts = {
            "plan": "The number of the plan that is active, from 0 on.",
            "switches": "How often another plan was made active.",
            "is_on": "Whether the loop uses partitions' streams.",
            "prefill_layers": f"Prefill layers in a step, for a prefill of {_TOKENS} tokens.",
            "decode_floor": "SMs that only decode uses.",
            "decode_ceiling": "The most SMs that decode uses.",
            "prefill_floor": "SMs that only prefill uses.",
            "prefill_ceiling": "The most SMs that prefill uses.",
        }
        return {
            name: gauge(f"green_ctx:{name}", text, multiprocess_mode="mostrecent")
            for name, text in texts.items()
        }
