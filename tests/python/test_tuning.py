"""Tuning of jobs, and the file with the results."""

import json
import logging
import os
import signal
import sys
import threading
from contextlib import closing

import driver
import pytest
from dropins import torch  # noqa: F401
from green_ctx_torch import Job, load_tuning, partition, tune, tuned

KINDS = ["sequential", "streams", "priority", "partition"]
PLAIN = KINDS[:3]
BUDGET = 1.0
"""In seconds. The simulated device takes no time, so the smallest budget is enough."""


@pytest.fixture
def graphs():
    """Two graphs of one kernel each, by job name."""
    with closing(partition({"a": 8})) as parts:
        stream = parts["a"].raw_stream
        made = [driver.capture(stream, lambda: driver.keep_busy(stream)) for _ in range(2)]
    yield dict(zip(["decode", "prefill"], made))
    for graph in made:
        driver.destroy_graph(graph)


def others(kind):
    return [other for other in KINDS if other != kind]


def test_graphs_are_tuned(graphs):
    outcome = tune(graphs, budget=3 * BUDGET)
    verdict = outcome.verdict
    assert verdict.kind in KINDS and verdict.meets
    assert list(verdict.shares) == list(verdict.priority) == ["decode", "prefill"]
    assert outcome.complete and outcome.goal == "throughput" and outcome.seconds > 0 and outcome.drift >= 0
    assert verdict.sentence.endswith("(This verdict comes from the simulated h200, CUDA 13.0, whose kernels take no real time, not from a GPU.)")
    assert [job["name"] for job in outcome.jobs] == ["decode", "prefill"]
    assert outcome.jobs[0]["arrival"] == {"closed": {"depth": 2}}
    # These arms are measured even on a very busy machine.
    assert {arm["kind"] for arm in outcome.arms} >= {"sequential", "partition"}
    known = json.loads(outcome.to_json())
    assert known["arms"] == outcome.arms and known["verdict"]["sentence"] == verdict.sentence
    assert outcome.to_svg().startswith("<svg ") and outcome._repr_svg_() == outcome.to_svg()
    assert verdict.sentence in repr(outcome) and repr(verdict).startswith(f"<TuningVerdict {verdict.kind}: ")
    # A comparison that is too short claims no gain.
    assert verdict.gain is None and verdict.interval is None and verdict.kind != "partition"


@pytest.mark.parametrize("kind", KINDS)
def test_a_verdict_is_applied(graphs, kind):
    """The verdict becomes partitions, streams with priorities, or one stream, in the order of the jobs."""
    outcome = tune(dict(reversed(graphs.items())), budget=BUDGET, leave_out=others(kind))
    with outcome.apply(0) as applied:
        assert list(applied) == ["prefill", "decode"] and applied.verdict.kind == kind
        assert applied.meets and applied.gain is None
        with pytest.raises(KeyError, match="there is no partition x; the partitions are prefill, decode"):
            applied["x"]
        assert repr(applied) == f"<Applied {kind}: prefill, decode>"
        streams = [part.raw_stream for part in applied.values()]
        assert (streams[0] == streams[1]) == (kind == "sequential")
        for name, stream in zip(applied, streams):
            assert driver.priority(stream) == outcome.verdict.priority[name]
            driver.keep_busy(stream)
            driver.synchronize(stream)
    assert kind != "partition" or applied["prefill"].closed
    with outcome.apply(0) as applied, partition({"all": 132}, replace=True):
        assert kind != "partition" or applied["prefill"].closed
    # Partitions can be created whatever the verdict is.
    with closing(outcome.partitions()) as parts:
        assert {name: part.share for name, part in parts.items()} == outcome.verdict.shares
        assert kind == "partition" or [part.sm_count for part in parts.values()] == [132, 132]


