"""SMPartition and GreenContext.split with co-scheduling, on a driver that has structured splits."""

from green_ctx_torch import info, partition, verify
from green_ctx_torch.green_contexts import (
    GreenContext,
    SMPartition,
    get_num_locality_domains,
    is_localization_supported,
)

IS_13_4 = info()["driver"]["version"] != "13.1"


def refused(kind, expected, create):
    try:
        create()
    except kind as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"{expected}: was done")


def described(groups, rest):
    count = [part.sm_count for part in groups]
    return count, None if rest is None else rest.sm_count


sms = SMPartition.from_device()

# One value for all groups, or one per group. A description holds no SMs.
assert described(*sms.split(num_sms=(24, 40), coscheduled_sm_count=8)) == ([24, 40], 68)
assert described(*sms.split(num_sms=(4, 32), coscheduled_sm_count=[2, 16])) == ([4, 32], 96)
assert described(*sms.split(num_sms=132, coscheduled_sm_count=2)) == ([132], None)
assert described(*sms.split(num_sms=20, backfill=True)) == ([20], 112)
assert described(*sms.split(backfill=True)) == ([132], None)
assert described(*sms.split(coscheduled_sm_count=2)) == ([132], None)
assert described(*sms.split(num_sms=16, preferred_coscheduled_sm_count=16)) == ([16], 116)
GreenContext(num_sms=132).close()

(small, large), rest = sms.split(num_sms=(4, 32), coscheduled_sm_count=(2, 16))
assert [part.coscheduled_sm_count for part in (small, large, rest)] == [2, 16, 2]

# Contexts can be created in any order, and again later.
contexts = [GreenContext(sm_partition=rest), GreenContext(sm_partition=small)]
contexts.append(GreenContext(sm_partition=large))
assert [context.sm_count for context in contexts] == [96, 4, 32]
assert verify(contexts).ok and verify(contexts).disjoint
refused(RuntimeError, "held by GreenContext", lambda: GreenContext(sm_partition=small))
assert contexts[1].sm_partition.coscheduled_sm_count == 2
contexts[1].close()
contexts[1] = GreenContext(sm_partition=small)
assert verify(contexts).ok

# A context that only a stream keeps alive still holds its SMs.
contexts[1] = contexts[1].partition
refused(RuntimeError, "held by", lambda: GreenContext(sm_partition=small))
contexts.clear()

# While SMs of another split are held, there are none.
first = GreenContext(sm_partition=large)
refused(RuntimeError, "GreenContext", lambda: GreenContext(num_sms=16))
refused(RuntimeError, "GreenContext", lambda: GreenContext.split(num_sms=16))
first.close()
with_parts = partition({"mine": 16})
refused(RuntimeError, "mine (16 SMs)", lambda: GreenContext(sm_partition=large))
with_parts.close()

# A further split would need SMs that are already co-scheduled.
for part in (small, rest):
    refused(RuntimeError, "in one split of SMPartition.from_device", lambda: part.split(num_sms=2))
(half,), _ = sms.split(num_sms=64)
refused(
    RuntimeError,
    "in one split of SMPartition.from_device",
    lambda: half.split(num_sms=16, coscheduled_sm_count=8),
)

# Requests that the driver's rules exclude.
refused(RuntimeError, "even count", lambda: sms.split(num_sms=15, coscheduled_sm_count=2))
refused(RuntimeError, "an even count up to 32", lambda: sms.split(coscheduled_sm_count=3))
refused(RuntimeError, "backfill", lambda: sms.split(num_sms=20, coscheduled_sm_count=8))
refused(RuntimeError, "132", lambda: sms.split(num_sms=(128, 128), coscheduled_sm_count=2))

a, b = GreenContext.split(num_sms=(24, 40), coscheduled_sm_count=8, device_id=0)
assert (a.sm_count, b.sm_count) == (24, 40) and verify([a, b]).ok
del a, b

# The workqueue arguments apply to each context, and can be combined with an SMPartition.
queued = GreenContext.split(num_sms=(16, 24), workqueue_scope="balanced")
assert [context.sm_count for context in queued] == [16, 24]
del queued
one = GreenContext(sm_partition=sms, workqueue_scope="balanced", workqueue_concurrency_limit=2)
assert one.sm_count == 132
one.close()

# The simulated device has one locality domain.
assert get_num_locality_domains() == get_num_locality_domains(0) == 1
assert is_localization_supported(0) is False
in_domain = {"num_sms": 16, "locality_domain_ids": 0}
if IS_13_4:
    refused(RuntimeError, "no device 9", lambda: get_num_locality_domains(9))
    refused(ValueError, "domain 1, but the domains of device 0 are 0 to 0", lambda: sms.split(locality_domain_ids=1))
    mixed = {"num_sms": (8, 8), "locality_domain_ids": (0, None)}
    refused(RuntimeError, "give a domain for each", lambda: sms.split(**mixed))
    # No SM belongs to a domain.
    refused(RuntimeError, "does not fit", lambda: sms.split(**in_domain))
    assert sms.locality_domain_id is None
    assert GreenContext(num_sms=16).locality_domain_id is None
else:
    assert get_num_locality_domains(9) == 1
    refused(RuntimeError, "needs CUDA 13.4", lambda: sms.split(**in_domain))

assert GreenContext(num_sms=132).sm_count == 132
