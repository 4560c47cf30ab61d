"""What the records of a load mean: latencies, tokens a second and goodput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: A bound on the 99th percentile of a request's times between tokens, and one on its first token, in ms.
Bound = tuple[float, float]

BOUNDS: tuple[Bound, ...] = ((10.0, 1000.0), (15.0, 600.0), (25.0, 400.0))


def percentile(values: Sequence[float], part: float) -> float | None:
    """A percentile, linear between neighbours; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * part
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(entry: dict[str, Any], bounds: Sequence[Bound] = BOUNDS) -> dict[str, Any]:
    """The figures of one arm under one load. A request that did not end is not good."""
    first, gaps, tokens, ended = [], [], 0, 0
    good = [0] * len(bounds)
    for request in entry["requests"]:
        times = request["tokens"]
        if not times:
            continue
        first.append(times[0])
        own = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        gaps += own
        tokens += sum(request["arrival"] * 1e3 + time <= entry["seconds"] * 1e3 for time in times)
        if len(times) < request["output"]:
            continue
        ended += 1
        worst = percentile(own, 0.99) or 0.0
        for i, (between, until) in enumerate(bounds):
            good[i] += worst <= between and times[0] <= until

    def rounded(values: Sequence[float], part: float) -> float | None:
        value = percentile(values, part)
        return None if value is None else round(value, 2)

    return {
        **{key: entry[key] for key in ("arm", "family", "load", "rate", "seed", "arrivals", "ready")},
        "requests": len(entry["requests"]),
        "ended": ended,
        "first_p50": rounded(first, 0.5),
        "first_p99": rounded(first, 0.99),
        "gap_p50": rounded(gaps, 0.5),
        "gap_p99": rounded(gaps, 0.99),
        "gap_max": rounded(gaps, 1.0),
        "tokens_per_s": round(tokens / entry["seconds"], 1),
        "goodput": [round(count / entry["seconds"], 3) for count in good],
        "late_p99": rounded([each.get("late", 0.0) for each in entry["requests"]], 0.99),
    }
