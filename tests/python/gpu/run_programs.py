"""Runs programs that know nothing of green-ctx under `green-ctx run`, on a GPU: PyTorch, JAX, and C++.

    python run_programs.py RESULTS.json

Each program prints its rate, the SMs that it is told, and the SMs that its blocks saw. It runs on eight numbers of SMs
and, in turn with those, without green-ctx. Then `curve --` and the curve within one process measure the same step. The
exit status is 1 if a block ran on too many SMs, or if a rate at all SMs differs from the one without green-ctx by more
than 6 % and more than the spread.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import reserved_clients
import reserved_programs

COUNTS = [8, 16, 32, 48, 64, 96, 120, 132]
HERE = Path(__file__).resolve().parent
GREEN_CTX = next((path for path in (HERE / "green-ctx", HERE.parent / "green-ctx") if path.exists()), "green-ctx")


def timed(step, wait, seconds=1.0):
    """Returns the iterations per second: the median of three blocks."""
    step(), wait()
    rates = []
    for _ in range(3):
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds / 3:
            for _ in range(10):
                step()
            wait()
            count += 10
        rates.append(count / (time.perf_counter() - begin))
    return statistics.median(rates)


def decode(torch):
    """A decode step in one graph: sixteen products with a batch of 16."""
    weights = torch.randn(16, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    hidden = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)

    def step():
        tokens = hidden
        for weight in weights:
            tokens = (tokens @ weight) * 0.01
        return tokens

    return step


def torch_():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def where(to):
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(to + tl.program_id(0), sm)

    step, seen = decode(torch), torch.empty(20_000, dtype=torch.int32, device="cuda")
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    where[(20_000,)](seen)
    rate = timed(graph.replay, torch.cuda.synchronize)
    report(rate, set(seen.tolist()))


def jax_():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    x = jnp.ones((4096, 4096), jnp.bfloat16)
    step, found = jax.jit(lambda v: jnp.tanh(v @ v)), []

    def once():
        found[:] = [step(x)]

    report(timed(once, lambda: found[0].block_until_ready()), ())


def curve_():
    """The curve within one process, of the step that torch_ measures."""
    import torch

    import green_ctx_torch

    print(json.dumps({"curve": dict(green_ctx_torch.curve(decode(torch), sms=COUNTS).points)}))


def report(rate, seen):
    told = reserved_clients.told()
    print(f"rate: {rate:.3f} per s, told {told}, saw {len(seen)}", flush=True)


def ran(command, environment=None):
    """Returns rate, told, seen, seconds."""
    begin = time.perf_counter()
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=200)
    found = re.search(r"rate: ([0-9.]+) per s, told (\d+), saw (\d+)", done.stdout)
    if done.returncode or not found:
        sys.exit(f"{command} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return [float(found[1]), int(found[2]), int(found[3]), round(time.perf_counter() - begin, 2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--nvcc", default=reserved_programs.NVCC)
    options = parser.parse_args()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    results = {"device": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        reserved_programs.compiled(folder, options.nvcc, ["rate"])
        reserved_programs.compiled(folder, options.nvcc, ["contexts"], *reserved_clients.cupti())
        programs = {"torch": [sys.executable, __file__, "torch_"], "jax": [sys.executable, __file__, "jax_"]}
        programs["c++"] = [Path(folder, "rate")]
        for name, program in programs.items():
            plain, held = [], {count: [] for count in COUNTS}
            for repeat in range(3 if name == "c++" else 1):
                for count in COUNTS:
                    held[count].append(ran([GREEN_CTX, "run", "--sms", count, "--", *program]))
                    if count in (32, 96) or count == COUNTS[-1]:
                        plain.append(ran(program))
            # The whole device as often as nothing.
            held[132] += [ran([GREEN_CTX, "run", "--sms", 132, "--", *program]) for _ in range(len(plain) - len(held[132]))]
            rates = {count: statistics.median(each[0] for each in found) for count, found in held.items()}
            without = [each[0] for each in plain]
            ratio = rates[132] / statistics.median(without)
            spread = max(without) / min(without)
            results[name] = {"plain": plain, "held": held, "ratio": ratio, "spread": spread}
            print(f"{name}: " + ", ".join(f"{count} SMs {rate:.1f}" for count, rate in rates.items()), flush=True)
            print(f"{name}: without {statistics.median(without):.1f} ({min(without):.1f} to {max(without):.1f}), {ratio=:.3f}")
            if not (abs(ratio - 1) <= 0.06 or min(without) <= rates[132] <= max(without)):
                wrong.append(f"{name}: {ratio=:.3f}")
            for count, found in held.items():
                if any(told > count or seen > count for _, told, seen, _ in found):
                    wrong.append(f"{name} on {count} SMs: {found}")
            # Where kernels of programs that cannot ask for their SM ran.
            watch = reserved_clients.watched(Path(folder))
            ran([GREEN_CTX, "run", "--sms", 32, "--", *program], dict(os.environ) | watch)
            results[name]["contexts on 32 SMs"] = found = reserved_clients.contexts(folder)
            if not found or any(kernels and (not green or sms > 32) for _, green, sms, kernels, _ in found):
                wrong.append(f"{name} on 32 SMs: kernels ran in {found}")
        counts = ",".join(map(str, COUNTS))
        program = [*programs["torch"]]
        command = [GREEN_CTX, "--json", "curve", "--sms", counts, "--repeat", "1", "--metric", "rate: ([0-9.]+)"]
        done = subprocess.run([*map(str, [*command, "--unit", "1/s", "--", *program])], capture_output=True, text=True)
        results["curve --"] = json.loads(done.stdout)
        done = subprocess.run([sys.executable, __file__, "curve_"], capture_output=True, text=True)
        print(done.stdout[-3000:], done.stderr[-2000:])
        results["curve"] = json.loads(done.stdout.splitlines()[-1])["curve"]
    results["wrong"] = wrong
    options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(*wrong, f"{len(wrong)} unexpected", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    {"torch_": torch_, "jax_": jax_, "curve_": curve_}.get(sys.argv[1], main)()
