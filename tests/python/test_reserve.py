"""The reserve. A process has one, so each program runs in its own process."""

import json
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)

BEGIN = """
import green_ctx_torch
reserved = green_ctx_torch.reserve({amount})
"""


@pytest.mark.parametrize(
    "amount,sm_count", [("32", 32), ("29", 32), ("25", 28), ("'25%'", 36), ("True + 15", 16)]
)
def test_floors_come_from_the_reserve(python, amount, sm_count):
    python(
        BEGIN.format(amount=amount)
        + f"""
assert (reserved.device, reserved.sm_count, reserved.rest) == (0, {sm_count}, 132 - {sm_count})
assert repr(reserved) == "<Reserve of device 0: {sm_count} SMs for partitions, {132 - sm_count} for all other work>"
with green_ctx_torch.partition({{"a": "rest"}}) as parts:
    assert parts["a"].sm_count == {sm_count}
try:
    green_ctx_torch.partition({{"a": {sm_count + 1}}})
except green_ctx_torch.InvalidValueError as error:
    assert "work outside of partitions ({132 - sm_count} SMs) may use them" in str(error)
else:
    raise AssertionError("only the reserve is free")
"""
    )


def test_other_libraries_get_the_rest(python):
    python(
        BEGIN.format(amount=32)
        + """
import ctypes
cuda, told = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetAttribute(ctypes.byref(told), 16, 0) == 0 and told.value == 100
context, other, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuCtxGetCurrent(ctypes.byref(other)) == 0 and other.value == context.value
assert [cuda.cuStreamCreate(ctypes.byref(stream), flags) for flags in (0, 1)] == [0, 0]
assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0) == 801
"""
    )


def test_a_reserve_cannot_be_changed(python):
    python(
        BEGIN.format(amount=32)
        + """
assert green_ctx_torch.reserve(32).sm_count == 32
for other in [16, "32%"]:
    try:
        green_ctx_torch.reserve(other)
    except green_ctx_torch.UnavailableError as error:
        assert "a reserve of 32 SMs was requested" in str(error)
    else:
        raise AssertionError(other)
for wrong, words in (("12.5%", "a whole number"), (-1, "ask for 1 SM or more"), (0, "ask for 1 SM or more")):
    try:
        green_ctx_torch.reserve(wrong)
    except ValueError as error:
        assert words in str(error)
    else:
        raise AssertionError(wrong)
"""
    )


def test_a_driver_in_use_cannot_be_confined(python):
    python(
        """
import green_ctx_torch
green_ctx_torch.info()
try:
    green_ctx_torch.reserve(32)
except green_ctx_torch.UnavailableError as error:
    assert "set GREEN_CTX_RESERVE" in str(error)
else:
    raise AssertionError("too late")
assert green_ctx_torch.partition({"a": 132}).close() is None
"""
    )


def test_the_environment_says_what_must_come_first(python):
    python(
        """
import ctypes, os
os.environ["GREEN_CTX_RESERVE"] = "32"
ctypes.CDLL("libcuda.so.1")
try:
    import green_ctx_torch
except RuntimeError as error:
    assert "import green_ctx_torch before torch" in str(error)
else:
    raise AssertionError("too late")
"""
    )


def test_the_environment_reserves_at_the_import(python):
    python(
        """
import os
os.environ["GREEN_CTX_RESERVE"] = "25%"
import green_ctx_torch
# A child that was forked before CUDA was used has the same reserve.
child = os.fork()
if child == 0:
    os._exit(0 if green_ctx_torch.reserve("25%").rest == 96 else 1)
assert os.waitpid(child, 0)[1] == 0
assert green_ctx_torch.reserve("25%").rest == 96
"""
    )
    python(
        """
import os
os.environ["GREEN_CTX_RESERVE"] = "many"
try:
    import green_ctx_torch
except ValueError as error:
    assert "GREEN_CTX_RESERVE=many is not a number of SMs such as 32" in str(error)
else:
    raise AssertionError("not a number")
"""
    )


