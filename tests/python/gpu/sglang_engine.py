"""SGLang with the plug-in, on a GPU: `python sglang_engine.py OUT.json`. It needs SGLang and FlashAttention 3.

Each check starts an engine with a model of two layers and random weights, in a process of its own.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
from harness import check

SHARES = "decode=32..,prefill=..100"
PLANS = "decode=16..,prefill=..116;batch=8,decode=48..,prefill=..84"


def start(**more):
    """An engine of the small model."""
    import sglang
    from green_ctx_torch.engines.sglang.bench.arms import Arm
    from green_ctx_torch.engines.sglang.bench.serve import arguments, write_model

    folder = Path(tempfile.mkdtemp())
    write_model(more.pop("shape", "two-layers"), folder)
    options = {"mem_fraction_static": 0.5, "log_level": "warning", **more}
    return sglang.Engine(**arguments(Arm("check", "check"), folder, options))


async def generate(engine, prompt, count):
    """The tokens of one request."""
    parameters = {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True}
    done = await engine.async_generate(input_ids=prompt, sampling_params=parameters)
    return done["output_ids"]


def prompts(number, seed=1):
    chosen = random.Random(seed)
    return [chosen.choices(range(16, 31000), k=chosen.choice((5, 40, 300, 1500))) for _ in range(number)]


def part_tokens():
    """200 prompts beside each other give what each gives alone, while the plans change."""
    engine = start(enable_deterministic_inference=True)
    asked = prompts(200)

    async def alone():
        return [await generate(engine, prompt, 24) for prompt in asked]

    async def together():
        return await asyncio.gather(*(generate(engine, prompt, 24) for prompt in asked))

    expected = engine.loop.run_until_complete(alone())
    found = engine.loop.run_until_complete(together())
    differ = sum(a != b for a, b in zip(expected, found, strict=True))
    distinct = len({tuple(each) for each in expected})
    state = engine.get_server_info()["internal_states"][0]["green_ctx"]
    engine.shutdown()
    return {
        "holds": not differ and distinct > 150 and state["switches"] > 0,
        "differ": differ,
        "distinct": distinct,
        "state": state,
    }


def part_cancels():
    """10,000 short requests, a third of which are cancelled at a random moment, some in mid-prefill."""
    from green_ctx_torch import partition

    engine = start()
    chosen = random.Random(7)
    asked = prompts(64, seed=3)
    counts = {"done": 0, "cancelled": 0}
    manager = engine.tokenizer_manager

    async def one(number):
        prompt, count = chosen.choice(asked), chosen.randint(1, 12)
        parameters = {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True}
        rid = f"request-{number}"
        cancel = chosen.random() < 1 / 3

        async def run():
            chunks = await engine.async_generate(
                input_ids=prompt, sampling_params=parameters, stream=True, rid=rid
            )
            async for chunk in chunks:
                last = chunk["meta_info"]["finish_reason"]
            return last["type"]

        task = asyncio.ensure_future(run())
        if cancel:
            await asyncio.sleep(chosen.random() * 0.03)
            manager.abort_request(rid=rid)
        kind = await task
        counts["cancelled" if kind == "abort" else "done"] += 1

    async def all_of_them():
        waiting = iter(range(10_000))

        async def worker():
            for number in waiting:
                await one(number)

        await asyncio.wait_for(asyncio.gather(*(worker() for _ in range(200))), 240)

    engine.loop.run_until_complete(all_of_them())
    before = engine.loop.run_until_complete(generate(engine, asked[0], 8))
    time.sleep(1)
    # SGLang checks its memory when it is idle, and ends where a token is missing.
    again = engine.loop.run_until_complete(generate(engine, asked[0], 8))
    # SGLang keeps what was cancelled before it ran, with the plug-in and without.
    left = len(manager.rid_to_state) - counts["cancelled"]
    engine.shutdown()
    with partition({"all": 132}) as parts:
        back = parts["all"].sm_count
    holds = (
        sum(counts.values()) == 10_000
        and counts["cancelled"] > 1000
        and before == again
        and left <= 0
        and back == 132
    )
    return {"holds": holds, **counts, "left": left, "SMs": back}


def part_off_and_on():
    """The shares are switched off and on while requests run."""
    from green_ctx_torch.engines import sglang as plugin

    engine = start(enable_deterministic_inference=True)
    asked = prompts(40)

    async def together():
        return await asyncio.gather(*(generate(engine, prompt, 16) for prompt in asked))

    expected = engine.loop.run_until_complete(together())
    plugin.turn_off(engine)
    off = plugin.state(engine)
    without = engine.loop.run_until_complete(together())
    plugin.turn_on(engine)
    on = plugin.state(engine)
    found = engine.loop.run_until_complete(together())
    engine.shutdown()
    return {"holds": expected == without == found and not off["is_on"] and on["is_on"]}


def part_ceiling_stays():
    """Where decode has a ceiling, its graphs cannot leave it, and switching off says so."""
    from green_ctx_torch.engines import sglang as plugin

    engine = start()
    message = harness.raises(AssertionError, lambda: plugin.turn_off(engine), "GREEN_CTX_SGLANG=off")
    tokens = engine.loop.run_until_complete(generate(engine, [5, 6, 7], 4))
    engine.shutdown()
    return {"holds": len(tokens) == 4, "message": message}


def part_two_engines():
    """Two engines in one process, each with shares of its own."""
    from green_ctx_torch.engines import sglang as plugin

    engines = [
        start(mem_fraction_static=0.3 + 0.3 * i, enable_deterministic_inference=True) for i in range(2)
    ]
    asked = prompts(20)

    async def together(engine):
        return await asyncio.gather(*(generate(engine, prompt, 8) for prompt in asked))

    first, second = (engine.loop.run_until_complete(together(engine)) for engine in engines)
    states = [plugin.state(engine)["is_on"] for engine in engines]
    engines[0].shutdown()
    return {"holds": first == second and all(states)}


def part_flood():
    """Not a check: prefills until it is killed."""
    engine = start(shape="llama-8b")

    async def all_of_them():
        await asyncio.gather(*(generate(engine, [3 + i] * 8000, 8) for i in range(400)))

    print("ready", flush=True)
    engine.loop.run_until_complete(all_of_them())


def run(part, setting=SHARES, limit=300, **arguments):
    """Runs a part in a process of its own, and returns its result, status and errors."""
    command = [sys.executable, __file__, "--part", part, json.dumps(arguments)]
    environment = {**os.environ, "GREEN_CTX_SGLANG": setting}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else {"holds": False, "error": done.stderr[-600:]}
    return result, done


@check
def requests_beside_each_other_give_the_same_tokens():
    return run("tokens", PLANS)[0]


@check
def ten_thousand_requests_with_cancels():
    return run("cancels", PLANS)[0]


@check
def shares_are_switched_off_and_on():
    return run("off_and_on")[0]


@check
def a_ceiling_of_decode_stays():
    return run("ceiling_stays", "decode=32..100,prefill=..100")[0]


@check
def two_engines_in_one_process():
    return run("two_engines")[0]


@check
def what_cannot_be_done_is_refused_by_name():
    messages = {}
    for setting, arguments, word in (
        (SHARES, {"speculative_algorithm": "NGRAM"}, "speculative_algorithm"),
        (SHARES, {"enable_lora": True}, "enable_lora"),
        (SHARES, {"tp_size": 2}, "tp_size"),
        ("decode=32..,prefill=..200", {}, "divided"),
        ("decode=x,prefill=..100", {}, "decode=x"),
    ):
        _, done = run("start", setting, 120, **arguments)
        named = [line for line in done.stderr.splitlines() if "green_ctx_torch: " in line]
        assert done.returncode != 0 and named and word in named[-1], (setting, arguments, done.stderr[-800:])
        messages[word] = named[-1]
    return messages


@check
def a_capture_without_memory_ends_the_engine():
    _, done = run("start", SHARES, 120, mem_fraction_static=0.999)
    assert done.returncode != 0, "the engine started"
    return {"status": done.returncode}


@check
def a_killed_engine_gives_everything_back():
    from green_ctx_torch import partition

    import torch

    free = torch.cuda.mem_get_info()[0]
    command = [sys.executable, __file__, "--part", "flood", "{}"]
    environment = {**os.environ, "GREEN_CTX_SGLANG": SHARES}
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while child.stdout.readline().strip() != "ready":
        assert child.poll() is None, "the engine did not start"
    time.sleep(2)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    started = time.monotonic()
    while torch.cuda.mem_get_info()[0] < free - (1 << 28):
        assert time.monotonic() - started < 30, "the memory is not back"
        time.sleep(0.1)
    with partition({"all": 132}) as parts:
        return {"holds": parts["all"].sm_count == 132, "seconds": round(time.monotonic() - started, 1)}


def part_start(**arguments):
    start(**arguments).shutdown()
    return {"holds": True}


if __name__ == "__main__":
    if sys.argv[1] == "--part":
        print(json.dumps(globals()[f"part_{sys.argv[2]}"](**json.loads(sys.argv[3]))), flush=True)
    else:
        import sglang
        import torch

        about = {
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "sglang": sglang.__version__,
        }
        sys.exit(not harness.run(about, sys.argv[1]))
