"""Buffers of `cuda.core`: of pools and of pinned memory, filled and copied in partitions."""

import ctypes

from checks import run
from cuda.core import (
    ContextOptions,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LegacyPinnedMemoryResource,
    SMResourceOptions,
)

SIZE = 4096

device = Device()
device.set_current()


class Partition:
    """A green context of 16 SMs and a stream of it; closed at the end of a `with`."""

    def __enter__(self):
        [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
        self.context = device.create_context(ContextOptions(resources=[group]))
        self.stream = self.context.create_stream()
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.context.close()


def view(buffer):
    """The bytes of a buffer that the host reaches."""
    return (ctypes.c_ubyte * buffer.size).from_address(int(buffer.handle))


def test_a_buffer_is_filled_and_copied():
    with Partition() as part:
        pinned = LegacyPinnedMemoryResource().allocate(SIZE, stream=part.stream)
        assert pinned.is_host_accessible
        view(pinned)[:] = bytes(SIZE)
        buffer = device.allocate(SIZE, stream=part.stream)
        assert buffer.size == SIZE and buffer.is_device_accessible
        buffer.fill(b"\7", stream=part.stream)
        buffer.copy_to(pinned, stream=part.stream)
        part.stream.sync()
        assert bytes(view(pinned)) == b"\7" * SIZE
        other = device.allocate(SIZE, stream=part.stream)
        other.copy_from(buffer, stream=part.stream)
        view(pinned)[:] = bytes(SIZE)
        other.copy_to(pinned, stream=part.stream)
        part.stream.sync()
        assert bytes(view(pinned)) == b"\7" * SIZE
        for buffer in (other, buffer, pinned):
            buffer.close(part.stream)
        part.stream.sync()


def test_partitions_pass_a_buffer_on():
    with Partition() as first, Partition() as second:
        buffer = device.allocate(SIZE, stream=first.stream)
        pinned = LegacyPinnedMemoryResource().allocate(SIZE, stream=first.stream)
        buffer.fill(b"\1\2\3\4", stream=first.stream)
        second.stream.wait(first.stream)
        buffer.copy_to(pinned, stream=second.stream)
        second.stream.sync()
        assert bytes(view(pinned)) == b"\1\2\3\4" * (SIZE // 4)
        buffer.close(second.stream)
        pinned.close(second.stream)
        second.stream.sync()


def test_a_pool_of_its_own():
    with Partition() as part:
        pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=1 << 20))
        buffer = pool.allocate(SIZE, stream=part.stream)
        assert buffer.memory_resource is pool
        assert pool.attributes.used_mem_current >= SIZE
        buffer.close(part.stream)
        part.stream.sync()
        assert pool.attributes.used_mem_current == 0
        pool.close()


if __name__ == "__main__":
    run(dict(globals()))
