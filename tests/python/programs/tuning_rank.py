"""One rank of several that tune together.

    tuning_rank.py RANK SIZE FOLDER TIMEOUT STEP...

Takes the steps, each of which is a function here, one after the other with the same group, and prints what came
of each: a line of JSON.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import capturing
import driver
import dropins
import process_group

import green_ctx_torch
from green_ctx_torch import Job, partition, tune, tuned

RANK, SIZE = int(sys.argv[1]), int(sys.argv[2])
FOLDER = Path(sys.argv[3])
BUDGET = 0.6

torch = dropins.Torch()
sys.modules["torch"] = torch
capturing.equip(torch)
group = process_group.install(torch, RANK, SIZE, FOLDER / "store", float(sys.argv[4]))
green_ctx_torch.info()


def graphs():
    with contextlib.closing(partition({"a": 8})) as parts:
        stream = parts["a"].raw_stream
        return {name: driver.capture(stream, lambda: driver.keep_busy(stream)) for name in ("reduce", "product")}


GRAPHS = graphs()


def found(outcome):
    with contextlib.closing(outcome.partitions()) as parts:
        shares = {name: part.share for name, part in parts.items()}
    # How it was found, without what was measured.
    return {"outcome": outcome.to_json(), "shares": shares, "complete": outcome.complete, "notes": outcome.notes}


def graphs_are_tuned():
    return found(tune(GRAPHS, budget=BUDGET, group=group))


def makespan():
    return found(tune(GRAPHS, "makespan", budget=BUDGET, group=group))


class Failing(capturing.Step):
    """A function that cannot be captured, and does something on one rank in one of its calls."""

    def __init__(self, rank, call, wrong):
        super().__init__(torch, capturable=False)
        self.rank, self.call, self.wrong = rank, call, wrong

    def __call__(self):
        super().__call__()
        if RANK == self.rank and self.calls >= self.call:
            self.wrong()


def functions(wrong):
    return {"reduce": capturing.Step(torch), "product": wrong}


def functions_are_called_where_one_rank_cannot_capture_them():
    reduce = capturing.Step(torch, capturable=RANK != 1)
    outcome = tune({"reduce": reduce, "product": GRAPHS["product"]}, budget=BUDGET, group=group)
    assert reduce.calls > 20, reduce.calls
    return found(outcome)


def divide():
    return 1 / 0


def a_function_raises_at_first():
    return found(tune(functions(Failing(1, 1, divide)), budget=BUDGET, group=group))


def a_function_raises_in_the_middle():
    return found(tune(functions(Failing(1, 60, divide)), budget=20, group=group))


def a_function_is_interrupted():
    def interrupt():
        raise KeyboardInterrupt("from the function")

    return found(tune(functions(Failing(1, 60, interrupt)), budget=20, group=group))


def a_signal_comes():
    def progress(now):
        if now.blocks == 5:
            signal.raise_signal(signal.SIGINT)

    return found(tune(GRAPHS, budget=20, progress=progress, group=group))


def a_rank_ends():
    return found(tune(functions(Failing(1, 60, lambda: os._exit(7))), budget=20, group=group))


def a_rank_never_comes():
    if RANK == 1:
        return "elsewhere"
    return found(tune(GRAPHS, budget=20, group=group))


def a_rank_submits_less():
    """As a collective waits for the other ranks, so does this job, until it is aborted."""
    held = Failing(0, 60, lambda: None)

    def wait():
        if not held.released:
            held.released = driver.hold(torch.current())

    held.released, held.wrong = None, wait
    backend = group._get_backend

    def released_by_abort(device):
        found = backend(device)

        def abort():
            group.aborts += 1
            held.released()

        found.abort = abort
        return found

    group._get_backend = released_by_abort
    try:
        tune(functions(held if RANK == 0 else Failing(1, 60, lambda: os._exit(7))), budget=20, group=group)
    finally:
        assert group.aborts == 1, group.aborts


def progress_ends_it():
    asked = []

    def progress(now):
        asked.append(now)
        return now.best is None or now.blocks < 12

    outcome = tune(GRAPHS, budget=5, progress=progress, group=group)
    assert bool(asked) == (RANK == 0)
    return found(outcome)


def progress_ends_it_at_once():
    return found(tune(GRAPHS, budget=BUDGET, progress=lambda now: False, group=group))


def progress_raises():
    def progress(now):
        raise LookupError("of progress")

    return found(tune(GRAPHS, budget=BUDGET, progress=progress, group=group))


def other(**changed):
    """Something else on rank 1."""

    def call():
        given = {"jobs": GRAPHS, "goal": "throughput", "budget": BUDGET}
        return found(tune(**given | (changed if RANK == 1 else {}), group=group))

    return call


def held_sms():
    with contextlib.ExitStack() as stack:
        if RANK == 1:
            stack.enter_context(contextlib.closing(partition({"held": 8})))
        return found(tune(GRAPHS, budget=BUDGET, group=group))


def of_file(path, *arguments, **named):
    with tuned(path, *arguments, group=group, **named) as parts:
        return {name: part.share for name, part in parts.items()}


def never(now):
    raise AssertionError("it measures")


# Only rank 0 has a file.
OWN = FOLDER / f"{RANK}.json"


def a_file_that_is_not_there():
    assert not OWN.exists()
    shares = of_file(OWN, GRAPHS, budget=BUDGET)
    assert OWN.exists() == (RANK == 0)
    return shares


def a_file_that_is_there():
    # Some file that is no business of this rank's.
    if RANK:
        OWN.write_text("mine")
    shares = of_file(OWN, GRAPHS, budget=BUDGET, progress=never)
    assert RANK == 0 or OWN.read_text() == "mine"
    return shares


def a_file_without_jobs():
    return of_file(OWN)


def no_file_without_jobs():
    return of_file(FOLDER / "none.json")


def no_group():
    return found(tune(GRAPHS, budget=BUDGET, group=5))


def of_another_group():
    member = torch.distributed.GroupMember.NON_GROUP_MEMBER
    return found(tune(GRAPHS, budget=BUDGET, group=member))


def long_texts():
    """More than one value of the store holds."""
    green_ctx_torch._ranks._PIECE = 1000
    return found(tune(GRAPHS, budget=BUDGET, group=group))


STEPS = {
    "other_order": other(jobs=dict(reversed(GRAPHS.items()))),
    "other_kind": other(jobs=GRAPHS | {"product": capturing.Step(torch)}),
    "other_key": other(jobs=GRAPHS | {"product": Job(GRAPHS["product"], key="v2")}),
    "other_arrival": other(jobs=GRAPHS | {"product": Job(GRAPHS["product"], arrival="rate:100")}),
    "other_reset": other(jobs=GRAPHS | {"product": Job(GRAPHS["product"], before=lambda: None)}),
    "other_goal": other(goal="makespan"),
    "other_weights": other(weights={"reduce": 2}),
    "other_budget": other(budget=3),
    "other_step": other(step=16),
    "other_floors": other(floors={"reduce": 8}),
    "other_kinds": other(leave_out="priority"),
    "wrong_goal": other(goal="most"),
    "wrong_jobs": other(jobs=5),
    "one_job": other(jobs={"reduce": GRAPHS["reduce"]}),
}


def free():
    gc.collect()
    with contextlib.closing(partition({"all": "rest"})) as parts:
        return parts["all"].sm_count


with driver.primary_context():
    for step in sys.argv[5:]:
        call, began = STEPS.get(step) or globals()[step], time.monotonic()
        try:
            result = {"result": call()}
        except BaseException as error:
            built_in = next(known for known in type(error).__mro__ if known.__module__ == "builtins")
            result = {"raised": built_in.__name__, "text": str(error)}
        took = time.monotonic() - began
        print(json.dumps({"step": step, "seconds": took, "free": free(), **result}), flush=True)
for graph in GRAPHS.values():
    driver.destroy_graph(graph)
