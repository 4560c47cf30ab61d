"""Everything once: two partitions, a kernel, copies, an event, and a captured graph that moves to the other partition.

    python everything.py

It needs a GPU, torch and Triton. The same program in Rust is the example `00-everything` of green-ctx.
"""

import torch
import triton

import green_ctx_torch


@triton.jit
def add_one(numbers):
    triton.language.store(numbers, triton.language.load(numbers) + 1)


with green_ctx_torch.partition({"a": "25%", "b": "75%"}) as parts:
    host = torch.tensor([1], dtype=torch.int32).pin_memory()

    with parts["a"]:  # torch's work of this block runs in the partition
        numbers = host.to("cuda", non_blocking=True)
        add_one[(1,)](numbers)
        done = torch.cuda.Event()
        done.record()

        # Capturing runs nothing.
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            add_one[(1,)](numbers)

    moved = green_ctx_torch.retarget(graph, parts["b"])
    with parts["b"]:
        # Blocks of one thread are ordered automatically. Other streams need the event.
        torch.cuda.current_stream().wait_event(done)
        moved.replay()
        moved.replay()
        host.copy_(numbers, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    assert host.tolist() == [4], host
    print("partitions of", parts["a"].sm_count, "and", parts["b"].sm_count, "SMs")
