"""Compares the ends of processes that use partitions with the ends of the same programs in plain torch.

`python exits.py [RESULTS.json] [--times N] [--only NAME,NAME]` runs each program several times in both ways and
compares the statuses: the exit status of the program, or the signal that ended it. Both ways must have the same
statuses, except for the programs in `BETTER`.

Each run is a fork of this process, which has imported torch and green_ctx_torch but has not used CUDA. This reduces
the time of a run from ten seconds to one.
"""

import argparse
import collections
import json
import os
import signal
import sys
import tempfile
import time

import green_ctx_torch  # noqa: F401
import torch

#: The functions `block`, `stream` and so on, in partitions.
PARTITIONED = """
import green_ctx_torch

parts = green_ctx_torch.partition({"a": 16, "b": 24})

def block(name="a"):
    return parts[name]

def stream(name="a"):
    return parts[name].stream

def look():
    green_ctx_torch.verify(parts)

def make():
    green_ctx_torch.partition({"c": 8}).close()

def plans():
    made = green_ctx_torch.PlanSet({"x": {"d": 16}, "y": {"d": 32}}, sm_count=48)
    made.switch("y")
    return made
"""

#: The same functions in plain torch: streams of its pool, and work that takes about as long.
PLAIN = """
streams = {name: torch.cuda.Stream() for name in "ab"}

def block(name="a"):
    return torch.cuda.stream(streams[name])

def stream(name="a"):
    return streams[name]

def look():
    for each in streams.values():
        with torch.cuda.stream(each):
            torch.cuda._sleep(1_000_000)
        each.synchronize()

def make():
    torch.cuda.Stream()

def plans():
    return [torch.cuda.Stream() for _ in range(4)]
"""

COMMON = """
import atexit, gc, os, signal, sys, threading, time
import torch

x = torch.ones(256, 256, device="cuda")

def again(call):
    while True:
        call()

def daemon(call):
    threading.Thread(target=again, args=(call,), daemon=True).start()

def in_block(call=lambda: None, name="a"):
    with block(name):
        call()
"""

PROGRAMS = {
    "nothing runs": "",
    "work runs": """
with block():
    torch.cuda._sleep(500_000_000)
""",
    "a graph lives": """
graph = torch.cuda.CUDAGraph()
with block():
    y = x @ x
    with torch.cuda.graph(graph):
        y = x @ x
    graph.replay()
""",
    "a captured graph runs": """
graph = torch.cuda.CUDAGraph()
with block():
    with torch.cuda.graph(graph):
        torch.cuda._sleep(500_000_000)
    graph.replay()
""",
    "plans live": """
kept = plans()
with block():
    x @ x
""",
    "a pool lives": """
pool = torch.cuda.MemPool()
with block(), torch.cuda.use_mem_pool(pool):
    y = torch.ones(1 << 20, device="cuda")
""",
    "a daemon computes in a block": """
daemon(lambda: in_block(lambda: x @ x))
time.sleep(0.2)
""",
    "a daemon stays in a block": """
def stay():
    with block():
        again(lambda: x @ x)
threading.Thread(target=stay, daemon=True).start()
time.sleep(0.2)
""",
    "a daemon enters": """
daemon(in_block)
time.sleep(0.2)
""",
    "four daemons enter": """
for name in "abab":
    daemon(lambda name=name: in_block(name=name))
time.sleep(0.2)
""",
    "a daemon verifies": """
daemon(look)
time.sleep(0.2)
""",
    "a daemon makes": """
daemon(make)
time.sleep(0.2)
""",
    "a thread computes past the end": """
def work():
    deadline = time.monotonic() + 0.4
    while time.monotonic() < deadline:
        in_block(lambda: x @ x)
threading.Thread(target=work).start()
""",
    "sys.exit in a block": """
with block():
    x @ x
    sys.exit(3)
""",
    "an exception in a block": """
with block():
    x @ x
    raise ValueError
""",
    "an interrupt in a block": """
# A program that a shell starts in the background ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
with block():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
""",
    "os._exit in a block": """
with block():
    x @ x
    os._exit(4)
""",
    "at exit a block": """
atexit.register(lambda: in_block(lambda: (x @ x).sum().item()))
""",
    "a generator stays in a block": """
def generator():
    with block():
        yield x @ x
kept = generator()
next(kept)
""",
    "an object enters as it goes": """
class Late:
    def __del__(self):
        in_block(lambda: x @ x)
kept = Late()
kept.cycle = kept
""",
    "a tensor of a block goes last": """
with block():
    sys.kept = [x @ x for _ in range(4)]
sys.stream = stream("b")
""",
    "a forked child leaves in a block": """
with block():
    child = os.fork()
    if child == 0:
        sys.exit(0)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) & 255)
""",
    "a forked child ends in a block": """
with block():
    child = os.fork()
if child == 0:
    sys.exit(5)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) & 255)
""",
}

