"""A partition of the first device, through `cuda.core`."""

from contextlib import contextmanager

from cuda.core import ContextOptions, Device, SMResourceOptions


@contextmanager
def partition(sm_count):
    """Yields a stream of a partition of `sm_count` SMs, which is destroyed after the block."""
    device = Device()
    device.set_current()
    [group], _ = device.resources.sm.split(SMResourceOptions(count=sm_count))
    context = device.create_context(ContextOptions(resources=[group]))
    stream = context.create_stream()
    yield stream
    stream.close()
    context.close()
