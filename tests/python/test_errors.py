"""The classes of the module's exceptions, their fields, and what they say."""

import copy
import pickle
from contextlib import closing

import green_ctx_torch as module
import pytest
from green_ctx_torch import PlanSet, partition

CLASSES = {
    module.NoDriverError: ("no_driver", RuntimeError),
    module.UnsupportedError: ("unsupported", RuntimeError),
    module.InvalidValueError: ("invalid_request", ValueError),
    module.InvalidStateError: ("invalid_request", RuntimeError),
    module.UnavailableError: ("unavailable", RuntimeError),
    module.DriverError: ("driver", RuntimeError),
    module.ClosedError: ("closed", RuntimeError),
}


def test_each_class_has_a_kind_and_is_of_a_built_in_class():
    for known, (kind, built_in) in CLASSES.items():
        assert issubclass(known, module.Error) and issubclass(known, built_in)
        assert known.kind == kind and known.__module__ == "green_ctx_torch"
    assert issubclass(module.InvalidValueError, module.InvalidRequestError)
    assert issubclass(module.InvalidStateError, module.InvalidRequestError)


def raised(call):
    with pytest.raises(module.Error) as caught:
        call()
    return caught.value


def test_a_request_that_does_not_fit_names_numbers_and_holders():
    with closing(partition({"decode": 100})) as parts:
        error = raised(lambda: partition({"prefill": 40, "other": "32.."}))
        assert type(error) is module.UnavailableError and error.kind == "unavailable"
        held = parts["decode"].sm_count
        assert error.requested == ["40", "32.."] and error.free == 132 - held
        assert error.holders == [("decode", held)]
        assert "replace=True" in str(error)
        closed = "its SMs until no thread is inside it, and its streams, moved graphs and memory pools are deleted"
        assert closed in str(error)
        # Closing cannot help.
        assert closed not in str(raised(lambda: partition({"all": 200})))


def test_the_classes_of_common_mistakes():
    assert type(raised(lambda: partition({"a": 1000}))) is module.InvalidValueError
    assert type(raised(lambda: partition({"a": 100, "b": "50%"}))) is module.InvalidValueError
    assert type(raised(lambda: partition({"a": 8}, 7))) is module.InvalidValueError
    assert type(raised(lambda: module.GreenContext.create(1000))) is module.InvalidStateError
    with closing(partition({"a": 8})) as parts:
        pass
    for use in (lambda: parts["a"].raw_stream, lambda: parts["a"].id, parts.__enter__):
        assert type(raised(use)) is module.ClosedError
    plans = PlanSet({"day": {"a": 8}}, sm_count=8)
    day = plans["day"]
    assert type(raised(lambda: plans.retire("day"))) is module.InvalidStateError
    assert type(raised(lambda: plans.switch("noon"))) is module.InvalidValueError
    plans.close()
    assert type(raised(lambda: plans.switch("day"))) is module.ClosedError
    assert day["a"].closed


def test_a_green_context_that_does_not_fit_is_unavailable():
    with closing(partition({"a": 132})):
        error = raised(lambda: module.GreenContext.create(8))
        assert type(error) is module.UnavailableError and error.holders == [("a", 132)]


@pytest.mark.parametrize(
    "variables, kind",
    [
        ({"LD_LIBRARY_PATH": "/nowhere"}, "no_driver"),
        ({"GREEN_CTX_SIM": "h200@13.0"}, "unsupported"),
    ],
)
def test_a_driver_that_is_missing_or_old_has_a_kind(python, variables, kind):
    program = """
import green_ctx_torch as module
try:
    module.partition({"a": 8}, coscheduled=8)
except module.Error as error:
    print(error.kind, isinstance(error, RuntimeError))
"""
    assert python(program, **variables).split() == [kind, "True"]


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_exceptions_are_pickled_with_their_fields(copied):
    with closing(partition({"decode": 100})):
        error = raised(lambda: partition({"prefill": 40}))
    same = copied(error)
    assert type(same) is type(error) and str(same) == str(error)
    assert (same.kind, same.requested, same.free) == ("unavailable", ["40"], error.free)
    assert same.holders == error.holders and error.free is not None


def test_a_second_set_of_plans_names_the_first_and_what_to_do():
    day = {"day": {"decode": 16, "prefill": "rest"}, "night": {"decode": 64, "chat": "rest"}}
    holder = "PlanSet of decode, prefill, chat"
    with closing(PlanSet(day)):
        again = lambda: PlanSet(day)
        for call in (again, lambda: PlanSet(day, sm_count=16), lambda: partition({"a": 8})):
            error = raised(call)
            assert type(error) is module.UnavailableError
            assert error.holders == [(holder, 132)] and f"{holder} (132 SMs)" in str(error)
            assert "close() the plan set first" in str(error)
        assert raised(again).requested == ["rest"] and raised(again).free == 0


def test_a_set_of_plans_names_the_partitions_that_hold_its_sms():
    with closing(partition({"decode": 132})):
        for sm_count in (None, 16):
            error = raised(lambda: PlanSet({"day": {"a": 8}}, sm_count=sm_count))
            assert error.holders == [("decode", 132)]
            expected = "partitions of earlier calls are still open: decode (132 SMs); close() them first"
            assert expected in str(error)


def test_partitions_of_one_name_are_told_apart():
    with closing(partition({"decode": 64})), closing(partition({"decode": 16})):
        error = raised(lambda: partition({"a": 132}))
        expected = "still open, the oldest first: decode (64 SMs), decode (16 SMs); close() them"
        assert expected in str(error)
    with closing(partition({"decode": 64})), closing(partition({"decode": 64}, replace=True)) as parts:
        assert parts["decode"].sm_count == 64


def test_sizes_without_torch_say_what_to_do(python):
    program = """
import sys
sys.modules["torch"] = None
import green_ctx_torch as module
for ask in (module.sm_count, module.floor, module.sizing.install, module.watch().__enter__):
    try:
        ask()
    except ImportError as error:
        print(error)
"""
    lines = python(program).splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("torch is needed for this and cannot be imported; install it, or "), line
