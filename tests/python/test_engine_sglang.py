"""The plug-in for SGLang: which failures end the process, and the plans that it makes from real releases' stream
groups."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Space

import pytest
from green_ctx_torch.engines.sglang import Refused, check
from sglang_releases import FOLDER

TESTS = Path(__file__).parent
RELEASES = sorted(path.name for path in FOLDER.iterdir()) if FOLDER.exists() else []
of_releases = pytest.mark.parametrize(
    "version",
    RELEASES or [pytest.param("", marks=pytest.mark.skip("python tests/python/sglang_releases.py fetches them"))],
)

#: SGLang without its engine: the plug-in framework and the stream groups are those of the release. `scheduler`
#: replaces parts of a scheduler that works.
ENGINE = """
import sys, types
from types import SimpleNamespace as Space

sys.path[:0] = [{folder!r}, {tests!r} + "/fake_torch", {tests!r}]
import libtorch
libtorch.load()
import torch

class Stream:
    handles = iter(range(0x2000, 0x3000, 16))
    def __init__(self, device=None, priority=0):
        self.cuda_stream, self.priority = next(self.handles), priority

torch.cuda.Stream = Stream
torch.zeros = lambda *shape, device: None
torch.cuda.get_device_properties = lambda device: Space(multi_processor_count=132)
torch.cuda.get_device_capability = lambda device=None: (9, 0)

def module(name, **items):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(items)
    return made

module("yaml", safe_load=None)
for name in ("sglang", "sglang.srt", "sglang.srt.multiplex"):
    module(name).__path__ = [{folder!r} + "/" + name.replace(".", "/")]
module("sglang.srt.environ", envs=Space(SGLANG_PLUGINS=Space(get=lambda: None), SGLANG_PLATFORM=Space(get=lambda: "")))

from sglang.srt.multiplex import pdmux_context
from sglang.srt.multiplex.pdmux_context import PDMuxConfig, initialize_stream_groups

class SchedulerMultiplexMixin:
    def init_pdmux(self):
        # The name as it was imported, which the registry has to replace too.
        initialize_stream_groups(0, self.config)

mixin = module("sglang.srt.multiplex.multiplexing_mixin", SchedulerMultiplexMixin=SchedulerMultiplexMixin)
scheduler = SchedulerMultiplexMixin()
scheduler.config = PDMuxConfig(sm_group_num=4, manual_divisions=[[100, 32, 0], [84, 48, 9]])
scheduler.model_config = Space(quantization=None)
scheduler.server_args = Space(
    tp_size=1, dp_size=1, quantization=None, moe_runner_backend="auto", fp8_gemm_runner_backend="auto",
    attention_backend="fa3", prefill_attention_backend=None, decode_attention_backend=None,
    enable_hierarchical_cache=False, is_embedding=False, disable_radix_cache=False,
)
arguments = scheduler.server_args
{scheduler}
import green_ctx_sglang
green_ctx_sglang.plugin()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
scheduler.init_pdmux()
"""


def engine(version, then="", scheduler="", setting="shares"):
    """Runs an engine of a release up to its stream groups, and then `then`. Returns the status and both outputs."""
    program = ENGINE.format(folder=str(FOLDER / version), tests=str(TESTS), scheduler=scheduler) + then
    return run(program, setting)


def run(program, setting):
    environment = os.environ | {"GREEN_CTX_SGLANG": setting}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@of_releases
def test_divisions_become_plans_and_the_active_one_follows(version):
    then = """
from green_ctx_torch import verify

groups = pdmux_context.get_stream_groups()
assert pdmux_context.get_sm_counts() == [(132, 0), (100, 32), (84, 48), (0, 132)]
assert [type(stream) for stream in groups[0] + groups[3]] == [Stream] * 4
assert (pdmux_context.get_current_stream_idx(), pdmux_context.CURRENT_STREAM_GROUP) == (0, groups[0])
reports = []
for index in (1, 2, 1, 3, 0, 2):
    pdmux_context.set_current_stream_idx(index)
    assert pdmux_context.CURRENT_STREAM_GROUP == groups[index]
    # The partitions of the active plan.
    reports.append({part.name: part.sm_count for part in verify().partitions})
first, second = {"decode": 132, "prefill": 100}, {"decode": 132, "prefill": 84}
assert reports == [first, second, first, first, first, second], reports
"""
    status, _, errors = engine(version, then)
    assert status == 0, errors


@of_releases
def test_without_a_file_the_divisions_are_sglangs_own(version):
    then = """
