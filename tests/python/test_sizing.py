"""The number of SMs that work on the current stream can use, and the number that it has for itself."""

from contextlib import contextmanager
from types import SimpleNamespace

import libtorch
import pytest
from dropins import torch as torch
from green_ctx_torch import GreenContext, PlanSet, floor, partition, sizing, sm_count


@pytest.fixture(autouse=True)
def sized(torch):
    """Adds the parts of torch that only `sizing` uses."""

    @contextmanager
    def stream(stream):
        before = libtorch.current()
        libtorch.make_current(stream.cuda_stream)
        yield
        libtorch.make_current(before)

    torch.cuda.stream = stream
    torch.cuda.init = lambda: None
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    yield
    sizing._sms_of_device.cache_clear()


def both(stream=None):
    return floor(stream), sm_count(stream)


def test_the_floor_is_what_the_partition_has_for_itself():
    assert both() == (132, 132)
    with partition({"decode": "32..", "prefill": "..100", "other": 16}) as parts:
        for part in parts.values():
            with part:
                assert both() == (part.floor, part.sm_count)
            assert both(part.stream) == (part.floor, part.sm_count)
        assert [part.floor for part in parts.values()] == [32, 0, 16]
        with parts["prefill"]:
            assert (floor() or sm_count()) == parts["prefill"].sm_count
            assert both(parts["other"].create_stream()) == (16, 16)
    assert both() == (132, 132)


def test_a_green_context_has_its_floor():
    context = GreenContext.create(16)
    with context:
        assert both() == (16, 16)
    context.close()


def test_plans_of_the_same_sms_have_floors_of_their_own():
    day, night = {"decode": "32..", "prefill": ".."}, {"decode": "64..", "prefill": ".."}
    with PlanSet({"day": day, "night": night}) as plans:
        former = plans["day"]["decode"]
        assert both(former.stream) == (32, 132)
        plans.switch("night")
        # The two plans' partitions of all SMs share a context, and may share a stream.
        assert plans["night"]["decode"].raw_context == former.raw_context
        assert both(plans["night"]["decode"].stream) == (64, 132)


def test_a_plan_that_is_not_active_promises_nothing():
    with PlanSet({"day": {"a": 16, "b": "rest"}, "night": {"all": "rest"}}) as plans:
        assert both(plans["day"]["a"].stream) == (16, 16)
        plans.switch("night")
        assert both(plans["day"]["a"].stream) == (0, 16)
        assert both(plans["night"]["all"].stream) == (132, 132)
