"""Tunes an all-reduce beside a product on two GPUs, and sees what comes of ranks that fail.

    python tuning_ranks.py [RESULTS.json]

Starts two ranks for each case, and kills what is left of them after a while. Of a case in which a rank fails, it
writes for how many seconds each other rank went on: that must be less than the group's timeout.
"""

import contextlib
import gc
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import green_ctx_torch
from green_ctx_torch import partition, tune

MIB = 1 << 20
#: Of the group.
TIMEOUT = timedelta(seconds=30)
#: Of a case, in seconds: what runs then is killed.
LIMIT = float(os.environ.get("LIMIT", 120))
BUDGET = float(os.environ.get("BUDGET", 10))
#: In this call of its function a rank fails: in the middle of the search, after each job has run alone.
CALL = int(os.environ.get("CALL", 1500))

#: Set in the ranks.
RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))


class Product:
    """A product of 8192 in bf16, as a function."""

    def __init__(self, fails=None):
        self.a, self.b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.c = torch.empty_like(self.a)
        self.calls, self.fails = 0, fails

    def __call__(self):
        torch.matmul(self.a, self.b, out=self.c)
        if self.fails is not None:
            # A function that waits for the device is not captured, but called for each iteration.
            torch.cuda.current_stream().synchronize()
            self.calls += 1
            if self.calls == CALL:
                self.fails()


