"""`GreenContext`, like `torch.cuda.green_contexts`."""

from pathlib import Path

import green_ctx_torch
import pytest
from dropins import calls, live, run, torch  # noqa: F401
from green_ctx_torch import GreenContext


def all_free():
    """Returns whether all SMs are free."""
    return GreenContext.create(132).sm_count == 132


def test_supported():
    assert green_ctx_torch.SUPPORTED is True
    from green_ctx_torch.green_contexts import SUPPORTED

    assert SUPPORTED is True


def test_supported_by_this_torch(torch):
    assert green_ctx_torch.SUPPORTED is True
    torch.__version__ = "2.9.1+cu130"
    assert green_ctx_torch.SUPPORTED is False
    torch.__version__ = "2.10.0a0+git1234"
    assert green_ctx_torch.SUPPORTED is True
    torch.version.cuda = None
    assert green_ctx_torch.SUPPORTED is False


@pytest.mark.parametrize(
    ("requested", "given"),
    [(1, 8), (8, 8), (12, 16), (16, 16), (17, 24), (120, 120), (129, 132), (132, 132)],
)
def test_counts_are_rounded_as_the_driver_does(requested, given):
    context = GreenContext.create(requested)
    assert (context.requested, context.sm_count) == (requested, given)
    assert context.device_id == 0


def test_contexts_own_their_sms():
    first = GreenContext.create(64)
    with pytest.raises(RuntimeError, match=r"held by GreenContext \d+ \(64 SMs\)"):
        GreenContext.create(100)
    second = GreenContext.create(64)
    assert first.raw_context != second.raw_context
    first.close()
    second.close()
    assert all_free()


def test_workqueues(tmp_path):
    report = run("workqueues.py", tmp_path=tmp_path, driver="h200@13.1")
    # One for each combination of SMs and workqueue.
    assert calls(report, "cuGreenCtxCreate") == 10


def test_torchs_current_device_is_meant(python):
    # torch's current device matters only if there are several.
    folder = Path(__file__).parent
    program, fake_torch = folder / "programs" / "current_device.py", folder / "fake_torch"
    python(None, str(program), str(fake_torch), GREEN_CTX_SIM_DEVICES="2")


def test_set_and_pop(torch):
    context = GreenContext.create(16)
    torch.make_current(0)
    context.set_context()
    assert torch.current() == context.raw_stream != 0
    context.pop_context()
    assert torch.current() == 0


def test_pop_without_set(torch):
    context = GreenContext.create(16)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="without matching set_context.*call set_context"):
            context.pop_context()
    assert torch.current() == 0
    context.set_context()
    context.pop_context()
    with pytest.raises(RuntimeError, match="without matching set_context"):
        context.pop_context()


def test_setting_twice_is_refused_and_blocks_nest(torch):
    outer, inner = GreenContext.create(16), GreenContext.create(24)
    outer.set_context()
    inner.set_context()
    for context in (outer, inner):
        with pytest.raises(RuntimeError, match="set_context called twice before pop_context"):
            context.set_context()
    assert torch.current() == inner.raw_stream
    with outer, inner, outer:
        assert torch.current() == outer.raw_stream
    inner.pop_context()
    outer.pop_context()
    with outer, pytest.raises(RuntimeError, match="nest `with context:` blocks"):
        outer.set_context()
    assert torch.current() == 0


def test_an_exception_leaves_what_was(torch):
    context = GreenContext.create(16)
    with pytest.raises(KeyError), context as entered:
        assert entered is context and torch.current() == context.raw_stream
        raise KeyError
    assert torch.current() == 0
    with pytest.raises(RuntimeError, match="without matching set_context"):
        context.pop_context()


def test_a_context_that_is_dropped_while_it_is_set_stays(torch):
    context = GreenContext.create(132)
    context.set_context()
    raw = context.raw_stream
    context.close()
    assert torch.current() == raw
    with pytest.raises(RuntimeError, match="held by"):
        GreenContext.create(8)
    context.pop_context()
    assert torch.current() == 0
    assert all_free()


def test_streams(torch):
    context = GreenContext.create(16)
    streams = [context.Stream() for _ in range(33)]
    raw = [stream.cuda_stream for stream in streams]
    assert len(set(raw)) == 32 and raw[32] == raw[0]
    assert context.raw_stream not in raw
    assert isinstance(streams[0], torch.cuda.ExternalStream) and streams[0].device == 0


def test_a_stream_keeps_the_sms(torch):
    stream = GreenContext.create(132).Stream()
    with pytest.raises(RuntimeError, match="held by"):
        GreenContext.create(8)
    del stream
    assert all_free()


def test_handles_for_others():
    context = GreenContext.create(16)
    assert context.__cuda_stream__() == (0, context.raw_stream)
    part = context.partition
    assert part.raw_context == context.raw_context and part.sm_count == 16
    assert green_ctx_torch.verify([part]).ok


@pytest.mark.parametrize(
    ("how", "supported", "words"),
    [
        ("none", "True", "torch is needed"),
        ("cpu", "False", "built without CUDA"),
        ("old", "False", "2.10 or newer"),
    ],
)
def test_torch_is_absent_too_old_or_without_cuda(how, supported, words, tmp_path, capfd):
    report = run("absent.py", how, tmp_path=tmp_path, capture=False)
    output = capfd.readouterr().out.splitlines()
    assert output[0] == supported
    assert words in output[1]
    assert "without matching set_context" in output[2]
    assert output[3] == "116"
    # The stream was handed out. It waits with its context for reuse.
    assert live(report, "streams") <= live(report, "green_contexts")


@pytest.mark.parametrize("cycles", [40, 1000])
def test_contexts_are_used_again(cycles, tmp_path):
    report = run("churn.py", str(cycles), tmp_path=tmp_path)
    # One per size, and one of all SMs at the end.
    assert calls(report, "cuGreenCtxCreate") <= 5 and "race" not in report
    # Two per size, except for the last. torch may use them until the process ends, however many cycles there were.
    assert live(report, "streams") <= 8 and calls(report, "cuStreamDestroy") == 0


def test_the_ordering_bug_is_seen(tmp_path):
    report = run("ordering.py", "no-wait", tmp_path=tmp_path)
    races = [line for line in report.splitlines() if line.startswith("race:")]
    assert len(races) == 1 and "a memset" in races[0] and "reads them" in races[0]
    assert "4096 bytes" in races[0]


@pytest.mark.parametrize("cure", ["wait", "set_context"])
def test_the_ordering_bugs_cures(cure, tmp_path):
    assert "race" not in run("ordering.py", cure, tmp_path=tmp_path)
