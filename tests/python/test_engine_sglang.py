"""The plug-in for SGLang: what its variable says, what it decides, and that nothing stops in silence."""

import json
import sys

import green_ctx_torch
import pytest
from green_ctx_torch import Share
from green_ctx_torch.engines.sglang import FixedShares, Setting, SettingError, SharePlan
from green_ctx_torch.engines.sglang import plugin as native
from green_ctx_torch.engines.sglang.groups import Groups
from green_ctx_torch.engines.sglang.metrics import Metrics
from green_ctx_torch.engines.sglang.seams import HOOKED, USED, WRONG_SAMPLE, Sources

SHARES = "decode=32..,prefill=..100"


def test_one_plan():
    assert Setting.parse(SHARES) == Setting((SharePlan(Share("32.."), Share("..100")),))


def test_several_plans_in_any_order_and_options_anywhere():
    setting = Setting.parse(
        "decode=48..,prefill=..84,batch=16,gap=9.5ms; decode=16..,prefill=..116 ;priority=-1"
    )
    assert [(plan.batch, str(plan.decode)) for plan in setting.plans] == [(0, "16.."), (16, "48..")]
    assert (setting.gap_ms, setting.layers, setting.priority) == (9.5, None, -1)


def test_the_first_plan_is_that_of_smaller_batches_too():
    assert Setting.parse(f"{SHARES},batch=8").plans[0].batch == 0


def test_a_file(tmp_path):
    path = tmp_path / "shares.json"
    plans = [{"decode": 32, "prefill": "..100"}, {"decode": "48..", "prefill": "..84", "batch": 9}]
    path.write_text(json.dumps({"plans": plans, "layers": 3}))
    setting = Setting.parse(str(path))
    assert setting.layers == 3 and [plan.batch for plan in setting.plans] == [0, 9]
    assert setting.plans[0].decode == Share("32")


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "there is no plan"),
        ("decode=32..", "no share for prefill"),
        ("decode=x,prefill=..100", 'decode=x: "x" is no share'),
        ("decode", "not a pair"),
        ("decode=,prefill=..100", "not a pair"),
        (f"{SHARES},speed=2", "unknown: speed"),
        (f"{SHARES},gap=fast", "gap=fast is not a time"),
        (f"{SHARES},gap=0", "gap=0 is not a time"),
        (f"{SHARES},layers=0", "layers=0 is not an integer of 1 or more"),
        (f"{SHARES},gap=9,layers=2", "exclude each other"),
        (f"{SHARES},gap=9;{SHARES},gap=8,batch=2", "given twice"),
        (f"{SHARES};{SHARES}", "begin at the same decode batch"),
        (f"{SHARES},batch=-1", "batch=-1 is not an integer"),
        ("decode=1..,decode=2..,prefill=..4", "decode is given twice"),
        ("/nowhere.json", "cannot be read"),
    ],
)
def test_what_cannot_be_understood(text, words):
    with pytest.raises(SettingError) as raised:
        Setting.parse(text)
    assert words in str(raised.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"plans": {}}', '{"plans": [1]}', '{"plans": [{"a": 1}]}'])
def test_a_file_that_holds_something_else(tmp_path, text):
    path = tmp_path / "shares.json"
    path.write_text(text)
    with pytest.raises(SettingError, match="shares.json"):
        Setting.parse(str(path))


def test_the_plan_follows_the_batch():
    shares = FixedShares(Setting.parse(f"{SHARES};decode=48..,prefill=..84,batch=8"))
    assert [shares.plan(batch) for batch in (0, 1, 7, 8, 100)] == [0, 0, 0, 1, 1]
    # Back at three quarters, so that a batch that varies changes nothing.
    assert [shares.plan(batch) for batch in (7, 6, 8, 5, 6, 7)] == [1, 1, 1, 0, 0, 0]