def jobs(fails=None):
    """An all-reduce of 64 MiB, whose values stay what they are, beside a product."""
    x = torch.ones(64 * MIB // 4, device="cuda")

    def reduce():
        dist.all_reduce(x, op=dist.ReduceOp.AVG)

    return {"reduce": reduce, "product": Product(fails)}


def figures(outcome):
    """What is worth reading of an outcome."""
    verdict = outcome.verdict
    arms = [arm for arm in outcome.arms if arm["samples"]]
    of_kinds = {kind: sum(arm["kind"] == kind for arm in arms) for kind in {arm["kind"] for arm in arms}}
    with contextlib.closing(outcome.partitions()) as parts:
        shares = {name: part.share for name, part in parts.items()}
    return {
        "sentence": verdict.sentence,
        "kind": verdict.kind,
        "shares": shares,
        "priority": verdict.priority,
        "gain": verdict.gain,
        "confidence": verdict.confidence,
        "upper": verdict.upper,
        "drift": outcome.drift,
        "search_seconds": outcome.seconds,
        "arms": of_kinds,
        "blocks": sum(arm["samples"] for arm in arms),
        "notes": outcome.notes,
        "explain": outcome.explain().splitlines(),
        "digest": hashlib.sha256(outcome.to_json().encode()).hexdigest(),
    }


def throughput():
    return figures(tune(jobs(), budget=BUDGET, group=dist.group.WORLD))


def makespan():
    return figures(tune(jobs(), "makespan", budget=BUDGET, group=dist.group.WORLD))


def failed_now():
    """Notes when this rank has failed."""
    Path(os.environ["RESULT"]).with_suffix(".failed").write_text(repr(time.time()))


def divides():
    failed_now()
    return 1 / 0


def ends():
    failed_now()
    os._exit(7)


def goes_on():
    pass


def failing(rank, fails):
    """A search in the middle of which a function fails on one rank. Functions that do not fail are called too."""
    wrong = fails if rank == RANK else goes_on
    return figures(tune(jobs(wrong), budget=BUDGET, group=dist.group.WORLD))


def a_function_raises():
    return failing(1, divides)


def a_rank_ends():
    return failing(1, ends)


def rank_0_ends():
    return failing(0, ends)


def a_rank_hangs():
    """One rank does not come back from its function: the other waits for its all-reduce."""

    def sleeps():
        failed_now()
        time.sleep(600)

    return failing(1, sleeps)


def jobs_differ():
    mine = jobs()
    if RANK == 1:
        mine = dict(reversed(mine.items()))
        failed_now()
    return figures(tune(mine, budget=BUDGET, group=dist.group.WORLD))


def goals_differ():
    if RANK == 1:
        failed_now()
    goal = "throughput" if RANK == 0 else "makespan"
    return figures(tune(jobs(), goal, budget=BUDGET, group=dist.group.WORLD))


#: The ranks that give no result, of each case. None: it is to succeed.
CASES = {
    "throughput": None,
    "makespan": None,
    "a_function_raises": [],
    "a_rank_ends": [1],
    "rank_0_ends": [0],
    "a_rank_hangs": [1],
    "jobs_differ": [],
    "goals_differ": [],
}


def rank(case):
    """One rank of a case. Writes what came of it as soon as that is known, and once more before it ends."""
    path = Path(os.environ["RESULT"])
    torch.cuda.set_device(RANK)
    device = torch.device("cuda", RANK)
    dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
    # NCCL connects at the first collective.
    dist.all_reduce(torch.ones(MIB, device="cuda"))
    torch.cuda.synchronize()
    began = time.time()
    try:
        result = {"result": globals()[case]()}
    except BaseException as error:
        built_in = next(known for known in type(error).__mro__ if known.__module__ == "builtins")
        result = {"raised": built_in.__name__, "text": str(error)}
    result |= {"began": began, "ended": time.time(), "rank": RANK, "case": case}
    path.write_text(json.dumps(result))

    gc.collect()
    try:
        with contextlib.closing(partition({"all": "rest"})) as parts:
            free = parts["all"].sm_count
        torch.cuda.synchronize()
        result["works_afterwards"] = torch.ones(8, device="cuda").sum().item() == 8
    except Exception as error:
        free, result["works_afterwards"] = str(error), False
    result["free"], result["sms"] = free, torch.cuda.get_device_properties(device).multi_processor_count
    path.write_text(json.dumps(result))

    # In a thread of its own: whether it returns is a result too.
    began = time.time()
    destroys = threading.Thread(target=dist.destroy_process_group, daemon=True)
    destroys.start()
    destroys.join(20)
    result["group_destroyed_s"] = None if destroys.is_alive() else time.time() - began
    path.write_text(json.dumps(result))
    if destroys.is_alive():
        os._exit(3)
    return 0


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(case, folder):
    """Runs a case, and returns what each rank wrote, how it ended, and what that says."""
    port, began = str(free_port()), time.time()
    programs, paths = [], []
    for number in range(2):
        path = folder / f"{case}.{number}.json"
        environment = os.environ | {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RESULT": str(path),
        }
        paths.append(path)
        programs.append(subprocess.Popen([sys.executable, __file__, "--rank", case], env=environment))
    missing = CASES[case] or []

    def is_over():
        # Who hangs on purpose is not waited for.
        waited = [program for number, program in enumerate(programs) if number not in missing]
        return all(program.poll() is not None for program in waited)

    try:
        while not is_over() and time.time() - began < LIMIT:
            time.sleep(0.2)
    finally:
        killed = [number for number, program in enumerate(programs) if program.poll() is None]
        for program in programs:
            program.kill()
        statuses = [program.wait() for program in programs]
    ranks = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    entry = {"ranks": ranks, "statuses": statuses, "killed": killed, "seconds": time.time() - began}
    entry["ok"] = judge(case, entry, [path.with_suffix(".failed") for path in paths])
    return entry


def judge(case, entry, notes):
    """Whether a case went as it should. Adds what it found out."""
    ranks, missing = entry["ranks"], CASES[case]
    there = [result for number, result in enumerate(ranks) if number not in (missing or [])]
    if any(result is None for result in there):
        return False
    whole = all(result.get("free") == result.get("sms") for result in there)
    entry["sms_are_free"] = whole
    if missing is None:
        if not all("result" in result for result in there):
            return False
        digests = {result["result"]["digest"] for result in there}
        entry["same_outcome"] = len(digests) == 1
        return entry["same_outcome"] and whole and not entry["killed"] and not any(entry["statuses"])
    failed = [float(note.read_text()) for note in notes if note.exists()]
    if not failed or not all("raised" in result for result in there):
        return False
    survivors = [result["ended"] - min(failed) for result in there]
    entry["seconds_until_raised"] = [round(seconds, 2) for seconds in survivors]
    entry["raised"] = [f"{result['raised']}: {result['text']}" for result in there]
    differ = case.endswith("differ")
    kinds = not differ or all(result["raised"] == "ValueError" for result in there)
    hung = [number for number in entry["killed"] if number not in missing]
    return kinds and not hung and max(survivors) < TIMEOUT.total_seconds()


def parent(arguments):
    if torch.cuda.device_count() < 2:
        print(f"skipped: {torch.cuda.device_count()} GPUs, two are needed", file=sys.stderr)
        return 0
    result = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "driver": green_ctx_torch.info()["driver"]["version"],
        "group_timeout_s": TIMEOUT.total_seconds(),
        "budget_s": BUDGET,
        "cases": {},
    }
    wanted = os.environ.get("CASES", "").split() or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        for case in wanted:
            entry = result["cases"][case] = run(case, Path(folder))
            details = {key: value for key, value in entry.items() if key not in ("ranks", "ok")}
            print("ok    " if entry["ok"] else "FAILED", case, details, flush=True)
            for found in filter(None, entry["ranks"][:1] if CASES[case] is None else []):
                print("      ", found.get("result", {}).get("sentence", found), flush=True)
            result["ok"] = all(entry["ok"] for entry in result["cases"].values())
            if arguments:
                # What is known so far, whatever comes.
                Path(arguments[0]).write_text(json.dumps(result, indent=1))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(rank(sys.argv[2]) if sys.argv[1:2] == ["--rank"] else parent(sys.argv[1:]))
