"""A decode step while prefill runs, without partitions and with them.

A decode step of a language model is small, and a user waits for it. Prefill is large, and keeps every SM busy. On
plain streams a decode step waits until blocks of prefill's products leave SMs. In a partition it has SMs for
itself.

Run it as a script, or cell by cell in a notebook.
"""

# %% A decode step of 16 layers for a batch of 8, and prefill's matrix products of 8192 by 8192.
import statistics
import time
from collections import deque

import torch

import green_ctx_torch

WIDTH, BATCH, LAYERS = 4096, 8, 16
STEPS = 300


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


weights = [normal(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS)]
tokens = normal(BATCH, WIDTH)
left, right = normal(8192, 8192), normal(8192, 8192)
product = torch.empty_like(left)


def decode_step():
    hidden = tokens
    for weight in weights:
        hidden = torch.relu(hidden @ weight)
    return hidden


# %% Captures a decode step on the stream on which it will run: its kernels stay in that stream's partition.
def captured(stream):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        decode_step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        decode_step()
    return graph


# %% Runs decode steps one after the other, while prefill always has some products to compute.
def run(decode, prefill=None):
    graph, submitted, products, steps = captured(decode), deque(), 0, []
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        while submitted and submitted[0].query():
            submitted.popleft()
            products += 1
        while prefill is not None and len(submitted) < 4:
            with torch.cuda.stream(prefill):
                torch.mm(left, right, out=product)
                submitted.append(torch.cuda.Event())
                submitted[-1].record()
        begin = time.perf_counter()
        with torch.cuda.stream(decode):
            graph.replay()
        decode.synchronize()
        steps.append(1e6 * (time.perf_counter() - begin))
    per_second = products / (time.perf_counter() - start)
    torch.cuda.synchronize()
    p50, p99 = statistics.median(steps), statistics.quantiles(steps, n=100)[98]
    return f"decode p50 {p50:6.0f} µs, p99 {p99:6.0f} µs; prefill {per_second:4.0f} products/s"


# %% Before: decode alone, then while prefill runs, on plain streams.
print("alone            ", run(torch.cuda.Stream()))
print("two plain streams", run(torch.cuda.Stream(), torch.cuda.Stream()))

# %% After: decode has 32 SMs, prefill the rest.
with green_ctx_torch.partition({"decode": 32, "prefill": "rest"}) as parts:
    print("two partitions   ", run(parts["decode"].stream, parts["prefill"].stream))
    # Proves where they run. A notebook shows the report as a picture.
    report = green_ctx_torch.verify(parts)
    print(report)
report
