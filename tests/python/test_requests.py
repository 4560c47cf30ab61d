"""The keywords of `partition`, which apply to each partition."""

import ctypes
from contextlib import closing
from pathlib import Path

import driver
import pytest
from green_ctx_torch import partition

PROGRAMS = Path(__file__).parent / "programs"


def priority(part):
    """Returns the priority of a partition's own stream, as the driver reports it."""
    found = ctypes.c_int()
    driver.call("cuStreamGetPriority", ctypes.c_void_p(part.raw_stream), ctypes.byref(found))
    return found.value


def test_a_partitions_stream_has_its_priority():
    with closing(partition({"a": 16, "b": 16, "c": "rest"}, priority={"a": -3, "c": -(1 << 70)})) as parts:
        assert [priority(part) for part in parts.values()] == [-3, 0, -5]
    with closing(partition({"a": 16, "b": "rest"}, priority=-1)) as parts:
        assert [priority(part) for part in parts.values()] == [-1, -1]


@pytest.mark.parametrize("version", ["13.4", "13.5"])
def test_locality_domains(version, python):
    program, folder = str(PROGRAMS / "locality_domains.py"), str(PROGRAMS.parent / "fake_torch")
    assert python(None, program, folder, GREEN_CTX_SIM=f"b200@{version}") == f"{version}\n"


@pytest.mark.parametrize("spec", ["h200@13.1", "h200@13.4"])
def test_newer_drivers(spec, python):
    assert python(None, str(PROGRAMS / "structured.py"), GREEN_CTX_SIM=spec) == f"{spec}\n"
