"""`green_ctx_torch.sglang`, like `sgl_kernel.spatial`."""

from contextlib import closing
from pathlib import Path

import pytest
from dropins import torch  # noqa: F401
from green_ctx_torch import GreenContext, partition, sglang, verify


def all_free():
    return GreenContext.create(132).sm_count == 132


def sms(*streams):
    """Returns the number of SMs of each stream's context, and the number of SMs that they have together."""
    parts = verify([stream._green_ctx_context for stream in streams]).partitions
    ran_on = [part.alone_sms for part in parts]
    return [len(each) for each in ran_on], len(frozenset().union(*ran_on))


@pytest.mark.parametrize(
    ("a", "b", "given", "left"),
    [
        (16, 24, [16, 24], 92),
        (10, 20, [16, 24], 92),
        (64, 64, [64, 68], 0),
        (8, 124, [8, 124], 0),
        # SGLang's own test, and the result of its original.
        (66, 66, [72, 60], 0),
    ],
)
def test_two_streams(a, b, given, left, torch):
    first, second = sglang.create_greenctx_stream_by_value(a, b, 0)
    assert isinstance(first, torch.cuda.ExternalStream)
    assert sms(first, second) == (given, sum(given))
    if left:
        assert GreenContext.create(left).sm_count == left
    with pytest.raises(RuntimeError, match="because sglang|device has 132"):
        GreenContext.create(left + 1)
    del first, second
    assert all_free()


def test_the_pairs_of_its_multiplexing(torch):
    """Six pairs of streams at the same time, with SGLang's default counts. The streams of a pair share no SMs."""
    counts = [(112, 20), (104, 28), (96, 36), (88, 44), (80, 52), (72, 60)]
    pairs = [sglang.create_greenctx_stream_by_value(*pair, 0) for pair in counts]
    assert [sms(*pair) for pair in pairs] == [(list(pair), 132) for pair in counts]
    del pairs
    assert all_free()


def test_no_stream_enters_what_a_partition_has(torch):
    with closing(partition({"mine": 32})) as parts:
        own = verify(parts).partitions[0].alone_sms
        pairs = [sglang.create_greenctx_stream_by_value(*pair, 0) for pair in [(40, 60), (80, 20)]]
        for pair in pairs:
            for part in verify([stream._green_ctx_context for stream in pair]).partitions:
                assert not part.alone_sms & own
        with pytest.raises(RuntimeError, match="fit.*held by mine"):
            sglang.create_greenctx_stream_by_value(66, 66, 0)


@pytest.mark.parametrize("driver", ["b200@13.0", "rtx5080@13.0", "thor@13.0"])
def test_devices_that_sglang_refuses(driver, python):
    python(REFUSED_ELSEWHERE, str(Path(__file__).parent), GREEN_CTX_SIM=driver)


REFUSED_ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])
import dropins

torch = sys.modules["torch"] = dropins.Torch()
from green_ctx_torch import flashinfer, sglang, verify

half = sglang.get_sm_available(0) // 2
pairs = [sglang.create_greenctx_stream_by_value(half, half, 0) for _ in range(3)]
for first, second in pairs:
    report = verify([first._green_ctx_context, second._green_ctx_context])
    assert report.disjoint and all(part.complete for part in report.partitions)
major, minor = flashinfer.get_compute_capability(0)
assert major >= 10
least, multiple = flashinfer.get_sm_count_constraint(major, minor)
streams, resources = flashinfer.split_device_green_ctx(torch.device("cuda", 0), 2, 8)
assert [resource.sm.smCount >= 8 for resource in resources[:2]] == [True, True]
"""


def test_the_device(torch):
    torch.cuda.current_device = lambda: 5
    with pytest.raises(RuntimeError, match="no device 5"):
        sglang.create_greenctx_stream_by_value(16, 16)
    with pytest.raises(RuntimeError, match="no device 5"):
        sglang.get_sm_available()
    assert sglang.get_sm_available(0) == 132
