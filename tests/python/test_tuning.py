"""Jobs that are tuned, and what is kept of it."""

import gc
import json
import logging
import os
import signal
import sys
import threading
import weakref
from contextlib import closing

import capturing
import driver
import green_ctx_torch
import pytest
from capturing import Step
from dropins import torch as torch_  # noqa: F401
from green_ctx_torch import Job, load_tuning, partition, tune, tuned

KINDS = ["sequential", "streams", "priority", "partition"]
PLAIN = KINDS[:3]
BUDGET = 0.6
"""Seconds: the simulated device needs no time, so that the least budget is enough."""


@pytest.fixture
def graphs():
    """Graphs of two kernels, by address."""
    with closing(partition({"a": 8})) as parts:
        stream = parts["a"].raw_stream
        made = [driver.capture(stream, lambda: driver.keep_busy(stream)) for _ in range(2)]
    yield dict(zip(["decode", "prefill"], made))
    for graph in made:
        driver.destroy_graph(graph)


@pytest.fixture
def torch(torch_):
    """torch with streams and graphs."""
    capturing.equip(torch_)
    green_ctx_torch.info()
    with driver.primary_context():
        yield torch_


def test_graphs_are_tuned(graphs):
    outcome = tune(graphs, budget=3 * BUDGET)
    verdict = outcome.verdict
    assert verdict.kind in ("sequential", "streams", "priority", "partition") and verdict.meets
    assert list(verdict.shares) == list(verdict.priority) == ["decode", "prefill"]
    assert outcome.complete and outcome.goal == "throughput" and 0 < outcome.seconds < 6
    assert outcome.drift >= 0
    assert outcome.notes[0] == "no GPU was measured: simulated h200, CUDA 13.0"
    assert [job["name"] for job in outcome.jobs] == ["decode", "prefill"]
    assert {arm["kind"] for arm in outcome.arms} >= {"sequential", "streams", "partition"}
    known = json.loads(outcome.to_json())
    assert known["arms"] == outcome.arms and known["verdict"]["sentence"] == verdict.sentence
    assert verdict.sentence in repr(outcome)
    assert outcome.svg().startswith("<svg ") and outcome._repr_svg_() == outcome.svg()
    assert repr(verdict).startswith(f"<TuningVerdict {verdict.kind}: ")
    # A final that is too short claims nothing.
    assert verdict.gain is None and verdict.interval is None and verdict.kind != "partition"
    assert outcome.jobs[0]["arrival"] == {"closed": {"depth": 2}}


def test_the_verdict_is_a_partition(graphs):
    jobs = {"decode": graphs["decode"], "prefill": Job(graphs["prefill"], arrival="closed:2")}
    outcome = tune(jobs, budget=BUDGET, leave_out=PLAIN, floors={"decode": 32}, step=24)
    assert outcome.verdict.kind == "partition"
    with closing(outcome.partitions()) as parts:
        assert list(parts) == ["decode", "prefill"] and parts["decode"].floor >= 32
        for name, part in parts.items():
            assert part.share == outcome.verdict.shares[name]
            assert driver.priority(part.raw_stream) == outcome.verdict.priority[name]
            driver.keep_busy(part.raw_stream)
            driver.synchronize(part.raw_stream)
        assert parts["prefill"].sm_count <= 100


def test_a_verdict_is_applied(graphs, torch):
    """As partitions, as streams with priorities, or as one stream."""
    outcome = tune(graphs, budget=BUDGET, leave_out=PLAIN)
    with outcome.apply() as applied:
        assert list(applied) == ["decode", "prefill"] and applied.meets and applied.gain is None
        part = applied["decode"]
        assert part.share == outcome.verdict.shares["decode"]
        with part:
            assert torch.current() == part.raw_stream
    assert part.closed and repr(applied) == "<Applied partition: decode, prefill>"
    for kind in PLAIN:
        outcome = tune(graphs, budget=BUDGET, leave_out=[other for other in KINDS if other != kind])
        applied = outcome.apply(0)
        assert applied.verdict.kind == kind
        streams = [applied[name].raw_stream for name in applied]
        assert (streams[0] == streams[1]) == (kind == "sequential")
        for name, stream in zip(applied, streams):
            assert driver.priority(stream) == outcome.verdict.priority[name]
            driver.keep_busy(stream)
            driver.synchronize(stream)
        with applied["prefill"] as entered:
            assert torch.current() == entered.raw_stream == streams[1]
            with applied["decode"]:
                assert torch.current() == streams[0]
            assert torch.current() == streams[1]
        assert torch.current() == 0
        applied.close()


