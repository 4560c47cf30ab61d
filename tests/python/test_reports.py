"""Reports of `verify` and of `info`."""

import json
from contextlib import closing
from xml.etree import ElementTree

from green_ctx_torch import PlanSet, info, partition, verify


def names(report):
    return [part["name"] for part in json.loads(report.to_json())["partitions"]]


def test_partitions_are_verified():
    with closing(partition({"a": 16, "b": "rest"})) as parts:
        report = verify(parts)
        assert report.ok and report.disjoint and report.complete and report.concurrent
        assert repr(report) == "<Report: verified, simulated: a on 16 of 16 SMs, b on 116 of 116 SMs>"
        output = json.loads(report.to_json())
        assert output["ok"] and output["device"]["name"] == "NVIDIA H200"
        assert output["driver"] == {"kind": "simulated", "version": "13.0", "profile": "h200"}
        observed = [set(part["observed_sms"]) for part in output["partitions"]]
        assert [len(sms) for sms in observed] == [16, 116] and not observed[0] & observed[1]
        assert [part["requested"] for part in output["partitions"]] == [16, None]


def test_the_picture_is_what_a_notebook_shows():
    with closing(partition({"a": 16, "b": "rest"})) as parts:
        report = verify(parts)
        picture = ElementTree.fromstring(report.to_svg())
        assert "simulated h200, CUDA 13.0" in report.to_svg()
        assert picture.tag.endswith("svg") and report._repr_svg_() == report.to_svg()


def test_a_partition_given_twice_is_reported_once():
    with closing(partition({"a": 16})) as parts:
        report = verify([parts["a"], parts["a"]])
        assert report.ok and names(report) == ["a"]


def test_partitions_are_given_in_many_ways():
    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        assert names(verify(a)) == ["a"]
        assert names(verify([b, a])) == names(verify({"x": b, "y": a})) == ["b", "a"]
        assert names(verify(part for part in parts.values())) == ["a", "b"]
        plans = PlanSet({"day": {"c": 16, "d": "rest"}, "night": {"e": "rest"}})
        with closing(plans):
            assert names(verify(plans)) == names(verify(plans.active)) == ["c", "d"]
            # All open partitions. For a plan set, those of the active plan.
            assert names(verify()) == ["a", "b", "c", "d"]
            plans.switch("night")
            a.close()
            assert names(verify()) == ["b", "e"]


def test_partitions_of_plans_have_their_own_names():
    # Partitions of the same SMs share a context, which has one name.
    with closing(PlanSet({"day": {"a": "rest"}, "night": {"x": "rest"}})) as plans:
        a = plans.active.partitions["a"].raw_context
        assert names(verify(plans)) == ["a"]
        assert plans.switch("night").partitions["x"].raw_context == a
        assert names(verify(plans)) == ["x"]


def test_info_is_what_the_command_prints(python):
    output = info()
    command = python("", "-m", "green_ctx_torch", "--json", "info")
    assert output == json.loads(command)
    assert output["driver"] == {"kind": "simulated", "version": "13.0", "profile": "h200"}
    # Only a build with the simulator knows the provenance.
    assert output["provenance"] is None
    assert [device["sm_count"] for device in output["devices"]] == [132]
    assert info(0) == output
