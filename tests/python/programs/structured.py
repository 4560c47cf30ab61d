"""Co-scheduling, backfill, locality domains and workqueues, on drivers that have them."""

import ctypes
import os
from contextlib import closing

from green_ctx_torch import dry_run, info, partition, verify
from green_ctx_torch.green_contexts import SMPartition


def refused(kind, expected, *arguments, **keywords):
    """Checks that both `partition` and `dry_run` refuse a request, and that nothing is taken."""
    for ask in [partition, dry_run]:
        try:
            ask(*arguments, **keywords)
        except kind as error:
            assert expected in str(error), error
        else:
            raise AssertionError(f"{ask.__name__} took {arguments} {keywords}")
    assert dry_run({"all": 132}).fits


def counts(*arguments, **keywords):
    """Returns the counts that `partition` gives, and checks that the dry run agrees."""
    expected = dry_run(*arguments, **keywords)
    assert expected.fits, expected
    with closing(partition(*arguments, **keywords)) as parts:
        given = {name: part.sm_count for name, part in parts.items()}
        assert verify(parts).ok
    assert {name: group.sm_count for name, group in expected.groups.items()} == given
    return list(given.values())


def queues(part):
    """Returns the concurrency limit and the scope of a partition's workqueues, as the driver reports them (cuda.h)."""
    resource = (ctypes.c_uint32 * 64)()
    workqueue_config = 1000
    context = ctypes.c_void_p(part.raw_context)
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuCtxGetDevResource(context, resource, workqueue_config) == 0
    # The kind and its padding are followed by the device, the limit and the scope.
    _, limit, scope = resource[24:27]
    return limit, scope


# One value for all partitions, or one by name. Partitions that are not named have the device's own.
assert counts({"a": 16, "b": 32}, coscheduled=16) == [16, 32]
assert counts({"a": 4, "b": 32}, coscheduled={"a": 2}) == [4, 32]
assert counts({"a": 4, "b": 32, "c": "rest"}, coscheduled={"a": 4, "b": 16}) == [4, 32, 96]
assert counts({"a": 16, "b": 24}, preferred_coscheduled={"b": 8}) == [16, 24]
assert counts({"a": 16, "b": 20}, backfill={"b": True}) == [16, 20]
assert counts({"a": 16, "b": 20}, coscheduled=8, backfill=True) == [16, 20]

refused(ValueError, "this device accepts an even count", {"a": 16}, coscheduled=3)
refused(ValueError, "or allow other SMs to fill the group up (backfill)", {"a": 20}, coscheduled=8)
refused(ValueError, "a structured request takes only counts", {"a": "16..", "b": 8}, coscheduled=8)

# Impossible while other SMs are held. A dry run reports this and does not fail.
with closing(partition({"held": 16})):
    later = dry_run({"a": 16}, coscheduled=8)
    assert not later.fits and "in use by held (16 SMs)" in later.reason, later
    try:
        partition({"a": 16}, coscheduled=8)
    except RuntimeError as error:
        assert str(error).startswith(later.reason) and "replace=True" in str(error)
    else:
        raise AssertionError("structured groups were created while SMs are held")

# Workqueues: one value for all, or some by name, with or without a limit.
for workqueue in ["balanced", ("balanced", 2), ("device_ctx", None), {"a": ("balanced", 1)}]:
    assert counts({"a": 16, "b": "rest"}, workqueue=workqueue) == [16, 116]
with closing(partition({"a": 16, "b": "rest"}, workqueue={"a": ("balanced", 2)})) as parts:
    own, device = queues(parts["a"]), queues(parts["b"])
    assert own == (2, 1) and device[0] > 2 and device[1] == 0, (own, device)
for limit in [0, -1, 1 << 20]:
    refused(ValueError, "concurrency limit", {"a": 16}, workqueue=("balanced", limit))

# Counts that no group can have.
for sm_count, nearest in [(1, "even count, such as 2"), (17, "16 or 18"), (2**32 - 1, "even count, such as 4294967294")]:
    refused(ValueError, nearest, {"a": sm_count}, coscheduled=2)
for count in [1, 7, 2**31, 2**32 - 1]:
    refused(ValueError, "this device accepts an even count up to 32", {"a": 16}, coscheduled=count)
try:
    SMPartition.from_device().split(num_sms=16, coscheduled_sm_count=3)
except RuntimeError as error:
    assert str(error).startswith("group 0 asks for 3 co-scheduled SMs"), error
else:
    raise AssertionError("an odd count was taken")

if info()["driver"]["version"] == "13.1":
    refused(RuntimeError, "needs CUDA 13.4", {"a": 16}, locality_domain=0)
else:
    # The simulated device has no locality domains.
    for domain in ["any", 0, {"a": 0, "b": "any"}]:
        none = dry_run({"a": 16, "b": 24}, locality_domain=domain)
        assert not none.fits and "not even the first fits" in none.reason, none
    refused(
        ValueError,
        "locality_domain is given for some partitions but not for b; name all",
        {"a": 16, "b": 24},
        locality_domain={"a": 0},
    )

print(os.environ["GREEN_CTX_SIM"])
