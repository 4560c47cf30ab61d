"""`green_contexts` like torch 2.15: SMPartition, splits, subclasses and warnings."""

import gc
import inspect
import subprocess
import sys
import threading
import unittest
import warnings
from pathlib import Path
import weakref
from contextlib import closing

import green_ctx_torch
import pytest
from dropins import calls, run, torch  # noqa: F401
from green_ctx_torch import partition, verify
from green_ctx_torch.green_contexts import (
    GreenContext,
    SMPartition,
    get_num_locality_domains,
    is_localization_supported,
)

SPLIT = {
    "num_sms": 0,
    "coscheduled_sm_count": 0,
    "preferred_coscheduled_sm_count": 0,
    "backfill": False,
    "locality_domain_ids": None,
}
WORKQUEUE = {"workqueue_scope": None, "workqueue_concurrency_limit": None, "device_id": None}


def counts(parts):
    return [part.sm_count for part in parts]


def split(*num_sms, of=None):
    """Returns the counts of the groups of a split, and of the rest."""
    groups, rest = (of or SMPartition.from_device()).split(num_sms=num_sms)
    return counts(groups), None if rest is None else rest.sm_count


def test_the_originals_signatures():
    def defaults(function):
        parameters = inspect.signature(function).parameters.values()
        return {each.name: each.default for each in parameters if each.name != "self"}

    assert defaults(SMPartition.from_device) == {"device_id": None}
    assert defaults(SMPartition.split) == SPLIT
    assert defaults(GreenContext.split) == SPLIT | WORKQUEUE
    assert defaults(GreenContext) == {"num_sms": None, "sm_partition": None} | WORKQUEUE
    for function in (get_num_locality_domains, is_localization_supported):
        assert defaults(function) == {"device_id": None}


def test_a_devices_sms():
    sms = SMPartition.from_device()
    assert (sms.sm_count, sms.coscheduled_sm_count, sms.device_id) == (132, 8, 0)
    assert repr(sms) == "<SMPartition: 132 SMs of device 0>"
    with pytest.raises(RuntimeError, match="no device 7"):
        SMPartition.from_device(7)
    with pytest.raises(TypeError, match="cannot create"):
        SMPartition()


@pytest.mark.parametrize(
    ("num_sms", "groups", "rest"),
    [
        ([16], [16], 116),
        ([16, 116], [16, 116], None),
        ([20, 24], [20, 24], 88),
        ([12, 120], [12, 120], None),
        ([132], [132], None),
        ([0], [120], 12),
        ([16, 0], [16, 104], 12),
        ([120, 0], [120, 12], None),
        ([8] * 16, None, None),
        ([8] * 15, [8] * 15, 12),
    ],
)
def test_counts_are_exact(num_sms, groups, rest):
    if groups is None:
        with pytest.raises(RuntimeError, match="15 units of 8 SMs and one of 12; ask for fewer"):
            split(*num_sms)
    else:
        assert split(*num_sms) == (groups, rest)


def test_contexts_of_described_sms():
    (first, second), rest = SMPartition.from_device().split(num_sms=(16, 24))
    # A description holds no SMs.
    GreenContext(num_sms=132).close()
    contexts = [GreenContext(sm_partition=first), GreenContext.create(sm_partition=second)]
    contexts.append(GreenContext(sm_partition=rest, device_id=0))
    assert counts(contexts) == [context.requested for context in contexts] == [16, 24, 92]
    assert verify(contexts).ok
    assert contexts[0].sm_partition.sm_count == 16
    with pytest.raises(RuntimeError, match=r"held by .*GreenContext \d+ \(16 SMs\)"):
        GreenContext(num_sms=8)


