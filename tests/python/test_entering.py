"""`with partition:`, with a substitute for libtorch."""

import os
import sys
import types
import warnings
from contextlib import closing

import driver
import libtorch
import pytest
from green_ctx_torch import partition

@pytest.fixture
def current():
    """Returns a function that returns torch's current stream of the thread."""

    def current():
        return libtorch.current() or None

    assert current() is None
    yield current
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


def test_in_a_forked_child_the_block_just_ends(current):
    with closing(partition({"a": 8})) as parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for leave in (lambda: None, lambda: sys.exit(3)):
                child = 0
                try:
                    with parts["a"]:
                        child = os.fork()
                        if child == 0:
                            leave()
                except SystemExit as ended:
                    os._exit(ended.code)
                except BaseException:
                    os._exit(1)
                if child == 0:
                    os._exit(4)
                _, status = os.waitpid(child, 0)
                assert os.waitstatus_to_exitcode(status) in (3, 4)


def test_entering_changes_no_context(current):
    with closing(partition({"a": 8})) as parts, driver.primary_context():
        before = driver.current_context()
        with parts["a"]:
            assert driver.current_context() == before
        assert driver.current_context() == before


def test_a_sanitizer_that_does_not_fit_is_a_warning(current, fake_torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.cuda._sanitizer", types.SimpleNamespace())
    with closing(partition({"a": 8})) as parts:
        with pytest.warns(RuntimeWarning, match="enabled is absent.*reports races"):
            with parts["a"]:
                pass