def test_layers_follow_the_bound_on_the_gap():
    def layers(gap, tokens=1000, compute=1e-6, submit=0.3e-3, step=8e-3, waited=0.0):
        shares = FixedShares(Setting.parse(f"{SHARES},gap={gap}"))
        for _ in range(50):
            shares.submitted(4, 4 * submit)
            shares.computed(4, 1000, 4 * 1000 * compute, waited)
            shares.stepped(step, 4 * submit)
        return shares.layers(tokens, 8)

    # 6.8 ms of a step are not for prefill; of the others 0.3 ms are for each layer.
    assert [layers(gap) for gap in (5, 9, 10, 12)] == [1, 2, 5, 11]
    # As many as keep the GPU busy are enough: 1.5 steps of 8 ms, at 1 ms a layer.
    assert layers(100) == 12 and layers(100, tokens=4000) == 3 and layers(100, tokens=100_000) == 1
    # Where the GPU waited for prefill, more follow.
    assert layers(100, waited=3e-3) == 15
    # A prompt of 100 tokens takes the GPU 0.1 ms a layer, and the loop 0.3 ms to submit it.
    assert 40 <= layers(100, tokens=100) <= 41
    # Nothing waits where nothing is decoded.
    assert FixedShares(Setting.parse(SHARES)).layers(1000, 0) > 1000
    # Nothing is measured yet.
    assert FixedShares(Setting.parse(SHARES)).layers(4096, 1) == 2
    assert FixedShares(Setting.parse(f"{SHARES},layers=3")).layers(4096, 1) == 3


def test_short_prompts_do_not_hide_what_long_ones_take():
    shares = FixedShares(Setting.parse(f"{SHARES},gap=100"))
    for _ in range(50):
        shares.submitted(32, 32 * 0.3e-3)
        # 1 ms a layer of 1000 tokens; those of 20 tokens wait for the loop.
        shares.computed(8, 1000, 8e-3, 0.0)
        shares.computed(32, 20, 32 * 0.3e-3, 0.0)
        shares.stepped(8e-3, 1e-3)
    assert 5 <= shares.layers(1000, 8) <= 12


def test_only_whole_steps_are_timed(monkeypatch):
    plugin = make_plugin()
    times = iter(range(100))
    monkeypatch.setattr(native.time, "perf_counter", lambda: next(times) / 1000)
    steps = []
    monkeypatch.setattr(plugin.controller, "stepped", lambda *step: steps.append(step))
    running = type(
        "Batch", (), {"is_empty": lambda self: not self.size, "batch_size": lambda self: self.size}
    )()
    scheduler = type("Scheduler", (), {"running_batch": running})()

    def step(size, in_flight, submitting=0.5e-3):
        running.size, scheduler.split_prefill_batch = size, in_flight
        assert plugin.step(lambda scheduler, sm_count: False, scheduler, 1) is False
        plugin._submitting = submitting

    step(4, None)
    step(4, object())
    step(4, object())
    assert steps == [(pytest.approx(1e-3), 0.5e-3)] * 2
    # All layers were submitted: the loop went round several times since. Then nothing was decoded beside.
    step(4, None)
    step(4, None, submitting=0.0)
    step(4, object())
    step(0, object())
    step(4, object())
    assert len(steps) == 2


# SGLang's sources, as far as the list of seams describes them.


def release(folder, leave_out=None, replace=("", "")):
    """A release that has what the plug-in expects, but for a seam, and with text replaced."""
    outlines = {}
    for seam in (*HOOKED.values(), *USED):
        if seam is leave_out:
            continue
        file, _, name = seam.path.partition(":")
        outer, _, own = name.rpartition(".")
        body = "".join(f"        {text}\n" for text in seam.contains) or "        pass\n"
        body = body.replace("        return ", "        return ").replace(
            "        _, _, threshold", "        _, _, threshold"
        )
        text = f"    def {own}({', '.join(seam.parameters or ())}):\n{body}"
        outlines.setdefault(file, {}).setdefault(outer, []).append(text)
    for file, classes in outlines.items():
        lines = []
        for outer, functions in classes.items():
            lines += [f"class {outer}:" if outer else "if True:", *functions]
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines).replace(*replace))
    return Sources(folder)


def test_a_release_that_fits(tmp_path):
    sources = release(tmp_path)
    assert sources.problems() == []
    assert sources.target(HOOKED["arguments"]) == "sglang.srt.server_args.ServerArgs.__post_init__"
    assert not sources.has_wrong_sample()


@pytest.mark.parametrize("seam", [*HOOKED.values(), *USED], ids=lambda seam: seam.name)
def test_each_seam_that_is_absent(tmp_path, seam):
    (problem,) = release(tmp_path, leave_out=seam).problems()
    assert seam.path in problem and "is absent" in problem


@pytest.mark.parametrize(
    "text", sorted({text for seam in (*HOOKED.values(), *USED) for text in seam.contains})
)
def test_each_text_that_is_absent(tmp_path, text):
    problems = release(tmp_path, replace=(f"        {text}\n", "        other()\n")).problems()
    assert problems and all(f"no longer contains `{text}`" in problem for problem in problems)


