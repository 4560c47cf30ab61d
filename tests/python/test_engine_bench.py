"""The measurement of SGLang: loads, figures, verdicts, and a run from start to end."""

import json

import pytest
from green_ctx_torch.engines.sglang import Setting
from green_ctx_torch.engines.sglang.bench.__main__ import starts
from green_ctx_torch.engines.sglang.bench.arms import SCREEN, Arm, find
from green_ctx_torch.engines.sglang.bench.judge import cells, finalists, report
from green_ctx_torch.engines.sglang.bench.load import Load
from green_ctx_torch.engines.sglang.bench.summary import percentile, summarize

SHARES = "decode=32..,prefill=..100"


def test_a_load_is_made_of_its_seed():
    first, again, other = (Load(6, 100, seed).requests(1000) for seed in (1, 1, 2))
    assert first == again != other
    assert 450 < len(first) < 750 and all(a.arrival <= b.arrival for a, b in zip(first, first[1:]))
    # Another rate brings the same prompts.
    assert [each.prompt for each in Load(9, 20, 1).requests(1000)[:50]] == [
        each.prompt for each in first[:50]
    ]
    bursts = Load(6, 200, arrivals="bursty").requests(1000)
    moments = {each.arrival for each in bursts}
    assert 900 < len(bursts) < 1500 and 2.5 < len(bursts) / len(moments) < 3.5
    prefixed = Load(6, 10, shared_prefix=64).requests(1000)
    assert len({tuple(each.prompt[:64]) for each in prefixed if len(each.prompt) > 64}) == 1


def test_the_figures_of_a_load():
    entry = {
        "arm": "a",
        "family": "f",
        "load": "l",
        "rate": 1,
        "seed": 1,
        "arrivals": "poisson",
        "ready": 1,
        "seconds": 2,
    }
    good = {"arrival": 0.0, "output": 3, "tokens": [50.0, 59.0, 68.0], "late": 0.1}
    slow = {"arrival": 0.5, "output": 2, "tokens": [650.0, 662.0]}
    unended = {"arrival": 1.9, "output": 5, "tokens": [300.0]}
    none = {"arrival": 1.9, "output": 5, "tokens": []}
    figures = summarize({**entry, "requests": [good, slow, unended, none]})
    # 15/600 refuses the first token after 650 ms, and 10/1000 the gap of 12 ms.
    assert figures["goodput"] == [0.5, 0.5, 0.5] and (figures["requests"], figures["ended"]) == (4, 2)
    # One token came after the end of the load.
    assert figures["tokens_per_s"] == 2.5
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0 and percentile([], 0.5) is None


def test_the_best_of_each_family_and_the_verdicts():
    def summary(arm, family, seed, *goodput):
        fixed = {"load": "l", "rate": 6.0, "arrivals": "poisson", "first_p99": 100.0, "tokens_per_s": 1.0}
        return {**fixed, "arm": arm, "family": family, "seed": seed, "goodput": goodput}

    runs = [
        summary("a", "shares", 1, 1.0, 5.0, 5.0),
        summary("a", "shares", 2, 1.2, 5.2, 5.4),
        summary("b", "shares", 1, 0.1, 1.0, 1.0),
        summary("c", "mixed", 1, 0.1, 6.0, 5.3),
        summary("c", "mixed", 2, 0.1, 6.0, 5.3),
        summary("d", "pdmux", 1, 0.0, 2.0, 0.0),
    ]
    assert finalists(runs) == ["a", "c", "d"]
    first, second, third = cells(runs).values()
    assert [result.arm for result in first] == ["a", "b", "c", "d"]
    assert (second[1].goodput, second[1].seeds) == (5.1, 2) and abs(second[1].spread - 0.2) < 1e-9
    lines = report(runs)
    assert len(lines) == 9
    # Behind by 0.9, and the seeds differ by 0.2.
    assert "0.85 ×, a loss" in lines[4] and "2.55 ×" in lines[5]
    # Behind by 0.1, and the seeds differ by 0.4.
    assert "0.98 × (c)" in lines[7] and "for no request" in lines[8]


