"""Wrong calls raise an exception of the right type that says what to do, and leave nothing behind."""

import json
import os
import subprocess
import sys
from contextlib import closing

import driver
import green_ctx_torch
import pytest
from bad_inputs import attempt, built_in, message, odd, raising, table
from dropins import FOLDER, live, torch  # noqa: F401
from green_ctx_torch import GreenContext, partition

MIB = 1 << 20
CALLS = table()


@pytest.fixture(autouse=True)
def nothing_open():
    """Checks that no partition and no GreenContext is left open."""
    yield
    with pytest.raises(ValueError, match="no partitions of device 0 are open"):
        green_ctx_torch.verify()


def test_the_table_is_long():
    assert len(CALLS) > 500 and len({wrong.call for wrong in CALLS}) == len(CALLS)


@pytest.mark.parametrize("wrong", CALLS, ids=lambda wrong: ascii(wrong.call)[1:-1])
def test_a_wrong_call_says_what_is_right(wrong, torch, capfd):
    with driver.primary_context():
        error = attempt(wrong.call)
    assert built_in(error) is wrong.error, repr(error)
    text = message(error)
    assert wrong.right in text and "panicked" not in text
    # One function reads all whole numbers. It does not know the name of the argument, so a note gives it.
    if "expected a whole number such as 16" in text and not wrong.call.startswith("setattr"):
        assert "while processing '" in text
    # No exception was ignored on the way.
    assert capfd.readouterr().err == ""


STOP = KeyboardInterrupt("stop")


@pytest.mark.parametrize("error", [STOP, ZeroDivisionError("of the caller")], ids=["interrupt", "error"])
@pytest.mark.parametrize(
    "call",
    [
        "partition(odd(items=error))",
        "partition(raising(error))",
        "partition([raising(error)])",
        "dry_run(raising(error))",
        "PlanSet(odd(items=error))",
        'PlanSet({"day": raising(error)})',
        'plans.prepare("noon", raising(error))',
        "flashinfer.split_resource_by_sm_count(0, resource, raising(error))",
        "flashinfer.create_green_ctx_streams(0, raising(error))",
        "flashinfer.split_device_green_ctx_by_sm_count(0, raising(error))",
        "retarget(odd(raw_cuda_graph=error), part)",
        "audit(odd(raw_cuda_graph=error))",
        "GraphCache().get(odd(raw_cuda_graph=error), part)",
        "verify(odd(values=error))",
        "verify(raising(error))",
        "tune(raising(error))",
        'tune({"a": odd(raw_cuda_graph=error), "b": graph})',
        'tune({"a": Job(graph, arrival=raising(error)), "b": graph})',
        'tune({"a": graph, "b": graph}, floors=odd(items=error))',
        'tune({"a": graph, "b": graph}, leave_out=raising(error))',
    ],
)
def test_what_the_callers_own_code_raises_passes(call, error, torch):
    assert attempt(call, error=error) is error


