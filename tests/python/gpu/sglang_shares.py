"""SGLang over HTTP with and without the plug-in, on a GPU. Every server is `python -m sglang.launch_server`.

    python sglang_shares.py tokens OUT.json          # 200 requests give the same tokens with and without the variable
    python sglang_shares.py measure OUT.jsonl --seed 7 [--reverse] [--arms walls shares]
    python sglang_shares.py table A.jsonl.xz B.jsonl.xz [--svg PICTURE.svg]

The model has the shape of Llama-3.1-8B and random weights. `measure` adds a line to its file after each load.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib.metadata
import json
import lzma
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

DIVISIONS = [[112, 20, 0], [100, 32, 8], [84, 48, 24]]
#: The budget of prefill in one step of the multiplexing loop: the number of layers times the number of tokens.
BUDGET = 8192
RATES = (6, 9)
SECONDS = 20
#: The greatest allowed gap between tokens and the greatest allowed time to the first token, in ms.
BOUNDS = ((10, 1000), (15, 600), (25, 400))
#: The flags, the divisions of the SMs, and the value of GREEN_CTX_SGLANG.
ARMS = {
    "default": ([], None, "off"),
    "mixed 256": (["--chunked-prefill-size", "256", "--enable-mixed-chunk"], None, "off"),
    "mixed 512": (["--chunked-prefill-size", "512", "--enable-mixed-chunk"], None, "off"),
    "mixed 1024": (["--chunked-prefill-size", "1024", "--enable-mixed-chunk"], None, "off"),
    "walls": ([], DIVISIONS, "off"),
    "shares": ([], DIVISIONS, "shares"),
    # The SMs are not divided, and decode's stream has a high priority.
    "priority": ([], [[132, 0, 0]], "shares"),
}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
}


class Server:
    """One server of SGLang, in its own process group."""

    def __init__(self, arm, options, *more):
        flags, divisions, variable = ARMS[arm]
        folder = Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(json.dumps(MODEL))
        release = tuple(map(int, importlib.metadata.version("sglang").split(".")[:3]))
        graphs = "--cuda-graph-bs-decode" if release > (0, 5, 19) else "--cuda-graph-bs"
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", folder, "--load-format", "dummy"]
        command += ["--skip-tokenizer-init", "--dtype", "bfloat16", "--context-length", "16384"]
        command += ["--attention-backend", "fa3", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
        command += ["--mem-fraction-static", options.memory, "--max-running-requests", "128", "--random-seed", "1"]
        command += ["--stream-interval", "1", "--incremental-streaming-output", "--max-prefill-tokens", "16384"]
        command += [graphs, *"1 2 4 8 12 16 24 32 48 64 96 128".split()]
        command += ["--port", options.port, *flags, *more]
        if divisions:
            config = {"sm_group_num": len(divisions) + 2, "split_forward_token_budget": BUDGET}
            # JSON is also valid YAML.
            (folder / "divisions.yaml").write_text(json.dumps({**config, "manual_divisions": divisions}))
            command += ["--enable-pdmux", "--pdmux-config-path", folder / "divisions.yaml"]
            command += ["--sm-group-num", len(divisions) + 2, "--chunked-prefill-size", "-1"]
            command += ["--disable-overlap-schedule"]
        self.port, self.log = options.port, folder / "log"
        environment = {**os.environ, "GREEN_CTX_SGLANG": variable, "HF_HUB_OFFLINE": "1"}
        began = time.monotonic()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, command)], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            while "The server is fired up" not in self.log.read_text():
                if self.process.poll() is not None or time.monotonic() - began > 300:
                    sys.exit(f"{arm} did not start:\n{self.log.read_text()[-4000:]}")
                time.sleep(0.5)
        except BaseException:
            self.stop()
            raise
        self.ready = round(time.monotonic() - began, 1)

    def stop(self):
        for number, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self.process.pid, number)
                self.process.wait(seconds)


def lengths(chosen, median, most, least):
    return min(most, max(least, round(chosen.lognormvariate(math.log(median), 0.6))))


def load(rate, seconds, seed):
    """Returns requests as (arrival in s, prompt, number of tokens). No two loads have a prompt in common."""
    chosen, now, made = random.Random(f"{rate} {seed}"), 0.0, []
    while (now := now + chosen.expovariate(rate)) < seconds:
        prompt = chosen.choices(range(16, MODEL["vocab_size"] - 16), k=lengths(chosen, 1500, 8000, 4))
        made.append((now, prompt, lengths(chosen, 150, 600, 2)))
    return made


async def ask(port, start, arrival, prompt, count):
    """Sends a request when it is due. Returns its tokens, and their times in ms after it was due."""
    sampling = {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True}
    body = json.dumps({"input_ids": prompt, "sampling_params": sampling, "stream": True}).encode()
    head = "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    due = start + arrival
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    tokens, times = [], []
    async for line in reader:
        if line.startswith(b"data: {"):
            now, event = (time.perf_counter() - due) * 1e3, json.loads(line[6:])
            if "output_ids" not in event:
                raise RuntimeError(f"SGLang answered {line.decode()}")
            tokens += event["output_ids"]
            times += [now] * (len(tokens) - len(times))
    writer.close()
    if len(tokens) != count:
        raise RuntimeError(f"{len(tokens)} tokens of {count}")
    return tokens, times


async def serve(port, requests):
    start = time.perf_counter() + 0.2
    return await asyncio.gather(*(ask(port, start, *request) for request in requests))


def run(port, requests):
    gc.collect()
    gc.disable()
    answers = asyncio.run(serve(port, requests))
    gc.enable()
    return answers


def left():
    """Returns the number of SMs that a partition in a new process can have, and the free memory in GiB."""
    program = "import torch\nfrom green_ctx_torch import partition as new, sm_count\n"
    program += "with new({'all': sm_count()}) as p: print(p['all'].sm_count, torch.cuda.mem_get_info()[0] >> 30)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def about():
    import sglang
    import torch

    return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "sglang": sglang.__version__}


def measure(options):
    for arm in reversed(options.arms) if options.reverse else options.arms:
        server = Server(arm, options)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/get_server_info", timeout=30) as answer:
            info = json.load(answer)
        kept = [name for name in info if name.startswith(("chunked_", "disable_", "enable_mixed", "enable_pdmux"))]
        entry = {**about(), "arm": arm, "seed": options.seed, "reverse": options.reverse, "ready": server.ready}
        entry["settings"] = {name: info[name] for name in kept}
        # This run is discarded, because kernels are compiled at their first use.
        run(server.port, load(max(RATES), options.seconds / 2, options.seed + 1000))
        for rate in RATES:
            requests = load(rate, options.seconds, options.seed)
            answers = run(server.port, requests)
            entry["rate"], entry["requests"] = rate, []
            for (arrival, prompt, _), (_, times) in zip(requests, answers, strict=True):
                # The arrival in s, the prompt's tokens, then the time of the first token and the gaps, both in
                # tenths of a ms.
                ticks = [round(each * 10) for each in times]
                gaps = [b - a for a, b in zip(ticks, ticks[1:])]
                entry["requests"].append([round(arrival, 3), len(prompt), ticks[0], *gaps])
            with options.out.open("a") as file:
                file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            print(arm, rate, summary(entry["requests"]), flush=True)
        server.stop()


def tokens(options):
    chosen, found, before = random.Random(5), {}, left()
    prompts = [chosen.choices(range(16, 100_000), k=chosen.choice((5, 40, 300, 1500))) for _ in range(200)]
    requests = [(chosen.random() * 10, prompt, 24) for prompt in prompts]
    for arm in ("walls", "shares"):
        server = Server(arm, options, "--enable-deterministic-inference")
        found[arm] = [answer for answer, _ in run(server.port, requests)]
        server.stop()
    differ = sum(a != b for a, b in zip(found["walls"], found["shares"], strict=True))
    result = {**about(), "requests": len(requests), "differ": differ}
    result |= {"distinct": len({tuple(each) for each in found["walls"]}), "SMs, GiB before": before, "after": left()}
    print(result)
    options.out.write_text(json.dumps(result))
    sys.exit(bool(differ) or result["distinct"] < 150 or result["after"] != before)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * share) - 1)]


def summary(requests):
    """Returns the figures of the table, in ms."""
    firsts, gaps = [each[2] / 10 for each in requests], [gap / 10 for each in requests for gap in each[3:]]
    means = [statistics.fmean(each[3:] or [0]) / 10 for each in requests]
    tails = [percentile(each[3:] or [0], 0.99) / 10 for each in requests]

    def within(times):
        pairs = list(zip(firsts, times, strict=True))
        return [round(sum(f <= first and t <= gap for f, t in pairs) / len(pairs), 2) for gap, first in BOUNDS]

    result = {"requests": len(requests), "first p50": percentile(firsts, 0.5), "first p99": percentile(firsts, 0.99)}
    result |= {"mean p50": round(percentile(means, 0.5), 1), "mean p99": round(percentile(means, 0.99), 1)}
    result |= {f"gap p{name}": percentile(gaps, share) for name, share in (("50", 0.5), ("99", 0.99))}
    return result | {"gap max": max(gaps), "within by p99": within(tails), "within by mean": within(means)}


def table(options):
    """Prints the requests of all files as one table in Markdown, and the ratios between walls and shares."""
    together = {}
    for path in options.files:
        for line in (lzma.open if path.suffix == ".xz" else open)(path, "rt"):
            entry = json.loads(line)
            together.setdefault((entry["rate"], entry["arm"]), []).extend(entry["requests"])
    order = sorted(together, key=lambda key: (key[0], [*ARMS].index(key[1])))
    rows = {key: summary(together[key]) for key in order}
    names = list(rows[order[0]])
    print("| rate | arm |", " | ".join(names), "|")
    print("|---" * (len(names) + 2) + "|")
    for (rate, arm), row in rows.items():
        cells = (", ".join(map(str, cell)) if isinstance(cell, list) else f"{cell:g}" for cell in row.values())
        print(f"| {rate} | {arm} |", " | ".join(cells), "|")
    for rate in RATES:
        if (rate, "walls") in rows and (rate, "shares") in rows:
            for name in ("first p99", "gap p99"):
                ratio = rows[rate, "shares"][name] / rows[rate, "walls"][name]
                print(f"{rate}/s, shares to walls, {name}: {ratio:.3f}")
    if options.svg:
        options.svg.write_text(picture(rows))


def picture(rows):
    """Draws one point per arm. Lower and further left is better. Both axes are logarithmic."""
    width, height, top, names = 300, 280, 40, ("first p99", "gap p99")
    least, most = ([f(row[name] for row in rows.values()) for name in names] for f in (min, max))

    def place(value, axis, size):
        return size * (0.05 + 0.9 * math.log(value / least[axis]) / math.log(most[axis] / least[axis]))

    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {top + height + 50}" font-size="11" '
    parts = [svg + 'font-family="sans-serif">', '<rect width="100%" height="100%" fill="#fff"/>']
    for panel, rate in enumerate(RATES):
        x0, y0 = 60 + panel * 400, top + height
        parts += [f'<text x="{x0}" y="{top - 15}" font-weight="bold">{rate} requests/s</text>']
        parts += [f'<path d="M{x0} {top}V{y0}h{width + 50}" fill="none" stroke="#000"/>']
        parts += [f'<text x="{x0}" y="{y0 + 35}">time to the first token, p99 in ms</text>']
        parts += [f'<text transform="translate({x0 - 35} {y0}) rotate(-90)">gap between tokens, p99 in ms</text>']
        for x in (200, 400, 800, 1500):
            parts += [f'<text x="{x0 + place(x, 0, width):.0f}" y="{y0 + 15}" text-anchor="middle">{x}</text>']
        for y in (15, 20, 30, 50, 80):
            parts += [f'<text x="{x0 - 20}" y="{y0 - place(y, 1, height) + 4:.0f}">{y}</text>']
        for (of, arm), row in rows.items():
            if of == rate:
                x, y = x0 + place(row[names[0]], 0, width), y0 - place(row[names[1]], 1, height)
                colour = {"shares": "#2a7", "walls": "#c63"}.get(arm, "#58a")
                parts += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="5" fill="{colour}"/>']
                parts += [f'<text x="{x + 8:.0f}" y="{y + 4:.0f}">{arm}</text>']
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function in (tokens, measure):
        (command := commands.add_parser(function.__name__)).set_defaults(function=function)
        command.add_argument("out", type=Path)
        command.add_argument("--port", type=int, default=30000)
        command.add_argument("--memory", type=float, default=0.8, help="SGLang's --mem-fraction-static")
    command.add_argument("--seed", type=int, required=True)
    command.add_argument("--reverse", action="store_true", help="the last arm first")
    command.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    command.add_argument("--seconds", type=float, default=SECONDS)
    (command := commands.add_parser("table")).set_defaults(function=table)
    command.add_argument("files", type=Path, nargs="+")
    command.add_argument("--svg", type=Path)
    options = parser.parse_args()
    options.function(options)
