"""Plans: prepared, switched and retired."""

from contextlib import closing
from pathlib import Path

import driver
import pytest
from green_ctx_torch import PlanSet, partition

DAY = {"decode": 16, "prefill": "rest"}
NIGHT = {"prefill": "rest", "decode": 64}


def counts(plan):
    return {name: part.sm_count for name, part in plan.partitions.items()}


def test_the_first_plan_is_the_active_one():
    with closing(PlanSet({"day": DAY, "night": NIGHT})) as plans:
        assert plans.plans == ("day", "night") and plans.sm_count == 132 and plans.device == 0
        assert plans.active.name == "day" and counts(plans.active) == {"decode": 16, "prefill": 116}
        assert repr(plans) == "<PlanSet: 132 SMs, day is active>"
        active = plans.switch("night")
        assert active is plans.active and active.name == "night"
        assert counts(active) == {"decode": 64, "prefill": 68}
        assert list(active.partitions) == ["prefill", "decode"]
        # The objects, and so torch's streams, are the same every time.
        assert plans.switch("day") is plans.switch("day") is not active
        with pytest.raises(RuntimeError, match="held by PlanSet of decode, prefill .132 SMs."):
            partition({"a": 8})


def test_a_plan_is_prepared_and_retired():
    with closing(PlanSet({"day": DAY})) as plans:
        noon = plans.prepare("noon", {"decode": 100, "prefill": 32})
        part = noon.partitions["decode"]
        assert plans.plans == ("day", "noon") and plans.active.name == "day"
        assert noon is plans.switch("noon")
        with pytest.raises(RuntimeError, match="plan noon is the active one"):
            plans.retire("noon")
        plans.switch("day")
        assert part.raw_stream
        plans.retire("noon")
        assert part.closed and plans.plans == ("day",)
        with pytest.raises(ValueError, match="there is no plan noon; the only plan is day"):
            plans.switch("noon")
        assert plans.prepare("noon", NIGHT) is not noon


def test_a_switch_orders_the_work_on_the_sms_that_change_hands():
    # The simulator finds unordered accesses, which make the whole run fail.
    with closing(PlanSet({"day": {"a": 64, "b": "rest"}, "night": {"all": "rest"}})) as plans:
        a = plans.active.partitions["a"].raw_stream
        memory = driver.Memory(64, a)
        memory.fill(1, a)
        every = plans.switch("night").partitions["all"].raw_stream
        memory.fill(2, every)
        assert memory.read(every) == bytes([2]) * 64
        memory.free(every)


def test_a_plan_takes_some_of_the_sms():
    with closing(PlanSet({"day": {"a": 16, "b": "rest"}}, sm_count=64)) as plans:
        assert plans.sm_count == 64 and counts(plans.active) == {"a": 16, "b": 48}
        with closing(partition({"c": "rest"})) as parts:
            assert parts["c"].sm_count == 68


def test_a_switch_that_waits_too_short_is_refused():
    with closing(PlanSet({"day": DAY, "night": NIGHT})) as plans:
        driver.keep_busy(plans.active.partitions["decode"].raw_stream)
        with pytest.raises(RuntimeError, match="work of partition decode did not finish within 0 ms"):
            plans.switch("night", drain_ms=0)
        assert plans.active.name == "day"
        plans.switch("night", drain_ms=1e300)
        assert plans.active.name == "night"


def test_a_partition_of_a_plan_is_closed_with_the_plan():
    words = "partition decode belongs to plan day; retire the plan, or close the plan set"
    plans = PlanSet({"day": DAY, "night": NIGHT})
    parts = plans["day"].partitions
    for close in (parts["decode"].close, parts.close, parts.__enter__):
        with pytest.raises(RuntimeError, match=words):
            close()
    assert not parts["decode"].closed
    # Nothing but the partition holds the SMs of a set that the program has lost.
    del plans
    parts.close()
    parts["decode"].close()
    with closing(partition({"all": 132})):
        pass


def test_a_closed_set_says_so():
    plans = PlanSet({"day": DAY})
    part = plans.active.partitions["decode"]
    plans.close()
    plans.close()
    assert plans.closed and part.closed and repr(plans) == "<PlanSet: closed>"


INTERRUPTED = """
import signal, sys, threading, time, os
sys.path.insert(0, sys.argv[1])
import driver, green_ctx_torch

plans = green_ctx_torch.PlanSet({"day": {"a": 16}, "night": {"a": 32}}, sm_count=64)
busy = plans.active.partitions["a"].raw_stream
if sys.argv[2] == "verify":
    release = driver.hold(busy)
else:
    # Every look at the simulated device lets some of its time pass: more than a second of work.
    for _ in range(20_000):
        driver.keep_busy(busy)
calls = {
    "switch": lambda: plans.switch("night", drain_ms=60_000),
    "verify": lambda: green_ctx_torch.verify(plans),
}
threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
started = time.monotonic()
try:
    calls[sys.argv[2]]()
except KeyboardInterrupt:
    print("interrupted", plans.active.name, time.monotonic() - started < 20)
if sys.argv[2] == "verify":
    release()
"""


@pytest.mark.parametrize("call", ["switch", "verify"])
def test_an_interrupt_ends_what_waits(python, call):
    folder = str(Path(__file__).parent)
    assert python(INTERRUPTED, folder, call).split() == ["interrupted", "day", "True"]
