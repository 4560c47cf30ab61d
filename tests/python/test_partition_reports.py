"""The report of each partition, and the partitions that `verify` finds."""

import json
from contextlib import closing

import pytest
from green_ctx_torch import GreenContext, PlanSet, flashinfer, partition, sglang, verify


def names(report):
    return [part.name for part in report.partitions]


def test_a_report_has_an_object_for_each_partition():
    with closing(partition({"decode": "32..", "prefill": "..100"})) as parts:
        report = verify(parts)
        assert (report.device, report.device_name, report.sm_count) == (0, "NVIDIA H200", 132)
        assert report.compute_capability == (9, 0)
        assert report.ok and report.floors_kept and not report.disjoint
        decode, prefill = report.partitions
        assert [decode.id, prefill.id] == [part.id for part in parts.values()]
        assert (decode.name, decode.share, decode.floor, decode.sm_count) == ("decode", "32..", 32, 132)
        assert (prefill.share, prefill.floor, prefill.sm_count) == ("..=100", 0, 100)
        assert len(decode.floor_sms) == 32 and prefill.floor_sms == frozenset()
        assert decode.floor_sms <= decode.observed_sms <= decode.alone_sms == frozenset(range(132))
        assert prefill.observed_sms <= prefill.alone_sms and not prefill.alone_sms & decode.floor_sms
        for part in report.partitions:
            assert part.complete and part.within and part.kept and part.intruded == frozenset()
            assert {sm for sm, _, _ in part.blocks} == part.observed_sms
            assert part.start_ns == min(start for _, start, _ in part.blocks) < part.end_ns
            assert part.end_ns == max(end for _, _, end in part.blocks)
        assert repr(prefill).startswith("<PartitionReport prefill: kept, on ")


def test_a_report_agrees_with_its_json():
    with closing(partition({"a": 16, "b": "rest"})) as parts:
        report = verify(parts)
        for part, written in zip(report.partitions, json.loads(report.to_json())["partitions"]):
            assert part.observed_sms == set(written["observed_sms"])
            assert (part.name, part.sm_count) == (written["name"], written["sm_count"])


def test_a_report_outlives_its_partitions():
    with closing(partition({"a": 16})) as parts:
        report = verify(parts)
    [part] = report.partitions
    del report
    assert part.kept and part.sm_count == 16


def test_green_contexts_are_verified_too():
    with closing(partition({"a": 16})) as parts:
        first, second = GreenContext.create(24), GreenContext(num_sms=32)
        [name] = names(verify(first))
        assert name.startswith("GreenContext ") and name != names(verify(second))[0]
        report = verify([parts["a"], second])
        assert [(part.id, part.sm_count) for part in report.partitions] == [
            (parts["a"].id, 16),
            (second.id, 32),
        ]
        # Its partition is the same context.
        assert second.partition.id == second.id
        assert len(verify({"x": second, "y": second.partition}).partitions) == 1
        everything = verify()
        assert everything.ok and everything.disjoint
        assert [part.id for part in everything.partitions] == [
            parts["a"].id,
            first.id,
            second.id,
        ]
        first.close()
        assert [part.id for part in verify().partitions] == [parts["a"].id, second.id]
        with pytest.raises(RuntimeError, match="the GreenContext is closed"):
            verify([first])
        del second
        assert names(verify()) == ["a"]


def test_what_the_drop_ins_make_is_verified_too(fake_torch):
    streams, resources = flashinfer.split_device_green_ctx(0, 2, 16)
    assert [part.sm_count for part in verify().partitions] == [16, 16, 100]
    del resources
    # The partition stays open while one of its streams exists.
    assert verify().ok and len(verify().partitions) == 3
    del streams
    with pytest.raises(ValueError, match="no partitions of device 0 are open"):
        verify()
    streams = sglang.create_greenctx_stream_by_value(16, 24)
    assert [part.sm_count for part in verify().partitions] == [16, 24]
    del streams


def test_ids_are_the_contexts():
    with closing(partition({"a": 8, "b": 8})) as parts:
        assert parts["a"].id != parts["b"].id and parts["a"].id == parts["a"].id
        former = parts["a"].id
    with pytest.raises(RuntimeError, match="partition a is closed"):
        parts["a"].id
    context = GreenContext.create(8)
    assert isinstance(context.id, int) and isinstance(former, int)
    context.close()
    with pytest.raises(RuntimeError, match="is closed"):
        context.id


@pytest.mark.parametrize("order", [["day", "night"], ["night", "day"]])
def test_a_floor_is_that_of_the_active_plan(order):
    floors = {"day": "32..", "night": "64.."}
    with PlanSet({name: {"decode": floors[name], "prefill": ".."} for name in order}) as plans:
        for name in order:
            plans.switch(name)
            report = verify(plans)
            assert [part.floor for part in report.partitions] == [int(floors[name][:2]), 0]
            assert report.ok, report
