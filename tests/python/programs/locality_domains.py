"""Partitions in locality domains, on a simulated device that has two: `locality_domains.py FOLDER`, with the folder
of a substitute for torch."""

import sys
from contextlib import closing

sys.path.insert(0, sys.argv[1])

from green_ctx_torch import flashinfer, info, partition, verify
from green_ctx_torch.green_contexts import (
    GreenContext,
    SMPartition,
    get_num_locality_domains,
    is_localization_supported,
)

VERSION = info()["driver"]["version"]
BOTH = {"a": 0, "b": 1}


def refused(kind, expected, create):
    try:
        create()
    except kind as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"{expected}: was done")


def observed(parts):
    report = verify(parts)
    assert report.ok
    return [set(part.observed_sms) for part in report.partitions]


assert get_num_locality_domains() == 2 and is_localization_supported(0) is True

# Each domain has 72 of the 148 SMs.
with closing(partition({"a": 72, "b": 72}, coscheduled=2, locality_domain=BOTH)) as parts:
    a, b = observed(parts)
    assert (len(a), len(b), a & b) == (72, 72, set())
more = {"coscheduled": 2, "locality_domain": 0}
refused(ValueError, "units of 2, but a locality domain has fewer", lambda: partition({"a": 74}, **more))
if VERSION == "13.4":
    refused(RuntimeError, "needs CUDA 13.5", lambda: partition({"a": 76}, **more, supplemental=True))
else:
    with closing(
        partition({"a": 76, "b": 72}, coscheduled=2, locality_domain=BOTH, supplemental={"a": True})
    ) as parts:
        assert parts["a"].sm_count == 76 and verify(parts).ok
    refused(ValueError, "set a locality domain", lambda: partition({"a": 16}, supplemental=True))
    refused(TypeError, "supplemental must be True or False", lambda: partition({"a": 16}, **more, supplemental=1))

# torch's interface.
sms = SMPartition.from_device()
refused(ValueError, "domain 2, but the domains of device 0 are 0 to 1", lambda: sms.split(locality_domain_ids=2))
first, second = GreenContext.split(num_sms=(16, 24), coscheduled_sm_count=2, locality_domain_ids=(1, 0))
assert [context.locality_domain_id for context in (first, second)] == [1, 0]
assert [context.sm_partition.locality_domain_id for context in (first, second)] == [1, 0]
ours, others = observed([first, second])
assert ours <= b and others <= a
first.close()
second.close()

# FlashInfer's interface.
assert flashinfer.get_locality_domain_count(0) == 2
for backfill, count in ((True, 74), (False, 72)):
    streams, resources = flashinfer.split_device_green_ctx_by_locality_domain(0, backfill)
    assert [resource.sm.smCount for resource in resources] == [count] * 2 and len(streams) == 2
    near = observed([resource.context for resource in resources])
    assert len(near[0] & a) == len(near[1] & b) == 72, near
    refused(RuntimeError, "915", lambda: flashinfer.split_device_green_ctx_by_locality_domain(0))
    del streams, resources

assert GreenContext(num_sms=148).sm_count == 148
print(VERSION)
