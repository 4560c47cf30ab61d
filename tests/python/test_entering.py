"""`with partition:`, with a stand-in for libtorch."""

import threading
from contextlib import closing

import driver
import libtorch
import pytest
from green_ctx_torch import partition

@pytest.fixture
def current():
    """torch's current stream of the thread."""

    def current():
        return libtorch.current() or None

    assert current() is None
    yield current
    assert current() is None


def test_the_block_has_the_partitions_stream(current):
    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        with a as entered:
            assert entered is a and current() == a.raw_stream
            with b:
                assert current() == b.raw_stream
                with a:
                    assert current() == a.raw_stream
                assert current() == b.raw_stream
            assert current() == a.raw_stream


def test_work_is_ordered_both_ways(current):
    # The simulator finds an access that nothing puts in order, which fails the whole run.
    with closing(partition({"a": 8})) as parts, driver.primary_context():
        a = parts["a"]
        memory = driver.Memory(64, None)
        memory.fill(1, None)
        with a:
            memory.fill(2, a.raw_stream)
        assert memory.read(None) == bytes([2]) * 64
        memory.free(None)


def test_an_error_in_the_block_leaves_it(current):
    with closing(partition({"a": 8})) as parts:
        with pytest.raises(ZeroDivisionError):
            with parts["a"]:
                1 / 0
        assert current() is None


def test_a_partition_closed_inside_is_left_all_the_same(current):
    with closing(partition({"a": 132})) as parts:
        with parts["a"]:
            parts.close()
            assert current() is not None
        assert current() is None
        with pytest.raises(RuntimeError, match="partition a is closed"):
            with parts["a"]:
                pass


def test_what_is_left_out_of_order_is_left_with_the_inner_one(current):
    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        with pytest.raises(RuntimeError, match="has not entered the partition"):
            a.__exit__(None, None, None)
        a.__enter__()
        with b:
            a.__exit__(None, None, None)
            assert current() == b.raw_stream
        assert current() is None


def test_each_thread_has_its_own(current):
    with closing(partition({"a": 8, "b": 8})) as parts:
        seen = []

        def other():
            with parts["b"]:
                seen.append(current())

        with parts["a"]:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            assert current() == parts["a"].raw_stream
        assert seen == [parts["b"].raw_stream]
