"""A second call of `partition` while the partitions of the first one are open."""

import threading
from contextlib import closing

import driver
import pytest
from dropins import torch as torch
from green_ctx_torch import GreenContext, PlanSet, partition

DAY = {"decode": 16, "prefill": "rest"}
ADVICE = (
    r"partitions of earlier calls are still open, the oldest first: decode \(16 SMs\), prefill \(116 SMs\); "
    r"close\(\) them, or call partition\(\.\.\., replace=True\)"
)


@pytest.mark.parametrize(
    "again", [DAY, {"decode": 16, "prefill": 116}, {"a": "rest"}, {"a": "32.."}, {"a": 133 // 2}]
)
def test_a_second_call_says_how_to_go_on(again):
    with partition(DAY) as parts:
        with pytest.raises(RuntimeError, match=ADVICE):
            partition(again)
        assert not parts["decode"].closed


def test_what_others_hold_is_not_blamed_on_earlier_calls():
    with partition({"a": 8}) as parts, closing(GreenContext.create(100)):
        with pytest.raises(RuntimeError) as raised:
            partition({"b": 64})
        assert "held by" in str(raised.value) and "replace" not in str(raised.value)
        with pytest.raises(RuntimeError, match="replace=True"):
            partition({"b": 24})
        assert not parts["a"].closed


def test_a_cell_that_runs_again_gives_the_same():
    rounds = []
    for _ in range(3):
        parts = partition(DAY, replace=True)
        rounds.append((parts["decode"].sm_count, parts["prefill"].sm_count))
    parts.close()
    assert rounds == [(16, 116)] * 3


def test_all_partitions_of_earlier_calls_are_replaced():
    first, second = partition({"a": 16, "b": 24}), partition({"c": 32})
    kept = first["a"]
    del first
    with partition({"d": 16, "e": "rest"}, replace=True) as parts:
        # Partitions that are not in the way are closed too, so that the result does not depend on earlier
        # partitions.
        assert kept.closed and second["c"].closed
        assert parts["e"].sm_count == 116


def test_nothing_is_replaced_where_there_is_nothing():
    with partition({"a": 132}, replace=True) as parts:
        assert parts["a"].sm_count == 132


def test_sets_of_plans_and_contexts_stay():
    with PlanSet({"day": {"a": 16}}, sm_count=16) as plans, closing(GreenContext.create(16)) as context:
        with partition({"b": 64}), partition({"c": "rest"}, replace=True) as parts:
            assert parts["c"].sm_count == 100
        assert not plans.closed and not plans["day"]["a"].closed and not context.closed


@pytest.mark.parametrize(
    ("division", "error", "expected"),
    [
        ({"a": 133}, ValueError, "a group of 133 SMs does not fit"),
        ({"a": "17..18"}, ValueError, "no whole units"),
        ({"a": 0}, ValueError, "ask for 1 or more"),
        ({}, ValueError, "at least one group"),
        ({"a": 1.5}, TypeError, "a value of type float"),
        ({"a": 120}, RuntimeError, "held by GreenContext"),
        ({"a": 112, "b": "rest"}, RuntimeError, "no SMs remain for b"),
    ],
)
def test_an_impossible_request_replaces_nothing(division, error, expected):
    with closing(GreenContext.create(16)), partition({"shared": "32.."}) as parts:
        before = (parts["shared"].floor, parts["shared"].sm_count)
        with pytest.raises(error, match=expected):
            partition(division, replace=True)
        assert not parts["shared"].closed
        assert (parts["shared"].floor, parts["shared"].sm_count) == before


def test_a_device_that_is_not_there_replaces_nothing():
    with partition(DAY) as parts:
        with pytest.raises(ValueError, match="there is no device 7"):
            partition(DAY, 7, replace=True)
        assert not parts["decode"].closed


def test_the_work_of_replaced_partitions_goes_before(fake_torch):
    parts = partition({"a": 132})
    driver.keep_busy(parts["a"].raw_stream)
    with partition({"b": 132}, replace=True) as after:
        assert parts["a"].closed
        driver.synchronize(after["b"].raw_stream)


def test_a_thread_inside_keeps_its_sms_until_it_has_left(torch):
    parts = partition({"a": 16, "b": 24})
    inside, leave = threading.Event(), threading.Event()
    failures = []

    def stay():
        try:
            with parts["a"]:
                inside.set()
                leave.wait(20)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(20)
    # There is enough room next to the partition that the thread is in.
    partition({"c": 64}, replace=True).close()
    assert parts["a"].closed
    parts = partition({"d": 16})
    with pytest.raises(RuntimeError, match="held by a .16 SMs."):
        partition({"c": 132}, replace=True)
    assert not parts["d"].closed, "closing it would not have freed enough SMs"
    leave.set()
    thread.join()
    assert failures == []
    with partition({"c": 132}, replace=True) as after:
        assert parts["d"].closed and after["c"].sm_count == 132


def test_a_stream_that_is_kept_is_named(fake_torch):
    parts = partition({"a": 16})
    stream = parts["a"].create_stream()
    with pytest.raises(RuntimeError, match="the earlier partitions a .16 SMs. are closed, but .* or a memory pool"):
        partition({"c": 132}, replace=True)
    assert parts["a"].closed
    del stream
    with partition({"c": 132}, replace=True) as after:
        assert after["c"].sm_count == 132
