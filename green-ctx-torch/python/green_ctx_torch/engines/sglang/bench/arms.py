"""What is compared: settings of the engine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from green_ctx_torch._native import Share
from green_ctx_torch.engines.sglang.setting import Setting


@dataclass(frozen=True)
class Arm:
    """A setting of the engine, and what it needs in the environment."""

    name: str
    family: str
    arguments: dict[str, Any] = field(default_factory=dict)
    variable: str = "off"
    """The value of GREEN_CTX_SGLANG."""

    divisions: tuple[tuple[int, int, int], ...] = ()
    """SGLang's own multiplexing: the SMs of prefill and decode, and the least decode batch."""

    budget: int | None = None
    """SGLang's own multiplexing: tokens times layers in a step."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Arm:
        data = json.loads(text)
        data["divisions"] = tuple(tuple(each) for each in data["divisions"])
        return cls(**data)


def chunked(size: int, mixed: bool) -> Arm:
    """SGLang's default: prefill in chunks, between decode's steps or with them in one batch."""
    arguments = {"chunked_prefill_size": size, "enable_mixed_chunk": mixed}
    return Arm(f"chunked {size}{' mixed' if mixed else ''}", "mixed" if mixed else "chunked", arguments)


def pdmux(divisions: tuple[tuple[int, int, int], ...], budget: int) -> Arm:
    """SGLang's own multiplexing. `mend` corrects its first prefill in 0.5.11 and 0.5.12, and nothing else."""
    text = " ".join(
        f"{prefill}+{decode}" + (f"@{least}" if least else "") for prefill, decode, least in divisions
    )
    return Arm(f"pdmux {text} budget {budget}", "pdmux", {}, "mend", divisions, budget)


def shares(text: str) -> Arm:
    """The plug-in. Where no plan limits anything, what is left is the priority of decode's stream."""
    everything = Share("..")
    unlimited = all(plan.decode == plan.prefill == everything for plan in Setting.parse(text).plans)
    family = "priority" if unlimited else "shares"
    return Arm(f"{family} {text}", family, {}, text)


#: SGLang's own multiplexing as it is without a configuration: eight groups, of which six divide the SMs.
DEFAULT = Arm("pdmux default", "pdmux", {}, "mend", (), 65536)

#: The divisions that SGLang publishes for CodeLlama-34b: prefill's SMs, decode's, and the least decode batch.
PUBLISHED = pdmux(((112, 20, 1), (104, 28, 5), (96, 36, 10), (80, 52, 15), (64, 68, 20), (56, 76, 25)), 65536)

#: One of each kind, to see what an arm is like.
SCREEN = (
    DEFAULT,
    PUBLISHED,
    *(chunked(size, mixed) for size in (256, 512, 1024, 2048, 4096) for mixed in (False, True)),
    *(
        pdmux(divisions, budget)
        for divisions in (
            ((100, 32, 0),),
            ((84, 48, 0),),
            ((68, 64, 0),),
            ((112, 20, 0), (100, 32, 8), (84, 48, 24)),
        )
        for budget in (4096, 8192, 16384, 65536)
    ),
    *(shares(f"decode=..,prefill=..,gap={gap}ms") for gap in (10, 12, 15, 20, 30)),
    *(
        shares(f"decode={floor}..,prefill=..{132 - floor},gap={gap}ms")
        for floor in (8, 16, 32, 48)
        for gap in (10, 12, 15, 20, 30)
    ),
)


def follows(first: Arm, arm: Arm) -> bool:
    """Whether an arm can be measured in the engine that another one has started: by other shares alone."""
    if not (first.variable.count("decode=") and arm.variable.count("decode=")):
        return False
    settings = [Setting.parse(each.variable) for each in (first, arm)]
    ceilings = {plan.decode.ceiling for setting in settings for plan in setting.plans}
    same = len({(len(setting.plans), setting.priority) for setting in settings}) == 1
    return same and ceilings == {None} and first.arguments == arm.arguments


def find(names: list[str]) -> list[Arm]:
    """The arms whose names or families are given, and `GREEN_CTX_SGLANG`'s values as arms of their own."""
    found = []
    for name in names:
        matching = [arm for arm in SCREEN if name in (arm.name, arm.family)]
        if not matching and name.startswith("{"):
            matching = [Arm.from_json(name)]
        elif not matching and "decode=" in name:
            matching = [shares(name)]
        elif not matching:
            raise SystemExit(f"{name!r} is not an arm; --list shows them")
        found += [arm for arm in matching if arm not in found]
    return found
