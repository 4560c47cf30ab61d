"""The keywords of `partition`: how each partition is made."""

import ctypes
from contextlib import closing
from pathlib import Path

import driver
import pytest
from green_ctx_torch import dry_run, partition

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("ask", [partition, dry_run])
@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"priority": {"c": -1}}, "is given for c, and there is no partition of that name; there are a, b"),
        ({"coscheduled": -8}, "coscheduled cannot be -8"),
        ({"coscheduled": {"b": 8}}, "coscheduled is given for b, which takes what the others leave"),
        ({"locality_domain": "near"}, "locality_domain is the number of a domain or \"any\""),
        ({"locality_domain": -1}, "locality_domain cannot be -1"),
        ({"workqueue": "mine"}, "workqueue must be 'device_ctx' or 'balanced', got 'mine'"),
        ({"coscheduled": 8, "fine": True}, "fine and coscheduled exclude each other"),
        ({"priority": {"": -1}}, "the name '' of a partition is empty"),
    ],
)
def test_wrong_values_are_value_errors(ask, keywords, expected):
    with pytest.raises(ValueError) as raised:
        ask({"a": 16, "b": "rest"}, **keywords)
    assert expected in str(raised.value)


@pytest.mark.parametrize("ask", [partition, dry_run])
@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"coscheduled": [8, 16]}, "is a number of SMs, as in 16, or a mapping by name, and not the list"),
        ({"preferred_coscheduled": True}, "preferred_coscheduled is a number of SMs"),
        ({"backfill": 1}, "backfill is True or False, or a mapping by name, and not the int 1"),
        ({"locality_domain": 1.5}, "and not the float 1.5"),
        ({"workqueue": 4}, 'workqueue is a scope, as in "balanced", or a scope and a limit'),
        ({"workqueue": ("balanced", 4, 1)}, "and not the tuple ('balanced', 4, 1)"),
        ({"workqueue": (4, "balanced")}, "and not the tuple (4, 'balanced')"),
        ({"workqueue": ("balanced", "4")}, "workqueue is a scope, as in"),
        ({"priority": "high"}, "is a whole number, as in -1, or a mapping by name, and not the str"),
        ({"priority": {"a": None}}, "and not None"),
        ({"priority": {8: 1}}, "and 8 is of type int"),
        ({"priorities": 1}, "unexpected keyword argument"),
    ],
)
def test_values_of_other_types_are_type_errors(ask, keywords, expected):
    with pytest.raises(TypeError) as raised:
        ask({"a": 16, "b": "rest"}, **keywords)
    assert expected in str(raised.value)


@pytest.mark.parametrize("ask", [partition, dry_run])
@pytest.mark.parametrize(
    "keywords",
    [{"coscheduled": 8}, {"backfill": {"a": True}}, {"workqueue": "balanced"}, {"locality_domain": 0}],
)
def test_what_the_driver_is_too_old_for_is_a_runtime_error(ask, keywords):
    with pytest.raises(RuntimeError, match=r"needs CUDA 13\.[14], the driver supports 13\.0"):
        ask({"a": 16}, **keywords)


def priority(part):
    """The priority of a partition's own stream, by the driver."""
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