@pytest.mark.parametrize("kind", ["streams", "partition"])
def test_what_is_applied_has_the_order_of_the_jobs(graphs, kind):
    jobs = dict(reversed(graphs.items()))
    with tune(jobs, budget=BUDGET, leave_out=[other for other in KINDS if other != kind]).apply() as applied:
        assert list(applied) == ["prefill", "decode"]


def test_each_thread_leaves_what_it_has_entered(graphs, torch):
    applied = tune(graphs, budget=BUDGET, leave_out=["sequential", "priority", "partition"]).apply()
    stream = applied["decode"]
    entered, left = threading.Event(), threading.Event()

    def other():
        with stream:
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    with applied["prefill"], stream:
        thread.start()
        assert entered.wait(10)
    assert torch.current() == 0
    left.set()
    thread.join()


def test_whatever_the_verdict_there_are_partitions(graphs):
    outcome = tune(graphs, budget=BUDGET, leave_out="partition")
    assert outcome.verdict.kind != "partition"
    with closing(outcome.partitions(0)) as parts:
        assert [part.sm_count for part in parts.values()] == [132, 132]
        assert {part.share for part in parts.values()} == {".."}


@pytest.mark.parametrize("goal", ["makespan", "keep:decode:p99:1s", "least:decode:p99:keep:prefill:0.1"])
def test_every_goal(graphs, goal):
    assert tune(graphs, goal, budget=BUDGET).goal.startswith(goal.split(":")[0])


def test_weights_and_arrivals(graphs):
    jobs = [
        Job(graphs["decode"], name="decode", arrival=[0.001, 0.002, 0.004], key="b1"),
        Job(graphs["prefill"], name="prefill", arrival="poisson:2000:7"),
    ]
    assert repr(jobs[1]) == "<Job prefill: a graph, poisson:2000:7>"
    outcome = tune(jobs, weights={"decode": 2}, budget=2 * BUDGET)
    assert outcome.verdict.meets


def test_functions_are_captured_once(torch):
    decode, prefill = Step(torch), Step(torch)
    outcome = tune({"decode": decode, "prefill": prefill}, budget=BUDGET)
    # Warmed up, and captured.
    assert decode.calls == prefill.calls == 2
    # Each on a stream of its own: torch has a workspace of cuBLAS's for each stream.
    assert len(decode.streams) == len(prefill.streams) == 1 and decode.streams != prefill.streams
    assert not any("captured" in note for note in outcome.notes)
    assert outcome.complete and torch.current() == 0


def test_what_cannot_be_captured_is_called(torch):
    decode, prefill = Step(torch, capturable=False), Step(torch)
    resets = []
    jobs = {"decode": Job(decode, before=lambda: resets.append(torch.current())), "prefill": prefill}
    outcome = tune(jobs, budget=BUDGET)
    assert prefill.calls == 2 and decode.calls > 100 and len(decode.threads) > 2
    assert outcome.notes[-1] == (
        "decode was called for each iteration, since torch did not capture it: "
        "RuntimeError: operation not permitted when stream is capturing"
    )
    # Each block has a stream of its own; the first call warms up.
    assert len(set(resets)) > 2 and 0 not in resets
    assert torch.current() == 0
    # Nothing keeps a function afterwards.
    ended = weakref.ref(decode)
    del decode, jobs
    gc.collect()
    assert ended() is None


def test_a_function_whose_graph_cannot_be_moved_is_called(torch):
    decode = Step(torch)
    torch.cuda.CUDAGraph.raw_cuda_graph = lambda self: 0
    outcome = tune({"decode": decode, "prefill": Step(torch)}, budget=BUDGET)
    assert decode.calls > 100
    notes = [note for note in outcome.notes if note.endswith("the graph's handle is null")]
    assert len(notes) == 2 and notes[0].startswith("decode was called for each iteration")


def test_a_job_that_fails_at_first_raises_what_it_raises(torch):
    error = ZeroDivisionError("of the function")

    def fails():
        raise error

    with pytest.raises(ZeroDivisionError) as raised:
        tune({"decode": Step(torch), "prefill": fails}, budget=BUDGET)
    assert raised.value is error and torch.current() == 0


