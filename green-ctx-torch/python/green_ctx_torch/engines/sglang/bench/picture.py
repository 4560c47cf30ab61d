"""The frontier as a picture: how long the first token takes against the time between tokens."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_COLOURS = {
    "shares": "#0b6e4f",
    "priority": "#7fb069",
    "pdmux": "#d1495b",
    "mixed": "#30638e",
    "chunked": "#8fb8de",
}


def draw(summaries: Iterable[dict[str, Any]], path: Path) -> None:
    """Writes one panel for each rate: each point is an arm under a load, at its 99th percentiles.

    Raises `SystemExit` where matplotlib is missing.
    """
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise SystemExit("pictures need matplotlib: pip install matplotlib") from None
    summaries = [each for each in summaries if each["first_p99"] and each["gap_p99"]]
    rates = sorted({each["rate"] for each in summaries})
    if not rates:
        raise SystemExit("the file has no load that ended, so there is nothing to draw")
    figure, panels = pyplot.subplots(1, len(rates), figsize=(4.2 * len(rates), 4), squeeze=False, sharey=True)
    for panel, rate in zip(panels[0], rates, strict=True):
        for family, colour in _COLOURS.items():
            points = [each for each in summaries if each["rate"] == rate and each["family"] == family]
            panel.scatter(
                [each["first_p99"] for each in points],
                [each["gap_p99"] for each in points],
                s=22,
                color=colour,
                label=family,
            )
        panel.set_title(f"{rate:g} requests/s")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("first token, p99, ms")
        panel.grid(alpha=0.3, which="both")
    panels[0][0].set_ylabel("between tokens, p99, ms")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
