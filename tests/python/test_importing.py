"""A signal handler can run between any two lines of the module's import, and use the module."""

from pathlib import Path

TESTS = str(Path(__file__).parent)

#: The work of a handler. It finds either no `partition` yet, or one that works.
USE = """
import asyncio, contextlib, os, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/fake_torch"]
import libtorch
libtorch.load()
import torch

async def enter(part):
    with part:
        pass

def use(module):
    with contextlib.closing(module.partition({{"a": 8}})) as parts:
        assert parts["a"].stream
        with parts["a"]:
            pass
        asyncio.run(enter(parts["a"]))

def is_of_module(frame):
    return frame.f_code.co_name == "<module>" and "/green_ctx_torch/" in frame.f_code.co_filename
"""


def test_a_handler_during_the_import_sees_all_or_nothing(python):
    program = USE + """
def handle(frame):
    try:
        from green_ctx_torch import partition
    except ImportError:
        return "ImportError"
    # The driver does not survive a fork, so that the child uses it first.
    child = os.fork()
    if child == 0:
        try:
            use(sys.modules["green_ctx_torch"])
        except BaseException as error:
            print(f"{{frame.f_code.co_filename}}:{{frame.f_lineno}}: {{error!r}}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

seen = []
def trace(frame, event, argument):
    if is_of_module(frame):
        if event == "line":
            seen.append(handle(frame))
        return trace

sys.settrace(trace)
import green_ctx_torch
sys.settrace(None)
assert len(seen) > 300, len(seen)
assert set(seen) == {{"ImportError", 0}}, set(seen)
"""
    python(program.format(tests=TESTS))


def test_a_handler_during_the_first_use_finds_the_module_complete(python):
    program = USE + """
import green_ctx_torch

known = {{name for name in sys.modules if name.startswith("green_ctx_torch")}}
def trace(frame, event, argument):
    if is_of_module(frame):
        use(green_ctx_torch)
        return trace

sys.settrace(trace)
use(green_ctx_torch)
sys.settrace(None)
now = {{name for name in sys.modules if name.startswith("green_ctx_torch")}}
assert now == known, now - known
"""
    python(program.format(tests=TESTS))


def test_a_handler_during_the_first_block_can_enter_one(python):
    """The first block runs Python code of the module, between whose lines a handler may run."""
    program = USE + """
import signal
import green_ctx_torch
from green_ctx_torch import _seams

signal.alarm(30)
with contextlib.closing(green_ctx_torch.partition({{"a": 8, "b": 8}})) as parts:
    original, handled = _seams.exporting, []

    def exporting():
        _seams.exporting = original
        with parts["a"]:
            handled.append(True)
        return original()

    _seams.exporting = exporting
    with parts["b"]:
        pass
    assert handled
"""
    python(program.format(tests=TESTS))


def test_the_module_works_while_torch_is_being_imported(python):
    program = """
import sys, types
from importlib.machinery import ModuleSpec

torch = sys.modules["torch"] = types.ModuleType("torch")
torch.__spec__ = ModuleSpec("torch", None)
torch.__spec__._initializing = True
import green_ctx_torch
from green_ctx_torch import sglang

def use():
    green_ctx_torch.dry_run({"a": 8})
    with green_ctx_torch.partition({"a": 8}) as parts:
        assert parts["a"].device == 0
        assert parts["a"].raw_stream
    assert sglang.get_sm_available() == 132

use()
torch.cuda = types.ModuleType("torch.cuda")
use()
"""
    python(program, GREEN_CTX_SIM_DEVICES="2")
