"""Ends while daemon threads are inside of calls: the process must end well all the same."""

import sys
import threading
import time

import green_ctx_torch

parts = green_ctx_torch.partition({"a": 16, "b": 32})
plans = green_ctx_torch.PlanSet({"x": {"d": 16}, "y": {"d": 32}}, sm_count=48)


def switch():
    plans.switch("x")
    plans.switch("y")


def make():
    context = green_ctx_torch.GreenContext.create(8)
    assert context.raw_stream
    context.close()


def again(call):
    while True:
        call()


calls = [
    switch,
    make,
    lambda: parts["a"].shared_with,
    lambda: green_ctx_torch.verify(parts["b"]),
]
for call in 3 * calls:
    threading.Thread(target=again, args=(call,), daemon=True).start()
time.sleep(float(sys.argv[1]))
