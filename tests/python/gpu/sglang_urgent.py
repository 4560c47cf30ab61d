"""An urgent job of our own in the process of an unmodified SGLang server, on a GPU.

    python sglang_urgent.py measure OUT.jsonl --seeds 7 11 [--arms plain "reserve 16"]
    python sglang_urgent.py table OUT.jsonl.xz SUMMARY.json

SGLang runs as it is, with chunks of 512 tokens that prefill and decode share, and loads this file as a plug-in. The
urgent job is a captured encoder of some 0.2 ms, 200 times a second, on a thread of the scheduler's process:

- none: no urgent job.
- plain: on a stream of torch. priority: on one of the highest priority.
- reserve N: in a partition of N SMs, under a reserve of N.
"""

import argparse
import json
import lzma
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import sglang_shares as shares

ARMS = ("none", "plain", "priority", "reserve 16", "reserve 32")
RATES = (6, 9)
PERIOD = 0.005


def plugin():
    """Has SGLang start the urgent job when the scheduler is ready. SGLang calls this function."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    loop = "sglang.srt.managers.scheduler.Scheduler.run_event_loop"
    if os.environ["URGENT"] != "none":
        HookRegistry.register(loop, start, HookType.BEFORE)


def start(scheduler):
    import torch

    import green_ctx_torch

    arm = os.environ["URGENT"]
    if arm.startswith("reserve"):
        # The parts must live as long as the process.
        start.parts = green_ctx_torch.partition({"urgent": int(arm.split()[1])})
        ours = start.parts["urgent"]
    else:
        ours = torch.cuda.stream(torch.cuda.Stream(priority=-5 if arm == "priority" else 0))
    # The scheduler's loop never waits, and would keep Python's lock from the job for 5 ms at a time.
    sys.setswitchinterval(0.0002)
    threading.Thread(target=urgent, args=(ours, torch), daemon=True).start()


def urgent(ours, torch):
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, device="cuda", dtype=torch.bfloat16)
    encoder = torch.nn.TransformerEncoder(layer, 4).eval()
    image = torch.randn(1, 197, 768, device="cuda", dtype=torch.bfloat16)
    # The graph itself records them, so that the time between them has nothing of the host.
    begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    with ours, torch.no_grad(), open(os.environ["URGENT_TIMES"], "a", buffering=1, encoding="utf-8") as file:
        encoder(image)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            begin.record()
            encoder(image)
            end.record()
        due = time.time()
        while True:
            # The times that passed during a late job are left out.
            due = max(due + PERIOD, time.time())
            time.sleep(max(0.0, due - time.time()))
            woken = time.time()
            graph.replay()
            torch.cuda.current_stream().synchronize()
            # When the job was due, and its times in us: from then on, from the thread's wake-up on, and on the GPU.
            now = time.time()
            times = (now - due, now - woken, begin.elapsed_time(end) / 1e3)
            file.write(f"{due:.3f} " + " ".join(f"{1e6 * each:.0f}" for each in times) + "\n")


def measured(arm, options):
    """Yields one entry for each seed and rate."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        known = Path(folder, "urgent-0.dist-info")
        known.mkdir()
        (known / "METADATA").write_text("Metadata-Version: 2.1\nName: urgent\nVersion: 0\n")
        (known / "entry_points.txt").write_text("[sglang.srt.plugins]\nurgent = sglang_urgent:plugin\n")
        # Every process of SGLang reserves before it imports torch.
        Path(folder, "sitecustomize.py").write_text("import green_ctx_torch\n")
        variables = {"URGENT": arm, "URGENT_TIMES": str(times)}
        os.environ.pop("GREEN_CTX_RESERVE", None)
        if arm.startswith("reserve"):
            variables["GREEN_CTX_RESERVE"] = arm.split()[1]
        paths = (folder, str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
        os.environ.update(variables, PYTHONPATH=":".join(paths))
        try:
            server = shares.Server("mixed 512", options)
        finally:
            os.environ["PYTHONPATH"] = paths[-1]
        try:
            yield from answered(server, times, arm, options)
        finally:
            server.stop()


def answered(server, times, arm, options):
    def between(begin, end):
        lines = [line.split() for line in times.read_text().splitlines()]
        return [[int(each) for each in words] for due, *words in lines if begin <= float(due) < end]

    time.sleep(3)
    now = time.time()
    alone = between(now - 2, now)
    if not alone and arm != "none":
        sys.exit(f"{arm}: the urgent job does not run:\n{server.log.read_text()[-4000:]}")
    shares.run(server.port, shares.load(max(RATES), 5, 1000))
    for seed in options.seeds:
        for rate in RATES:
            requests, begin = shares.load(rate, options.seconds, seed), time.time()
            answers = shares.run(server.port, requests)
            end = time.time()
            rows = []
            for (arrival, prompt, _), (_, found) in zip(requests, answers, strict=True):
                ticks = [round(each * 10) for each in found]
                rows.append([round(arrival, 3), len(prompt), ticks[0], *(b - a for a, b in zip(ticks, ticks[1:]))])
            entry = {**shares.about(), "arm": arm, "seed": seed, "rate": rate, "ready": server.ready}
            # The urgent job counts while requests arrive.
            urgent = between(begin + 0.5, begin + options.seconds)
            jobs = len(urgent) / (options.seconds - 0.5)
            entry |= {"seconds": end - begin, "alone": alone, "urgent": urgent, "jobs per s": jobs}
            yield entry | {"requests": rows}


def measure(options):
    # A time limit ends the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    for arm in options.arms:
        for entry in measured(arm, options):
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            print(arm, entry["rate"], summary([entry]), flush=True)


def percentiles(values):
    if len(values) < 100:
        return {}
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)}


