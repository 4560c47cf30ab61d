"""How decode and prefill share the SMs: what `GREEN_CTX_SGLANG` says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from green_ctx_torch._native import Share

EXAMPLE = "decode=32..,prefill=..100"

_OPTIONS = ("gap", "layers", "priority")
_KEYS = ("decode", "prefill", "batch", *_OPTIONS)


class SettingError(ValueError):
    """The setting cannot be understood."""


@dataclass(frozen=True)
class SharePlan:
    """The shares of decode and prefill, from a number of decoding requests on."""

    decode: Share
    prefill: Share
    batch: int = 0

    def __str__(self) -> str:
        return f"decode {self.decode}, prefill {self.prefill}"


@dataclass(frozen=True)
class Setting:
    """Plans, the one for the fewest decoding requests first, and what holds for all of them."""

    plans: tuple[SharePlan, ...]

    gap_ms: float = 12.0
    """The bound on the time between two tokens of a request, in ms. Prefill layers are submitted in as many steps
    as that takes."""

    layers: int | None = None
    """The number of prefill layers in each step, instead of the bound."""

    priority: int = -5
    """The priority of decode's stream. The driver clamps it to its range."""

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Reads what the variable says: `decode=32..,prefill=..100`, several plans with `;` between them, or the
        path of a JSON file that ends in `.json`.

        Raises `SettingError`.
        """
        text = text.strip()
        if text.endswith(".json"):
            return cls._from_file(text)
        plans: list[dict[str, Any]] = []
        options: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(";"))):
            pairs = _pairs(part)
            for name in _OPTIONS:
                if name in pairs and options.setdefault(name, pairs[name]) != pairs.pop(name):
                    raise SettingError(f"{name} is given twice, and is one for all plans")
            if pairs:
                plans.append(pairs)
        return cls._checked(plans, options)

    @classmethod
    def _from_file(cls, path: str) -> Setting:
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
        except (OSError, ValueError) as error:
            raise SettingError(f"{path} cannot be read: {error}") from error
        plans = data.pop("plans", None) if isinstance(data, dict) else None
        if not isinstance(plans, list) or not all(isinstance(plan, dict) for plan in plans):
            raise SettingError(
                f'{path} holds no plans; write {{"plans": [{{"decode": "32..", "prefill": "..100"}}]}}'
            )
        try:
            return cls._checked(plans, data)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from error

    @classmethod
    def _checked(cls, plans: list[dict[str, Any]], options: Mapping[str, Any]) -> Setting:
        if not plans:
            raise SettingError(f"there is no plan; write {EXAMPLE}")
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise SettingError(f"unknown: {', '.join(unknown)}; known are {', '.join(_OPTIONS)}")
        made = sorted((_plan(plan) for plan in plans), key=lambda plan: plan.batch)
        if len({plan.batch for plan in made}) < len(made):
            raise SettingError("two plans begin at the same decode batch; give each its own, as in batch=16")
        # The plan for the smallest batch is the one for what lies below too.
        made[0] = SharePlan(made[0].decode, made[0].prefill)
        chosen: dict[str, Any] = {}
        if "gap" in options:
            chosen["gap_ms"] = _milliseconds(options["gap"])
        if "layers" in options:
            chosen["layers"] = _integer("layers", options["layers"], 1)
        if "priority" in options:
            chosen["priority"] = _integer("priority", options["priority"])
        if "gap_ms" in chosen and "layers" in chosen:
            raise SettingError("gap and layers exclude each other: the layers of a step follow from the gap")
        return cls(tuple(made), **chosen)


def _pairs(text: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not value:
            raise SettingError(f"{pair.strip()!r} is not a pair such as decode=32..; write {EXAMPLE}")
        if name not in _KEYS:
            raise SettingError(f"unknown: {name}; known are {', '.join(_KEYS)}")
        if name in pairs:
            raise SettingError(f"{name} is given twice in {text!r}")
        pairs[name] = value
    return pairs


def _plan(given: Mapping[str, Any]) -> SharePlan:
    unknown = sorted(set(given) - {"decode", "prefill", "batch"})
    if unknown:
        raise SettingError(f"unknown in a plan: {', '.join(unknown)}; known are decode, prefill, batch")
    return SharePlan(
        _share(given, "decode"), _share(given, "prefill"), _integer("batch", given.get("batch", 0), 0)
    )


def _share(given: Mapping[str, Any], name: str) -> Share:
    if name not in given:
        raise SettingError(f"a plan has no share for {name}; write {EXAMPLE}")
    try:
        return Share(str(given[name]))
    except ValueError as error:
        raise SettingError(f"{name}={given[name]}: {error}") from error


def _integer(name: str, value: Any, least: int | None = None) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = None
    if number is None or (least is not None and number < least):
        at_least = "" if least is None else f" of {least} or more"
        raise SettingError(f"{name}={value} is not an integer{at_least}")
    return number


def _milliseconds(value: Any) -> float:
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:ms)?", str(value).strip())
    if matched is None or float(matched[1]) == 0:
        raise SettingError(f"gap={value} is not a time in ms, such as gap=12ms")
    return float(matched[1])
