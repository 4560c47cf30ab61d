"""Fixtures of the tests. `cargo xtask clients` runs the tests on the simulated libcuda.so.1."""

import gc
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

HINT = "`cargo xtask clients` installs the module, and runs these tests on the simulated driver"
if "GREEN_CTX_SIM" not in os.environ:
    pytest.exit(f"GREEN_CTX_SIM is not set; {HINT}", 2)
try:
    import green_ctx_torch
except ModuleNotFoundError as error:
    pytest.exit(f"{error}; {HINT}", 2)

# Programs for machines with a GPU and torch.
collect_ignore = ["gpu"]

FAKE_TORCH = str(Path(__file__).parent / "fake_torch")




def pytest_configure(config):
    """Ignores the warnings that only test_green_contexts.py tests, and allows interrupts."""
    config.addinivalue_line("filterwarnings", "ignore:GreenContext.set_context:FutureWarning")
    # Most substitutes for torch have no graphs.
    config.addinivalue_line("filterwarnings", "ignore:torch .* is not what:RuntimeWarning")
    # A shell starts its background jobs with interrupts ignored, and some tests interrupt themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_left():
    """Checks after each test that all SMs are free again."""
    yield
    gc.collect()
    with closing(green_ctx_torch.partition({"all": 132})) as parts:
        assert parts["all"].sm_count == 132


@pytest.fixture
def fake_torch(monkeypatch):
    """Returns the substitute for torch."""
    monkeypatch.syspath_prepend(FAKE_TORCH)
    import torch

    yield torch
    for name in ["torch", "torch.cuda"]:
        del sys.modules[name]


@pytest.fixture
def python():
    """Runs a program in its own Python process, checks its status and returns its output."""

    def run(program, *arguments, status=0, **variables):
        command = [sys.executable, "-c", program] if program else [sys.executable]
        done = subprocess.run(
            [*command, *arguments],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    return run