def test_a_search_is_for_what_is_asked(graphs, tmp_path):
    jobs = [
        Job(graphs["decode"], name="decode", arrival=[0.001, 0.002, 0.004], key="b1"),
        Job(graphs["prefill"], name="prefill", arrival="poisson:2000:7"),
    ]
    assert repr(jobs[1]) == "<Job prefill: a graph, poisson:2000:7>"
    asked = {"weights": {"decode": 2}, "step": 24, "floors": {"decode": 32}, "leave_out": "priority"}
    outcome = tune(jobs, budget=2 * BUDGET, **asked)
    assert outcome.verdict.kind == "partition" and outcome.save(tmp_path / "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text())["outcome"]
    assert kept["goal"] == {"throughput": {"weights": [["decode", 2.0]]}}
    assert kept["limits"] == {"step": 24, "floors": {"decode": 32}, "left_out": ["priority"]}
    assert kept["jobs"][0]["key"] == "b1"
    assert kept["jobs"][0]["arrival"] == {"trace": {"seconds": [0.001, 0.002, 0.004]}}


def test_floors_that_leave_a_job_nothing_are_refused(graphs):
    refusal = "the floors leave no SMs for prefill: in whole units of 8 SMs, they may add up to at most 124 of the 132"
    with pytest.raises(ValueError, match=refusal):
        tune(graphs, floors={"decode": 128}, budget=BUDGET, progress=never)
    outcome = tune(graphs, floors={"prefill": 124}, budget=BUDGET)
    assert outcome.verdict.kind == "partition" and outcome.verdict.shares == {"decode": "8", "prefill": "124"}


def test_progress_ends_a_search(graphs):
    seen = []

    def progress(now):
        seen.append((now.step, now.spent, now.blocks, now.best))
        assert "%" in str(now) and repr(now).startswith("<TuningProgress ")
        return now.best is None or now.blocks < 20

    assert not tune(graphs, budget=60, progress=progress).complete
    assert seen[0][0] == "each job alone" and seen[0][3] is None
    assert seen[-1][3] and 0 <= seen[-1][1] <= 1 and seen[-1][2] >= 20
    with pytest.raises(RuntimeError, match="let the search continue until"):
        tune(graphs, budget=BUDGET, progress=lambda now: False)
    with pytest.raises(AssertionError, match="it measures"):
        tune(graphs, budget=BUDGET, progress=never)


def never(now):
    """A progress function for programs that find a file and must not measure."""
    raise AssertionError("it measures")


def test_an_interrupt_from_outside_ends_a_search(graphs):
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tune(graphs, budget=20)
    timer.join()


def test_a_bar_is_for_terminals(graphs, monkeypatch, capfd):
    tune(graphs, budget=BUDGET)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    tune(graphs, budget=BUDGET)
    shown = capfd.readouterr().err
    assert "each job alone" in shown and shown.endswith("\r\x1b[K")


def test_what_holds_all_sms_is_said(graphs):
    with closing(partition({"all": 132})), pytest.raises(RuntimeError, match="close the partitions that hold SMs"):
        tune(graphs, budget=BUDGET)


def test_an_outcome_is_kept(graphs, tmp_path, monkeypatch):
    monkeypatch.setenv("GREEN_CTX_TUNE_DIR", str(tmp_path))
    monkeypatch.setenv("GREEN_CTX_TUNE_READ_ONLY", "1")
    outcome = tune(graphs, budget=BUDGET)
    enter("here.json", graphs)
    assert outcome.save("here.json") is False and not list(tmp_path.iterdir())
    monkeypatch.delenv("GREEN_CTX_TUNE_READ_ONLY")
    assert outcome.save("here.json") is True
    for path in ("here.json", tmp_path / "here.json"):
        again = load_tuning(path)
        assert again.to_json() == outcome.to_json()
    with closing(again.partitions()) as parts:
        assert list(parts) == ["decode", "prefill"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        outcome.save(tmp_path / "nowhere" / "kept.json")


def enter(*arguments, **named):
    """Enters and leaves a block of `tuned`, and returns the shares of its verdict."""
    with tuned(*arguments, budget=BUDGET, **named) as applied:
        shares = applied.verdict.shares
    assert all(part.closed for part in applied.values() if applied.verdict.kind == "partition")
    return shares


@pytest.fixture
def kept(graphs, tmp_path):
    """A file of results, and the jobs that it is for."""
    path = tmp_path / "kept.json"
    jobs = {name: Job(graph, key="m1") for name, graph in graphs.items()}
    enter(path, jobs, "makespan", leave_out=PLAIN)
    return path, jobs


def test_what_was_tuned_is_used_again(kept, caplog):
    path, jobs = kept
    caplog.set_level(logging.INFO, "green_ctx_torch")
    shares = enter(path, jobs, "makespan", leave_out=PLAIN, progress=never)
    assert list(shares) == ["decode", "prefill"] and not caplog.records
    # A second program needs no jobs.
    with load_tuning(path).apply() as parts:
        assert parts.verdict.shares == shares
    with (
        pytest.raises(ZeroDivisionError),
        tuned(path, jobs, "makespan", leave_out=PLAIN, progress=never) as parts,
    ):
        raise ZeroDivisionError
    assert all(part.closed for part in parts.values())


@pytest.mark.parametrize(
    ("reason", "job", "change"),
    [
        ("the key of decode was m1 and is m2", {"key": "m2"}, {}),
        ("the arrival of decode was closed:2 and is closed:1", {"arrival": "closed:1"}, {}),
        ("the goal was makespan and is throughput", {}, {"goal": "throughput"}),
        ("the limits were different", {}, {"step": 16}),
        ("the limits were different", {}, {"leave_out": ["priority"]}),
        ("the limits were different", {}, {"floors": {"decode": 8}}),
    ],
)
def test_what_differs_is_tuned_again(kept, caplog, reason, job, change):
    path, jobs = kept
    jobs["decode"] = Job(jobs["decode"].work, **{"key": "m1"} | job)
    caplog.set_level(logging.INFO, "green_ctx_torch")
    asked = {"goal": "makespan", "leave_out": PLAIN} | change
    enter(path, jobs, **asked)
    [record] = caplog.records
    assert reason in record.getMessage() and record.levelno == logging.INFO
    enter(path, jobs, **asked, progress=never)


def test_a_file_without_an_outcome_is_an_error(kept, tmp_path):
    path, _ = kept
    with pytest.raises(FileNotFoundError, match="none.json"):
        load_tuning(tmp_path / "none.json")
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match="holds no outcome of tuning"):
        load_tuning(path)
    with pytest.raises(OSError):
        load_tuning(tmp_path)


def test_another_torch_is_tuned_for_again(graphs, tmp_path, caplog, torch, monkeypatch):
    caplog.set_level(logging.INFO, "green_ctx_torch")
    path = tmp_path / "kept.json"
    monkeypatch.delattr(torch, "__version__")
    tune(graphs, budget=BUDGET).save(path)
    monkeypatch.setattr(torch, "__version__", "2.11.0", raising=False)
    enter(path, graphs)
    assert "torch was not recorded" in caplog.text
    enter(path, graphs, progress=never)
    monkeypatch.setattr(torch, "__version__", "2.12.0")
    enter(path, graphs)
    assert "the version of torch was 2.11.0 and is 2.12.0" in caplog.text


def test_outcomes_that_are_not_kept_are_used(graphs, tmp_path, caplog):
    path = tmp_path / "kept.json"
    assert len(enter(path, graphs, progress=lambda now: now.best is None)) == 2 and not path.exists()
    assert len(enter(tmp_path / "nowhere" / "kept.json", graphs)) == 2
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "nowhere" in record.getMessage()