#: Programs that end badly in plain torch but not with partitions, with the status that partitions may have. If a
#: daemon thread waits for the GIL in an operator of torch while the interpreter ends, the process aborts. In calls
#: of this project it does not. In a forked child, torch fails to restore the previous stream.
BETTER = {
    "a daemon computes in a block": "0",
    "a daemon stays in a block": "0",
    "a daemon verifies": "0",
    "a forked child leaves in a block": "0",
    "a forked child ends in a block": "5",
}

#: The time in seconds after which a process counts as hung.
LONGEST = 60


def start(source, errors):
    """Runs a program in a child, as the main program of the interpreter. Returns the child's process id."""
    child = os.fork()
    if child:
        return child
    os.dup2(errors.fileno(), 2)
    # From here the child ends like a script: the interpreter is finalised, and this is its main thread.
    raise Program(source)


class Program(BaseException):
    """Unwinds a child to the end of this module, where its program runs."""


def measure(names, times, at_once):
    """Returns the statuses of each program in both ways, and the last lines that runs wrote to standard error."""
    runs = [(name, way) for _ in range(times) for name in names for way in ("plain", "partitioned")]
    statuses = {name: {way: collections.Counter() for way in ("plain", "partitioned")} for name in names}
    words = {}
    living = {}
    # All forks happen on this thread, so that no child inherits a lock that another thread holds.
    while runs or living:
        while runs and len(living) < at_once:
            name, way = runs.pop(0)
            source = COMMON + (PLAIN if way == "plain" else PARTITIONED) + PROGRAMS[name]
            errors = tempfile.TemporaryFile()
            living[start(source, errors)] = (name, way, errors, time.monotonic())
        for child, (name, way, errors, began) in list(living.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                told = str(code) if code >= 0 else signal.Signals(-code).name
            elif time.monotonic() - began > LONGEST:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                told = "hung"
            else:
                continue
            del living[child]
            statuses[name][way][told] += 1
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            if said:
                words.setdefault(name, {}).setdefault(way, {})[told] = said[-600:]
        time.sleep(0.005)
    return statuses, words


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--at-once", type=int, default=12)
    arguments = parser.parse_args()
    names = [name for name in PROGRAMS if name in arguments.only.split(",") or not arguments.only]
    statuses, words = measure(names, arguments.times, arguments.at_once)
    same = {}
    for name in names:
        plain, partitioned = statuses[name]["plain"], statuses[name]["partitioned"]
        allowed = {*plain, BETTER.get(name, min(plain))}
        same[name] = set(partitioned) <= allowed
        differs = "" if set(plain) == set(partitioned) else "(differs)"
        print("ok    " if same[name] else "FAILED", name, dict(plain), dict(partitioned), differs, flush=True)
        if not same[name]:
            for way, said in words.get(name, {}).items():
                print("   ", way, json.dumps(said)[:900])
    if arguments.results:
        with open(arguments.results, "w") as file:
            json.dump({"torch": torch.__version__, "statuses": statuses}, file, indent=1)
    return 0 if all(same.values()) else 1


try:
    status = main()
except Program as program:
    source = program.args[0]
else:
    sys.exit(status)
exec(compile(source, "<program>", "exec"))
