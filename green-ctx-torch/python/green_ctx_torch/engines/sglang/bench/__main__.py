"""Measures SGLang under load, with the plug-in and without.

Each start of the engine measures an arm, or several that differ by their shares alone, under all loads. The raw times
are written after each load, and what the file has already is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from green_ctx_torch.engines.sglang.bench.arms import SCREEN, Arm, find, follows
from green_ctx_torch.engines.sglang.bench.judge import finalists, report
from green_ctx_torch.engines.sglang.bench.load import Load
from green_ctx_torch.engines.sglang.bench.picture import draw
from green_ctx_torch.engines.sglang.bench.serve import SHAPES, append
from green_ctx_torch.engines.sglang.bench.summary import BOUNDS, Bound, summarize


def bound(text: str) -> Bound:
    between, _, first = text.partition("/")
    return float(between), float(first)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m green_ctx_torch.engines.sglang.bench", description=__doc__
    )
    parser.add_argument(
        "--out", type=Path, default=Path("sglang-bench.jsonl"), help="raw times; what it has is skipped"
    )
    parser.add_argument(
        "--arms", nargs="+", default=[], metavar="ARM", help="names, families or GREEN_CTX_SGLANG's values"
    )
    parser.add_argument("--list", action="store_true", help="list the arms")
    parser.add_argument("--rates", nargs="+", type=float, default=[6.0], help="requests a second")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long requests arrive")
    parser.add_argument("--arrivals", choices=("poisson", "bursty"), default="poisson")
    parser.add_argument(
        "--shared-prefix",
        type=int,
        default=0,
        help="tokens that all prompts begin with; turns the radix cache on",
    )
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama-8b")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=JSON", help="one more argument of the engine"
    )
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds for an arm, the start of its engine included"
    )
    parser.add_argument("--until", type=float, help="start no engine after so many seconds")
    parser.add_argument(
        "--summary", action="store_true", help="measure nothing, and summarize what the file has"
    )
    parser.add_argument(
        "--finals", type=Path, metavar="FILE", help="the arms that are the best of their family in this file"
    )
    parser.add_argument(
        "--bounds",
        nargs="+",
        type=bound,
        default=list(BOUNDS),
        metavar="MS/MS",
        help="bounds on a request's p99 between tokens and on its first token, such as 15/600",
    )
    parser.add_argument(
        "--judge", action="store_true", help="compare the best arms of each family, for each bound"
    )
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw the frontier; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="the summary as JSON lines")
    return parser.parse_args()


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a file. A line that was cut off is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            print(f"{path}: a line that was cut off is left out", file=sys.stderr)
    return entries


def measure(work: list[tuple[Arm, list[Load]]], chosen: argparse.Namespace, more: dict[str, Any]) -> bool:
    """Starts the engine, in a process group of its own, for the first arm and those that follow in it."""
    first = work[0][0]
    log = chosen.out.with_suffix(".log")
    tasks = json.dumps([(arm.to_json(), [asdict(load) for load in loads]) for arm, loads in work])
    with tempfile.TemporaryDirectory(prefix="green-ctx-bench-") as folder, log.open(
        "a", encoding="utf-8"
    ) as file:
        print(f"== {first.name}", file=file, flush=True)
        begin = file.tell()
        command = [sys.executable, "-m", "green_ctx_torch.engines.sglang.bench.serve"]
        command += [tasks, chosen.shape, folder, str(chosen.out), json.dumps(more)]
        environment = {**os.environ, "GREEN_CTX_SGLANG": first.variable}
        child = subprocess.Popen(command, env=environment, stderr=file, start_new_session=True)
        try:
            child.wait(timeout=chosen.limit * len(work))
        except subprocess.TimeoutExpired:
            print(f"  stopped after {chosen.limit * len(work):g} s", flush=True)
        finally:
            # The engine's processes are in the group too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    start = capture(log, begin)
    if start:
        append(chosen.out, {"arm": first.name, "start": start})
    return child.returncode == 0


def capture(log: Path, begin: int) -> dict[str, Any]:
    """What SGLang's log says of the capture of decode's graphs."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(begin)
        text = file.read()
    captured = re.search(r"Capture .*graph end\. .*?([\d.]+) s\. mem usage=([\d.]+) GB", text)
    return {"capture_s": float(captured[1]), "graphs_gb": float(captured[2])} if captured else {}


