"""A partition of the first device, through `cuda.core`."""

import os
from contextlib import contextmanager

from cuda.core import ContextOptions, Device, SMResourceOptions

#: The number of SMs that these programs see of the 132.
SM_COUNT = 132 - int(os.environ.get("RESERVED_SMS", "0"))


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