@pytest.mark.parametrize(
    "seam", [seam for seam in HOOKED.values() if seam.parameters], ids=lambda seam: seam.name
)
def test_each_parameter_that_is_renamed(tmp_path, seam):
    signature = f"def {seam.path.rpartition('.')[2].rpartition(':')[2]}({', '.join(seam.parameters)})"
    renamed = signature.replace(f"{seam.parameters[-1]})", "renamed)")
    problems = release(tmp_path, replace=(signature, renamed)).problems()
    assert problems and all("is expected" in problem for problem in problems)


def test_the_wrong_argument_of_the_first_prefill(tmp_path):
    sources = release(
        tmp_path,
        replace=(
            "        batch.split_forward_count\n",
            f"        batch.split_forward_count\n        {WRONG_SAMPLE}\n",
        ),
    )
    assert sources.problems() == [] and sources.has_wrong_sample()


# What stops.


def test_the_variable_is_unset_and_nothing_is_imported(python):
    program = """
import sys, green_ctx_sglang
green_ctx_sglang.plugin()
print(sorted(name for name in sys.modules if name.startswith("green_ctx")))
"""
    for value in ("", "off", " OFF "):
        assert python(program, GREEN_CTX_SGLANG=value).strip() == "['green_ctx_sglang']"


def test_without_sglang_the_process_ends(python):
    program = """
import green_ctx_sglang
try:
    green_ctx_sglang.plugin()
except Exception as error:
    print("SGLang would go on after", error)
"""
    assert python(program, GREEN_CTX_SGLANG=SHARES, status=1) == ""
    assert python(program, GREEN_CTX_SGLANG="decode=x,prefill=1", status=1) == ""


def test_a_second_engine_asks_the_plugin_again(monkeypatch):
    plugins = type(sys)("sglang.srt.plugins")
    plugins._plugins_loaded = True
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins", plugins)
    with pytest.raises(SystemExit, match="green_ctx_torch: no"):
        native.stop("no")
    assert plugins._plugins_loaded is False


def make_plugin(text=SHARES):
    return native.Plugin(Setting.parse(text), "0.0", sources=None)


class Arguments:
    def __init__(self, **named):
        self.__dict__.update(
            enable_pdmux=False, pdmux_config_path=None, sm_group_num=8, chunked_prefill_size=2048
        )
        self.__dict__.update(enable_mixed_chunk=True, disable_overlap_schedule=False, tp_size=1, **named)


def test_what_multiplexing_requires_is_set_and_said(caplog):
    arguments = Arguments()
    with caplog.at_level("INFO"):
        make_plugin().arguments(arguments)
    assert arguments.enable_pdmux and arguments.disable_overlap_schedule and not arguments.enable_mixed_chunk
    assert (arguments.chunked_prefill_size, arguments.sm_group_num) == (-1, 1)
    for words in ("decode 32..", "chunked_prefill_size=-1", "GREEN_CTX_SGLANG=off"):
        assert words in caplog.text


@pytest.mark.parametrize(
    "name, value",
    [
        ("tp_size", 2),
        ("pp_size", 2),
        ("enable_lora", True),
        ("speculative_algorithm", "EAGLE"),
        ("disaggregation_mode", "decode"),
    ],
)
def test_what_is_refused_by_name(name, value):
    arguments = Arguments()
    setattr(arguments, name, value)
    with pytest.raises(SystemExit, match=f"{name}="):
        make_plugin().arguments(arguments)
    assert not arguments.enable_pdmux


def test_an_argument_that_is_gone():
    arguments = Arguments()
    del arguments.sm_group_num
    with pytest.raises(SystemExit, match="no argument sm_group_num"):
        make_plugin().arguments(arguments)


def test_sglangs_own_groups_are_never_made_of_our_configuration(tmp_path):
    plugin = make_plugin()
    with pytest.raises(SystemExit, match="in place of the plug-in's"):
        plugin.config.manual_divisions  # noqa: B018
    # Its own reader cannot read what stands for our configuration.
    with pytest.raises(OSError), open(native.MARK):
        pass
    assert plugin.load_config(lambda path: path, native.MARK) is plugin.config
    assert plugin.load_config(lambda path: path, "own.yaml") == "own.yaml"


def test_a_loop_that_took_other_streams_does_not_begin():
    plugin = make_plugin()
    scheduler = type("Scheduler", (), {"stream_groups": [], "pdmux_config": plugin.config})()
    with pytest.raises(SystemExit, match="did not take"):
        plugin.initialized(None, scheduler)


