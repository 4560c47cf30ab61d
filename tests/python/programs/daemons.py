"""The process must end cleanly while daemon threads are inside calls.

`python daemons.py SECONDS [CALL...]`: the time before the end, and the calls that the threads make.
"""

import sys
import threading
import time
import types

import green_ctx_torch

# Threads release the GIL within Python code too, not only when they wait.
sys.setswitchinterval(1e-5)
parts = green_ctx_torch.partition({"a": 16, "b": 32})
plans = green_ctx_torch.PlanSet({"x": {"d": 16}, "y": {"d": 24}}, sm_count=32)


def switch():
    plans.switch("x")
    plans.switch("y")


def make():
    context = green_ctx_torch.GreenContext.create(8)
    assert context.raw_stream
    context.close()


class Last:
    """Deleted when the interpreter ends. Takes long enough that the threads notice the end."""

    def __del__(self):
        for _ in range(3_000_000):
            pass


# Objects that a thread's frames refer to are not deleted, so this one is not in this module.
sys.modules["last"] = types.ModuleType("last")
sys.modules["last"].last = Last()


class Slow:
    """Runs Python code during a call."""

    def items(self):
        for _ in range(100_000):
            pass
        return [("c", 8)]


def divide():
    green_ctx_torch.partition(Slow()).close()


def again(call):
    while True:
        call()


calls = {
    "switch": switch,
    "make": make,
    "divide": divide,
    "share": lambda: parts["a"].shared_with,
    "verify": lambda: green_ctx_torch.verify(parts["b"]),
}
chosen = sys.argv[2:] or list(calls)
for name in 3 * chosen:
    threading.Thread(target=again, args=(calls[name],), daemon=True).start()
time.sleep(float(sys.argv[1]))