def test_a_description_has_one_context_at_a_time():
    (part,), rest = SMPartition.from_device().split(num_sms=16)
    context = GreenContext(sm_partition=part)
    with pytest.raises(RuntimeError, match=r"held by GreenContext \d+ \(16 SMs\); close that"):
        GreenContext(sm_partition=part)
    # Another split of the same SMs receives other ones while there are free SMs.
    (other,), _ = SMPartition.from_device().split(num_sms=16)
    assert verify([context, GreenContext(sm_partition=other)]).ok
    context.close()
    context = GreenContext(sm_partition=part)
    del context
    assert GreenContext(sm_partition=part).sm_count == 16
    assert GreenContext(sm_partition=rest).sm_count == 116


def test_threads_race_for_one_description():
    (part,), _ = SMPartition.from_device().split(num_sms=16)
    start, made, refused = threading.Barrier(8, timeout=30), [], []

    def work():
        start.wait()
        try:
            made.append(GreenContext(sm_partition=part))
        except RuntimeError as error:
            refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)


def test_parts_of_parts():
    (half,), rest = SMPartition.from_device().split(num_sms=64)
    assert split(16, 24, of=half) == ([16, 24], 24)
    assert split(28, of=rest) == ([28], 40)
    with pytest.raises(RuntimeError, match="do not fit into 64 SMs, which come in units of 8 SMs"):
        split(72, of=half)
    # The incomplete unit is not among them.
    with pytest.raises(RuntimeError, match="do not fit"):
        split(20, of=half)
    (part,), _ = half.split(num_sms=16)
    context = GreenContext(sm_partition=part)
    with pytest.raises(RuntimeError, match=r"held by GreenContext \d+ \(16 SMs\)"):
        GreenContext(sm_partition=half)
    context.close()
    context = GreenContext(sm_partition=half)
    with pytest.raises(RuntimeError, match=r"held by GreenContext \d+ \(64 SMs\)"):
        GreenContext(sm_partition=part)
    assert GreenContext(sm_partition=rest).sm_count == 68


def test_a_contexts_sms_are_split_when_it_is_closed():
    context = GreenContext(num_sms=64)
    sms = context.sm_partition
    assert sms.sm_count == context.sm_count == 64
    (first,), rest = sms.split(num_sms=16)
    for described in (sms, first, rest):
        with pytest.raises(RuntimeError, match=r"held by GreenContext \d+ \(64 SMs\); close that"):
            GreenContext(sm_partition=described)
    context.close()
    with pytest.raises(RuntimeError, match="is closed; make a new one"):
        context.sm_partition
    assert counts([GreenContext(sm_partition=first)]) == [16]
    assert counts([GreenContext(sm_partition=rest)]) == [48]


def test_sms_that_others_hold():
    (part,), rest = SMPartition.from_device().split(num_sms=16)
    with closing(partition({"mine": 128})):
        with pytest.raises(RuntimeError, match=r"held by mine \(132 SMs\)"):
            GreenContext(sm_partition=part)
    # Only the incomplete unit is left, which does not have 8 SMs.
    (least,), _ = SMPartition.from_device().split(num_sms=8)
    with closing(partition({"mine": 120})):
        with pytest.raises(RuntimeError, match="has 8 SMs, but .* give 12; .* num_sms=12"):
            GreenContext(sm_partition=least)
    assert GreenContext(sm_partition=rest).sm_count == 116


def test_split_contexts():
    contexts = GreenContext.split(num_sms=(24, 40), device_id=0)
    assert isinstance(contexts, tuple) and counts(contexts) == [24, 40]
    assert verify(contexts).ok
    # SMs outside every group are free.
    others = GreenContext(num_sms=68)
    with pytest.raises(RuntimeError, match="held by"):
        GreenContext.split(num_sms=8)
    del contexts, others
    assert counts(GreenContext.split()) == [120]


def test_split_contexts_all_or_none():
    with closing(partition({"mine": 16})):
        with pytest.raises(RuntimeError, match=r"held by .*mine \(16 SMs\)"):
            GreenContext.split(num_sms=(64, 68))
        assert GreenContext(num_sms=116).sm_count == 116


