"""A partition's stream without torch."""


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
