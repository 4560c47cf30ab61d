"""Partitions, plans and plan sets as collections: mappings, context managers, weak references, no copies."""

import copy
import gc
import pickle
import weakref
from collections.abc import Mapping
from contextlib import closing

import driver
import pytest
from green_ctx_torch import GraphCache, GreenContext, Partitions, Plan, PlanSet, Share, partition
from green_ctx_torch.allocator import Allocator

DAY = {"decode": 16, "prefill": "rest"}
NIGHT = {"prefill": "rest", "decode": 64}


def whole_device_is_free():
    with partition({"all": 132}) as parts:
        return parts["all"].sm_count == 132


def test_partitions_close_with_their_block():
    with partition(DAY) as parts:
        assert isinstance(parts, Partitions) and not parts["decode"].closed
        decode = parts["decode"]
    assert decode.closed and parts["prefill"].closed
    assert whole_device_is_free()


def test_plans_close_with_their_block():
    with PlanSet({"day": DAY, "night": NIGHT}) as plans:
        assert isinstance(plans, PlanSet) and not plans.closed
        decode = plans["day"]["decode"]
    assert plans.closed and decode.closed
    assert whole_device_is_free()


def test_one_partition_may_be_closed_before_the_block():
    parts = partition(DAY)
    parts["decode"].close()
    with parts:
        assert not parts["prefill"].closed
    assert parts["prefill"].closed


def test_a_closed_set_of_plans_gives_all_sms_back_while_its_objects_live():
    plans = PlanSet({"day": DAY, "night": NIGHT})
    kept = [plans.active, plans["night"], plans["night"]["decode"]]
    driver.keep_busy(plans["day"]["decode"].raw_stream)
    plans.close()
    assert whole_device_is_free()
    assert [each.name for each in kept] == ["day", "night", "decode"]


def test_a_plan_is_a_mapping_of_its_partitions():
    with PlanSet({"day": DAY, "night": NIGHT}) as plans:
        night = plans["night"]
        assert isinstance(night, Mapping) and isinstance(night, Plan)
        assert list(night) == list(night.keys()) == ["prefill", "decode"] and len(night) == 2
        assert "decode" in night and "train" not in night
        assert night["decode"] is night.partitions["decode"] is night.get("decode")
        assert night.get("train") is None and night.get("train", 1) == 1
        assert list(night.values()) == list(night.partitions.values())
        assert dict(night) == dict(night.items()) == dict(night.partitions)
        with pytest.raises(KeyError, match="there is no partition train; the partitions are prefill, decode"):
            night["train"]


def test_a_set_of_plans_is_a_mapping_of_its_plans():
    with PlanSet({"day": DAY, "night": NIGHT}) as plans:
        assert isinstance(plans, Mapping)
        assert tuple(plans) == tuple(plans.keys()) == plans.plans and len(plans) == 2
        assert "day" in plans and "noon" not in plans
        assert plans["day"] is plans.active is plans.get("day")
        assert plans.get("noon") is None and plans.get("noon", 1) == 1
        assert [plan.name for plan in plans.values()] == ["day", "night"]
        assert dict(plans) == dict(plans.items())
        with pytest.raises(KeyError, match="there is no plan noon; the plans are day, night"):
            plans["noon"]
        noon = plans.prepare("noon", {"decode": 100})
        assert plans["noon"] is noon and len(plans) == 3
        plans.retire("noon")
        assert "noon" not in plans and list(plans) == ["day", "night"]


@pytest.fixture
def made():
    """One object of each class that holds objects of the driver."""
    with (
        partition({"a": 8}) as parts,
        PlanSet({"day": {"a": 8}}, sm_count=8) as plans,
        closing(GreenContext.create(8)) as context,
    ):
        cache = GraphCache()
        objects = {
            "partition": parts["a"],
            "partitions": parts,
            "plan": plans.active,
            "set": plans,
            "cache": cache,
            "context": context,
            "allocator": Allocator(),
        }
        yield objects
        cache.clear()


@pytest.mark.parametrize("which", ["partition", "partitions", "plan", "set", "cache"])
def test_weak_references_are_taken(made, which):
    assert weakref.ref(made[which])() is made[which]


def test_a_weak_reference_ends_with_its_object():
    parts, cache = partition({"a": 8}), GraphCache()
    ends = []
    known = [weakref.ref(each, ends.append) for each in (parts, parts["a"], cache)]
    del parts, cache
    gc.collect()
    assert [each() for each in known] == [None] * 3 and len(ends) == 3


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("partition", r"\{part.name: part.share\}"),
        ("partitions", r"\{name: part.share for name, part in parts.items\(\)\}"),
        ("plan", r"\{name: part.share for name, part in plan.items\(\)\}"),
        ("set", "the divisions that PlanSet was called with"),
        ("cache", r"make a new GraphCache\(\)"),
        ("context", r"call GreenContext.create with the same arguments"),
        ("allocator", r"call Allocator with the same device"),
    ],
)
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps, lambda it: pickle.dumps(it, 0)])
def test_a_copy_is_refused_with_what_to_copy(made, which, expected, how):
    with pytest.raises(TypeError, match=f"cannot be copied or pickled.*{expected}"):
        how(made[which])


def test_what_is_to_be_copied_makes_the_same_again():
    with partition({"decode": "32..", "prefill": "..100", "other": 17}) as parts:
        before = [(part.name, part.floor, part.sm_count) for part in parts.values()]
        division = {name: part.share for name, part in parts.items()}
    with partition(pickle.loads(pickle.dumps(division))) as parts:
        assert [(part.name, part.floor, part.sm_count) for part in parts.values()] == before


SHARES = ["32..", "16..48", "..100", "..", "16", "25%", "25%..", "16..50%", "..75%", "rest"]


@pytest.mark.parametrize("text", SHARES)
def test_a_share_is_read_from_text(text):
    share = Share(text)
    assert share == text and text == share and not share != text
    assert Share(str(share)) == share == str(share)
    assert hash(share) == hash(Share(text)) == hash(str(share))
    assert {str(share): 1}[share] == 1 and {share: 1}[str(share)] == 1
    assert eval(repr(share)) == share


@pytest.mark.parametrize("text", SHARES)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy]
    + [lambda share, p=p: pickle.loads(pickle.dumps(share, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)],
)
def test_a_share_is_copied_and_pickled(text, again):
    share = Share(text)
    copied = again(share)
    assert type(copied) is Share and copied == share and hash(copied) == hash(share)
    assert (copied.floor, copied.ceiling) == (share.floor, share.ceiling)


def test_a_share_compares_with_what_text_means():
    assert Share(32) == "32.." != Share("32") == "32"
    assert Share(16, 48) == "16..48" and Share(16, 48) == "16..=48" and Share(ceiling=100) == "..100"
    assert Share() == ".." != Share("rest")
    for other in ["half", "", "\ud800", 32, 32.0, None, b"32..", ("32..",)]:
        assert Share(32) != other and not Share(32) == other
    assert Share("16").floor == Share("16").ceiling == 16


def test_percentages_count_the_sms_that_are_divided():
    with partition({"decode": "25%..", "prefill": "..75%", "comm": "25%"}) as parts:
        sms = {part.name: (part.share, part.floor, part.sm_count) for part in parts.values()}
    assert sms == {"decode": ("25%..", 32, 100), "prefill": ("..=75%", 0, 68), "comm": ("25%", 32, 32)}
    with pytest.raises(ValueError, match="the floors add up to 110%; ask for at most 100%"):
        partition({"a": "60%", "b": "50%.."})
