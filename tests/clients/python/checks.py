"""What the clients check with."""

import gc
import sys
from contextlib import contextmanager
from pathlib import Path

from cuda.bindings import driver
from cuda.core._utils.cuda_utils import CUDAError

# A kernel, which a simulated driver reads the name and the parameters of.
PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 count) { ret; }
"""


def ok(result):
    """The answers of a call of `cuda.bindings` that must succeed."""
    status, *answers = result
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return answers[0] if len(answers) == 1 else tuple(answers)


def fails(name, result):
    """Checks that a call of `cuda.bindings` failed with the status of this name."""
    assert result[0].name == f"CUDA_ERROR_{name}", result[0]


@contextmanager
def raises(kind, text):
    """Checks that the block raises an exception whose message has this text."""
    try:
        yield
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised, expected {text}")


def refuses(name):
    """Checks that the block raises the driver's status of this name, as `cuda.core` reports it."""
    return raises(CUDAError, f"CUDA_ERROR_{name}")


def version():
    """The driver's version, 13010 for 13.1."""
    return ok(driver.cuDriverGetVersion())


def run(tests):
    """Runs a script's tests, and ends it with a failure where they did not all pass."""
    for name, test in tests.items():
        if name.startswith("test_"):
            test()
            # A partition's handles go in the order in which they depend on each other.
            gc.collect()
            print(f"{Path(sys.argv[0]).stem}: {name.removeprefix('test_').replace('_', ' ')}")
