"""Measures SGLang under load, with the plug-in and without.

Each arm is a start of the engine with all its loads. The raw times are written after each load, and what the file has
already is not measured again.
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

from green_ctx_torch.engines.sglang.bench.arms import SCREEN, Arm, find
from green_ctx_torch.engines.sglang.bench.judge import finalists, report
from green_ctx_torch.engines.sglang.bench.load import Load
from green_ctx_torch.engines.sglang.bench.picture import draw
from green_ctx_torch.engines.sglang.bench.serve import SHAPES
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
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one start of the engine")
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


def measure(arm: Arm, loads: list[Load], chosen: argparse.Namespace, more: dict[str, Any]) -> bool:
    """Starts the engine for one arm, in a process group of its own."""
    with tempfile.TemporaryDirectory(prefix="green-ctx-bench-") as folder:
        command = [sys.executable, "-m", "green_ctx_torch.engines.sglang.bench.serve", arm.to_json()]
        command += [
            json.dumps([asdict(load) for load in loads]),
            chosen.shape,
            folder,
            str(chosen.out),
            json.dumps(more),
        ]
        log = chosen.out.with_suffix(".log")
        with log.open("a", encoding="utf-8") as file:
            print(f"== {arm.name}", file=file, flush=True)
            begin = file.tell()
            child = subprocess.Popen(
                command,
                env={**os.environ, "GREEN_CTX_SGLANG": arm.variable},
                stderr=file,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert child.stdout is not None
            try:
                child_output, _ = child.communicate(timeout=chosen.limit)
                print(child_output, file=file, flush=True)
            except subprocess.TimeoutExpired:
                print(f"{arm.name}: stopped after {chosen.limit:g} s", flush=True)
            finally:
                # The engine's processes are in the group too.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    start = engine_start(log, begin)
    if start:
        with chosen.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"arm": arm.name, "start": start}) + "\n")
    return child.returncode == 0


def engine_start(log: Path, begin: int) -> dict[str, Any]:
    """What SGLang's log says of the capture of decode's graphs, and what its state says in the end."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(begin)
        text = file.read()
    found: dict[str, Any] = {}
    if captured := re.search(r"Capture .*graph end\. .*?([\d.]+) s\. mem usage=([\d.]+) GB", text):
        found = {"capture_s": float(captured[1]), "graphs_gb": float(captured[2])}
    if state := re.search(r"^state (\{.*\})$", text, re.MULTILINE):
        found["state"] = json.loads(state[1])
    return found


def summaries(entries: list[dict[str, Any]], bounds: list[Bound]) -> list[dict[str, Any]]:
    return [summarize(entry, bounds) for entry in entries if "load" in entry]


def show(entries: list[dict[str, Any]], given: list[Bound], as_json: bool) -> None:
    figures = summaries(entries, given)
    starts = {entry["arm"]: entry["start"] for entry in entries if "start" in entry}
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
    for name, start in starts.items():
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
    for number, arm in enumerate(arms, 1):
        there = {(entry["arm"], entry.get("load")) for entry in read(chosen.out)}
        missing = [load for load in loads if (arm.name, load.name) not in there]
        if not missing:
            continue
        spent = time.monotonic() - began
        if chosen.until is not None and spent > chosen.until:
            print(f"{len(arms) - number + 1} arms are left; the same command goes on with them")
            break
        print(f"[{spent:4.0f} s] {number} of {len(arms)}: {arm.name}, {len(missing)} loads", flush=True)
        if not measure(arm, missing, chosen, more):
            failed += 1
            print(f"{arm.name} failed; see {chosen.out.with_suffix('.log')}", flush=True)
    show(read(chosen.out), chosen.bounds, chosen.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
