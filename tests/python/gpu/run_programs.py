"""Runs programs that know nothing of green-ctx under `green-ctx run`, on a GPU: PyTorch, JAX, C++, and SGLang.

    python run_programs.py RESULTS.json                  # torch, jax, c++, curves
    python run_programs.py RESULTS.json --parts sglang   # its offline benchmark, an 8B model with random weights

Each program prints its rate; the first three also print the SMs that they are told, and those that their blocks saw. A
program runs on some numbers of SMs and, in turn with those, without green-ctx. CUPTI reports the context of every kernel
in one more run. `curve --` and the curve within one process measure the same steps: products, and a step whose kernels
do not depend on the number of SMs. Within a process, cuBLAS sees all SMs, unless its target is set. The exit status
is 1 if a block ran on too many SMs, or if a rate at all SMs differs from the one without green-ctx by more than 6 % and
more than the spread.
"""

import argparse
import ctypes
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
CURVE_COUNTS = [8, 32, 64, 132]
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


def steps(torch, which):
    """Returns a decode step of sixteen products with a batch of 16, or one that computes elements."""
    if which == "tanh":
        x = torch.randn(1 << 24, device="cuda")

        def elements():
            y = x
            for _ in range(8):
                y = torch.tanh(y)
            return y

        return elements
    weights = torch.randn(16, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    hidden = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)

    def step():
        if which == "decode, told":
            cublas = ctypes.CDLL("libcublas.so.13")
            handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
            assert cublas.cublasSetSmCountTarget(handle, green_ctx_torch.sm_count()) == 0
        tokens = hidden
        for weight in weights:
            tokens = (tokens @ weight) * 0.01
        return tokens

    if which == "decode, told":
        import green_ctx_torch
    return step


def torch_(which="decode"):
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def where(to):
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(to + tl.program_id(0), sm)

    step, seen = steps(torch, which), torch.empty(20_000, dtype=torch.int32, device="cuda")
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
    """The curves within one process, of the steps that torch_ measures."""
    import torch

    import green_ctx_torch

    for which in ("decode", "decode, told", "tanh"):
        curve = green_ctx_torch.curve(steps(torch, which), sms=CURVE_COUNTS)
        print(json.dumps({which: dict(curve.points)}), flush=True)


def report(rate, seen):
    told = reserved_clients.told()
    print(f"rate: {rate:.3f} per s, told {told}, saw {len(seen)}", flush=True)


def sglang(folder):
    """Returns SGLang's offline benchmark, with a tokenizer of numbers and prompts of numbers."""
    import sglang_shares
    from tokenizers import Tokenizer, models, pre_tokenizers

    (folder / "config.json").write_text(json.dumps(sglang_shares.MODEL))
    words = {str(number): number for number in range(sglang_shares.MODEL["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    texts = [" ".join(str(37 * prompt + each) for each in range(512)) for prompt in range(128)]
    prompts = [{"conversations": [{"value": text}, {"value": "0"}]} for text in texts]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    command = [sys.executable, "-m", "sglang.bench_offline_throughput", "--model-path", folder, "--dtype", "bfloat16"]
    command += ["--load-format", "dummy", "--dataset-name", "random", "--dataset-path", folder / "prompts.json"]
    command += "--num-prompts 128 --random-input-len 512 --random-output-len 128 --random-range-ratio 1".split()
    command += "--attention-backend fa3 --sampling-backend pytorch --grammar-backend none --context-length 16384".split()
    command += "--mem-fraction-static 0.6 --max-running-requests 128 --cuda-graph-bs 1 16 32 64 128".split()
    # Saves the time to capture prefills at each start.
    command += ["--disable-piecewise-cuda-graph"]
    return [*command, "--random-seed", "1"]


def ran(command, environment=None):
    """Returns rate, told, seen, seconds. SGLang tells the rate alone."""
    begin = time.perf_counter()
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=200)
    found = re.search(r"rate: ([0-9.]+) per s, told (\d+), saw (\d+)", done.stdout)
    found = found or re.search(r"Total token throughput \(tok/s\): +([0-9.]+)()()", done.stdout)
    if done.returncode or not found:
        sys.exit(f"{command} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-4000:]}")
    seconds = round(time.perf_counter() - begin, 2)
    print(f"{found[1]} per s, in {seconds} s:", *command[:4], file=sys.stderr, flush=True)
    return [float(found[1]), *(int(each or 0) for each in found.groups()[1:]), seconds]


def curves():
    """Returns the us of two steps on each number of SMs, by `curve --` and within one process."""
    found = {}
    for which in ("decode", "tanh"):
        command = [GREEN_CTX, "--json", "curve", "--sms", ",".join(map(str, CURVE_COUNTS))]
        command += ["--repeat", "1", "--unit", "1/s", "--metric", "rate: ([0-9.]+)", "--", sys.executable, __file__, "torch_", which]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
        points = json.loads(done.stdout)["points"]
        found[f"curve -- {which}"] = {str(point["sms"]): point["median_us"] for point in points}
    done = subprocess.run([sys.executable, __file__, "curve_"], capture_output=True, text=True)
    print(done.stderr[-2000:])
    for line in done.stdout.splitlines():
        found |= {f"curve {which}": points for which, points in json.loads(line).items()}
    for name, points in found.items():
        print(f"{name}: " + ", ".join(f"{sms} SMs {us:.1f} us" for sms, us in points.items()), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--parts", nargs="+", default=["torch", "jax", "c++", "curves"])
    parser.add_argument("--nvcc", default=reserved_programs.NVCC)
    options = parser.parse_args()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    results = {"device": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()}
    wrong = []

    def save():
        options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        reserved_programs.compiled(folder, options.nvcc, ["rate"])
        reserved_programs.compiled(folder, options.nvcc, ["contexts"], *reserved_clients.cupti())
        programs = {"torch": [sys.executable, __file__, "torch_"], "jax": [sys.executable, __file__, "jax_"]}
        programs["c++"] = [Path(folder, "rate")]
        if "sglang" in options.parts:
            programs["sglang"] = sglang(Path(folder))
        for name, program in programs.items():
            if name not in options.parts:
                continue
            counts, alternates = ([32, 64, 96, 132], [64]) if name == "sglang" else (COUNTS, [32, 96, 132])
            plain, held = [], {count: [] for count in counts}
            results[name] = {"plain": plain, "held": held}
            for repeat in range(3 if name == "c++" else 1):
                for count in counts:
                    held[count].append(ran([GREEN_CTX, "run", "--sms", count, "--", *program]))
                    if count in alternates:
                        plain.append(ran(program))
                    save()
            # The whole device as often as nothing.
            held[132] += [ran([GREEN_CTX, "run", "--sms", 132, "--", *program]) for _ in range(len(plain) - len(held[132]))]
            rates = {count: statistics.median(each[0] for each in found) for count, found in held.items()}
            without = [each[0] for each in plain]
            ratio = rates[132] / statistics.median(without)
            spread = max(without) / min(without)
            results[name] |= {"ratio": ratio, "spread": spread}
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
            print(f"{name}: contexts on 32 SMs: {found}", flush=True)
            if not found or any(kernels and (not green or sms > 32) for _, green, sms, kernels, _ in found):
                wrong.append(f"{name} on 32 SMs: kernels ran in {found}")
            results["wrong"] = wrong
            save()
        if "curves" in options.parts:
            results["curves"] = curves()
            save()
    print(*wrong, f"{len(wrong)} unexpected", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    parts = {"torch_": torch_, "jax_": jax_, "curve_": curve_}
    parts[sys.argv[1]](*sys.argv[2:]) if sys.argv[1] in parts else main()
