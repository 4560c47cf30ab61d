"""The workqueue arguments of torch 2.12, on a driver that has workqueues."""

import re
from contextlib import closing

from green_ctx_torch import GreenContext, PlanSet, _native, partition, verify

most = GreenContext.max_workqueue_concurrency(device_id=0)
part = GreenContext.create(
    num_sms=16, workqueue_scope="balanced", workqueue_concurrency_limit=most // 2, device_id=0
)
assert part.sm_count == 16
for limit in (0, -1, most + 1):
    try:
        GreenContext(num_sms=16, workqueue_scope="balanced", workqueue_concurrency_limit=limit)
    except RuntimeError as error:
        assert "concurrency limit" in str(error)
    else:
        raise AssertionError(f"a limit of {limit} was taken")


def refused(create):
    """Returns the message of a call that must raise a RuntimeError."""
    try:
        create()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("shared SMs became a partition's floor")


# Without a count, a context has no floor. It shares the SMs that are in no floor with other contexts of this kind.
shared = GreenContext(workqueue_scope="device_ctx")
beside = GreenContext(workqueue_scope="balanced")
for context in (shared, beside):
    assert context.requested is None and context.sm_count == 116
    assert context.partition.requested is None
report = verify([part.partition, shared.partition, beside.partition])
assert report.ok and report.complete and not report.disjoint

# Later requests for a floor are refused. The message says why, and what to do.
for create in (
    lambda: GreenContext.create(16),
    lambda: partition({"a": 16}),
    lambda: PlanSet({"day": {"a": 16}}, sm_count=16),
):
    message = refused(create)
    names = re.findall(r"(GreenContext \d+) \(116 SMs\)", message)
    assert len(set(names)) == 2, message
    assert message.endswith("create it after all partitions that need a floor, or close it)"), message
# The streams of FlashInfer and SGLang need no floor.
assert [given.sm_count for given in _native.split_green(0, [16, 24], "sglang")] == [16, 24]
part.close()
# The SMs that it had are free for other partitions.
GreenContext.create(16).close()
shared.close()
beside.close()
everything = GreenContext(workqueue_scope="device_ctx")
assert everything.sm_count == 132
# Now there are no floors at all, and the request is still not an argument error.
message = refused(lambda: partition({"a": 16}))
only = r"132 SMs can only be shared, because GreenContext \d+ \(132 SMs\) may use them"
assert re.search(only, message), message
everything.close()

# The unit in which other partitions divide the device does not matter.
with closing(partition({"a": 2}, fine=True)):
    assert GreenContext(workqueue_scope="device_ctx").sm_count == 130
with closing(partition({"a": 132})):
    assert "held by a (132 SMs)" in refused(lambda: GreenContext(workqueue_scope="device_ctx"))
assert GreenContext.create(132).sm_count == 132
