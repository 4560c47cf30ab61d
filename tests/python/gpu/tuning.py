"""The tuner on a GPU: `python tuning.py [RESULTS.json [OUTCOME.json]]`.

Needs torch 2.11. Exits with 1 where something that must hold does not. What the tuner found for a decode step
beside a product is written to OUTCOME.json: the notebook shows one.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import oracle_jobs
import torch
from harness import check, raises, run

import green_ctx_torch
from green_ctx_torch import Job, load_tuning, partition, tune, tuned

torch.set_grad_enabled(False)

OUTCOME = Path(sys.argv[2] if len(sys.argv) > 2 else Path(tempfile.mkdtemp()) / "tuning.json").absolute()
DECODE = oracle_jobs.build(torch, "decode:8")
PRODUCT = oracle_jobs.build(torch, "product:4096")
JOBS = {"decode": Job(DECODE, key="8B, 8 layers"), "prefill": Job(PRODUCT, key="4096")}
GOAL = "keep:decode:p99:2500us"


def all_free():
    """Whether every SM is free again."""
    with closing(partition({"all": "rest"})) as parts:
        total = torch.cuda.get_device_properties(0).multi_processor_count
        return parts["all"].sm_count == total


@check
def a_decode_step_beside_products():
    outcome = tune(JOBS, GOAL, progress=lambda progress: True)
    outcome.save(OUTCOME)
    assert outcome._repr_svg_().startswith("<svg")
    assert outcome.seconds < 10.5 and all_free()
    with closing(outcome.partitions()) as parts, parts["decode"]:
        DECODE()
    return {
        "sentence": outcome.verdict.sentence,
        "gain": outcome.verdict.gain,
        "confidence": outcome.verdict.confidence,
        "drift": round(outcome.drift, 3),
        "seconds": round(outcome.seconds, 2),
        "notes": outcome.notes,
        "bytes": OUTCOME.stat().st_size,
        "holds": outcome.verdict.meets,
    }


@check
def the_second_start():
    """Milliseconds until the partitions of a file are there, in a process that has its contexts."""
    times = {"load": [], "load and partitions": []}
    for _ in range(20):
        start = time.perf_counter()
        load_tuning(OUTCOME)
        times["load"].append(time.perf_counter() - start)
        start = time.perf_counter()
        with tuned(OUTCOME, JOBS, GOAL) as parts:
            times["load and partitions"].append(time.perf_counter() - start)
            assert set(parts) == {"decode", "prefill"}
    milliseconds = {name: round(1000 * sorted(each)[10], 2) for name, each in times.items()}
    return {**milliseconds, "limit": 50, "holds": milliseconds["load and partitions"] <= 50}


@check
def six_lines_are_all_that_the_second_start_needs():
    with tuned(OUTCOME) as parts:
        with parts["decode"]:
            DECODE()
        with parts["prefill"]:
            PRODUCT()
    torch.cuda.synchronize()
    assert all_free()


@check
def a_bound_that_cannot_be_met_says_what_can():
    outcome = tune(JOBS, "keep:decode:p99:20us", budget=4)
    assert not outcome.verdict.meets and outcome.verdict.gain is None
    assert "comes closest, with p99 of decode at" in outcome.verdict.sentence, outcome.verdict.sentence
    assert all_free()
    return {"sentence": outcome.verdict.sentence}


def fails(kind, words, jobs, goal="throughput", **options):
    raises(kind, lambda: tune({"product": PRODUCT, **jobs}, goal, **options), words)
    assert all_free()


@check
def wrong_jobs_and_budgets_are_refused():
    fails(RuntimeError, "submits nothing", {"empty": lambda: None})
    fails(ZeroDivisionError, "", {"broken": lambda: 1 / 0})
    fails(ValueError, "a budget of 0 s is no time", {"other": DECODE}, budget=0)
    fails(ValueError, "the jobs are", {"other": DECODE}, goal="keep:third:p99:1ms")

    # Ten seconds an iteration.
    cycles = 10_000_000 * torch.cuda.get_device_properties(0).clock_rate // 1000
    start = time.perf_counter()
    fails(ValueError, "is too small for jobs that take so long", {"slow": lambda: torch.cuda._sleep(cycles)})
    return {"seconds of the slow one": round(time.perf_counter() - start, 1)}


@check
def a_job_that_waits_for_the_device_is_measured_and_noted():
    matrix = torch.ones(64, 64, device="cuda")
    outcome = tune({"product": PRODUCT, "waits": lambda: matrix.sum().item()}, budget=4)
    assert any("waits was called for each iteration" in note for note in outcome.notes), outcome.notes
    assert all_free()
    return {"sentence": outcome.verdict.sentence, "notes": outcome.notes}


@check
def files_that_are_not_for_here_are_misses_with_a_reason():
    whole = OUTCOME.read_text()
    other = json.loads(whole)
    other["outcome"]["machine"]["device"] = "NVIDIA B300"
    reasons = []
    handler = logging.Handler()
    handler.emit = lambda record: reasons.append(record.getMessage())
    logger = logging.getLogger("green_ctx_torch")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        for text, words in [
            (whole[: len(whole) // 2], "holds no outcome"),
            (json.dumps(other), "the device was NVIDIA B300"),
        ]:
            path = Path(folder) / "file.json"
            path.write_text(text)
            with tuned(path, JOBS, GOAL, budget=2) as parts:
                assert set(parts) == {"decode", "prefill"}
            assert words in reasons[-1], reasons
            # The file has what was found here now.
            assert load_tuning(path).verdict.sentence
    logger.removeHandler(handler)
    assert all_free()
    return {"reasons": reasons}


BROKEN = """
import torch, green_ctx_torch
a, b = torch.zeros(1024, device="cuda"), torch.ones(64, 64, device="cuda")
index = torch.full((1024,), 1 << 40, device="cuda")
def broken():
    a.index_select(0, index)
try:
    green_ctx_torch.tune({"product": lambda: torch.mm(b, b), "broken": broken}, budget=2)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@check
def a_job_that_fails_the_device_ends_the_search():
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], env=os.environ, capture_output=True, text=True, timeout=60
    )
    assert "Error" in done.stdout, (done.stdout, done.stderr[-1000:])
    return {"error": done.stdout.strip().splitlines()[0][:200]}


if __name__ == "__main__":
    about = {
        "device": torch.cuda.get_device_name(),
        "driver": green_ctx_torch.info()["driver"],
        "torch": torch.__version__,
    }
    sys.exit(0 if run(about, sys.argv[1] if len(sys.argv) > 1 else None) else 1)