own = pdmux_context.divide_sm(132, (9, 0), 2)
assert pdmux_context.get_sm_counts() == [(132, 0), *own, (0, 132)] and len(own) == 2
assert len(pdmux_context.get_stream_groups()) == 4
"""
    status, _, errors = engine(version, then, "scheduler.config = PDMuxConfig(sm_group_num=4)")
    assert status == 0, errors


@of_releases
def test_a_refused_setting_ends_the_process(version):
    for setting, scheduler, words in (
        ("shares", "arguments.quantization = 'gptq'", "quantization: prefill and decode may share"),
        ("shares,untested", "arguments.quantization = 'gptq'", "quantization: prefill and decode may share"),
        ("shares", "arguments.quantization = 'w8a8_int8'", "quantization was not checked"),
    ):
        status, output, errors = engine(version, "print('it continues')", scheduler, setting)
        assert (status, output) == (1, "") and words in errors.splitlines()[-1], errors
    assert engine(version, "print('it continues')", scheduler, "shares,untested")[:2] == (0, "it continues\n")


SETTINGS = {
    "tp_size": 1,
    "dp_size": 1,
    "quantization": None,
    "moe_runner_backend": "auto",
    "fp8_gemm_runner_backend": "auto",
    "attention_backend": "fa3",
    "prefill_attention_backend": None,
    "decode_attention_backend": None,
    "enable_hierarchical_cache": False,
    "is_embedding": False,
    "disable_radix_cache": False,
}
AMPERE, ADA, HOPPER, BLACKWELL = (8, 0), (8, 9), (9, 0), (10, 0)


@pytest.fixture
def refusal(monkeypatch):
    """Returns the reason for which a scheduler's settings are refused, or None."""

    def refusal(settings, gpu=HOPPER, untested=False, marlin=None, chosen=None):
        arguments = Space(**SETTINGS | settings)
        if chosen:
            # SGLang 0.5.23 keeps its own choices apart from the user's arguments.
            arguments._resolved_overrides = [("a hook", chosen)]
            view = Space(resolved_view=lambda given: Space(**vars(given) | dict(given._resolved_overrides)["a hook"]))
            monkeypatch.setitem(sys.modules, "sglang.srt.arg_groups.overrides", view)
        monkeypatch.setitem(sys.modules, "torch", Space(cuda=Space(get_device_capability=lambda: gpu)))
        if marlin:
            monkeypatch.setenv("SGLANG_FORCE_FP8_MARLIN", marlin)
        try:
            check(untested, Space(server_args=arguments, model_config=Space(quantization=None)))
        except Refused as refused:
            return str(refused)

    return refusal


SEVERAL = "tp_size or dp_size: the plug-in did not run on several GPUs"
LOCKS = "quantization: prefill and decode may share its kernels' locks"
CUTLASS = "moe_runner_backend: CUTLASS"
TRTLLM = "attention_backend: trtllm_mha"
RADIX = "disable_radix_cache: it admits input_embeds"


@pytest.mark.parametrize(
    "settings, more, words",
    [
        ({"tp_size": 2}, {}, SEVERAL),
        ({"dp_size": 2}, {}, SEVERAL),
        ({"quantization": "awq_marlin"}, {}, LOCKS),
        ({"quantization": "gptq"}, {}, LOCKS),
        ({"quantization": "modelopt_mixed"}, {}, LOCKS),
        ({"quantization": "nvfp4_online"}, {}, LOCKS),
        ({"quantization": "humming"}, {}, LOCKS),
        ({"quantization": "w4afp8"}, {}, LOCKS),
        ({"quantization": "fp8"}, {"gpu": AMPERE}, LOCKS),
        ({"quantization": "fbgemm_fp8"}, {"gpu": AMPERE}, LOCKS),
        ({"quantization": "fp8"}, {"marlin": "TRUE"}, LOCKS),
        ({"quantization": "modelopt_fp8"}, {"marlin": "1"}, LOCKS),
        ({"quantization": "fp8", "moe_runner_backend": "cutlass"}, {}, CUTLASS),
        ({"quantization": "fp8"}, {"chosen": {"moe_runner_backend": "cutlass"}}, CUTLASS),
        ({"attention_backend": "trtllm_mha"}, {}, TRTLLM),
        ({"decode_attention_backend": "trtllm_mha"}, {}, TRTLLM),
        ({"attention_backend": None}, {"chosen": {"attention_backend": "trtllm_mha"}}, TRTLLM),
        ({"enable_hierarchical_cache": True}, {}, "enable_hierarchical_cache: prefill"),
        ({"is_embedding": True}, {}, "is_embedding: a split prefill"),
        ({"disable_radix_cache": True}, {}, RADIX),
        ({}, {"chosen": {"disable_radix_cache": True}}, RADIX),
    ],
)
def test_settings_that_corrupt_are_refused(refusal, settings, more, words):
    for untested in (False, True):
        assert words in (refusal(settings, untested=untested, **more) or "it is accepted")