def test_a_model_that_cannot_be_multiplexed():
    runner = type("Runner", (), {"model": object(), "decode_attn_backend_group": [1]})()
    with pytest.raises(SystemExit, match="object has no forward_split_prefill"):
        make_plugin().made_backends(None, runner)


def test_a_hook_that_was_not_applied_ends_the_process():
    class Registry:
        _patched = {"a"}

        @staticmethod
        def apply_hooks():
            pass

    native._check_when_applied(Registry, "0.0", ["a", "b"])
    with pytest.raises(SystemExit, match="did not apply the hooks on b"):
        Registry.apply_hooks()
    Registry._patched.add("b")
    Registry.apply_hooks()


def make_groups(text):
    """Groups without torch's streams."""
    setting = Setting.parse(text)
    groups = object.__new__(Groups)
    shares = {f"plan {i}": {"decode": p.decode, "prefill": p.prefill} for i, p in enumerate(setting.plans)}
    groups.setting, groups.names, groups.switches, groups.plain = setting, list(shares), 0, None
    groups._former, groups._changes, groups.current, groups.total = [], 0, 0, 132
    groups.plans = green_ctx_torch.PlanSet(shares)
    groups.captured = groups.plans["plan 0"]["decode"]
    groups.decode = "decode's stream"
    groups.prefill = ["prefill's stream"] * len(shares)
    groups.streams = []
    groups.use_shares()
    return groups


def test_decodes_context_must_be_one():
    groups = make_groups("decode=32..100,prefill=..100;decode=48..,prefill=..84,batch=8")
    with groups.plans, pytest.raises(ValueError, match="give decode the same ceiling"):
        groups._check_decode(groups.names, groups.setting)


def test_other_shares_while_the_engine_runs(fake_torch):
    groups = make_groups(SHARES)
    with groups.plans:
        groups.switched(1)
        context = groups.captured.raw_context
        for text, floor in (("decode=48..,prefill=..84", 48), ("decode=8..,prefill=..124", 8)):
            groups.change(Setting.parse(text))
            assert groups.plan() is None and groups.plans.active.name not in groups.names
            groups.switched(2)
            assert groups.plan() is None, "decode alone leaves the plan as it is"
            groups.switched(1)
            assert groups.plan() == 0 and groups.plans[groups.names[0]]["decode"].floor == floor
            assert groups.streams[1] == (groups.prefill[0], groups.decode)
            assert groups.plans[groups.names[0]]["decode"].raw_context == context
        # The first plan has decode's stream; the second one is gone.
        assert groups.plans.plans == ("plan 0", "change 2 plan 0") and not groups.captured.closed
        for text, words in (
            ("decode=48..100,prefill=..84", "are captured on 132 SMs"),
            (f"{SHARES};{SHARES},batch=3", "the engine has 1, and the setting 2"),
            (f"{SHARES},priority=0", "has priority -5"),
            ("decode=48..,prefill=100..", "do not fit"),
        ):
            with pytest.raises((ValueError, RuntimeError), match=words):
                groups.change(Setting.parse(text))
            assert groups.plans.plans == ("plan 0", "change 2 plan 0") and groups.plan() == 0


def test_what_is_reported_beside_sglangs_metrics(monkeypatch):
    gauges = {}

    class Gauge:
        def __init__(self, name, text, multiprocess_mode):
            self.values = gauges.setdefault(name, [])

        def set(self, value):
            self.values.append(value)

    monkeypatch.setitem(sys.modules, "prometheus_client", type("prometheus_client", (), {"Gauge": Gauge}))
    groups = make_groups(f"{SHARES},layers=5;decode=48..,prefill=..84,batch=8")
    with groups.plans:
        metrics = Metrics(groups, enabled=True)
        shares = FixedShares(groups.setting)
        metrics.publish(shares)
        metrics.publish(shares)
        groups.switched(2)
        metrics.publish(shares)
        groups.switched(2)
        assert gauges["green_ctx:plan"] == [0, 1] and gauges["green_ctx:switches"] == [0, 1]
        assert gauges["green_ctx:decode_floor"] == [32, 48] and gauges["green_ctx:prefill_ceiling"] == [
            100,
            84,
        ]
        assert gauges["green_ctx:prefill_layers"] == [5]
        state = metrics.snapshot(shares)
        json.dumps(state)
        assert (state["plan"], state["switches"], state["is_on"]) == (1, 1, True)
        assert state["plans"][1]["decode_share"] == "48.." and state["plans"][1]["from_decode_batch"] == 8
        assert not Metrics(groups, enabled=False)._gauges