def test_arms_that_differ_by_shares_alone_share_a_start(tmp_path):
    arms = find(
        ["priority", "pdmux 100+32 budget 8192", SHARES, f"{SHARES},priority=0", "decode=32..100,prefill=.."]
    )
    loads = [Load(6, 10), Load(9, 10)]
    out = tmp_path / "raw.jsonl"
    groups = starts(arms, loads, out)
    assert [len(work) for work in groups] == [5, 1, 1, 1, 1]
    first = groups[0][0][0]
    out.write_text(json.dumps({"arm": first.name, "load": loads[0].name}) + "\n" + '{"arm": "cut')
    again = starts(arms, loads, out)
    assert [load.name for load in again[0][0][1]] == [loads[1].name] and len(again[0]) == 5


ENGINE = """
import asyncio

class Engine:
    def __init__(self, **arguments):
        assert arguments["attention_backend"] == "fa3"
        self.loop, self.shares = asyncio.new_event_loop(), "as it was started"
        self.tokenizer_manager = self

    async def freeze_gc(self):
        pass

    async def async_generate(self, input_ids, sampling_params, stream):
        async def chunks():
            for count in range(1, sampling_params["max_new_tokens"] + 1):
                await asyncio.sleep(0)
                yield {"meta_info": {"completion_tokens": count}}
        return chunks()

    def collective_rpc(self, method, text):
        assert method == "green_ctx_change"
        self.shares = text

    def get_server_info(self):
        return {"internal_states": [{"green_ctx": self.shares, "memory_usage": {}}]}

    def shutdown(self):
        print("engine ends")
"""


def test_the_measurement_from_start_to_end_and_again(tmp_path, python):
    (tmp_path / "sglang.py").write_text(ENGINE)
    out = tmp_path / "raw.jsonl"
    arguments = [
        "--out",
        str(out),
        "--rates",
        "8",
        "--seconds",
        "0.4",
        "--arms",
        SHARES,
        "decode=..,prefill=..",
    ]
    run = ["-m", "green_ctx_torch.engines.sglang.bench", *arguments]
    printed = python(None, *run, PYTHONPATH=str(tmp_path), GREEN_CTX_SGLANG="off")
    assert "start 1 of 1" in printed and printed.count("engine ends") == 1 and "ready after" in printed
    entries = [json.loads(line) for line in out.read_text().splitlines()]
    measured = [entry for entry in entries if "load" in entry]
    assert [entry["family"] for entry in measured] == ["shares", "priority"]
    assert all(len(each["tokens"]) == each["output"] for entry in measured for each in entry["requests"])
    states = [entry["state"]["green_ctx"] for entry in entries if "state" in entry]
    assert states == ["as it was started", "decode=..,prefill=.."]
    # There is nothing left to measure.
    again = python(None, *run, PYTHONPATH=str(tmp_path), GREEN_CTX_SGLANG="off")
    assert "start" not in again and "shares decode=32..,prefill=..100" in again
    assert len(out.read_text().splitlines()) == len(entries)


def test_arms():
    assert len({arm.name for arm in SCREEN}) == len(SCREEN)
    assert all(Arm.from_json(arm.to_json()) == arm for arm in SCREEN)
    for text, family in (("decode=1..,prefill=..", "shares"), ("decode=..,prefill=..", "priority")):
        assert [(arm.variable, arm.family) for arm in find([text])] == [(text, family)]
    assert {arm.family for arm in find(["pdmux", "priority"])} == {"pdmux", "priority"}
    for arm in SCREEN:
        if arm.family in ("shares", "priority"):
            Setting.parse(arm.variable)
    with pytest.raises(SystemExit, match="is not an arm"):
        find(["nothing"])
