"""A partition of the first device, through `cuda.core`."""

from contextlib import contextmanager

from cuda.core import ContextOptions, Device, SMResourceOptions


@contextmanager
def partition(sm_count):
    """A stream whose work runs on this many SMs; the partition ends with the block."""
    device = Device()
    device.set_current()
    [group], _ = device.resources.sm.split(SMResourceOptions(count=sm_count))
    context = device.create_context(ContextOptions(resources=[group]))
    stream = context.create_stream()
    yield stream
    stream.close()
    context.close()
