"""Wrong calls, each written as text, and the names that they use."""

import gc
import itertools
import math
import os
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import driver
import dropins
import green_ctx_torch
from green_ctx_torch import _native, allocator, flashinfer, green_contexts, runtime, sglang

TABLE = Path(__file__).with_suffix(".txt")


class Wrong(NamedTuple):
    """A call, the exception that it raises, and what that says."""

    call: str
    error: type
    right: str


def table():
    """The calls of the file."""
    found, error, right = [], None, None
    for line in TABLE.read_text().splitlines():
        if line.startswith("    "):
            found.append(Wrong(line.strip(), error, right))
        elif line and not line.startswith("#"):
            name, right = line.split(": ", 1)
            error = getattr(sys.modules["builtins"], name)
    return found


def raises(error):
    """A method that raises."""

    def method(*_arguments):
        raise error

    return method


def odd(**methods):
    """An object whose methods return what is given, or raise it: `index=16` is `__index__`."""

    def method(value):
        wrong = isinstance(value, BaseException) or isinstance(value, type)
        return raises(value) if wrong else lambda *_arguments: value

    plain = {"items", "values", "raw_cuda_graph", "type"}
    names = {name if name in plain else f"__{name}__": method(value) for name, value in methods.items()}
    return type("Odd", (), names)()


def raising(error):
    """A generator that raises."""
    raise error
    yield


def cu_function(number):
    """As cuda.bindings has it, with any number."""
    return type("CUfunction", (), {"__int__": lambda self: number})()


def ended(value):
    """What is closed."""
    value.close()
    return value


PLAIN = {
    **{name: getattr(green_ctx_torch, name) for name in green_ctx_torch.__all__ if name != "SUPPORTED"},
    **{"_native": _native, "runtime": runtime, "green_contexts": green_contexts},
    **{"flashinfer": flashinfer, "sglang": sglang, "Allocator": allocator.Allocator},
    **{"SMPartition": green_contexts.SMPartition, "nan": math.nan, "inf": math.inf},
    **{"count": itertools.count, "odd": odd, "raising": raising, "cu_function": cu_function},
    "like": lambda kind, index: SimpleNamespace(type=kind, index=index),
    "graph_like": lambda value: odd(raw_cuda_graph=value),
}

MADE = {
    "parts": lambda now: now.open(green_ctx_torch.partition({"decode": 16})),
    "part": lambda now: now["parts"]["decode"],
    "closed": lambda now: ended(green_ctx_torch.partition({"gone": 8})["gone"]),
    "plans": lambda now: now.open(
        green_ctx_torch.PlanSet({"day": {"a": 16}, "night": {"a": 32}}, sm_count=32)
    ),
    "ended_plans": lambda now: ended(green_ctx_torch.PlanSet({"day": {"a": 16}}, sm_count=16)),
    "other_plan": lambda now: now.open(green_ctx_torch.PlanSet({"day": {"a": 16}}, sm_count=16)).active,
    "retired": lambda now: now.retired(),
    "context": lambda now: now.open(green_ctx_torch.GreenContext.create(16)),
    "ended_context": lambda now: ended(green_ctx_torch.GreenContext.create(16)),
    "described": lambda now: green_contexts.SMPartition.from_device(),
    "resource": lambda now: flashinfer.get_device_resource(0),
    "empty_resource": lambda now: flashinfer.split_resource(now["resource"], 1, 132)[1],
    "graph": lambda now: now.graph(),
    "kernel": lambda now: driver.kernel(),
    "fitted": lambda now: green_ctx_torch.fit(
        driver.kernel(), now["part"], grid=1, block=32, handle_type="CUkernel"
    ),
    "allocator": lambda now: allocator.Allocator(),
}


class Names(dict):
    """What calls use, made when it is first asked for, and ended with the block."""

    def __init__(self):
        self._ends = []

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        for end in reversed(self._ends):
            end()
        self.clear()

    def __missing__(self, name):
        if name not in MADE:
            raise KeyError(name)
        self[name] = MADE[name](self)
        return self[name]

    def open(self, value):
        self._ends.append(value.close)
        return value

    def retired(self):
        plan = self["plans"].prepare("old", {"a": 8})
        self["plans"].retire("old")
        return plan

    def graph(self):
        stream = self["part"].raw_stream
        graph = driver.capture(stream, lambda: driver.keep_busy(stream))
        self._ends.append(lambda: driver.destroy_graph(graph))
        return graph


def attempt(call, **more):
    """The exception that a call raises, without its traceback, which would keep what was made."""
    with Names() as names:
        try:
            returned = eval(call, {**PLAIN, **more}, names)
        except BaseException as error:
            return error.with_traceback(None)
    raise AssertionError(f"{call} returned {returned!r}")


def built_in(error):
    """The built-in class of an exception: the module's own classes derive from one each."""
    return next(known for known in type(error).__mro__ if known.__module__ == "builtins")


def message(error):
    """What a traceback shows of an exception, with the notes."""
    text = error.args[0] if isinstance(error, KeyError) else str(error)
    return "\n".join([text, *getattr(error, "__notes__", [])])


def measure(rounds, traced):
    """Makes all wrong calls so many times, and returns the bytes in use after each round: Python's where
    they are traced, the process's otherwise."""
    sys.modules["torch"] = dropins.Torch()
    page, used, calls = os.sysconf("SC_PAGESIZE"), [], table()
    with driver.primary_context():
        for _ in range(rounds):
            for wrong in calls:
                assert built_in(attempt(wrong.call)) is wrong.error, wrong.call
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
            used.append(tracemalloc.get_traced_memory()[0] if traced else resident)
            green_ctx_torch.partition({"all": 132}).close()
    return used
