"""Partitions and sets of plans as Python's own kinds of objects: blocks, mappings, weak references, copies."""

import copy
import gc
import pickle
import weakref
from collections.abc import Mapping
from contextlib import closing

import libtorch
import pytest
from green_ctx_torch import GraphCache, PlanSet, Share, dry_run, floor, partition, sizing

PLANS = {"day": {"decode": 16, "prefill": "rest"}, "night": {"decode": 64, "prefill": "rest"}}


def test_a_block_closes_all_partitions():
    with partition({"a": 8, "b": 16}) as parts:
        a, b = parts.values()
        assert not a.closed and not b.closed
    assert a.closed and b.closed


def test_a_block_closes_after_an_exception():
    with pytest.raises(ZeroDivisionError):
        with partition({"a": 132}) as parts:
            1 / 0
    assert parts["a"].closed


def test_a_block_closes_a_set_of_plans():
    with PlanSet(PLANS) as plans:
        part = plans["day"]["decode"]
        assert part is plans.active.partitions["decode"]
    assert plans.closed and part.closed


def test_plans_and_sets_are_mappings():
    with PlanSet(PLANS, sm_count=96) as plans, partition({"a": 1}) as parts:
        assert all(isinstance(each, Mapping) for each in (plans, plans.active, parts))
        assert list(plans) == list(plans.keys()) == ["day", "night"] and len(plans) == 2
        assert [plan.name for plan in plans.values()] == ["day", "night"]
        assert dict(plans.items())["night"] is plans["night"] is plans.get("night")
        assert "day" in plans and "dusk" not in plans and 3 not in plans
        assert plans.get("dusk") is None and plans.get("dusk", 5) == 5
        with pytest.raises(KeyError, match="there is no plan dusk; there are day, night"):
            plans["dusk"]
        night = plans["night"]
        assert list(night) == list(night.keys()) == ["decode", "prefill"] and len(night) == 2
        assert night["decode"].sm_count == 64 and night.get("x") is None and "decode" in night
        assert dict(night.items()) == dict(zip(night.keys(), night.values()))
        with pytest.raises(KeyError, match="there is no partition x; there are decode, prefill"):
            night["x"]
        plans.prepare("dusk", {"all": "rest"})
        assert "dusk" in plans and len(plans) == 3


def test_an_earlier_calls_partitions_are_named_in_the_error():
    with partition({"decode": 100}) as parts:
        with pytest.raises(RuntimeError) as raised:
            partition({"decode": 64})
        said = str(raised.value)
        assert "an earlier call of partition made decode" in said
        assert "close()" in said and "replace=True" in said
        assert not parts["decode"].closed


def test_replace_closes_what_earlier_calls_made():
    first, second = partition({"a": 64}), partition({"b": "8..16"})
    plans = PlanSet({"x": {"d": 8}}, sm_count=8)
    try:
        with partition({"a": 100}, replace=True) as parts:
            assert first["a"].closed and second["b"].closed and not plans.closed
            assert parts["a"].sm_count == 100
    finally:
        plans.close()


def test_an_invalid_replacement_closes_nothing():
    with partition({"a": 64}) as parts:
        for division in ({"a": 133}, {"a": 100, "b": 100}, {"a": "x"}, {}):
            with pytest.raises(ValueError):
                partition(division, replace=True)
        assert not parts["a"].closed
        assert dry_run({"b": 64}).fits


def test_a_partition_that_the_thread_is_in_is_not_replaced():
    assert not libtorch.current()
    with partition({"a": 64}) as parts:
        with parts["a"], pytest.raises(RuntimeError, match="inside of partition a"):
            partition({"a": 16}, replace=True)
        assert not parts["a"].closed


@pytest.mark.parametrize(
    "share, text",
    [
        (Share(32), "32.."),
        (Share("32.."), " 32 .. "),
        (Share(16, 48), "16..48"),
        (Share(16, 48), "16..=48"),
        (Share(ceiling=100), "..100"),
        (Share(), ".."),
        (Share("16"), "16"),
        (Share("rest"), "rest"),
    ],
)
def test_shares_equal_text(share, text):
    assert share == text and text == share and share == Share(text)
    assert hash(share) == hash(Share(text)) == hash(str(share))
    assert share != "31.." and share != 31 and share is not None and share != None  # noqa: E711
    assert {share: 1}[str(share)] == 1
    for other in (pickle.loads(pickle.dumps(share)), copy.copy(share), copy.deepcopy(share)):
        assert other == share and type(other) is Share


def test_what_is_no_share():
    assert Share(32) != "thirty-two"
    with pytest.raises(ValueError):
        Share("thirty-two")
    with pytest.raises(TypeError, match="in the text"):
        Share("32..", 48)
    with pytest.raises(TypeError):
        Share(1.5)


def test_weak_references_and_copies():
    with partition({"a": 8}) as parts, PlanSet({"x": {"d": 8}}, sm_count=8) as plans:
        cache = GraphCache()
        for each in (parts, parts["a"], plans, plans["x"], cache):
            assert weakref.ref(each)() is each
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be copied or pickled; (copy|make)"):
                    attempt(each)
        gone = weakref.ref(cache)
        del cache, each
        gc.collect()
        assert gone() is None


def test_the_floor_of_the_current_stream(fake_torch, monkeypatch):
    monkeypatch.setattr(fake_torch.cuda, "current_device", lambda: 0)
    assert libtorch.current() is None or not libtorch.current()
    assert floor() == 0
    with closing(partition({"a": "32..", "b": "..64", "c": 16})) as parts:
        for name, expected in (("a", 32), ("b", 0), ("c", 16)):
            with parts[name]:
                assert floor() == parts[name].floor == expected
    # Both plans have the whole set for decode, in one context.
    with PlanSet({"x": {"d": "32.."}, "y": {"d": "64.."}}, sm_count=96) as plans:
        for name, expected in (("x", 32), ("y", 64)):
            with plans.switch(name)["d"]:
                assert floor() == expected
    with pytest.raises(TypeError, match="floor takes a torch.cuda.Stream"):
        sizing.floor("a")