def test_children_have_the_reserve_of_the_environment(python):
    python(
        """
import multiprocessing, os
os.environ["GREEN_CTX_RESERVE"] = "32"
import green_ctx_torch
assert green_ctx_torch.reserve(32).rest == 100
# A spawned child imports the module anew, and makes its own reserve.
with multiprocessing.get_context("spawn").Pool(1) as pool:
    pool.apply(exec, ("import green_ctx_torch; assert green_ctx_torch.reserve(32).rest == 100",))
    del os.environ["GREEN_CTX_RESERVE"]
with multiprocessing.get_context("spawn").Pool(1) as pool:
    pool.apply(exec, ("import green_ctx_torch; green_ctx_torch.partition({'a': 132}).close()",))
# A child that is forked after CUDA was used can use neither.
child = os.fork()
if child == 0:
    try:
        green_ctx_torch.reserve(32)
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""
    )


def test_reports_show_the_reserve(python):
    python(
        BEGIN.format(amount=32)
        + """
from green_ctx_torch import info, partition, verify
(device,) = info()["devices"]
assert device["sm_count"] == 132 and device["reserve"] == {"sm_count": 32, "rest": 100}
with partition({"decode": 16, "load": "..=116"}) as parts:
    assert parts["load"].shared_with == [("work outside of partitions", 100)]
    assert parts["decode"].shared_with == []
    report = verify(parts)
    assert report.ok and not report.disjoint, report
    *_, rest = report.partitions
    assert (rest.name, rest.share, rest.floor, rest.sm_count) == ("work outside of partitions", None, 0, 100)
    assert rest.id not in [part.id for part in parts.values()]
    assert rest.observed_sms.isdisjoint(report.partitions[0].floor_sms)
"""
    )


def test_the_command_shows_the_reserve(python):
    command = ("", "-m", "green_ctx_torch")
    reserved = {"GREEN_CTX_RESERVE": "25%"}
    line = "  reserved SMs             36 for partitions alone, 96 also for work outside of partitions\n"
    assert line in python(*command, "info", **reserved)
    assert "reserve" not in python(*command, "info") + python(*command, "--json", "info")
    split = python(*command, "split", "--counts", "16", **reserved)
    assert "132 SMs (36 for partitions alone, 96 also for work outside of partitions), compute" in split
    assert "free for floors: 20 SMs" in split
    output = json.loads(python(*command, "--json", "verify", "--counts", "36", **reserved))
    assert output["ok"] and output["device"]["reserve"] == {"sm_count": 36, "rest": 96}
    assert [part["name"] for part in output["partitions"]] == ["p0", "work outside of partitions"]


def test_confined_work_is_no_escape(python):
    program = """
from green_ctx_torch import partition
from test_watch import INSIDE, PLAIN, event, read
watched = read(event("gemm", 5, INSIDE), event("add", 6, PLAIN), event("nccl", 7, PLAIN))
print(watched.total, watched.ok, watched.collectives)
print(watched)
assert not read(event("gemm", 5, 9)).ok, "another partition"
"""
    confined = python(program, PYTHONPATH=HERE, GREEN_CTX_RESERVE="32")
    assert confined == (
        "3 True {1: 1}\n<Watch decode: 1 of 3 kernels ran inside, the others outside of the reserve>\n"
    )
    assert python(program, PYTHONPATH=HERE).startswith("3 False")


def test_plain_streams_are_tuned_on_the_rest(python):
    program = """
import json
from green_ctx_torch import partition, tune
import driver
with partition({"a": 8}) as parts:
    stream = parts["a"].raw_stream
    graphs = [driver.capture(stream, lambda: driver.keep_busy(stream)) for _ in range(2)]
outcome = tune(dict(zip("ab", graphs)), budget=1)
print(json.dumps(outcome.notes))
print(outcome.to_json())
"""
    notes, outcome = map(json.loads, python(program, PYTHONPATH=HERE, GREEN_CTX_RESERVE="32").splitlines())
    note = (
        "32 of 132 SMs are reserved for partitions: plain streams, priorities and jobs one after the other ran on the "
        "other 100 SMs"
    )
    assert note in notes and note in outcome["notes"]
    assert outcome["device"]["reserve"] == {"sm_count": 32, "rest": 100}
    assert "reserved" not in python(program, PYTHONPATH=HERE)
