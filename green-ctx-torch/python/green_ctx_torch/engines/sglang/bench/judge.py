"""Which arm is best for each bound, and how the plug-in compares with the best of each rival."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from green_ctx_torch.engines.sglang.bench.summary import BOUNDS, Bound

OURS = "shares"

#: Below this goodput, in requests a second, a cell says nothing.
LEAST = 0.2


@dataclass(frozen=True)
class Result:
    """One arm in one cell: a load's rate and a bound."""

    arm: str
    family: str
    goodput: float
    """The mean over the seeds, in requests a second."""

    spread: float
    """The greatest minus the least of the seeds."""

    first_p99: float
    tokens_per_s: float
    seeds: int


def cells(summaries: Iterable[dict[str, Any]]) -> dict[tuple[str, float, int], list[Result]]:
    """The arms of each cell, the best first. A cell is the kind of arrivals, the rate and a bound's number."""
    runs: dict[tuple[str, float, str], list[dict[str, Any]]] = defaultdict(list)
    for each in summaries:
        runs[each["arrivals"], each["rate"], each["arm"]].append(each)
    found: dict[tuple[str, float, int], list[Result]] = defaultdict(list)
    for (arrivals, rate, arm), entries in runs.items():
        for bound in range(len(entries[0]["goodput"])):
            goods = [entry["goodput"][bound] for entry in entries]
            found[arrivals, rate, bound].append(
                Result(
                    arm,
                    entries[0]["family"],
                    mean(goods),
                    max(goods) - min(goods),
                    mean(entry["first_p99"] or float("inf") for entry in entries),
                    mean(entry["tokens_per_s"] for entry in entries),
                    len(entries),
                )
            )
    for results in found.values():
        results.sort(key=lambda result: (-result.goodput, result.first_p99))
    return dict(sorted(found.items()))


def best(results: Iterable[Result], family: str) -> Result | None:
    """The best arm of a family in one cell."""
    return next((result for result in results if result.family == family), None)


def finalists(summaries: Iterable[dict[str, Any]]) -> list[str]:
    """The arms that are the best of their family in some cell."""
    chosen: set[str] = set()
    for results in cells(summaries).values():
        for family in {result.family for result in results}:
            winner = best(results, family)
            if winner is not None and winner.goodput > 0:
                chosen.add(winner.arm)
    return sorted(chosen)


def report(summaries: Iterable[dict[str, Any]], bounds: Sequence[Bound] = BOUNDS) -> list[str]:
    """For each cell: the plug-in's best arm, and its goodput divided by that of each rival's best."""
    lines = []
    for (arrivals, rate, bound), results in cells(summaries).items():
        between, first = bounds[bound]
        ours = best(results, OURS)
        rivals = {
            family: best(results, family) for family in sorted({each.family for each in results} - {OURS})
        }
        title = f"{arrivals}, {rate:g}/s, {between:g} ms between tokens, first token within {first:g} ms"
        if ours is None:
            lines.append(f"{title}: no arm of the plug-in")
            continue
        lines.append(
            f"{title}: {ours.arm} {ours.goodput:.2f}/s ±{ours.spread / 2:.2f} of {ours.seeds} seeds, "
            f"first token p99 {ours.first_p99:.0f} ms, {ours.tokens_per_s:.0f} tokens/s"
        )
        for family, rival in rivals.items():
            assert rival is not None, "the family has a result"
            if max(ours.goodput, rival.goodput) < LEAST:
                verdict = "both below what can be judged"
            elif rival.goodput == 0:
                verdict = "the rival keeps the bound for no request"
            else:
                behind = rival.goodput - ours.goodput > max(ours.spread, rival.spread)
                verdict = f"{ours.goodput / rival.goodput:.2f} ×" + (", a loss" if behind else "")
            lines.append(
                f"    {family:9} {rival.goodput:5.2f}/s ±{rival.spread / 2:.2f}, first token p99 "
                f"{rival.first_p99:5.0f} ms, {rival.tokens_per_s:5.0f} tokens/s: {verdict} ({rival.arm})"
            )
    return lines
