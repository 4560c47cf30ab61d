"""`green_ctx_torch.flashinfer`, like `flashinfer.green_ctx`."""

import sys
from contextlib import closing
from types import ModuleType

import pytest
from dropins import torch  # noqa: F401
from green_ctx_torch import GreenContext, flashinfer, partition, verify


def counts(resources):
    return [resource.sm.smCount for resource in resources]


def all_free():
    return GreenContext.create(132).sm_count == 132


@pytest.mark.parametrize(
    ("major", "constraint"),
    [(6, (1, 1)), (7, (2, 2)), (8, (4, 2)), (9, (8, 8)), (10, (8, 8)), (12, (8, 8))],
)
def test_constraints(major, constraint):
    assert flashinfer.get_sm_count_constraint(major, 0) == constraint


def test_the_device(torch):
    assert int(flashinfer.get_cudevice(torch.device("cuda", 0))) == 0
    assert int(flashinfer.get_cudevice(torch.device("cuda"))) == 0
    assert int(flashinfer.get_cudevice(0)) == 0


def test_errors_have_flashinfers_codes(torch):
    device = torch.device("cuda", 0)
    with pytest.raises(RuntimeError, match="code=915.*3 groups of 64 SMs need 192 and there are 132.*most 2"):
        flashinfer.split_device_green_ctx(device, 3, 64)
    with pytest.raises(RuntimeError, match="code=914.*no SMs"):
        flashinfer.split_device_green_ctx_by_sm_count(device, [132])


def test_the_device_is_cuda_pythons_where_that_is_installed(monkeypatch):
    class CUdevice:
        def __init__(self, value):
            self.value = value

        def __int__(self):
            return self.value

    driver = ModuleType("cuda.bindings.driver")
    driver.CUdevice = CUdevice
    bindings = ModuleType("cuda.bindings")
    bindings.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    device = flashinfer.get_cudevice(0)
    assert type(device) is CUdevice
    assert counts([flashinfer.get_device_resource(device)]) == [132]


def test_resources_describe():
    resource = flashinfer.get_device_resource(0)
    assert resource.type == flashinfer.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM == 1
    assert resource.sm.smCount == 132
    assert resource.sm.minSmPartitionSize == resource.sm.smCoscheduledAlignment == 8
    groups, remaining = flashinfer.split_resource(resource, 2, 16)
    assert counts(groups) == [16, 16] and counts([remaining]) == [100]
    assert groups[0].context is None
    assert all_free()


@pytest.mark.parametrize(
    ("count", "given", "remaining"),
    [(1, 8, 124), (7, 8, 124), (10, 16, 116), (16, 16, 116), (17, 24, 108), (129, 132, 0), (132, 132, 0)],
)
def test_counts_are_rounded_up(count, given, remaining):
    [group], rest = flashinfer.split_resource(flashinfer.get_device_resource(0), 1, count)
    assert (group.sm.smCount, rest.sm.smCount) == (given, remaining)
    assert rest.type == (1 if remaining else 0)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("count", [16, 32])
def test_equal_groups(groups, count, torch):
    streams, resources = flashinfer.split_device_green_ctx(torch.device("cuda", 0), groups, count)
    assert counts(resources) == [count] * groups + [132 - groups * count]
    assert len({stream.cuda_stream for stream in streams}) == groups + 1
    assert all(isinstance(stream, torch.cuda.ExternalStream) for stream in streams)
    assert [resource.context.sm_count for resource in resources] == counts(resources)


def test_groups_by_count(torch):
    device = torch.device("cuda", 0)
    streams, resources = flashinfer.split_device_green_ctx_by_sm_count(device, [7, 16, 24])
    assert counts(resources) == [8, 16, 24, 84]
    assert len(streams) == 4
    # Other flashinfer calls may share SMs with it, but no partition can hold them alone.
    more, _ = flashinfer.split_device_green_ctx_by_sm_count(device, [8])
    assert not {stream.cuda_stream for stream in more} & {stream.cuda_stream for stream in streams}
    del streams, more, _
    with pytest.raises(RuntimeError, match="because flashinfer"):
        GreenContext.create(8)
    del resources
    assert all_free()


