"""Plans: prepared, switched, retired."""

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
        # The objects, and with them torch's streams, are the same every time.
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
    # The simulator finds an access that nothing puts in order, which fails the whole run.
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


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda plans: plans.prepare("day", NIGHT), "there is a plan day already"),
        (lambda plans: plans.prepare("a", {"a": 133}), "PlanSet of decode, prefill has 132 SMs"),
        (lambda plans: plans.prepare("a", {"a": 0}), "asks for 0 SMs"),
        (lambda plans: plans.prepare("a", {}), "at least one group"),
        (lambda plans: plans.prepare("a", {"a": 132, "b": "rest"}), "no SMs remain for b in plan a"),
        (lambda plans: plans.switch("a"), "there is no plan a; the only plan is day"),
        (lambda plans: plans.retire("a"), "there is no plan a; the only plan is day"),
        (lambda plans: plans.switch("day", drain_ms=-1), "drain_ms is -1; wait for 0 ms or longer"),
        (lambda plans: plans.switch("day", drain_ms=float("nan")), "drain_ms is NaN"),
    ],
)
def test_what_is_wrong_is_a_value_error_and_changes_nothing(ask, expected):
    with closing(PlanSet({"day": DAY})) as plans:
        with pytest.raises(ValueError) as raised:
            ask(plans)
        assert expected in str(raised.value)
        assert plans.plans == ("day",) and counts(plans.active) == {"decode": 16, "prefill": 116}


def test_a_time_to_drain_is_a_number():
    with closing(PlanSet({"day": DAY})) as plans:
        for wrong in (True, "5", [5]):
            with pytest.raises(TypeError, match="drain_ms is a number of milliseconds"):
                plans.switch("day", drain_ms=wrong)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"plans": {}}, "at least one plan"),
        ({"plans": {"day": {"a": 132, "b": "rest"}}}, "no SMs remain for b in plan day"),
        ({"plans": {"day": DAY, "night": {"a": 200}}}, "PlanSet of decode, prefill, a has 132 SMs"),
        ({"plans": {"day": DAY}, "sm_count": -1}, "sm_count is -1; ask for 1 or more"),
        ({"plans": {"day": DAY}, "sm_count": 0}, "sm_count is 0; ask for 1 or more"),
        ({"plans": {"day": DAY}, "sm_count": 1 << 40}, "sm_count is more than any device has"),
        ({"plans": {"day": DAY}, "sm_count": 1 << 70}, "sm_count is more than any device has"),
        ({"plans": {"": DAY}}, "the name '' of a plan is empty"),
        ({"plans": {"a\0b": DAY}}, "the name 'a\\x00b' of a plan contains a NUL character"),
        ({"plans": {"day": {"": 8}}}, "the name '' of a partition is empty"),
        ({"plans": {"day": DAY}, "sm_count": 133}, "a group of 133 SMs does not fit"),
        ({"plans": {"day": DAY}, "device": 3}, "there is no device 3"),
    ],
)
def test_a_set_that_cannot_be_takes_nothing(arguments, expected):
    with pytest.raises(ValueError) as raised:
        PlanSet(**arguments)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ({8: DAY}, "the name of a plan is a str such as \"decode\", and 8 is of type int"),
        ({"day": {8: 8}}, "the name of a partition is a str such as \"decode\", and 8 is of type int"),
        ("day", "PlanSet takes plans by name, as in PlanSet({"),
        (16, ': {"decode": 16, "prefill": "rest"}}), and not the int 16'),
        (["day"], "and not the list ['day']"),
        ({"day": 16}, 'plan day takes names and SMs, as in {"decode": 16, "prefill": "rest"}'),
        ({"day": [16, 24]}, "and not the list [16, 24]"),
    ],
)
def test_a_set_of_something_else_is_a_type_error(plans, expected):
    with pytest.raises(TypeError) as raised:
        PlanSet(plans)
    assert expected in str(raised.value)


def test_a_plan_is_named_by_text():
    with closing(PlanSet([("day", DAY)])) as plans:
        for ask in [plans.switch, plans.retire, lambda name: plans.prepare(name, NIGHT)]:
            with pytest.raises(TypeError, match="the name of a plan is a str .*, and 8 is of type int"):
                ask(8)
            with pytest.raises(ValueError, match="the name '' of a plan is empty"):
                ask("")
    with pytest.raises(TypeError, match="(?s)whole number such as 16 is wanted, not a float.*sm_count"):
        PlanSet({"day": DAY}, sm_count=16.0)


def test_a_switch_that_waits_too_short_is_refused():
    with closing(PlanSet({"day": DAY, "night": NIGHT})) as plans:
        driver.keep_busy(plans.active.partitions["decode"].raw_stream)
        with pytest.raises(RuntimeError, match="decode was not done with its work within 0 ms"):
            plans.switch("night", drain_ms=0)
        assert plans.active.name == "day"
        plans.switch("night", drain_ms=1e300)
        assert plans.active.name == "night"


def test_a_closed_set_says_so():
    plans = PlanSet({"day": DAY})
    part = plans.active.partitions["decode"]
    plans.close()
    plans.close()
    assert plans.closed and part.closed and repr(plans) == "<PlanSet: closed>"
    for use in [
        lambda: plans.active,
        lambda: plans.plans,
        lambda: plans.switch("day"),
        lambda: plans.retire("day"),
        lambda: plans.prepare("a", DAY),
    ]:
        with pytest.raises(RuntimeError, match="the set of plans is closed"):
            use()


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
