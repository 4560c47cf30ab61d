"""Wrong calls, written as text, and the names that they use."""

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
    """A call, the exception that it raises, and a part of the exception's message."""

    call: str
    error: type
    right: str


def table():
    """Returns the calls of the table."""
    found, error, right = [], None, None
    for line in TABLE.read_text().splitlines():
        if line.startswith("    "):
            found.append(Wrong(line.strip(), error, right))
        elif line and not line.startswith("#"):
            name, right = line.split(": ", 1)
            error = getattr(sys.modules["builtins"], name)
    return found


def raises(error):
    """Returns a method that raises."""

    def method(*_arguments):
        raise error

    return method


def odd(**methods):
    """Returns an object whose methods return the given value, or raise it. `index=16` defines `__index__`."""

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
    """Imitates a function of cuda.bindings with any number."""
    return type("CUfunction", (), {"__int__": lambda self: number})()


def ended(value):
    """Closes a value and returns it."""
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
    """The objects that calls use. Each is created on first use and closed at the end of the block."""

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
    """Returns the exception that a call raises. Its traceback is removed, because it would keep the objects alive."""
    with Names() as names:
        try:
            returned = eval(call, {**PLAIN, **more}, names)
        except BaseException as error:
            return error.with_traceback(None)
    raise AssertionError(f"{call} returned {returned!r}")


def built_in(error):
    """Returns the built-in class of an exception, from which the module's own class derives."""
    return next(known for known in type(error).__mro__ if known.__module__ == "builtins")


def message(error):
    """Returns the text that a traceback shows of an exception, including notes."""
    text = error.args[0] if isinstance(error, KeyError) else str(error)
    return "\n".join([text, *getattr(error, "__notes__", [])])


def measure(rounds, traced):
    """Makes all wrong calls in each of `rounds` rounds, and returns the bytes in use after each round: those of
    Python's objects if they are traced, otherwise those of the process."""
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