@pytest.mark.parametrize(
    "call",
    [
        "partition(odd(iter=stop))",
        "partition(odd(repr=stop))",
        "partition([odd(iter=stop)])",
        "partition({odd(repr=stop, hash=1): 8})",
        'partition({"a": odd(index=stop)})',
        'partition({"a": 8}, odd(index=stop))',
        'partition({"a": 8}, odd(repr=stop))',
        'partition({"a": 8}, like(odd(str=stop), 0))',
        'partition({"a": 8}, like("cuda", odd(index=stop)))',
        'partition({"a": 8}, priority=odd(index=stop))',
        'partition({"a": 8}, priority=odd(repr=stop))',
        'partition({"a": 8}, priority=odd(items=stop))',
        'partition({"a": 8}, coscheduled=odd(index=stop))',
        'partition({"a": 8}, backfill=odd(repr=stop))',
        'partition({"a": 8}, locality_domain=odd(index=stop))',
        'partition({"a": 8}, supplemental=odd(repr=stop))',
        'partition({"a": 8}, workqueue=("balanced", odd(index=stop)))',
        'partition({"a": 8}, workqueue=odd(repr=stop))',
        'dry_run({"a": odd(index=stop)})',
        "Share(odd(index=stop))",
        "Share(0, odd(index=stop))",
        "part.create_stream(odd(index=stop))",
        'PlanSet({"day": {"a": 8}}, sm_count=odd(index=stop))',
        "PlanSet({odd(repr=stop, hash=1): 8})",
        "plans.switch(odd(repr=stop))",
        'plans.switch("day", drain_ms=odd(float=stop))',
        "plans.retire(odd(repr=stop))",
        "GreenContext.create(odd(index=stop))",
        "GreenContext.create(16, odd(index=stop))",
        "GreenContext.create(sm_partition=odd(repr=stop))",
        "GreenContext.create(16, workqueue_scope=odd(repr=stop))",
        "SMPartition.from_device(odd(index=stop))",
        "described.split(num_sms=odd(index=stop))",
        "described.split(num_sms=odd(repr=stop))",
        "described.split(num_sms=16, backfill=odd(repr=stop))",
        "flashinfer.split_resource(resource, odd(index=stop), 16)",
        "flashinfer.get_device_resource(odd(int=stop))",
        'flashinfer.get_cudevice(like("cuda", odd(index=stop)))',
        "sglang.create_greenctx_stream_by_value(odd(index=stop), 16)",
        "sglang.get_sm_available(odd(index=stop))",
        "retarget(odd(raw_cuda_graph=odd(repr=stop)), part)",
        "fit(cu_function(odd(repr=stop)), part, grid=1, block=1)",
        "fit(kernel, part, grid=odd(index=stop), block=1)",
        "fit(kernel, part, grid=1, block=1, shared_memory=odd(index=stop))",
        "fit(kernel, odd(repr=stop), grid=1, block=1)",
        "verify(odd(iter=stop))",
        "verify(odd(repr=stop))",
        "verify([odd(repr=stop)])",
        "Allocator(odd(index=stop))",
        'setattr(allocator, "limit", odd(index=stop))',
        "allocator.set_partition_limit(odd(repr=stop), 1)",
        'allocator.set_partition_limit("a", odd(index=stop))',
        "allocator.usage(odd(repr=stop))",
        "allocator.ipc_handle(odd(index=stop))",
        "runtime.error_name(odd(index=stop))",
        "runtime.memory_info(odd(index=stop))",
        "runtime.host_register(odd(index=stop), 64)",
        "runtime.stream_destroy(odd(index=stop))",
        "info(odd(index=stop))",
        'tune({"a": graph, "b": graph}, budget=odd(float=stop))',
        'tune({"a": graph, "b": graph}, step=odd(index=stop))',
        'tune({"a": graph, "b": graph}, weights={"a": odd(float=stop)})',
        'tune({"a": graph, "b": graph}, floors={"a": odd(index=stop)})',
    ],
)
def test_an_interrupt_passes(call, torch):
    assert attempt(call, stop=STOP) is STOP


@pytest.mark.parametrize(
    "call",
    [
        "part.stream",
        "part.create_stream()",
        "context.Stream()",
        "flashinfer.create_green_ctx_streams(0, [resource])",
        "sglang.create_greenctx_stream_by_value(16, 16)",
        "allocator.mem_pool()",
        "sm_count()",
        "watch().__enter__()",
        'tune({"a": lambda: None, "b": graph})',
    ],
)
def test_what_needs_torch_says_so(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    error = attempt(call)
    assert isinstance(error, ImportError) and "torch" in str(error)


def test_what_is_entered_is_left_in_order(torch):
    with closing(partition({"a": 8, "b": 8})) as parts, closing(GreenContext.create(16)) as context:
        a, b = parts.values()
        for never in (a, context):
            with pytest.raises(RuntimeError, match="enter it first|call set_context on the same thread first"):
                never.__exit__(None, None, None)
        with a:
            with pytest.raises(RuntimeError, match="enter it first"):
                b.__exit__(None, None, None)
            with pytest.raises(RuntimeError, match="pop_context"):
                context.pop_context()
            assert torch.current() == a.raw_stream
            context.set_context()
            inner = torch.current()
            with context, b:
                with pytest.raises(RuntimeError, match="call pop_context of that one first"):
                    context.pop_context()
                assert torch.current() == b.raw_stream
            assert torch.current() == inner
            context.pop_context()
            assert torch.current() == a.raw_stream
        with pytest.raises(RuntimeError, match="enter it first"):
            a.__exit__(None, None, None)


def measured(tmp_path, rounds, how):
    """Returns the memory in use after each round, and the simulated driver's report at exit."""
    report = tmp_path / "report"
    environment = os.environ | {
        "GREEN_CTX_SIM_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
        "MALLOC_ARENA_MAX": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, FOLDER / "programs" / "wrong_calls.py", str(rounds), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), report.read_text()


def test_wrong_calls_leave_nothing(tmp_path, torch):
    _, first = measured(tmp_path, 1, "resident")
    used, last = measured(tmp_path, 30, "resident")
    assert used[-1] - used[4] < 2 * MIB, used
    for kind in ["contexts", "green_contexts", "streams", "events", "graphs", "allocations"]:
        assert live(last, kind) <= live(first, kind), kind


def test_wrong_calls_leave_no_python_objects(tmp_path, torch):
    used, _ = measured(tmp_path, 30, "traced")
    # Python's caches grow during the rounds. The table of interned strings grows in steps of 1 MiB.
    assert used[-1] - used[4] < 2 * MIB, used
