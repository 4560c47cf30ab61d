"""Partitions: what they have, what they refuse, when they end."""

import subprocess
import sys
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
        with pytest.raises(KeyError, match="there are decode, prefill"):
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


@pytest.mark.parametrize(
    ("division", "expected"),
    [
        ({"a": 0}, "group a asks for 0 SMs; ask for 1 or more"),
        ({"a": -3}, "group a asks for -3 SMs; ask for 1 or more"),
        ({"a": 133}, "a group of 133 SMs does not fit"),
        ({"a": 64, "b": 64, "c": 64}, "3 groups of 40 would fit"),
        ({"a": 1 << 70}, "no device has as many"),
        ({"a": "half"}, "group a: \"half\" is no share; ask for SMs as in 16, 32.., 16..48, ..100"),
        ({"a": "48..16"}, "group a: the share asks for 48..=16, a floor above its ceiling"),
        ({"a": "..0"}, "a ceiling of 0 SMs"),
        ({"a": "17..18"}, "no whole units of 8 SMs make 17..=18; 16 or 20 would do"),
        ({"a": "32..", "b": "rest"}, "ask for `..` instead of the rest, or give a a ceiling"),
        ({"a": 132, "b": "rest"}, "no SMs remain for b: the others take all 132 of the device"),
        ({"a": "rest", "b": "rest"}, "both a and b ask for the rest"),
        ([("a", 8), ("a", 16)], "two partitions are named a"),
        ({}, "at least one group"),
        ({"": 8}, "the name '' of a partition is empty; use one such as \"decode\""),
        ({"a\0b": 8}, "the name 'a\\x00b' of a partition contains a NUL character"),
        ({"\ud800": 8}, "the name '\\ud800' of a partition is no Unicode text"),
    ],
)
def test_a_wrong_division_is_a_value_error(division, expected):
    with pytest.raises(ValueError) as raised:
        partition(division)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("division", "expected"),
    [
        ({"a": 1.5}, "group a asks for a float"),
        ({"a": True}, "group a asks for a bool"),
        ({"a": None}, "group a asks for a NoneType"),
        ({8: 8}, "the name of a partition is a str such as \"decode\", and 8 is of type int"),
        ([(b"a", 8)], "and b'a' is of type bytes"),
        ("a", "partition takes names and SMs, as in partition({"),
        (16, 'as in partition({"decode": 16, "prefill": "rest"}), and not the int 16'),
        (None, "and not None"),
        ([16, 24], "and not the list [16, 24]"),
        (["ab"], "and not the list ['ab']"),
        ([("a", 8, 8)], "and not the list [('a', 8, 8)]"),
        (range(100, 200), "and not the range range(100, 200)"),
        ([16] * 99, f"and not the list [{'16, ' * 14}16,..."),
    ],
)
def test_a_division_of_something_else_is_a_type_error(division, expected):
    with pytest.raises(TypeError) as raised:
        partition(division)
    assert expected in str(raised.value)


@pytest.mark.parametrize("device", [-1, 1, 1 << 40])
def test_a_device_that_is_not_there_is_a_value_error(device):
    with pytest.raises(ValueError, match=f"there is no device {device}"):
        partition({"a": 8}, device=device)


def test_what_others_hold_is_a_runtime_error_that_names_them():
    with closing(partition({"decode": 16, "prefill": 100})):
        with pytest.raises(RuntimeError, match="held by .*decode .16 SMs."):
            partition({"a": 24})
        with pytest.raises(RuntimeError, match="no SMs remain for b"):
            partition({"a": 16, "b": "rest"})
        with pytest.raises(RuntimeError, match="coarse units, of which some are held"):
            partition({"a": 2}, fine=True)
        # That would be too much whoever held them.
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
        with pytest.raises(RuntimeError, match="84 SMs can only be shared, which decode"):
            partition({"late": 16})


def test_a_share_is_a_value():
    assert Share(16, 48) == Share(floor=16, ceiling=48) != Share(16)
    assert len({Share(16), Share(16), Share()}) == 2
    assert (Share(16, 48).floor, Share(16, 48).ceiling, Share().floor) == (16, 48, 0)
    assert [str(Share()), str(Share(32)), str(Share(ceiling=100))] == ["..", "32..", "..=100"]
    assert repr(Share(32)) == "Share(floor=32)"
    for wrong in [(-1,), (48, 16), (0, 0), (1 << 40,)]:
        with pytest.raises(ValueError):
            Share(*wrong)


def test_plans_take_shares():
    day = {"decode": "32..", "prefill": "..100"}
    with closing(PlanSet({"day": day, "night": {"decode": "64..", "prefill": "..68"}})) as plans:
        decode = plans.active.partitions["decode"]
        assert (decode.floor, decode.sm_count) == (32, 132)
        assert plans.switch("night").partitions["prefill"].shared_with == [("decode", 68)]


def test_an_interrupt_is_not_taken_for_a_wrong_type():
    class Interrupted:
        def __index__(self):
            raise KeyboardInterrupt

    for ask in (lambda: partition({"a": Interrupted()}), lambda: Share(Interrupted())):
        with pytest.raises(KeyboardInterrupt):
            ask()


@pytest.mark.parametrize("device", [0, "cuda:0", "cuda", None])
def test_devices_are_named_as_torch_names_them(device):
    with closing(partition({"a": 8}, device)) as parts:
        assert parts["a"].device == 0


@pytest.mark.parametrize(
    ("device", "error", "expected"),
    [
        ("cpu", ValueError, "cpu is no CUDA device; name one as in 1"),
        ("cuda:x", ValueError, "cuda:x is no CUDA device"),
        ("cuda:-1", ValueError, "cuda:-1 is no CUDA device"),
        ("cuda:7", ValueError, "there is no device 7"),
        (1.5, TypeError, "whole number"),
    ],
)
def test_what_is_no_device_is_refused(device, error, expected):
    with pytest.raises(error) as raised:
        partition({"a": 8}, device)
    assert expected in str(raised.value)


def test_fine_is_named():
    with pytest.raises(TypeError):
        partition({"a": 8}, 0, True)


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
        for wrong in [1.5, "0", True, None]:
            with pytest.raises(TypeError, match="(?s)whole number.*priority"):
                a.create_stream(wrong)


def test_a_closed_partition_says_so():
    parts = partition({"a": 8})
    a = parts["a"]
    a.close()
    a.close()
    parts.close()
    assert a.closed and repr(a) == "<Partition a: closed>"
    assert (a.name, a.requested, a.sm_count, a.device) == ("a", 8, 8, 0)
    for use in [
        lambda: a.raw_stream,
        lambda: a.raw_context,
        lambda: a.stream,
        a.create_stream,
        a.__cuda_stream__,
    ]:
        with pytest.raises(RuntimeError, match="partition a is closed; make a new one"):
            use()


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


def test_an_error_in_the_block_closes_too():
    with pytest.raises(ZeroDivisionError):
        with closing(partition({"a": 132})):
            1 / 0
    partition({"a": 132}).close()


def test_contexts_are_used_again():
    # Each costs 4 to 5 MiB of device memory for ever, so that there must not be one a round.
    report = subprocess.run(
        [sys.executable, "-c", CHURN], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert report.strip() == "1"


CHURN = """
import ctypes, green_ctx_torch
raw = {green_ctx_torch.partition({"a": 16})["a"].raw_context for _ in range(200)}
print(len(raw))
"""
