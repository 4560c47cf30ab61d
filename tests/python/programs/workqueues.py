"""The workqueue arguments of torch 2.12, on a driver that has workqueues."""

from green_ctx_torch import GreenContext

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

# Without a count it has no SMs of its own, and uses all of the device.
shared = GreenContext(workqueue_scope="device_ctx")
assert shared.requested is None and shared.sm_count == 132
assert GreenContext.create(116).sm_count == 116
