"""Partitions: their properties, refused requests, and closing."""

from contextlib import closing
from collections.abc import Mapping

import driver
import pytest
from green_ctx_torch import Partitions, PlanSet, Share, partition


def test_a_device_is_divided_by_name():
    with closing(partition({"decode": 16, "prefill": "rest"})) as parts:
        assert isinstance(parts, Mapping) and isinstance(parts, Partitions)
        assert list(parts) == ["decode", "prefill"] and len(parts) == 2
        assert "decode" in parts and "train" not in parts
        assert dict(parts)["decode"] is parts["decode"] is parts.get("decode")
        assert parts.get("train") is None and parts.get("train", 1) == 1
        decode, prefill = parts.values()
        assert [name for name, _ in parts.items()] == list(parts.keys())
        assert (decode.name, decode.requested, decode.sm_count) == ("decode", 16, 16)
        assert (prefill.name, prefill.requested, prefill.sm_count) == ("prefill", None, 116)
        assert decode.device == 0 and not decode.closed
        assert repr(decode) == "<Partition decode: 16 SMs of device 0>"
        with pytest.raises(KeyError, match="the partitions are decode, prefill"):
            parts["train"]
    assert decode.closed and prefill.closed


def test_the_order_is_the_one_given():
    with closing(partition([("rest", "rest"), ("b", 8), ("a", 24)])) as parts:
        assert [part.sm_count for part in parts.values()] == [100, 8, 24]
        assert list(parts) == ["rest", "b", "a"]


def test_counts_are_rounded_up_and_both_are_reported():
    with closing(partition({"a": 17})) as parts:
        assert (parts["a"].requested, parts["a"].sm_count) == (17, 24)
    with closing(partition({"a": 17}, fine=True)) as parts:
        assert (parts["a"].requested, parts["a"].sm_count) == (17, 18)


def test_whatever_is_a_whole_number_is_a_count():
    class Number:
        def __index__(self):
            return 8

    with closing(partition({"a": Number()})) as parts:
        assert parts["a"].sm_count == 8


def test_what_others_hold_is_a_runtime_error_that_names_them():
    with closing(partition({"decode": 16, "prefill": 100})):
        with pytest.raises(RuntimeError, match="held by .*decode .16 SMs."):
            partition({"a": 24})
        with pytest.raises(RuntimeError, match="no SMs remain for b"):
            partition({"a": 16, "b": "rest"})
        with pytest.raises(RuntimeError, match="coarse units, and some of them are in use"):
            partition({"a": 2}, fine=True)
        # The request would not fit even if all SMs were free.
        with pytest.raises(ValueError, match="a group of 133 SMs does not fit"):
            partition({"a": 133})
        # Nothing was taken.
        with closing(partition({"a": 16})) as parts:
            assert parts["a"].sm_count == 16


def test_shares_have_floors_and_ceilings():
    with closing(partition({"decode": "32..", "prefill": Share(ceiling=100), "other": "16"})) as parts:
        decode, prefill, other = parts.values()
        assert (decode.share, decode.floor, decode.sm_count) == ("32..", 32, 116)
        assert (prefill.share, prefill.floor, prefill.sm_count) == ("..=100", 0, 84)
        assert (other.share, other.floor, other.sm_count) == ("16", 16, 16)
        assert decode.shared_with == [("prefill", 84)] and prefill.shared_with == [("decode", 84)]
        assert other.shared_with == []
        assert repr(decode) == "<Partition decode: 32 to 116 SMs of device 0>"
        assert repr(other) == "<Partition other: 16 SMs of device 0>"
        assert [decode.requested, other.requested] == [None, 16]
        with pytest.raises(RuntimeError, match="84 SMs can only be shared, because decode"):
            partition({"late": 16})


def test_a_share_is_a_value():
    assert Share(16, 48) == Share(floor=16, ceiling=48) != Share(16)
    assert len({Share(16), Share(16), Share()}) == 2
    assert (Share(16, 48).floor, Share(16, 48).ceiling, Share().floor) == (16, 48, 0)
    assert [str(Share()), str(Share(32)), str(Share(ceiling=100))] == ["..", "32..", "..=100"]
    assert repr(Share(32)) == "Share(floor=32)"


def test_plans_take_shares():
    day = {"decode": "32..", "prefill": "..100"}
    with closing(PlanSet({"day": day, "night": {"decode": "64..", "prefill": "..68"}})) as plans:
        decode = plans.active.partitions["decode"]
        assert (decode.floor, decode.sm_count) == (32, 132)
        assert plans.switch("night").partitions["prefill"].shared_with == [("decode", 68)]


@pytest.mark.parametrize("device", [0, "cuda:0", "cuda", None])
def test_devices_are_named_as_torch_names_them(device):
    with closing(partition({"a": 8}, device)) as parts:
        assert parts["a"].device == 0


def test_handles_are_the_drivers(fake_torch):
    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        assert a.__cuda_stream__() == (0, a.raw_stream)
        assert len({a.raw_stream, a.raw_context, b.raw_stream, b.raw_context}) == 4
        driver.synchronize(a.raw_stream)
        first, other = a.create_stream(-3).cuda_stream, a.create_stream().cuda_stream
        assert (driver.priority(first), driver.priority(other)) == (-3, 0)
        assert len({first, other, a.raw_stream}) == 3


def test_a_priority_out_of_range_is_the_nearest_in_it(fake_torch):
    with closing(partition({"a": 8})) as parts:
        a = parts["a"]
        for most in [2**31 - 1, 2**31, 2**40, 2**70]:
            assert driver.priority(a.create_stream(most).cuda_stream) == 0
            assert driver.priority(a.create_stream(-most).cuda_stream) == -5


def test_a_partition_is_closed_twice_and_keeps_what_was_read():
    parts = partition({"a": 8})
    a = parts["a"]
    a.close()
    a.close()
    parts.close()
    assert a.closed and repr(a) == "<Partition a: closed>"
    assert (a.name, a.requested, a.sm_count, a.device) == ("a", 8, 8, 0)


def test_sms_come_back_with_the_last_stream(fake_torch):
    parts = partition({"a": 132})
    stream = parts["a"].create_stream()
    parts.close()
    with pytest.raises(RuntimeError, match="held by a"):
        partition({"b": 8})
    driver.synchronize(stream.cuda_stream)
    del stream
    partition({"b": 132}).close()


def test_partitions_that_nobody_holds_are_gone():
    partition({"a": 132})
    partition({"b": 132}).close()
