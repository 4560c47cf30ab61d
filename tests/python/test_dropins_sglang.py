"""`green_ctx_torch.sglang`, as `sgl_kernel.spatial` has it."""

import pytest
from dropins import torch  # noqa: F401
from green_ctx_torch import GreenContext, sglang


def all_free():
    return GreenContext.create(132).sm_count == 132


@pytest.mark.parametrize(("a", "b", "left"), [(16, 24, 92), (10, 20, 92), (64, 64, 0), (8, 124, 0)])
def test_two_streams(a, b, left, torch):
    first, second = sglang.create_greenctx_stream_by_value(a, b, 0)
    assert isinstance(first, torch.cuda.ExternalStream)
    assert first.cuda_stream != second.cuda_stream
    if left:
        assert GreenContext.create(left).sm_count == left
    with pytest.raises(RuntimeError, match="held by|device has 132"):
        GreenContext.create(left + 1)
    del first, second
    assert all_free()


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (0, 16, "SM counts must be positive, got 0 and 16"),
        (16, -8, "SM counts must be positive"),
        (60, 73, "Not enough SMs"),
        (100, 40, "Not enough SMs available for the requested configuration: 100 and 40"),
        ("16", 16, "SM_a must be an int, such as 16, and is a str"),
        (16, 1.5, "SM_b must be an int"),
    ],
)
def test_what_cannot_be(a, b, words, torch):
    with pytest.raises(RuntimeError, match=words):
        sglang.create_greenctx_stream_by_value(a, b, 0)
    assert all_free()


def test_the_device(torch):
    torch.cuda.current_device = lambda: 5
    with pytest.raises(RuntimeError, match="no device 5"):
        sglang.create_greenctx_stream_by_value(16, 16)
    with pytest.raises(RuntimeError, match="no device 5"):
        sglang.get_sm_available()
    assert sglang.get_sm_available(0) == 132
