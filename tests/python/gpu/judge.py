"""Judges the tuner's outcomes: `python judge.py FOLDER [--pair NAME] [--first N] [--outcomes N] [--depth 2]`.

The judge shares no code with the tuner. For each pair of jobs (pairs.py) it first measures a grid of divisions and the arms
without partitions. Then it judges outcomes of `tune`, each made by another process: it runs the candidate, the best arms without
partitions and the best two arms of the grid in turns, in alternating order, in a process that has run nothing else: one with the
contexts of a whole grid ran some arms in two modes, 6 % apart. Figures come from these blocks alone, not from those that the arms were
selected by. Both jobs have two or three iterations in flight.

Each arm runs for a second after a lead-in: a GPU at its power limit changes its clocks with a period of about one second, so the mean
over 200 ms depends by up to 3 % on what ran before.

FOLDER gets one file per pair and one per outcome. Existing files are not measured again.
"""

import argparse
import collections
import ctypes
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from pairs import PAIRS, graphs

from green_ctx_torch import info, partition, retarget

BLOCK, LEAD_IN = 1.0, 0.2
"""The measured seconds of a block, and the seconds before them."""
ROUNDS = 5
"""The number of blocks of each arm in a comparison."""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


def instantiated(raw_graph):
    made = ctypes.c_void_p()
    call("cuGraphInstantiateWithFlags", ctypes.byref(made), ctypes.c_void_p(raw_graph), ctypes.c_ulonglong(0))
    return made


class Loop:
    """A job in a closed loop on a stream, with `depth` iterations in flight."""

    def __init__(self, executable, raw_stream, depth):
        self.executable, self.stream, self.depth = executable, ctypes.c_void_p(raw_stream), depth
        self.events = collections.deque()
        self.free = []
        for _ in range(depth):
            event = ctypes.c_void_p()
            call("cuEventCreate", ctypes.byref(event), 2)  # without timing
            self.free.append(event)
        self.done = []

    def step(self):
        """Submits iterations up to the depth, and records those that have finished."""
        while self.events and cuda.cuEventQuery(self.events[0]) == 0:
            self.free.append(self.events.popleft())
            self.done.append(time.perf_counter())
        while self.free:
            event = self.free.pop()
            call("cuGraphLaunch", self.executable, self.stream)
            call("cuEventRecord", event, self.stream)
            self.events.append(event)

    def end(self):
        call("cuStreamSynchronize", self.stream)
        for event in [*self.events, *self.free]:
            call("cuEventDestroy_v2", event)

    def rate(self, start):
        """Returns the iterations per second since `start`, measured between ends of iterations."""
        now = time.perf_counter()
        during = [moment for moment in self.done if moment >= start]
        if len(during) < 2:
            return len(during) / (now - start)
        intervals, first, last = len(during) - 1, during[0], during[-1]
        # A job that is kept from running has no end of an iteration while it waits.
        return intervals / max(last - first, now - first - (last - first) / intervals)


def block(loops):
    """Runs jobs at the same time for a block, and returns their rates."""
    start = time.perf_counter() + LEAD_IN
    while time.perf_counter() < start + BLOCK:
        for loop in loops:
            loop.step()
    rates = [loop.rate(start) for loop in loops]
    for loop in loops:
        loop.end()
    return rates


class Judge:
    def __init__(self, pair, depth):
        self.graphs, self.depth = graphs(pair), depth
        self.plain = [instantiated(graph.raw_cuda_graph()) for graph in self.graphs]
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.unit = 8
        rates = [self.run(("alone", job)) for job in (0, 1, 1, 0)]
        self.alone = [statistics.mean(rate for rate, *_ in rates[job::4] + rates[3 - job :: 4]) for job in (0, 1)]

    def run(self, arm):
        """Runs one block of an arm, with new streams."""
        kind, *how = arm
        with ExitStack() as stack:
            executables, streams = self.plain, []
            if kind == "alone":
                loop = Loop(self.plain[how[0]], torch.cuda.Stream().cuda_stream, self.depth)
                return block([loop])
            if kind == "sequential":
                streams = [torch.cuda.Stream()] * 2
            elif kind in ("streams", "priority"):
                streams = [torch.cuda.Stream(priority=priority) for priority in (how or [0, 0])]
            else:
                first, second, *priorities = how
                parts = stack.enter_context(closing(partition({"a": first, "b": second})))
                moved = [retarget(graph, part) for graph, part in zip(self.graphs, parts.values())]
                stack.callback(moved.clear)
                executables = [ctypes.c_void_p(copy.raw) for copy in moved]
                streams = [
                    part.create_stream(priority) for part, priority in zip(parts.values(), priorities or [0, 0])
                ]
            loops = [
                Loop(executable, stream.cuda_stream, self.depth) for executable, stream in zip(executables, streams)
            ]
            return block(loops)

    def score(self, rates):
        return sum(rate / alone for rate, alone in zip(rates, self.alone))

    def compared(self, arms, rounds):
        """Runs arms in turns, and returns their scores."""
        scores = {arm: [] for arm in arms}
        for turn in range(rounds):
            for arm in arms if turn % 2 == 0 else reversed(arms):
                scores[arm].append(self.score(self.run(arm)))
        return scores

    def shares(self, first, second):
        """Returns two ceilings as shares: the SMs outside one ceiling are the floor of the other."""
        texts = []
        for own, other in ((first, second), (second, first)):
            floor = min(self.sms - other, own)
            texts.append(str(own) if floor == own else f"{floor}..={own}" if own < self.sms else f"{floor}..")
        return [".." if text == "0.." else text.replace("0..=", "..=") if text.startswith("0..") else text for text in texts]

    def grid(self):
        """Measures every second unit, and then the neighbours of the best three."""
        odd = self.sms % self.unit
        front = [odd + self.unit * step for step in range(1, 16, 2)] + [self.sms]
        back = [self.unit * step for step in range(2, 17, 2)][:7] + [self.sms]
        pairs = [(a, b) for a in front for b in back if (a, b) != (self.sms, self.sms)]
        scores = self.compared([("partition", *self.shares(a, b)) for a, b in pairs], 1)
        places = {("partition", *self.shares(a, b)): (a, b) for a, b in pairs}
        best = sorted(scores, key=lambda arm: -statistics.mean(scores[arm]))[:3]
        near = {
            ("partition", *self.shares(a + self.unit * x, b + self.unit * y))
            for a, b in (places[arm] for arm in best)
            for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))
            if 0 < a + self.unit * x <= self.sms and 0 < b + self.unit * y <= self.sms
        } - set(scores)
        return scores | self.compared(sorted(near), 1)


