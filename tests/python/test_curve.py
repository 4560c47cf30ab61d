"""How one job scales with its SMs."""

import json
import os
import signal
import sys
import threading
from contextlib import closing

import driver
import pytest
from dropins import torch  # noqa: F401
from green_ctx_torch import Job, curve, partition

BUDGET = 0.5
"""In seconds. The simulated device takes no time."""


@pytest.fixture
def graph():
    """A graph of one kernel."""
    with closing(partition({"a": 8})) as parts:
        stream = parts["a"].raw_stream
        made = driver.capture(stream, lambda: driver.keep_busy(stream))
    yield made
    driver.destroy_graph(made)


def test_a_curve_is_text_picture_and_json(graph):
    made = curve(graph, [16, 61, 500], budget=BUDGET)
    assert [sms for sms, _ in made.points] == [16, 64, 132]
    assert all(time > 0 for _, time in made.points)
    known = json.loads(made.to_json())
    assert (known["job"], known["complete"], known["notes"]) == ("job", True, [])
    kind = known["shape"]["kind"]
    assert kind in ["scales", "saturates", "host_bound", "hidden"]
    with pytest.raises(ValueError, match="a fraction from 0 to 1, got 10"):
        made.within(10)
    assert made.within(1.0) == (None if kind == "hidden" else 16)
    assert known["device"]["sm_count"] == 132
    assert [point["median_us"] for point in known["points"]] == [time for _, time in made.points]
    assert "(This curve comes from the simulated h200, CUDA 13.0, whose kernels take no real time, not from a GPU.)" in known["sentence"]
    assert str(made).startswith(known["sentence"]) and "\n132 " in str(made)
    assert repr(made) == f"<Curve: {known['sentence']}>"
    assert made.to_svg().startswith("<svg ") and made._repr_svg_() == made.to_svg()
    named = curve(Job(graph, name="decode"), [64], budget=BUDGET)
    assert json.loads(named.to_json())["job"] == "decode"
    # All SMs are free again.
    with closing(partition({"all": 132})) as parts:
        assert parts["all"].sm_count == 132


def test_without_partitions_of_the_size_the_other_points_stay(graph):
    with closing(partition({"other": 64})):
        made = curve(graph, [32, 96], budget=BUDGET)
    assert made.points[0][1] > 0 and made.points[1] == (96, None) and made.points[2][1] > 0
    assert "96 SMs: it does not run: " in str(made) and "68" in str(made)


def test_progress_and_interrupts_keep_the_points_so_far(graph):
    seen = []

    def progress(now):
        seen.append((now.step, str(now)))
        return len(seen) < 4

    made = curve(graph, budget=60, progress=progress)
    assert len([time for _, time in made.points if time]) == 3
    assert "The measurement was interrupted" in str(made)
    assert seen[0][0] == "132 of 132 SMs" and "0 %, 60 s left: 132 of 132 SMs" in seen[0][1]
    # An interrupt after the first blocks.
    timer = threading.Timer(3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    made = curve(graph, [64], budget=6)
    timer.join()
    assert not json.loads(made.to_json())["complete"] and made.points[0][1] > 0

    def interrupted(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        curve(graph, budget=BUDGET, progress=interrupted)
    with pytest.raises(ZeroDivisionError):
        curve(graph, budget=BUDGET, progress=lambda now: now.blocks > 2 and 1 / 0 or True)
    with pytest.raises(RuntimeError, match="let the search continue"):
        curve(graph, budget=BUDGET, progress=lambda now: False)


def test_a_bar_is_for_terminals(graph, monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    curve(graph, budget=BUDGET)
    shown = capfd.readouterr().err
    assert "s left: 132 of 132 SMs" in shown and shown.endswith("\r\x1b[K")
