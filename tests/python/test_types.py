"""Programs that mypy must accept or reject with the types of the module."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import green_ctx_torch
import pytest

TORCH = """
from collections.abc import Callable

class CUDAGraph:
    def replay(self) -> None: ...

class ExternalStream: ...
"""
PROGRAM = """
import green_ctx_torch
import torch
from green_ctx_torch import tune, tuned

def step() -> None: ...
def program(graph: torch.cuda.CUDAGraph) -> None:
"""


@pytest.fixture
def errors(tmp_path):
    """Returns the errors that mypy finds in a program, with torch's types for graphs."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.pyi").write_text("from torch import cuda as cuda\nclass device: ...\nclass Tensor: ...\n")
    (tmp_path / "torch/cuda.pyi").write_text(TORCH)
    ini = tmp_path / "mypy.ini"
    ini.write_text("[mypy]\nstrict = True\n")

    def errors(lines):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + "".join(f"    {line}\n" for line in lines))
        check = [sys.executable, "-m", "mypy", "--config-file", ini, path]
        done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
        return [line for line in done.stdout.splitlines() if ": error:" in line]

    return errors


@pytest.mark.parametrize("function", [green_ctx_torch.tune, green_ctx_torch.tuned])
def test_the_example_of_a_docstring_is_accepted(errors, function):
    example = re.search(r"\n\n((?:    .*\n)+)", inspect.getdoc(function))[1]
    assert "{" in example
    assert errors(example.splitlines()) == []


def test_right_calls_are_accepted(errors):
    right = [
        "tune({'a': step, 'b': lambda: 1})",
        "tune({'a': graph, 'b': 0x1000})",
        "tune({'a': green_ctx_torch.Job(step), 'b': step})",
        "tune([green_ctx_torch.Job(step), green_ctx_torch.Job(graph)])",
        "tune((green_ctx_torch.Job(step), green_ctx_torch.Job(graph)))",
        "supported: bool = green_ctx_torch.SUPPORTED and green_ctx_torch.green_contexts.SUPPORTED",
    ]
    assert errors(right) == []


def test_wrong_names_and_jobs_are_rejected(errors):
    wrong = [
        "from green_ctx_torch import Partitons",
        "from green_ctx_torch.green_contexts import GreenContexts",
        "green_ctx_torch.no_such_name",
        "green_ctx_torch.green_contexts.SUPORTED",
        "tune({'a': 'text', 'b': step})",
        "tune({'a': lambda argument: argument, 'b': step})",
        "tune([graph, graph])",
        "tune({1: step, 2: step})",
    ]
    found = errors(wrong)
    first = PROGRAM.count("\n") + 1
    assert {int(error.split(":")[1]) for error in found} == set(range(first, first + len(wrong))), found


def test_scripts_for_a_gpu_call_functions_as_they_are(tmp_path):
    scripts = sorted((Path(__file__).parent / "gpu").glob("*.py"))
    options = ["--check-untyped-defs", "--ignore-missing-imports", "--follow-imports", "silent", "--cache-dir", tmp_path]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, *scripts], capture_output=True, text=True)
    assert f"checked {len(scripts)} source files" in done.stdout, done.stdout + done.stderr
    # The scripts are not written for mypy otherwise.
    wrong = [line for line in done.stdout.splitlines() if line.endswith(("[call-arg]", "[name-defined]"))]
    assert wrong == []
