"""In a forked child, every use of a partition raises the module's fork error."""

from pathlib import Path

PARENT = """
import os
import sys
from pathlib import Path

sys.path[:0] = [{tests!r}, {tests!r} + "/fake_torch"]
import libtorch
libtorch.load()
import torch
import green_ctx_torch as module
from green_ctx_torch.allocator import Allocator

parts = module.partition({{"a": 8, "b": 8}})
a, b = parts["a"], parts["b"]
plans = module.PlanSet({{"day": {{"c": 8}}, "night": {{"d": 8}}}}, sm_count=8)
context = module.GreenContext.create(8)
unused = module.GreenContext.create(8)
allocator = Allocator()
a.stream, context.Stream()
for block in (a, context):
    with block:
        pass
"""

CHILD = """
def enter(block):
    with block:
        pass

calls = {{
    "with a": lambda: enter(a),
    "with b": lambda: enter(b),
    "with context": lambda: enter(context),
    "with unused": lambda: enter(unused),
    "a.stream": lambda: a.stream,
    "b.stream": lambda: b.stream,
    "a.raw_stream": lambda: a.raw_stream,
    "a.raw_context": lambda: a.raw_context,
    "a.id": lambda: a.id,
    "a.shared_with": lambda: a.shared_with,
    "a.create_stream": lambda: a.create_stream(),
    "a.__cuda_stream__": lambda: a.__cuda_stream__(),
    "plans.active": lambda: plans.active,
    "plans['day']": lambda: plans["day"],
    "plans.plans": lambda: plans.plans,
    "plans.switch": lambda: plans.switch("night"),
    "plans.prepare": lambda: plans.prepare("noon", {{"e": 8}}),
    "plans.retire": lambda: plans.retire("night"),
    "context.Stream": lambda: context.Stream(),
    "context.raw_stream": lambda: context.raw_stream,
    "context.set_context": lambda: context.set_context(),
    "context.sm_partition": lambda: context.sm_partition,
    "allocator.mem_pool": lambda: allocator.mem_pool(),
    "allocator.limit": lambda: allocator.limit,
    "Allocator": Allocator,
    "partition": lambda: module.partition({{"f": 8}}),
    "partition with replace": lambda: module.partition({{"f": 8}}, replace=True),
    "PlanSet": lambda: module.PlanSet({{"day": {{"f": 8}}}}, sm_count=8),
    "GreenContext": lambda: module.GreenContext.create(8),
    "dry_run": lambda: module.dry_run({{"f": 8}}),
    "verify": lambda: module.verify(parts),
    "fit": lambda: module.fit(1, a, grid=1, block=1),
    "audit": lambda: module.audit(1),
    # These close what they are given.
    "with plans": lambda: enter(plans),
    "with parts": lambda: enter(parts),
}}
if os.fork() == 0:
    silent = []
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            if "forked" not in str(error):
                silent.append(f"{{name}}: {{error}}")
        except BaseException as error:
            silent.append(f"{{name}}: {{error!r}}")
        else:
            silent.append(f"{{name}}: no error")
        if libtorch.current() != 0:
            silent.append(f"{{name}}: torch's current stream has changed")
            libtorch.make_current(0)
    # What ends still ends.
    parts.close(), plans.close(), context.close(), repr(a), repr(plans)
    print("\\n".join(silent), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
with b:
    assert libtorch.current() == b.raw_stream
"""


def test_a_forked_child_gets_an_error_from_each_use(python):
    program = (PARENT + CHILD).format(tests=str(Path(__file__).parent))
    assert python(program).strip().splitlines() == []


def test_a_child_forked_inside_a_block_gets_an_error_from_another(python):
    program = PARENT.format(tests=str(Path(__file__).parent)) + """
with a:
    before = libtorch.current()
    if os.fork() == 0:
        for block in (a, b, context):
            try:
                with block:
                    os._exit(1)
            except RuntimeError as error:
                assert "forked" in str(error), error
            assert libtorch.current() == before
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert libtorch.current() == 0
"""
    python(program)


def test_a_child_forked_while_a_thread_loads_the_driver_does_not_crash(python):
    """The system's loader and the driver hold locks. In the child, the thread that holds them no longer exists."""
    program = """
import os, signal, threading, time
import green_ctx_torch as module

def first():
    with module.partition({"a": 16}):
        pass

parent = threading.Thread(target=first)
parent.start()
time.sleep(DELAY)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        module.partition({"b": 8})
    except module.DriverError as error:
        assert "forked" in str(error), error
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
parent.join()
"""
    for delay in range(0, 600, 60):
        python(program.replace("DELAY", f"{delay}e-6"))


def test_a_child_gets_no_wrong_answer_about_locality_domains(python):
    program = """
import os
import green_ctx_torch as module
from green_ctx_torch import green_contexts

context = module.GreenContext.create(8)
assert context.locality_domain_id is None
child = os.fork()
if child == 0:
    for ask in (
        green_contexts.get_num_locality_domains,
        green_contexts.is_localization_supported,
        lambda: context.locality_domain_id,
        context.set_context,
    ):
        try:
            ask()
        except module.DriverError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    python(program, GREEN_CTX_SIM="h200@13.5")
