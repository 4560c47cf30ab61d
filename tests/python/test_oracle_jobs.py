"""The program that runs PyTorch's jobs for the oracle: how it answers, with graphs in place of torch's jobs."""

import gc
import importlib.util
import json
import types
from contextlib import closing
from pathlib import Path

import driver
import pytest
from green_ctx_torch import partition

PROGRAM = Path(__file__).parent / "gpu" / "oracle_jobs.py"
PREPARE = {"prepare": [["work64", "work:64"], ["work", "work"]]}
BLOCK = {"duration": {"secs": 0, "nanos": 1_000_000}, "iterations": 2, "rounds": False, "first": 0}
ALONE = {"task": {"alone": {"job": 1, "sms": 24}}, "block": BLOCK}


@pytest.fixture
def program():
    """The module, with a job that is a graph."""
    spec = importlib.util.spec_from_file_location("oracle_jobs", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made, sizes = [], []

    def work(torch, size):
        sizes.append(size)
        with closing(partition({"a": 8})) as parts:
            stream = parts["a"].raw_stream
            made.append(driver.capture(stream, lambda: driver.keep_busy(stream)))
        return made[-1]

    module.JOBS["work"] = (16, "a kernel", work)
    module.sizes = sizes
    module.torch = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=gc.collect))
    yield module
    for graph in made:
        driver.destroy_graph(graph)


def answers(program, *asked):
    said = []
    program.serve(program.torch, map(json.dumps, asked), lambda line: said.append(json.loads(line)))
    return said


def test_mixes_are_prepared_and_run(program):
    other = {"prepare": [["work8", "work:8"], ["work9", "work:9"], ["work", "work"]]}
    said = answers(program, PREPARE, ALONE, "again", ALONE, ALONE, other, ALONE)
    assert [said[place] for place in (0, 2, 5)] == ["ready"] * 3
    assert program.sizes == [64, 16, 8, 9, 16]
    for place in (1, 3, 4, 6):
        assert len(said[place]["sample"]["jobs"]) == 1
    assert len(said) == 7
    # Nothing is held.
    partition({"all": 132}).close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("works", "no job is named works; there are product, products, "),
        ("work:0", "the size of work is a whole number above 0, and not '0'"),
        ("work:", "not ''"),
        ("work:4k", "not '4k'"),
    ],
)
def test_jobs_are_refused(program, text, words):
    said = answers(program, {"prepare": [["a", text], ["b", "work"]]}, "again", PREPARE, ALONE)
    assert words in said[0]["refused"] and "no mix is prepared" in said[1]["refused"]
    assert said[2] == "ready" and "sample" in said[3]


def test_what_is_no_line_is_refused(program):
    said = answers(program, PREPARE, {"task": 5}, {}, PREPARE, 5, PREPARE)
    assert [type(one) for one in said] == [str, dict, dict, str, dict, str]
    assert all("refused" in said[place] for place in (1, 2, 4))


def test_times_are_those_of_the_tuner(program):
    program.JOBS["small"] = program.JOBS["work"]
    assert program.measured(program.torch, "work:4").endswith("of the host's")
    assert "no job is named worse" in program.measured(program.torch, "worse")


def test_the_list_needs_no_torch(python):
    listed = python(None, str(PROGRAM), "--list").splitlines()
    names = [line.split(":")[0] for line in listed]
    assert {"product", "skinny", "attention", "norm", "copy", "decode", "small", "conv"} < set(names)
    python(None, str(PROGRAM), "--lists", status=2)
