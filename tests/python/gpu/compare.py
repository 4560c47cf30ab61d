"""Compares two wheels by what the calls that programs make most often cost.

`python compare.py OLD.whl NEW.whl OUT.json [ROUNDS]`

The clock of a machine can change by more than the difference to be found. So both wheels are
loaded at the same time, each in a process of its own, and the processes measure short batches in
alternation: neighbouring batches see the same clock, and the result is the median of their ratios.
Each round starts new processes, since one of them can stay on a slower core until it ends. The
comparison of a wheel with itself shows how much of the result is noise.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
import zipfile
from contextlib import ExitStack
from pathlib import Path

#: What is measured: a statement, and how many calls it makes. An attribute is read several times,
#: since the loop around a single read would take a good part of the time.
ARMS = {
    "create": ("GreenContext.create(16)", 1),
    "set_pop": ("context.set_context()\ncontext.pop_context()", 1),
    "partition_stream": ("part.stream\n" * 10, 10),
    "with_partition": ("with part:\n    pass", 1),
    "context_stream": ("context.Stream()", 1),
}
#: The greatest accepted ratio of new to old.
LIMIT = 1.05
ROUNDS = 8
#: Pairs of neighbouring batches in a round.
PAIRS = 10
#: Chunks in a batch. After each one the process waits for the device, so that no call waits for
#: room in a queue.
CHUNKS = 20
#: About how long a chunk takes, in microseconds.
CHUNK_US = 1000
#: More than the 32 streams that `GreenContext.Stream` creates before the first one comes again.
WARM_UP = 1000


def measure(site, cpu):
    """Measures the wheel that is unpacked in a folder, as the parent process requests."""
    # Only replies go to the pipe; what libraries print goes to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, site)
    # Servers import it, and then entering a partition looks for a running event loop.
    import asyncio  # noqa: F401

    import torch

    import green_ctx_torch

    assert green_ctx_torch.__file__.startswith(site), green_ctx_torch.__file__
    torch.cuda.init()
    # Both processes on one processor, which they use in turn: those of a shared host differ by up to 1.8.
    os.sched_setaffinity(0, {int(cpu)})
    names = {
        "GreenContext": green_ctx_torch.GreenContext,
        "context": green_ctx_torch.GreenContext.create(16),
        "part": green_ctx_torch.partition({"part": 16})["part"],
    }
    timers = {arm: timeit.Timer(statement, globals=names) for arm, (statement, _) in ARMS.items()}

    def chunk(arm, number):
        """Runs an arm's statement so often, and returns the mean in microseconds."""
        microseconds = 1e6 * timers[arm].timeit(number) / number
        torch.cuda.synchronize()
        return microseconds

    for arm in ARMS:
        chunk(arm, WARM_UP)
    estimates = {arm: chunk(arm, WARM_UP) for arm in ARMS}
    about = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    print(json.dumps([about, estimates]), file=replies, flush=True)
    for line in sys.stdin:
        arm, number = json.loads(line)
        # Not measured: the other process has used the caches and the device since.
        chunk(arm, number)
        means = [chunk(arm, number) for _ in range(CHUNKS)]
        print(json.dumps(statistics.median(means) / ARMS[arm][1]), file=replies, flush=True)


class Child:
    """A process that measures one wheel on request, and sleeps in between."""

    def __init__(self, site, cpu):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--measure", str(site), str(cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        # It ends at the end of its input.
        self._process.communicate()

    def reply(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with status {self._process.wait()}")
        return json.loads(line)

    def batch(self, arm, number):
        """Microseconds that one call takes: the median of a batch's chunks."""
        print(json.dumps([arm, number]), file=self._process.stdin, flush=True)
        return self.reply()


def one_round(sites, turn):
    """Measures all arms in new processes. Returns the device and torch's version, and each arm's
    numbers."""
    with ExitStack() as stack:
        # Another one each round.
        cpus = sorted(os.sched_getaffinity(0))
        cpu = cpus[turn % len(cpus)]
        old, new = children = [stack.enter_context(Child(site, cpu)) for site in sites]
        abouts, estimates = zip(*(child.reply() for child in children))
        entries = {}
        for arm in ARMS:
            number = max(1, round(CHUNK_US / max(estimate[arm] for estimate in estimates)))
            pairs = []
            for pair in range(PAIRS):
                # The order changes from pair to pair, and from round to round.
                order = (old, new) if (turn + pair) % 2 == 0 else (new, old)
                times = {child: child.batch(arm, number) for child in order}
                pairs.append((times[old], times[new]))
            olds, news = zip(*pairs)
            entries[arm] = {
                "old_us": statistics.median(olds),
                "new_us": statistics.median(news),
                "ratio": statistics.median(new_us / old_us for old_us, new_us in pairs),
            }
        return abouts[0], entries


def summary(rounds):
    """An arm's numbers over all rounds. `ratio` is the one that the limit is for."""
    ratios = [entry["ratio"] for entry in rounds]
    old_us, new_us = (statistics.median(e[key] for e in rounds) for key in ("old_us", "new_us"))
    numbers = {
        "old_us": old_us,
        "new_us": new_us,
        "ratio_of_medians": new_us / old_us,
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
    return {
        **{key: round(value, 4) for key, value in numbers.items()},
        "limit": LIMIT,
        "holds": numbers["ratio"] <= LIMIT,
        "rounds": [{key: round(value, 4) for key, value in entry.items()} for entry in rounds],
    }


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def main(old, new, output, rounds=ROUNDS):
    wheels = {"old": Path(old), "new": Path(new)}
    entries = []
    with tempfile.TemporaryDirectory(prefix="green-ctx-compare-") as folder:
        sites = [unpack(wheel, Path(folder, name)) for name, wheel in wheels.items()]
        for turn in range(int(rounds)):
            about, entry = one_round(sites, turn)
            entries.append(entry)
            ratios = (f"{arm} {numbers['ratio']:.3f}" for arm, numbers in entry.items())
            print(f"round {turn + 1}:", ", ".join(ratios), flush=True)
    arms = {arm: summary([entry[arm] for entry in entries]) for arm in ARMS}
    sha256 = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in wheels.items()}
    ok = all(arm["holds"] for arm in arms.values())
    result = {**about, "python": sys.version.split()[0], "sha256": sha256, "arms": arms, "ok": ok}
    Path(output).write_text(json.dumps(result, indent=1))

    print(f"{'':18}{'old µs':>10}{'new µs':>10}{'medians':>9}{'ratio':>8}{'min':>8}{'max':>8}")
    for name, arm in arms.items():
        times = f"{arm['old_us']:10.3f}{arm['new_us']:10.3f}{arm['ratio_of_medians']:9.3f}"
        ratios = "".join(f"{arm[key]:8.3f}" for key in ("ratio", "ratio_min", "ratio_max"))
        print(f"{name:18}{times}{ratios}", "ok" if arm["holds"] else f"FAILED, over {LIMIT}")
    return ok


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:4])
    elif len(sys.argv) in (4, 5):
        sys.exit(0 if main(*sys.argv[1:]) else 1)
    else:
        sys.exit("usage: compare.py OLD.whl NEW.whl OUT.json [ROUNDS]")
