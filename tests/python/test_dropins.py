"""`GreenContext`, as `torch.cuda.green_contexts` has it."""

import inspect
import threading
import time
from pathlib import Path

import green_ctx_torch
import pytest
from dropins import calls, live, run, torch  # noqa: F401
from green_ctx_torch import GreenContext


def all_free():
    """Whether nobody holds any SMs."""
    return GreenContext.create(132).sm_count == 132


def test_the_originals_signatures():
    # torch 2.11, torch 2.12 to 2.14, and torch 2.15.
    inspect.signature(GreenContext.create).bind(16, 0)
    keywords = {"num_sms", "workqueue_scope", "workqueue_concurrency_limit", "device_id"}
    keywords |= {"sm_partition"}
    parameters = inspect.signature(GreenContext.create).parameters
    assert set(parameters) == keywords
    # torch 2.11 means device 0 and not the current one.
    assert parameters["device_id"].default is None
    assert set(inspect.signature(GreenContext).parameters) == keywords
    assert green_ctx_torch.green_contexts.GreenContext is GreenContext


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


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((0,), RuntimeError, r"Invalid number of SMs.*: 0 \(device has 132 SMs\); ask for 1 to 132"),
        ((-8,), RuntimeError, "Invalid number of SMs"),
        ((133,), RuntimeError, "Invalid number of SMs"),
        ((2**70,), RuntimeError, "Invalid number of SMs"),
        (("16",), TypeError, "(?s)whole number such as 16 is wanted, not a str.*num_sms"),
        ((16.0,), TypeError, "not a float"),
        ((True,), TypeError, "not a bool"),
        ((16, 99), RuntimeError, "no device 99"),
        ((16, -1), RuntimeError, "no device -1"),
        ((16, "cpu"), ValueError, "cpu is no CUDA device"),
        ((16, 1.5), TypeError, "(?s)not the float.*device_id"),
        ((), RuntimeError, "num_sms, sm_partition or workqueue_scope must be specified"),
    ],
)
def test_what_cannot_be_created(arguments, kind, words):
    with pytest.raises(kind, match=words):
        GreenContext.create(*arguments)
    assert all_free()


def test_workqueues_need_a_newer_driver():
    with pytest.raises(RuntimeError, match=r"needs CUDA 13.1, the driver supports 13.0"):
        GreenContext.create(num_sms=16, workqueue_scope="balanced")
    with pytest.raises(RuntimeError, match=r"13\.1"):
        GreenContext.max_workqueue_concurrency()
    with pytest.raises(ValueError, match="must be 'device_ctx' or 'balanced', got 'mine'"):
        GreenContext.create(num_sms=16, workqueue_scope="mine")
    with pytest.raises(RuntimeError, match="requires workqueue_scope"):
        GreenContext(num_sms=16, workqueue_concurrency_limit=2)
    assert all_free()


def test_workqueues(tmp_path):
    report = run("workqueues.py", tmp_path=tmp_path, driver="h200@13.1")
    # One for each choice of SMs and workqueue.
    assert calls(report, "cuGreenCtxCreate") == 10


def test_torchs_current_device_is_meant(python):
    # Only where there are several is torch asked.
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


def test_contexts_nest(torch):
    outer, inner = GreenContext.create(16), GreenContext.create(24)
    outer.set_context()
    inner.set_context()
    assert torch.current() == inner.raw_stream
    with pytest.raises(RuntimeError, match="not the one set last on this thread"):
        outer.pop_context()
    assert torch.current() == inner.raw_stream
    inner.pop_context()
    assert torch.current() == outer.raw_stream
    outer.pop_context()
    assert torch.current() == 0


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


def test_threads_have_their_own(torch):
    contexts = [GreenContext.create(count) for count in (16, 24)]
    everybody_in, failures = threading.Barrier(3, timeout=30), []

    def work(own, other):
        try:
            own.set_context()
            everybody_in.wait()
            assert torch.current() == own.raw_stream
            with pytest.raises(RuntimeError, match="on this thread"):
                other.pop_context()
            own.pop_context()
            assert torch.current() == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in (contexts, contexts[::-1])]
    for thread in threads:
        thread.start()
    everybody_in.wait()
    assert torch.current() == 0
    for thread in threads:
        thread.join()
    assert not failures


def test_one_context_on_two_threads(torch):
    context = GreenContext.create(16)
    context.set_context()
    seen = []

    def work():
        with context:
            seen.append(torch.current())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [context.raw_stream] == [torch.current()]
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


def test_a_thread_that_ends_inside_leaves(torch):
    def work():
        GreenContext.create(132).set_context()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    # Python's thread has ended; the system's does so soon.
    for _ in range(500):
        try:
            assert all_free()
            return
        except RuntimeError:
            time.sleep(0.01)
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


def test_use_after_close(torch):
    context = GreenContext.create(16)
    context.close()
    context.close()
    assert context.closed and "closed" in repr(context)
    for use in (
        context.set_context,
        context.pop_context,
        context.Stream,
        context.__cuda_stream__,
        lambda: context.raw_stream,
        lambda: context.raw_context,
        lambda: context.partition,
    ):
        with pytest.raises(RuntimeError, match=r"is closed; make a new one with GreenContext\.create"):
            use()
    # What is only read stays.
    assert (context.sm_count, context.requested, context.device_id) == (16, 16, 0)


def test_handles_for_others():
    context = GreenContext.create(16)
    assert context.__cuda_stream__() == (0, context.raw_stream)
    part = context.partition
    assert part.raw_context == context.raw_context and part.sm_count == 16
    assert green_ctx_torch.verify([part]).ok


def test_a_stream_needs_torch():
    with pytest.raises(ImportError, match="torch is needed"):
        GreenContext.create(16).Stream()
    assert all_free()


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
    # It was handed out, and waits with its context for the next user.
    assert live(report, "streams") <= live(report, "green_contexts")


@pytest.mark.parametrize("cycles", [40, 1000])
def test_contexts_are_used_again(cycles, tmp_path):
    report = run("churn.py", str(cycles), tmp_path=tmp_path)
    # One for each size, and one of all SMs at the end.
    assert calls(report, "cuGreenCtxCreate") <= 5 and "race" not in report
    # Two of each size but the last, which torch may use to the end, however many cycles there were.
    assert live(report, "streams") <= 8 and calls(report, "cuStreamDestroy") == 0


def test_the_ordering_bug_is_seen(tmp_path):
    report = run("ordering.py", "no-wait", tmp_path=tmp_path)
    races = [line for line in report.splitlines() if line.startswith("race:")]
    assert len(races) == 1 and "a fill" in races[0] and "reads, 4096 bytes" in races[0]


@pytest.mark.parametrize("cure", ["wait", "set_context"])
def test_the_ordering_bugs_cures(cure, tmp_path):
    assert "race" not in run("ordering.py", cure, tmp_path=tmp_path)