def test_streams_keep_their_partitions(torch):
    streams, resources = flashinfer.split_device_green_ctx(torch.device("cuda", 0), 1, 64)
    del resources
    with pytest.raises(RuntimeError, match="because flashinfer"):
        GreenContext.create(8)
    del streams
    assert all_free()


def test_streams_of_some_resources(torch):
    device = flashinfer.get_cudevice(0)
    groups, remaining = flashinfer.split_resource(flashinfer.get_device_resource(device), 2, 16)
    [first] = flashinfer.create_green_ctx_streams(device, groups[:1])
    # A second call creates another stream in the same context.
    again, other, other_too = flashinfer.create_green_ctx_streams(device, [*groups, groups[1]])
    raw = [stream.cuda_stream for stream in (first, again, other, other_too)]
    assert len(set(raw)) == 4
    assert groups[0].context.raw_context != groups[1].context.raw_context
    assert remaining.context is None
    assert GreenContext.create(100).sm_count == 100


def test_a_remainder_can_be_split_again(torch):
    device = flashinfer.get_cudevice(0)
    whole = flashinfer.get_device_resource(device)
    groups, remaining = flashinfer.split_resource_by_sm_count(device, whole, [8, 24])
    more, remaining = flashinfer.split_resource(remaining, 2, 32)
    assert counts([*groups, *more, remaining]) == [8, 24, 32, 32, 36]
    streams = flashinfer.create_green_ctx_streams(device, [*groups, *more, remaining])
    assert len(streams) == 5


@pytest.mark.parametrize("wanted", [[64, 64], [32, 32, 32, 32], [128], [120]])
def test_counts_that_the_pieces_do_not_add_up_to(wanted, torch):
    device = torch.device("cuda", 0)
    kept, _ = flashinfer.split_device_green_ctx(device, 1, 16)
    streams, resources = flashinfer.split_device_green_ctx_by_sm_count(device, wanted)
    assert counts(resources) == [*wanted, 132 - sum(wanted)]
    report = verify([resource.context for resource in resources])
    assert report.disjoint and [len(part.alone_sms) for part in report.partitions] == counts(resources)
    del kept, _, streams, resources, report
    # If a partition holds SMs alone, it is not known which pieces of 2 SMs these are.
    with closing(partition({"mine": 8})):
        with pytest.raises(RuntimeError, match="code=915.*(held by mine|in no floor)"):
            flashinfer.split_device_green_ctx_by_sm_count(device, [64, 48])
    assert all_free()


def test_a_stream_of_every_size_is_kept(torch):
    device = torch.device("cuda", 0)
    sizes = range(8, 129, 8)
    kept = {size: flashinfer.split_device_green_ctx(device, 1, size)[0][0] for size in sizes}
    assert len({stream.cuda_stream for stream in kept.values()}) == len(sizes)
    given = [part.sm_count for part in verify([s._green_ctx_context for s in kept.values()]).partitions]
    assert given == list(sizes)


def test_the_compute_capability(torch):
    assert flashinfer.get_compute_capability(torch.device("cuda", 0)) == (9, 0)


def test_a_device_of_one_locality_domain():
    assert flashinfer.get_locality_domain_count(0) == 1
    with pytest.raises(RuntimeError, match="device 0 has 1 locality domain; a split by domain needs two"):
        flashinfer.split_device_green_ctx_by_locality_domain(0)


def test_a_device_can_be_named(torch):
    assert flashinfer.get_locality_domain_count("cuda") == flashinfer.get_locality_domain_count("cuda:0") == 1
    assert flashinfer.get_cudevice("cuda") == 0
    with pytest.raises(ValueError, match="cpu is not a CUDA device"):
        flashinfer.get_locality_domain_count("cpu")
    assert all_free()
