"""Measures an urgent job next to a load that knows nothing of partitions, with and without a reserve.

`python reserved.py RESULTS.json` alternates four ways to run both, three times, each in a process of its own:

- plain: the job on a stream of the highest priority, the load on torch's default stream.
- alone: the job in a partition of 32 SMs, the load on torch's default stream.
- reserve: the same, after `reserve(32)`.
- both: the job in the same partition, the load in a partition with the share "..100".

The job is a decode step, a graph of 16 products. The load multiplies matrices of 8192 x 8192 on another thread.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time

WAYS = ["plain", "alone", "reserve", "both"]
ROUNDS, SECONDS, BLOCKS = 3, 3.0, 100_000


def measure(way):
    import green_ctx_torch

    if way == "reserve":
        green_ctx_torch.reserve(32)
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def probe(to):
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(to + tl.program_id(0), sm)

    def seen():
        to = torch.empty(BLOCKS, dtype=torch.int32, device="cuda")
        probe[(BLOCKS,)](to)
        torch.cuda.current_stream().synchronize()
        return set(to.tolist())

    kind = {"device": "cuda", "dtype": torch.bfloat16}
    big, weights, hidden = torch.randn(8192, 8192, **kind), torch.randn(16, 4096, 4096, **kind), torch.randn(16, 4096, **kind)
    shares = {"plain": {}, "alone": {"decode": 32}, "reserve": {"decode": 32}, "both": {"decode": 32, "load": "..100"}}
    parts = green_ctx_torch.partition(shares[way]) if shares[way] else {}
    ours = parts.get("decode") or torch.cuda.stream(torch.cuda.Stream(priority=-5))
    theirs = parts.get("load") or contextlib.nullcontext()

    def step():
        tokens = hidden
        for weight in weights:
            tokens = (tokens @ weight) * 0.01
        return tokens

    with theirs:
        torch.matmul(big, big)
        of_load = seen()
    with ours:
        step()
        of_step = seen()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    torch.cuda.synchronize()
    products, ends = 0, threading.Event()

    def load():
        nonlocal products
        with theirs:
            to = torch.empty_like(big)
            while not ends.is_set():
                for _ in range(4):
                    torch.matmul(big, big, out=to)
                products += 4
                torch.cuda.current_stream().synchronize()

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(0.5)
    before, begin, times = products, time.perf_counter(), []
    with ours:
        stream = torch.cuda.current_stream()
        while (now := time.perf_counter()) - begin < SECONDS:
            graph.replay()
            stream.synchronize()
            times.append(1e3 * (time.perf_counter() - now))
            time.sleep(0.0005)
    rate = (products - before) / (time.perf_counter() - begin)
    ends.set()
    thread.join()
    cuts = statistics.quantiles(times, n=100)
    found = {"p50_ms": cuts[49], "p99_ms": cuts[98], "steps": len(times), "products_per_s": rate}
    found |= {"sms_of_step": len(of_step), "sms_of_load": len(of_load), "sms_in_common": len(of_step & of_load)}
    print(json.dumps(found | {"torch": torch.__version__, "device": torch.cuda.get_device_name()}))


def main(path):
    runs = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            done = subprocess.run([sys.executable, __file__, "run", way], stdout=subprocess.PIPE, check=True, text=True)
            runs[way].append(json.loads(done.stdout.splitlines()[-1]))
    medians = {}
    for way, found in runs.items():
        figures = [key for key in found[0] if key not in ("torch", "device")]
        medians[way] = {key: statistics.median(run[key] for run in found) for key in figures}
        print(f"{way:8} " + "  ".join(f"{key} {value:.3f}" for key, value in medians[way].items()))
    for key in ("p50_ms", "p99_ms"):
        ratios = [ours[key] / best[key] for ours, best in zip(runs["reserve"], runs["both"])]
        print(f"reserve / both, {key}: " + ", ".join(f"{ratio:.3f}" for ratio in ratios))
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"runs": runs, "medians": medians}, file)
        file.write("\n")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        measure(sys.argv[2])
    else:
        main(sys.argv[1])