def test_a_job_that_fails_later_raises_what_it_raises(torch):
    step = Step(torch, capturable=False)

    def fails():
        step()
        raise ArithmeticError(step.calls)

    def fails_later():
        return fails() if step.calls else step()

    with pytest.raises(ArithmeticError):
        tune({"decode": Step(torch), "prefill": fails_later}, budget=BUDGET)


def test_an_interrupt_in_a_function_passes(torch):
    step = Step(torch, capturable=False)

    def stops():
        step()
        if step.calls > 50:
            raise KeyboardInterrupt("from the function")

    with pytest.raises(KeyboardInterrupt, match="from the function"):
        tune({"decode": Step(torch), "prefill": stops}, budget=5)


def test_functions_need_torch(monkeypatch, graphs):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="give graphs alone"):
        tune({"decode": lambda: None, "prefill": graphs["prefill"]}, budget=BUDGET)
    assert tune(graphs, budget=BUDGET).complete


def test_progress_ends_a_search(graphs):
    seen = []

    def progress(now):
        seen.append((now.step, now.spent, now.blocks, now.best))
        assert "%" in str(now) and repr(now).startswith("<TuningProgress ")
        return now.best is None or now.blocks < 20

    outcome = tune(graphs, budget=5, progress=progress)
    assert not outcome.complete and outcome.seconds < 4
    assert seen[0][0] == "each job alone" and seen[0][3] is None and seen[-1][3]
    assert 0 <= seen[-1][1] <= 1
    with pytest.raises(RuntimeError, match="let it go on until there is a best arm"):
        tune(graphs, budget=BUDGET, progress=lambda now: False)


def test_what_progress_raises_passes(graphs):
    def progress(now):
        raise LookupError(now.step)

    with pytest.raises(LookupError, match="each job alone"):
        tune(graphs, budget=BUDGET, progress=progress)


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
    with closing(partition({"all": 132})):
        with pytest.raises(RuntimeError, match="close the partitions that hold them"):
            tune(graphs, budget=BUDGET)


