"""The tuner on a GPU: `python tuning.py [RESULTS.json [OUTCOME.json]]`.

The outcome for a decode step and a product is written to OUTCOME.json: the notebook shows one.
"""

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import torch
from harness import check, main, program

from green_ctx_torch import Job, load_tuning, partition, tune, tuned

torch.set_grad_enabled(False)

OUTCOME = Path(sys.argv[2] if len(sys.argv) > 2 else Path(tempfile.mkdtemp()) / "tuning.json").absolute()
GOAL = "keep:decode:p99:2500us"


def numbers(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


ROWS, WEIGHTS = numbers(16, 8192), [numbers(8192, 8192) for _ in range(8)]
A, B = numbers(4096, 4096), numbers(4096, 4096)
RESULTS = torch.empty_like(ROWS), torch.empty_like(A)


def decode():
    """Few rows times matrices that are larger than the cache."""
    for weight in WEIGHTS:
        torch.mm(ROWS, weight, out=RESULTS[0])


def product():
    torch.mm(A, B, out=RESULTS[1])


JOBS = {"decode": Job(decode, key="16 rows"), "prefill": Job(product, key="4096")}


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
    assert outcome.seconds < 19.5 and all_free()
    with outcome.apply() as applied, applied["decode"]:
        decode()
    return {
        "sentence": outcome.verdict.sentence,
        "gain": outcome.verdict.gain,
        "interval": outcome.verdict.interval,
        "drift": round(outcome.drift, 3),
        "seconds": round(outcome.seconds, 2),
        "notes": outcome.notes,
        "holds": outcome.verdict.meets,
    }


@check
def the_second_start():
    """Milliseconds until the partitions of a file exist, in a process that has its contexts."""
    times = {"load": [], "load and partitions": []}
    for _ in range(20):
        start = time.perf_counter()
        load_tuning(OUTCOME)
        times["load"].append(time.perf_counter() - start)
        start = time.perf_counter()
        with tuned(OUTCOME, JOBS, GOAL) as applied:
            times["load and partitions"].append(time.perf_counter() - start)
            with applied["prefill"]:
                product()
    assert all_free()
    milliseconds = {name: round(1000 * sorted(each)[10], 2) for name, each in times.items()}
    return {**milliseconds, "limit": 50, "holds": milliseconds["load and partitions"] <= 50}


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
    output = program(BROKEN, status=None)
    assert "Error" in output, output
    return {"error": output.splitlines()[0][:200]}


if __name__ == "__main__":
    main()
