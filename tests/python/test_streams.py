"""torch's streams, with a substitute for torch."""

import driver
from contextlib import closing
from green_ctx_torch import partition


def test_a_stream_is_made_once_and_when_asked_for(fake_torch):
    made = fake_torch.cuda.ExternalStream.made
    with closing(partition({"a": 8, "b": "rest"})) as parts:
        a = parts["a"]
        assert fake_torch.cuda.ExternalStream.made == made
        stream = a.stream
        assert stream is a.stream and fake_torch.cuda.ExternalStream.made == made + 1
        assert (stream.cuda_stream, stream.device_index) == (a.raw_stream, 0)
        other = a.create_stream()
        assert type(other) is fake_torch.cuda.ExternalStream and other is not stream
        assert other.cuda_stream not in (0, a.raw_stream)


def test_a_partition_is_not_entered_without_torch(python):
    program = """
import green_ctx_torch
parts = green_ctx_torch.partition({"a": 8})
try:
    with parts["a"]:
        raise AssertionError
except ImportError as error:
    print(error)
"""
    assert "torch is needed" in python(program)


def test_a_stream_outlives_its_partition(fake_torch):
    # autograd and the allocator use a stream after the partition is closed, without keeping it alive.
    parts = partition({"a": 132})
    raw = [parts["a"].stream.cuda_stream, parts["a"].create_stream(-2).cuda_stream]
    parts.close()
    with closing(partition({"b": 132})):
        for stream in raw:
            driver.synchronize(stream)
            assert driver.priority(stream) in (0, -2)