def test_an_outcome_is_kept(graphs, tmp_path):
    path = tmp_path / "kept.json"
    outcome = tune(graphs, budget=BUDGET)
    assert outcome.save(path) is True
    again = load_tuning(path)
    assert again.to_json() == outcome.to_json()
    with closing(again.partitions()) as parts:
        assert list(parts) == ["decode", "prefill"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        outcome.save(tmp_path / "nowhere" / "kept.json")


@pytest.fixture
def kept(graphs, tmp_path):
    """A file, and the jobs that it is of."""
    path = tmp_path / "kept.json"
    jobs = {name: Job(graph, key="m1") for name, graph in graphs.items()}
    with tuned(path, jobs, "makespan", budget=BUDGET, leave_out=PLAIN):
        pass
    return path, jobs


def never(now):
    """Whoever has a file measures nothing."""
    raise AssertionError("it measures")


def test_what_was_tuned_is_used_again(kept, caplog):
    path, jobs = kept
    caplog.set_level(logging.INFO, "green_ctx_torch")
    with tuned(path, jobs, "makespan", leave_out=PLAIN, progress=never) as parts:
        assert list(parts) == ["decode", "prefill"]
        shares = {name: part.share for name, part in parts.items()}
    assert all(part.closed for part in parts.values()) and not caplog.records
    # A second program needs no jobs.
    with tuned(path) as parts:
        assert {name: part.share for name, part in parts.items()} == shares
    with pytest.raises(ZeroDivisionError):
        with tuned(path, goal="makespan") as parts:
            raise ZeroDivisionError
    assert all(part.closed for part in parts.values())


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("the key of decode was m1 and is m2", {"key": "m2"}),
        ("the arrival of decode was closed:2 and is closed:1", {"arrival": "closed:1"}),
        ("the goal was makespan and is throughput", {"goal": "throughput"}),
        ("the goal was makespan and is throughput", {"goal": None}),
        ("other arms were allowed", {"step": 16}),
        ("other arms were allowed", {"leave_out": ["priority"]}),
        ("other arms were allowed", {"floors": {"decode": 8}}),
        ("holds no outcome of tuning: EOF", {"file": 0.5}),
        ("holds no outcome of tuning", {"file": '{"format": "other", "outcome": 1}'}),
        ("cannot be read", {"file": None}),
    ],
)
def test_what_differs_is_tuned_again(kept, caplog, reason, change):
    path, jobs = kept
    if "file" in change:
        contents = change.pop("file")
        text = path.read_text()
        path.unlink()
        if contents is not None:
            path.write_text(contents if isinstance(contents, str) else text[: len(text) // 2])
    own = {name: change.pop(name) for name in ("key", "arrival") if name in change}
    if own:
        jobs["decode"] = Job(jobs["decode"].work, **{"key": "m1"} | own)
    caplog.set_level(logging.INFO, "green_ctx_torch")
    asked = {"goal": "makespan", "budget": BUDGET, "leave_out": PLAIN} | change
    with tuned(path, jobs, **asked):
        [record] = caplog.records
        assert reason in record.getMessage() and record.levelno == logging.INFO
    with tuned(path, jobs, **asked, progress=never):
        pass


def test_without_jobs_a_miss_is_an_error(kept, tmp_path):
    path, _ = kept
    with pytest.raises(FileNotFoundError, match="none.json"):
        with tuned(tmp_path / "none.json"):
            pass
    with pytest.raises(ValueError, match="the goal was makespan and is throughput; give the jobs"):
        with tuned(path, goal="throughput"):
            pass
    text = path.read_text()
    path.write_text(text.replace("H200", "H100"))
    with pytest.raises(ValueError, match="the device was .* give the jobs"):
        with tuned(path):
            pass
    path.write_text(text[:100])
    for read in (lambda: tuned(path).__enter__(), lambda: load_tuning(path)):
        with pytest.raises(ValueError, match="holds no outcome of tuning"):
            read()
    with pytest.raises(OSError):
        load_tuning(tmp_path)


def test_another_torch_is_tuned_for_again(graphs, tmp_path, caplog, torch, monkeypatch):
    caplog.set_level(logging.INFO, "green_ctx_torch")
    path = tmp_path / "kept.json"
    monkeypatch.delattr(torch, "__version__")
    tune(graphs, budget=BUDGET).save(path)
    monkeypatch.setattr(torch, "__version__", "2.11.0", raising=False)
    # What was found without torch does not depend on it.
    with tuned(path):
        pass
    for version, reason in [("2.11.0", "torch was not recorded"), ("2.12.0", "torch was 2.11.0 and is 2.12.0")]:
        monkeypatch.setattr(torch, "__version__", version)
        caplog.clear()
        with tuned(path, graphs, budget=BUDGET):
            assert reason in caplog.text
        caplog.clear()
        with tuned(path, graphs, budget=BUDGET, progress=never):
            assert not caplog.records
        with tuned(path):
            pass
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    with pytest.raises(ValueError, match="the version of torch was 2.12.0 and is 2.13.0; give the jobs"):
        with tuned(path):
            pass


def test_files_are_where_the_environment_says(graphs, tmp_path, monkeypatch):
    monkeypatch.setenv("GREEN_CTX_TUNE_DIR", str(tmp_path))
    monkeypatch.setenv("GREEN_CTX_TUNE_READ_ONLY", "1")
    with tuned("here.json", graphs, budget=BUDGET) as parts:
        assert len(parts) == 2
    assert not list(tmp_path.iterdir())
    outcome = tune(graphs, budget=BUDGET)
    assert outcome.save("here.json") is False
    monkeypatch.delenv("GREEN_CTX_TUNE_READ_ONLY")
    assert outcome.save("here.json") is True and (tmp_path / "here.json").exists()
    assert load_tuning("here.json").to_json() == outcome.to_json()


def test_what_cannot_be_kept_is_used(graphs, tmp_path, caplog):
    with tuned(tmp_path / "nowhere" / "kept.json", graphs, budget=BUDGET) as parts:
        assert len(parts) == 2
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "nowhere" in record.getMessage()


def test_what_was_ended_early_is_not_kept(graphs, tmp_path):
    path = tmp_path / "kept.json"
    with tuned(path, graphs, budget=5, progress=lambda now: now.best is None) as parts:
        assert len(parts) == 2
    assert not path.exists()


def test_names_of_a_list(torch):
    def decode():
        Step(torch)()

    outcome = tune([Job(decode), Job(Step(torch), name="other")], budget=BUDGET)
    assert [job["name"] for job in outcome.jobs] == ["decode", "other"]
    with pytest.raises(ValueError, match=r"job 2 of the list has no name; write Job\(..., name="):
        tune([Job(decode), Job(lambda: None)])