def starts(arms: list[Arm], loads: list[Load], out: Path) -> list[list[tuple[Arm, list[Load]]]]:
    """The arms and loads that the file lacks: those of one start of the engine together."""
    there = {(entry["arm"], entry.get("load")) for entry in read(out)}
    found: list[list[tuple[Arm, list[Load]]]] = []
    for arm in arms:
        missing = [load for load in loads if (arm.name, load.name) not in there]
        if not missing:
            continue
        if found and follows(found[-1][0][0], arm):
            found[-1].append((arm, missing))
        else:
            found.append([(arm, missing)])
    return found


def summaries(entries: list[dict[str, Any]], bounds: list[Bound]) -> list[dict[str, Any]]:
    return [summarize(entry, bounds) for entry in entries if "load" in entry]


def show(entries: list[dict[str, Any]], given: list[Bound], as_json: bool) -> None:
    figures = summaries(entries, given)
    captures = {entry["arm"]: entry["start"] for entry in entries if "start" in entry}
    if as_json:
        for each in figures:
            print(json.dumps(each))
        return
    bounds = "  ".join(f"{between:g}/{until:g}" for between, until in given)
    print(
        f"{'arm':52} {'load':26} {'first p50':>9} {'p99':>7} {'gap p50':>7} {'p99':>6} {'tok/s':>6}  good/s at {bounds}"
    )
    for each in sorted(figures, key=lambda each: (each["load"], each["family"], each["arm"])):
        latencies = [
            each[key] if each[key] is not None else float("nan")
            for key in ("first_p50", "first_p99", "gap_p50", "gap_p99")
        ]
        good = "  ".join(f"{value:6.2f}" for value in each["goodput"])
        unended = each["requests"] - each["ended"]
        note = f"  {unended} of {each['requests']} did not end" if unended else ""
        print(
            f"{each['arm'][:52]:52} {each['load'][:26]:26} {latencies[0]:9.0f} {latencies[1]:7.0f} {latencies[2]:7.1f} "
            f"{latencies[3]:6.1f} {each['tokens_per_s']:6.0f}  {good}{note}"
        )
    for name, start in captures.items():
        if "capture_s" in start:
            print(
                f"{name}: decode's graphs were captured in {start['capture_s']} s and take {start['graphs_gb']} GB"
            )


def main() -> int:
    chosen = options()
    if chosen.list:
        for arm in SCREEN:
            print(f"{arm.family:9} {arm.name}")
        return 0
    if chosen.summary or chosen.judge or chosen.picture:
        entries = read(chosen.out)
        if chosen.summary:
            show(entries, chosen.bounds, chosen.json)
        if chosen.judge:
            print("\n".join(report(summaries(entries, chosen.bounds), chosen.bounds)))
        if chosen.picture:
            draw(summaries(entries, chosen.bounds), chosen.picture)
        return 0
    more: dict[str, Any] = {"disable_radix_cache": False} if chosen.shared_prefix else {}
    for pair in chosen.set:
        name, _, value = pair.partition("=")
        more[name] = json.loads(value)
    loads = [
        Load(rate, chosen.seconds, seed, chosen.arrivals, shared_prefix=chosen.shared_prefix)
        for rate in chosen.rates
        for seed in chosen.seeds
    ]
    named = finalists(summaries(read(chosen.finals), chosen.bounds)) if chosen.finals else chosen.arms
    arms = find(named or ["chunked", "mixed", "pdmux", "priority", "shares"])
    began, failed = time.monotonic(), 0
    todo = starts(arms, loads, chosen.out)
    for number, work in enumerate(todo, 1):
        spent = time.monotonic() - began
        if chosen.until is not None and spent > chosen.until:
            left = len(todo) - number + 1
            print(f"{left} starts of the engine are left; the same command goes on with them")
            break
        names = ", ".join(arm.name for arm, _ in work)
        print(f"[{spent:4.0f} s] start {number} of {len(todo)}: {names}", flush=True)
        if not measure(work, chosen, more):
            failed += 1
            print(f"  failed; see {chosen.out.with_suffix('.log')}", flush=True)
    show(read(chosen.out), chosen.bounds, chosen.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
