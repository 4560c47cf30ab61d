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
    """What a call says that must be a RuntimeError, and no wrong argument."""
    try:
        create()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("SMs that others share became somebody's own")


# Without a count it has no SMs of its own, and uses those that nobody has, beside others like it.
shared = GreenContext(workqueue_scope="device_ctx")
beside = GreenContext(workqueue_scope="balanced")
for context in (shared, beside):
    assert context.requested is None and context.sm_count == 116
    assert context.partition.requested is None
report = verify([part.partition, shared.partition, beside.partition])
assert report.ok and report.complete and not report.disjoint

# What comes later gets no SMs of its own, and the error says why and what to do.
for create in (
    lambda: GreenContext.create(16),
    lambda: partition({"a": 16}),
    lambda: PlanSet({"day": {"a": 16}}, sm_count=16),
):
    message = refused(create)
    names = re.findall(r"(GreenContext \d+) \(116 SMs\)", message)
    assert len(set(names)) == 2, message
    assert message.endswith("create it after what needs SMs of its own, or close it)"), message
# FlashInfer's and SGLang's streams ask for none of their own.
assert [given.sm_count for given in _native.split_green(0, [16, 24], "sglang")] == [16, 24]
part.close()
# The SMs that it had are free for others.
GreenContext.create(16).close()
shared.close()
beside.close()
everything = GreenContext(workqueue_scope="device_ctx")
assert everything.sm_count == 132
# Nobody has any SMs for themselves now, and still it is no wrong argument.
message = refused(lambda: partition({"a": 16}))
only = r"132 SMs can only be shared, because GreenContext \d+ \(132 SMs\) may use them"
assert re.search(only, message), message
everything.close()

# However finely the others cut the device.
with closing(partition({"a": 2}, fine=True)):
    assert GreenContext(workqueue_scope="device_ctx").sm_count == 130
with closing(partition({"a": 132})):
    assert "held by a (132 SMs)" in refused(lambda: GreenContext(workqueue_scope="device_ctx"))
assert GreenContext.create(132).sm_count == 132