PLAIN = [("sequential",), ("streams",), ("priority", -1, 0), ("priority", 0, -1)]


def judged_pair(pair, depth, path):
    """Measures the grid and the arms without partitions of a pair, or reads the record if there is one."""
    if path.exists():
        return json.loads(path.read_text())
    judge = Judge(pair, depth)
    scores = judge.grid()
    best = sorted(scores, key=lambda arm: -scores[arm][0])[:2]
    plain = judge.compared(PLAIN, ROUNDS)
    record = {
        "alone": judge.alone,
        "grid": [[arm, values] for arm, values in scores.items()],
        "plain": [[arm, values] for arm, values in plain.items()],
        "best": best,
        "best_plain": max(plain, key=lambda arm: statistics.mean(plain[arm])),
    }
    path.write_text(json.dumps(record))
    return json.loads(path.read_text())


def of_outcome(outcome, place):
    """Returns an arm of an outcome in the form that the judge uses."""
    arm = outcome["arms"][place]
    names = [job["name"] for job in outcome["jobs"]]
    priorities = [arm["priority"][name] for name in names]
    if arm["kind"] == "partition":
        return ("partition", *(arm["shares"][name] for name in names), *priorities)
    return ("priority", *priorities) if arm["kind"] == "priority" else (arm["kind"],)


def judge_outcome(pair, depth, record, outcome):
    """Measures what an outcome claims."""
    verdict = outcome["verdict"]
    chosen, candidate = of_outcome(outcome, verdict["arm"]), of_outcome(outcome, verdict["candidate"])
    plain = [tuple(record["best_plain"]), of_outcome(outcome, verdict["rival"])]
    arms = list(dict.fromkeys([candidate, chosen, *plain, *map(tuple, record["best"])]))
    question = json.dumps([pair, depth, arms])
    scores = dict(zip(arms, json.loads(printed_by(COMPARE, question))))
    means = {arm: statistics.mean(values) for arm, values in scores.items()}
    rival = max(plain, key=lambda arm: means[arm])
    ratios = [ours / theirs - 1 for ours, theirs in zip(scores[candidate], scores[rival])]
    half_width = 2.78 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return {
        "claim": [verdict["gain"], verdict["interval"]],
        "kind": verdict["kind"],
        "gain": means[candidate] / means[rival] - 1,
        "half_width": half_width,
        "chosen_to_plain": means[chosen] / means[rival] - 1,
        "regret": 1 - means[chosen] / max(means.values()),
        "scores": [[arm, values] for arm, values in scores.items()],
    }


COMPARE = """
import json, sys
from judge import ROUNDS, Judge
pair, depth, arms = json.loads(sys.argv[1])
arms = [tuple(arm) for arm in arms]
scores = Judge(pair, depth).compared(arms, ROUNDS)
print(json.dumps([scores[arm] for arm in arms]))
"""
TUNE = """
import json, sys, torch
from pairs import graphs
from green_ctx_torch import tune
first, second = graphs(sys.argv[1])
outcome = tune({"a": first, "b": second}, progress=lambda now: True)
print(json.dumps(json.loads(outcome.to_json())))
"""


def printed_by(program, argument):
    """The last line that a program prints in its own process."""
    done = subprocess.run([sys.executable, "-c", program, argument], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--pair", action="append", choices=PAIRS)
    options.add_argument("--first", type=int, default=0, help="the number of the first outcome")
    options.add_argument("--outcomes", type=int, default=3, help="the number after the last outcome")
    options.add_argument("--depth", type=int, default=2)
    asked = options.parse_args()
    asked.folder.mkdir(exist_ok=True)
    about = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "driver": info()["driver"]}
    (asked.folder / "about.json").write_text(json.dumps(about))
    for pair in asked.pair or PAIRS:
        name = pair.replace(" + ", "-beside-").replace(" ", "-")
        file = asked.folder / f"{name}.json"
        record = judged_pair(pair, asked.depth, file)
        for number in range(asked.first, asked.outcomes):
            file = asked.folder / f"{name}-{number}.json"
            if not file.exists():
                outcome = json.loads(printed_by(TUNE, pair))
                judged = judge_outcome(pair, asked.depth, record, outcome)
                file.write_text(json.dumps({"judged": judged, "outcome": outcome}))
            judged = json.loads(file.read_text())["judged"]
            print(pair, number, {key: value for key, value in judged.items() if key != "scores"}, flush=True)


if __name__ == "__main__":
    main()