def test_structured_splits(tmp_path):
    report = run("sm_partitions.py", tmp_path=tmp_path, driver="h200@13.1")
    assert calls(report, "cuDevSmResourceSplit") > 0 and "race" not in report


def test_locality_domains(tmp_path):
    run("sm_partitions.py", tmp_path=tmp_path, driver="h200@13.4")


def test_weak_references():
    context, sms = GreenContext(num_sms=132), SMPartition.from_device()
    ends = [weakref.ref(context), weakref.ref(sms)]
    assert [end() for end in ends] == [context, sms]
    del context, sms
    gc.collect()
    assert [end() for end in ends] == [None, None]
    assert GreenContext(num_sms=132).sm_count == 132


def test_subclasses(torch):
    class Named(GreenContext):
        def __init__(self, name, count):
            super().__init__(num_sms=count)
            self.name = name

    context = Named("decode", 16)
    assert isinstance(context, GreenContext) and (context.name, context.sm_count) == ("decode", 16)
    with context as entered:
        assert entered is context and torch.current() == context.raw_stream
    assert verify(context).ok and context.partition.sm_count == 16
    with pytest.raises(RuntimeError, match="already has its SMs"):
        context.__init__("prefill", 24)

    class Forgotten(GreenContext):
        def __init__(self):
            pass

    empty = Forgotten()
    assert empty.closed and repr(empty) == "<GreenContext: closed>"
    empty.close()
    for use in (
        empty.set_context,
        empty.pop_context,
        empty.Stream,
        lambda: empty.sm_count,
        lambda: empty.device_id,
        lambda: empty.sm_partition,
        lambda: verify(empty),
    ):
        with pytest.raises(RuntimeError, match=r"must call super\(\)\.__init__"):
            use()

    class Described(SMPartition):
        pass

    assert issubclass(Described, SMPartition)


def test_the_warning(torch):
    context, case = GreenContext(num_sms=16), unittest.TestCase()
    # It is shown every time, whichever warnings were shown before.
    for _ in range(3):
        with case.assertWarnsRegex(FutureWarning, "GreenContext.set_context") as seen:
            context.set_context()
        assert seen.filename == __file__
        with case.assertWarnsRegex(FutureWarning, "GreenContext.pop_context") as seen:
            context.pop_context()
        assert seen.filename == __file__
    assert torch.current() == 0


def test_a_line_warns_once(torch):
    context = GreenContext(num_sms=16)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            context.set_context()
            context.pop_context()
        context.set_context()
        context.pop_context()
        with context:
            pass
    assert [warning.category for warning in seen] == [FutureWarning] * 4
    assert len({warning.lineno for warning in seen}) == 4


def test_after_many_calls_nobody_looks_any_more(python):
    assert python(MANY_CALLS, str(Path(__file__).parent)).split() == ["1000", "1000"]


# In its own process, because its calls change which warnings are shown.
MANY_CALLS = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import dropins

torch = sys.modules["torch"] = dropins.Torch()
from green_ctx_torch import GreenContext

context = GreenContext(num_sms=16)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        for _ in range(600):
            context.set_context()
            context.pop_context()
        print(len(seen))
"""


def test_a_warning_that_is_an_error_changes_nothing(torch):
    context = GreenContext(num_sms=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(FutureWarning):
                context.set_context()
        assert torch.current() == 0
        with context:
            for _ in range(2):
                with pytest.raises(FutureWarning):
                    context.pop_context()
            assert torch.current() == context.raw_stream
    assert torch.current() == 0


def test_the_module_loads_no_driver():
    program = "import green_ctx_torch.green_contexts as g; g.SMPartition, g.GreenContext.split"
    subprocess.run([sys.executable, "-c", program], env={"GREEN_CTX_SIM": "none"}, check=True)
    assert green_ctx_torch.GreenContext is GreenContext