def summary(entries):
    """Returns the urgent job's times in ms, on the GPU and for its thread, then the server's figures.

    A late job replaces those that were due meanwhile, so its times need the jobs per second to be read.
    """
    times = {key: [each for entry in entries for each in entry[key]] for key in ("alone", "urgent")}
    rows = [row for entry in entries for row in entry["requests"]]
    return {
        "alone": percentiles([gpu / 1e3 for _, _, gpu in times["alone"]]),
        "on the GPU": percentiles([gpu / 1e3 for _, _, gpu in times["urgent"]]),
        "for the thread": percentiles([thread / 1e3 for _, thread, _ in times["urgent"]]),
        "jobs per s": round(statistics.fmean(entry["jobs per s"] for entry in entries)),
        "tokens per s": round(sum(len(row) - 2 for row in rows) / sum(entry["seconds"] for entry in entries)),
        "first token": percentiles([row[2] / 10 for row in rows]),
        "gaps": percentiles([gap / 10 for row in rows for gap in row[3:]]),
    }


def table(options):
    together = {}
    for line in lzma.open(options.file, "rt"):
        entry = json.loads(line)
        together.setdefault((entry["rate"], ARMS.index(entry["arm"])), []).append(entry)
    found = {f"{rate} per s, {ARMS[arm]}": summary(together[rate, arm]) for rate, arm in sorted(together)}
    names = list(next(iter(found.values())))
    print("| requests, arm |", " | ".join(names), "|\n|---" + "|---" * len(names) + "|")
    for name, figures in found.items():
        cells = (" ".join(map(str, each.values())) if isinstance(each, dict) else str(each) for each in figures.values())
        print("|", " | ".join((name, *cells)), "|")
    options.summary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    (command := commands.add_parser("measure")).set_defaults(function=measure)
    command.add_argument("out", type=Path)
    command.add_argument("--seeds", type=int, nargs="+", required=True)
    command.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    command.add_argument("--seconds", type=float, default=10)
    command.add_argument("--port", type=int, default=30000)
    command.add_argument("--memory", type=float, default=0.8, help="SGLang's --mem-fraction-static")
    (command := commands.add_parser("table")).set_defaults(function=table)
    command.add_argument("file", type=Path)
    command.add_argument("summary", type=Path)
    options = parser.parse_args()
    options.function(options)
