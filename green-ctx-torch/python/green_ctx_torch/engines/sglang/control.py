"""What is decided before each step of the loop: the plan, and how many prefill layers follow."""

from __future__ import annotations

import math
from typing import Protocol

from green_ctx_torch.engines.sglang.setting import Setting

#: The share of the gap's bound that is planned for. The rest is for what varies from step to step.
_MARGIN = 0.85

#: How far ahead of the GPU prefill is submitted, in steps. Below 1 the GPU would wait for the loop.
_AHEAD = 1.5

#: Tokens times layers in a step before anything is measured.
_FIRST = 8192

#: More layers than any model has.
_ALL = 1 << 20

#: The part of a plan's least batch below which the former plan comes back.
_BACK = 0.75

#: The weight of the newest value in a mean.
_NEWEST = 0.2


class Controller(Protocol):
    """Decides before each step. All times are in seconds."""

    def plan(self, batch: int) -> int:
        """The number of the plan for so many decoding requests, from 0 on. It may depend on former calls."""
        ...

    def layers(self, tokens: int, batch: int) -> int:
        """How many layers of a prefill of so many tokens to submit beside a step of so many decoding requests."""
        ...

    def submitted(self, layers: int, seconds: float) -> None:
        """Reports how long the loop took to submit prefill layers."""
        ...

    def computed(self, layers: int, tokens: int, seconds: float, waited: float) -> None:
        """Reports how long the GPU took for layers that were submitted together, and how long it had waited for them
        since the former layers of the same prefill."""
        ...

    def means(self) -> dict[str, float]:
        """What was measured, for reports."""
        ...

    def stepped(self, seconds: float, submitting: float) -> None:
        """Reports how long a step with decode and prefill took, and the part of it that submitted prefill."""
        ...


class Mean:
    """A mean in which newer values count more: of seconds, or of seconds for each unit of work."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._work = 0.0

    def add(self, seconds: float, work: float = 1.0) -> None:
        """Adds seconds that so much work took. Much work counts more than little."""
        if self._seconds is None:
            self._seconds, self._work = seconds, work
        else:
            self._seconds += _NEWEST * (seconds - self._seconds)
            self._work += _NEWEST * (work - self._work)

    @property
    def value(self) -> float | None:
        return None if self._seconds is None or not self._work else self._seconds / self._work


class FixedShares:
    """Shares that follow the number of decoding requests, and a bound on the gap between tokens.

    While prefill is submitted, the loop cannot submit decode's next step. So the bound on the gap bounds the number
    of layers. Fewer suffice where they keep the GPU busy until the next step.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = 0
        self._submit = Mean()
        self._compute = Mean()
        self._step = Mean()
        self._others = Mean()
        self._waited = Mean()

    def plan(self, batch: int) -> int:
        plans = self._setting.plans
        due = max(i for i, plan in enumerate(plans) if plan.batch <= max(batch, 0))
        # A change makes the loop wait for both streams. A batch that varies about a threshold must not cause many.
        if due >= self._plan or batch < _BACK * plans[self._plan].batch:
            self._plan = due
        return self._plan

    def layers(self, tokens: int, batch: int) -> int:
        if not batch:
            return _ALL
        if self._setting.layers is not None:
            return self._setting.layers
        submit, compute, step = self._submit.value, self._compute.value, self._step.value
        if not submit or not compute or not step:
            return max(1, _FIRST // max(1, tokens))
        # A short prompt's layers take the GPU less time than the loop takes to submit them.
        layer = max(compute * tokens, submit)
        busy = math.ceil((_AHEAD * step + (self._waited.value or 0.0)) / layer)
        left = _MARGIN * self._setting.gap_ms / 1e3 - (self._others.value or 0.0)
        return max(1, min(busy, math.floor(left / submit)))

    def submitted(self, layers: int, seconds: float) -> None:
        self._submit.add(seconds, layers)

    def computed(self, layers: int, tokens: int, seconds: float, waited: float) -> None:
        self._compute.add(seconds, layers * max(1, tokens))
        self._waited.add(waited)

    def means(self) -> dict[str, float]:
        """What was measured, in ms: per step, per layer, and per layer and 1000 tokens."""
        named = {
            "step_ms": (self._step, 1.0),
            "others_ms": (self._others, 1.0),
            "waited_ms": (self._waited, 1.0),
            "submit_layer_ms": (self._submit, 1.0),
            "compute_layer_ms": (self._compute, 1e3),
        }
        return {
            name: round(mean.value * 1e3 * scale, 3)
            for name, (mean, scale) in named.items()
            if mean.value is not None
        }

    def stepped(self, seconds: float, submitting: float) -> None:
        self._step.add(seconds)
        self._others.add(max(0.0, seconds - submitting))
