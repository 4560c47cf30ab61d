"""Ranks of a process group that tune together: processes with a simulated device each, and a folder as a store."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import dropins

PROGRAM = dropins.FOLDER / "programs" / "tuning_rank.py"

LONG = 60
"""A timeout of the group that nobody waits for, in seconds: who has failed says so."""

SHORT = 2
"""One that is waited for, since a rank has ended."""


def ranks(tmp_path, size, *steps, timeout=LONG, ended=()):
    """Has ranks take steps together. Returns for each step what each rank printed; None of a rank that ended."""
    environment = os.environ | {"PYTHONPATH": str(dropins.FOLDER), "GREEN_CTX_SIM": "h200@13.0"}
    began = time.monotonic()
    programs = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", PROGRAM, str(rank), str(size), tmp_path, str(timeout), *steps],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [program.communicate(timeout=60 - (time.monotonic() - began)) for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    of_ranks = []
    for rank, (program, (output, errors)) in enumerate(zip(programs, outputs)):
        assert program.returncode == (7 if rank in ended else 0), errors
        lines = [json.loads(line) for line in output.splitlines()]
        of_ranks.append(lines + [None] * (len(steps) - len(lines)))
    # SMs are free after each step, whatever came of it.
    assert all(line is None or line["free"] == 132 for lines in of_ranks for line in lines)
    return list(zip(*of_ranks))


def same(results):
    """What all ranks found, which is the same."""
    first, *others = results
    assert "result" in first, first
    assert all(other.get("result") == first["result"] for other in others), results
    return first["result"]


def test_all_ranks_find_the_same(tmp_path):
    steps = ["graphs_are_tuned", "makespan", "long_texts", "progress_ends_it"]
    *complete, ended = [same(results) for results in ranks(tmp_path, 2, *steps)]
    for found in complete:
        assert found["complete"] and list(found["shares"]) == ["reduce", "product"]
        assert json.loads(found["outcome"])["device"]["name"]
    assert not ended["complete"]
    # The last texts of each call stay.
    assert len(list((tmp_path / "store").iterdir())) <= 2 * len(steps)


def test_what_one_rank_cannot_capture_all_call(tmp_path):
    step = "functions_are_called_where_one_rank_cannot_capture_them"
    [results] = ranks(tmp_path, 2, step)
    [note] = [note for note in same(results)["notes"] if "was called for each iteration" in note]
    assert note.startswith("reduce was called for each iteration, since torch did not capture it on rank 1: Run")


DIFFERENT = {
    "other_order": "the list of jobs is reduce, product on rank 0 and product, reduce on rank 1",
    "other_kind": "what is given as product is a graph on rank 0 and a function on rank 1",
    "other_key": 'the key of product is "" on rank 0 and "v2" on rank 1',
    "other_arrival": "the arrival of product is closed:1 on rank 0 and rate:100 on rank 1",
    "other_reset": "a graph on rank 0 and a graph that is reset before each block on rank 1",
    "other_goal": "the goal is throughput on rank 0 and makespan on rank 1",
    "other_weights": "the goal in detail is",
    "other_budget": "the budget is 600ms on rank 0 and 3s on rank 1",
    "other_step": "the step is 1 on rank 0 and 16 on rank 1",
    "other_floors": "the list of floors is",
    "other_kinds": "the list of kinds that are left out is {} on rank 0",
    "held_sms": "what is divided is 132 SMs in units of 8, of which 12 are over on rank 0 and 124 SMs",
}


def test_ranks_that_tune_different_things_all_say_so(tmp_path):
    for step, results in zip(DIFFERENT, ranks(tmp_path, 2, *DIFFERENT)):
        for rank, result in enumerate(results):
            assert result.get("raised") == "ValueError", result
            assert DIFFERENT[step] in result["text"], (step, rank)
            assert result["seconds"] < LONG / 4


def test_wrong_arguments_on_one_rank_are_an_error_on_all(tmp_path):
    steps = ["wrong_goal", "wrong_jobs", "one_job", "no_group", "of_another_group"]
    *wrong, no_group, other_group = ranks(tmp_path, 2, *steps)
    for (first, own), kind in zip(wrong, ["ValueError", "TypeError", "ValueError"]):
        assert own["raised"] == kind and first["raised"] == "ValueError"
        raised = f"Invalid{kind}" if kind == "ValueError" else kind
        assert first["text"] == f"rank 1 failed: {raised}: {own['text']}"
        assert first["seconds"] < LONG / 4
    for result in no_group:
        assert result["raised"] == "TypeError" and "torch.distributed.group.WORLD" in result["text"]
    for result in other_group:
        assert result["raised"] == "ValueError" and "no rank of the group" in result["text"]


def test_what_one_rank_raises_all_hear_of(tmp_path):
    steps = {
        "a_function_raises_at_first": (1, "ZeroDivisionError", "division by zero"),
        "a_function_raises_in_the_middle": (1, "ZeroDivisionError", "division by zero"),
        "a_function_is_interrupted": (1, "KeyboardInterrupt", "from the function"),
        "a_signal_comes": (0, "KeyboardInterrupt", ""),
        "progress_raises": (0, "LookupError", "of progress"),
    }
    *of_steps, ended, tuned = ranks(tmp_path, 3, *steps, "progress_ends_it_at_once", "graphs_are_tuned")
    for step, results in zip(steps, of_steps):
        failed, kind, text = steps[step]
        for rank, result in enumerate(results):
            assert result["seconds"] < LONG / 4, (step, result)
            if rank == failed:
                assert (result["raised"], result["text"]) == (kind, text), result
            else:
                assert result["raised"] == "RuntimeError", (step, result)
                assert f"rank {failed}" in result["text"] and kind in result["text"], (step, result)
    for result in ended:
        assert result["raised"] == "RuntimeError" and "let it go on" in result["text"]
    # The group is good for more.
    assert same(tuned)["complete"]


def test_a_rank_that_ends_is_named(tmp_path):
    cases = [(3, "a_rank_ends", [1]), (2, "a_rank_submits_less", [1]), (2, "a_rank_never_comes", [])]

    def run(case):
        size, step, ended = case
        folder = tmp_path / step
        folder.mkdir()
        [results] = ranks(folder, size, step, timeout=SHORT, ended=ended)
        return results

    # They wait most of the time.
    with ThreadPoolExecutor() as threads:
        of_cases = list(threads.map(run, cases))
    for (_, step, ended), results in zip(cases, of_cases):
        assert (results[1] is None) == bool(ended)
        for result in results[:1] + results[2:]:
            assert result["raised"] == "RuntimeError", result
            assert "rank 1 has not answered" in result["text"], result
            aborted = "The group's communicators were aborted: destroy the group" in result["text"]
            assert aborted == (step == "a_rank_submits_less"), result
            # So short a timeout leaves little time for what is aborted.
            assert SHORT / 2 < result["seconds"] < SHORT + 3, result


def test_only_rank_0_has_the_file(tmp_path):
    steps = ["a_file_that_is_not_there", "a_file_that_is_there", "a_file_without_jobs", "no_file_without_jobs"]
    *hits, (absent, other) = ranks(tmp_path, 2, *steps)
    shares = [same(results) for results in hits]
    assert shares[0] == shares[1] == shares[2] and list(shares[0]) == ["reduce", "product"]
    assert absent["raised"] == "FileNotFoundError"
    assert other["raised"] == "RuntimeError" and "rank 0 failed: FileNotFoundError" in other["text"]