@pytest.mark.parametrize(
    "settings, more, name",
    [
        ({"quantization": "modelopt_fp8"}, {}, "quantization"),
        ({"quantization": "one of tomorrow"}, {}, "quantization"),
        ({"torchao_config": "int4wo-128"}, {}, "quantization"),
        ({"quantization": "fp8"}, {"gpu": BLACKWELL}, "quantization"),
        ({"quantization": "fp8", "fp8_gemm_runner_backend": "flashinfer_deepgemm"}, {}, "fp8_gemm_runner_backend"),
        ({"moe_runner_backend": "flashinfer_cutlass"}, {}, "moe_runner_backend"),
        ({"prefill_attention_backend": "flashinfer_mla"}, {}, "attention_backend"),
        ({"attention_backend": None}, {}, "attention_backend"),
    ],
)
def test_kernels_that_were_not_checked_need_a_word(refusal, settings, more, name):
    words = f"this setting of {name} was not checked with SGLang's multiplexing; GREEN_CTX_SGLANG=shares,untested uses"
    assert words in (refusal(settings, **more) or "it is accepted")
    assert refusal(settings, untested=True, **more) is None


@pytest.mark.parametrize(
    "settings, more",
    [
        ({}, {"gpu": AMPERE}),
        ({}, {"gpu": BLACKWELL}),
        ({"quantization": "fp8"}, {"marlin": "false"}),
        ({"quantization": "fp8", "moe_runner_backend": "triton"}, {"gpu": ADA}),
        ({"attention_backend": "flashinfer", "decode_attention_backend": "triton"}, {}),
        ({"attention_backend": None}, {"chosen": {"attention_backend": "triton"}}),
    ],
)
def test_settings_that_were_checked_are_accepted(refusal, settings, more):
    assert refusal(settings, **more) is None


@of_releases
def test_a_hook_that_fails_ends_the_process(version):
    status, output, errors = engine(version, "print('it continues')", "scheduler.config.manual_divisions = [[100, 200, 0]]")
    assert (status, output) == (1, "") and "the plug-in failed" in errors, errors


@of_releases
def test_without_the_variable_nothing_is_hooked(version):
    then = "raise SystemExit(1)"
    scheduler = "pdmux_context.initialize_stream_groups = initialize_stream_groups = lambda *rest: sys.exit(7)"
    assert engine(version, then, scheduler, setting="off")[0] == 7


@of_releases
def test_a_release_that_did_not_run_ends_the_process(version):
    other = "import importlib.metadata\nimportlib.metadata.version = lambda name: '0.5.22'"
    status, output, errors = engine(version, "print('it continues')", other)
    assert (status, output) == (1, "") and "SGLang 0.5.22 is not among the releases" in errors
    assert "0.5.12 and 0.5.23" in errors
    assert engine(version, "print('it continues')", other, "shares,untested")[:2] == (0, "it continues\n")


@pytest.mark.parametrize("setting", ["decode=32..,prefill=..100", "mend", "shares,fast", "untested", "shares untested"])
def test_any_other_value_ends_the_process_and_names_the_new_form(setting):
    status, output, errors = run("import green_ctx_sglang; green_ctx_sglang.plugin(); print('it continues')", setting)
    assert (status, output) == (1, "") and "write GREEN_CTX_SGLANG=shares" in errors


def test_an_engine_that_is_not_installed_ends_the_process():
    status, output, errors = run("import green_ctx_sglang; green_ctx_sglang.plugin(); print('it continues')", "shares")
    assert (status, output) == (1, "") and "the plug-in failed" in errors
