"""What drivers have from 13.1 on, through `cuda.core`: structured splits and workqueues."""

from checks import fails, ok, refuses, run, version
from cuda.bindings import driver
from cuda.core import ContextOptions, Device, SMResourceOptions, WorkqueueResourceOptions
from cuda.core.typing import WorkqueueSharingScopeType as Scope

device = Device()
device.set_current()

SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
CONFIG = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG


def split(count, **options):
    """The sizes of the groups of a split of the device, and of the rest."""
    groups, rest = device.resources.sm.split(SMResourceOptions(count=count, **options))
    return [group.sm_count for group in groups], rest.sm_count


def test_groups_of_different_sizes():
    assert split((16, 24)) == ([16, 24], 92)
    assert split((8, 16, 32)) == ([8, 16, 32], 76)


def test_counts_are_not_rounded():
    for count in (17, 12):
        with refuses("INVALID_RESOURCE_CONFIGURATION"):
            split(count)
    with refuses("INVALID_RESOURCE_CONFIGURATION"):
        split((128, 8))


def test_coscheduled_counts():
    # A multiple of the co-scheduled count; the default is 8.
    assert split(12, coscheduled_sm_count=2) == ([12], 120)
    assert split((12, 6), coscheduled_sm_count=(4, 2)) == ([12, 6], 114)
    with refuses("INVALID_RESOURCE_CONFIGURATION"):
        split(12, coscheduled_sm_count=8)
    [group], _ = device.resources.sm.split(SMResourceOptions(count=32, coscheduled_sm_count=16))
    assert group.coscheduled_alignment == 16
    assert split((16, 32), preferred_coscheduled_sm_count=16) == ([16, 32], 84)


def test_backfill_takes_what_lies_apart():
    # More than the device has in whole clusters of 8.
    with refuses("INVALID_RESOURCE_CONFIGURATION"):
        split(132)
    assert split(132, backfill=True) == ([132], 0)
    assert split((66, 66), backfill=True) == ([66, 66], 0)
    assert split((12, 120), backfill=(True, True)) == ([12, 120], 0)


def test_discovery():
    [found], rest = split(None)
    assert found + rest == 132
    # From 13.4 on every SM is found, before only what is co-scheduled by 8.
    assert found == 132 if version() >= 13040 else found % 8 == 0
    # A dry run returns the same and makes nothing.
    groups, _ = device.resources.sm.split(SMResourceOptions(count=None), dry_run=True)
    assert [group.sm_count for group in groups] == [found]


def test_the_rest_can_be_split_again():
    _, rest = device.resources.sm.split(SMResourceOptions(count=(16, 24)))
    groups, last = rest.split(SMResourceOptions(count=(8, 32)))
    assert [group.sm_count for group in groups] == [8, 32] and last.sm_count == 52
    contexts = [device.create_context(ContextOptions(resources=[group])) for group in groups]
    assert [context.resources.sm.sm_count for context in contexts] == [8, 32]
    for context in contexts:
        context.close()


def test_contexts_of_uneven_groups():
    groups, rest = device.resources.sm.split(SMResourceOptions(count=(16, 40)))
    contexts = [
        device.create_context(ContextOptions(resources=[part])) for part in (*groups, rest)
    ]
    streams = [context.create_stream() for context in contexts]
    event = streams[0].record()
    for stream, context, count in zip(streams, contexts, (16, 40, 76)):
        assert stream.context == context
        assert context.resources.sm.sm_count == count
        # A stream answers for the SMs of its context, and for nothing else.
        assert ok(driver.cuStreamGetDevResource(stream.handle, SM)).sm.smCount == count
        fails("INVALID_RESOURCE_TYPE", driver.cuStreamGetDevResource(stream.handle, CONFIG))
        stream.wait(event)
        stream.sync()
    for handle in (event, *streams, *contexts):
        handle.close()


def test_a_workqueue_of_its_own():
    queues = device.resources.workqueue
    assert (queues.sharing_scope, queues.concurrency_limit) == (Scope.DEVICE_CTX, 8)
    assert queues.device == device
    queues.configure(WorkqueueResourceOptions(Scope.GREEN_CTX_BALANCED, 3))
    [group], rest = device.resources.sm.split(SMResourceOptions(count=16))
    own = device.create_context(ContextOptions(resources=[group, queues]))
    given = own.resources.workqueue
    assert (given.sharing_scope, given.concurrency_limit) == (Scope.GREEN_CTX_BALANCED, 3)
    assert own.resources.sm.sm_count == 16
    # Another context may share them.
    other = device.create_context(ContextOptions(resources=[rest, given]))
    assert other.resources.workqueue.concurrency_limit == 3
    # The device's are what they were.
    assert device.resources.workqueue.concurrency_limit == 8
    own.close()
    other.close()


def test_more_workloads_than_queues_are_accepted():
    queues = device.resources.workqueue
    queues.configure(WorkqueueResourceOptions(concurrency_limit=1000))
    [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
    context = device.create_context(ContextOptions(resources=[group, queues]))
    assert context.resources.workqueue.concurrency_limit == 1000
    context.close()


if __name__ == "__main__":
    run(dict(globals()))
