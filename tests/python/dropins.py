"""Shared by the tests of the drop-ins: a substitute for torch with little more than streams."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import libtorch
import pytest

FOLDER = Path(__file__).parent


class Stream:
    """torch.cuda.ExternalStream: owns nothing."""

    def __init__(self, stream_ptr, device=None):
        self.cuda_stream = stream_ptr
        self.device = device


class CUDAGraph:
    """torch.cuda.CUDAGraph, which these tests never use for a capture."""

    def capture_begin(self, pool=None, capture_error_mode="global"):
        raise NotImplementedError

    def capture_end(self):
        raise NotImplementedError

    def replay(self):
        raise NotImplementedError


class Torch(types.SimpleNamespace):
    """The module torch, in a version that has everything needed."""

    def __init__(self):
        cuda = types.SimpleNamespace(
            ExternalStream=Stream,
            current_device=lambda: 0,
            graphs=types.SimpleNamespace(CUDAGraph=CUDAGraph),
            is_initialized=lambda: True,
        )
        compiler = types.SimpleNamespace(_is_exporting_flag=False)
        native = types.SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: None)
        version = types.SimpleNamespace(cuda="13.0")
        super().__init__(
            _C=native, compiler=compiler, cuda=cuda, version=version, __version__="2.11.0+cu130"
        )
        libtorch.load()

    @staticmethod
    def device(kind, index=None):
        if ":" in kind:
            kind, index = kind.split(":")[0], int(kind.split(":")[1])
        return types.SimpleNamespace(type=kind, index=index)

    current = staticmethod(libtorch.current)
    make_current = staticmethod(libtorch.make_current)


@pytest.fixture
def torch(monkeypatch):
    """Installs the module torch for one test."""
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    yield torch
    assert torch.current() == 0


def run(program, *arguments, tmp_path, driver="h200@13.0", capture=True):
    """Runs a program of this folder in its own process, and returns the simulated driver's report at exit."""
    report = tmp_path / "report"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "GREEN_CTX_SIM": driver,
        "GREEN_CTX_SIM_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, FOLDER / "programs" / program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=capture, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return report.read_text()


def live(report, kind):
    """Returns the number of objects of a kind that existed at exit."""
    found = re.search(rf"^ *{kind}: ([0-9]+)", report, re.MULTILINE)
    return int(found.group(1))


def calls(report, function):
    """Returns how many times the driver's function was called."""
    for line in report.splitlines():
        name, _, count = line.strip().rstrip(",").partition(": ")
        if name.strip('"') == function:
            return int(count)
    return 0
