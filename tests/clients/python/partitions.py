"""`cuda.core` cuts a device into partitions and orders work between them."""

from checks import PTX, ok, raises, run, version
from cuda.bindings import driver
from cuda.core import (
    ContextOptions,
    Device,
    EventOptions,
    LaunchConfig,
    ObjectCode,
    SMResourceOptions,
    StreamOptions,
    launch,
)

device = Device()
device.set_current()


def partitions(*counts):
    """A context for each count, which must all be equal, and one of the rest."""
    groups, rest = device.resources.sm.split(SMResourceOptions(count=counts))
    return [device.create_context(ContextOptions(resources=[part])) for part in (*groups, rest)]


def close(*handles):
    """Closes what was made, what depends on others first."""
    for handle in handles:
        handle.close()
        assert handle.is_closed


def test_devices_are_listed():
    assert Device.get_all_devices() == (device,)
    assert device.name == "NVIDIA H200"
    assert tuple(device.compute_capability) == (9, 0) and device.arch == "90"
    assert device.properties.multiprocessor_count == 132
    assert len(device.uuid) == 36
    assert ok(driver.cuDeviceGetCount()) == 1
    assert ok(driver.cuDeviceGetName(64, 0)).split(b"\0")[0] == b"NVIDIA H200"
    assert ok(driver.cuDeviceGetPCIBusId(13, 0)).split(b"\0")[0] == b"0000:19:00.0"
    assert ok(driver.cuDeviceTotalMem(0)) > 100 << 30


def test_a_device_and_its_primary_context_have_all_sms():
    sm = device.resources.sm
    assert (sm.sm_count, sm.min_partition_size, sm.coscheduled_alignment) == (132, 8, 8)
    assert not device.context.is_green
    assert device.context.resources.sm.sm_count == 132


def test_equal_groups_and_a_rest():
    groups, rest = device.resources.sm.split(SMResourceOptions(count=(16, 16)))
    assert [group.sm_count for group in groups] == [16, 16]
    assert rest.sm_count == 100


def test_what_older_drivers_cannot_split():
    if version() >= 13010:
        return
    sm = device.resources.sm
    # The driver rounds up and makes fewer groups than asked, both in silence.
    [rounded], _ = sm.split(SMResourceOptions(count=17))
    assert rounded.sm_count == 24
    fewer, _ = sm.split(SMResourceOptions(count=(64, 64, 64)))
    assert [group.sm_count for group in fewer] == [64, 64]
    with raises(RuntimeError, "CUDA 13.1 or newer"):
        sm.split(SMResourceOptions(count=(16, 24)))
    with raises(RuntimeError, "structured SM split"):
        sm.split(SMResourceOptions(count=16, coscheduled_sm_count=8))
    with raises(RuntimeError, "CUDA driver 13.1 or newer"):
        _ = device.resources.workqueue


def test_contexts_have_what_they_were_made_of():
    first, second, third = contexts = partitions(16, 16)
    assert [context.resources.sm.sm_count for context in contexts] == [16, 16, 100]
    assert all(context.is_green and not context.is_closed for context in contexts)
    # They are equal to themselves and to nothing else.
    primary = device.context
    assert first == first and first != second and first != primary
    assert len({first, second, third, primary}) == 4
    close(*contexts)
    with raises(RuntimeError, "closed"):
        first.create_stream()


def test_streams_know_their_partition():
    first, second, rest = partitions(16, 16)
    urgent = first.create_stream(StreamOptions(priority=-3))
    plain = second.create_stream()
    assert (urgent.priority, plain.priority) == (-3, 0)
    assert urgent.is_nonblocking and urgent.device == device
    assert urgent.context == first and urgent.context != plain.context == second
    assert urgent.resources.sm.sm_count == 16
    green = ok(driver.cuStreamGetGreenCtx(plain.handle))
    assert int(ok(driver.cuCtxFromGreenCtx(green))) == int(second.handle)
    with raises(RuntimeError, "only supported on green contexts"):
        device.context.create_stream()
    with raises(ValueError, "must be non-blocking"):
        first.create_stream(StreamOptions(nonblocking=False))
    close(urgent, plain, first, second, rest)


def test_work_is_ordered_across_partitions():
    first, second, rest = partitions(16, 16)
    urgent, plain = first.create_stream(), second.create_stream()
    work = ObjectCode.from_ptx(PTX).get_kernel("work")
    config = LaunchConfig(grid=64, block=128)
    timed = EventOptions(timing_enabled=True)

    start = urgent.record(options=timed)
    launch(urgent, config, work, 0, 7)
    done = urgent.record(options=timed)
    plain.wait(done)
    launch(plain, config, work, 0, 7)
    last = plain.record(options=timed)
    assert done.context == first and last.context == second
    last.sync()
    assert start.is_done and done.is_done and last.is_done
    assert 0 < done - start < last - start
    # Waiting for a stream records an event of its own there.
    urgent.wait(plain)
    urgent.sync()
    close(start, done, last, urgent, plain, first, second, rest)


def test_events_order_whole_contexts():
    first, second, rest = partitions(16, 16)
    one, two = first.create_stream(), second.create_stream()
    work = ObjectCode.from_ptx(PTX).get_kernel("work")
    launch(one, LaunchConfig(grid=64, block=128), work, 0, 7)
    event = device.create_event()
    ok(driver.cuCtxRecordEvent(first.handle, event.handle))
    ok(driver.cuCtxWaitEvent(second.handle, event.handle))
    two.sync()
    assert event.is_done
    close(event, one, two, first, second, rest)


def test_a_green_context_can_be_current():
    first, second, rest = partitions(16, 16)
    primary = device.context
    previous = device.set_current(first)
    assert previous == primary and device.context == first
    # A stream of the device is one of the current context then.
    inherited = device.create_stream()
    assert inherited.context == first
    assert device.set_current(previous) == first
    assert device.context == primary
    close(inherited, first, second, rest)


if __name__ == "__main__":
    run(dict(globals()))
