"""A serving loop for a language model: prefill and decode share one GPU, in partitions or without them.

Requests arrive at random. Each step of the loop decodes one token for all running requests, with a CUDA graph, and
submits a part of the next request's prefill: some layers of the whole prompt on a second stream, or all layers of a
chunk of the prompt on the same stream. Most engines use chunks. The weights are random, so the tokens mean nothing; the
times do. It needs torch and a GPU with 40 GiB of free memory, and runs as it is:

    python serving_loop.py [REQUESTS_A_SECOND] [SECONDS]
"""

import random
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass, field

import torch
import torch.nn.functional as functional
from torch.nn.attention.bias import causal_lower_right

import green_ctx_torch

LAYERS, WIDTH, HEADS, VOCABULARY = 16, 4096, 32, 32000
SLOTS, LENGTH = 32, 4096
LAYERS_A_STEP = 4
CHUNK = 512


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / shape[-1] ** 0.5


class Model:
    """A decoder with a cache of keys and values for each slot."""

    def __init__(self):
        self.embedding, self.head = normal(VOCABULARY, WIDTH), normal(VOCABULARY, WIDTH)
        self.layers = [
            (
                normal(3 * WIDTH, WIDTH),
                normal(WIDTH, WIDTH),
                normal(4 * WIDTH, WIDTH),
                normal(WIDTH, 4 * WIDTH),
            )
            for _ in range(LAYERS)
        ]
        shape = (LAYERS, 2, SLOTS, HEADS, LENGTH, WIDTH // HEADS)
        self.cache = torch.zeros(shape, device="cuda", dtype=torch.bfloat16)

    def layer(self, hidden, index, attend):
        qkv, out, up, down = self.layers[index]
        mixed = functional.linear(functional.rms_norm(hidden, (WIDTH,)), qkv)
        query, key, value = mixed.view(*hidden.shape[:-1], 3, HEADS, WIDTH // HEADS).unbind(-3)
        hidden = hidden + functional.linear(attend(index, query, key, value).reshape(hidden.shape), out)
        return hidden + functional.linear(
            functional.silu(functional.linear(functional.rms_norm(hidden, (WIDTH,)), up)), down
        )

    def next_token(self, hidden):
        return functional.linear(functional.rms_norm(hidden, (WIDTH,)), self.head).argmax(-1)

    def prefill_layers(self, hidden, slot, first, last, begin):
        """Computes some layers for a prompt, or for its tokens from `begin` on."""
        end = begin + len(hidden)

        def attend(index, query, key, value):
            self.cache[index, 0, slot, :, begin:end] = key.transpose(0, 1)
            self.cache[index, 1, slot, :, begin:end] = value.transpose(0, 1)
            keys, values = self.cache[index, :, slot, None, :, :end]
            # Each token sees all tokens before it, including those of earlier chunks.
            causal = causal_lower_right(end - begin, end)
            heads = functional.scaled_dot_product_attention(
                query.transpose(0, 1)[None], keys, values, attn_mask=causal
            )
            return heads[0].transpose(0, 1)

        for index in range(first, last):
            hidden = self.layer(hidden, index, attend)
        return hidden

    def decode(self, tokens, lengths):
        """Computes one token for each slot."""
        slots = torch.arange(SLOTS, device="cuda")
        visible = (torch.arange(LENGTH, device="cuda") <= lengths[:, None])[:, None, None]

        def attend(index, query, key, value):
            self.cache[index, 0, slots, :, lengths] = key
            self.cache[index, 1, slots, :, lengths] = value
            keys, values = self.cache[index]
            return functional.scaled_dot_product_attention(
                query[:, :, None], keys, values, attn_mask=visible
            )[:, :, 0]

        hidden = self.embedding[tokens]
        for index in range(LAYERS):
            hidden = self.layer(hidden, index, attend)
        return self.next_token(hidden)


@dataclass
class Request:
    arrival: float
    prompt: int
    output: int
    slot: int = -1
    layer: int = 0
    begin: int = 0
    hidden: object = None
    times: list = field(default_factory=list)


def arrivals(rate, seconds):
    chosen, now = random.Random(1), 0.0
    while (now := now + chosen.expovariate(rate)) < seconds:
        yield Request(now, chosen.randint(200, 3000), chosen.randint(20, 100))


def serve(model, requests, decode, prefill, chunk=LENGTH, layers=LAYERS_A_STEP):
    """Serves all requests, with decode's steps on one stream, and prefill's layers on the other or on the same
    one."""
    tokens = torch.zeros(SLOTS, dtype=torch.long, device="cuda")
    lengths = torch.zeros(SLOTS, dtype=torch.long, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(decode):
        model.decode(tokens, lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The kernels of the graph stay in the partition in which they are captured.
    with torch.cuda.graph(graph, stream=decode):
        tokens.copy_(model.decode(tokens, lengths))
    lengths.zero_()
    waiting, running, done, free = deque(requests), [], [], list(range(SLOTS))
    current, filled, start = None, None, time.perf_counter()
    while waiting or running or current:
        now = time.perf_counter() - start
        if current is None and waiting and waiting[0].arrival <= now and free:
            current = waiting.popleft()
            current.slot = free.pop()
        if running:
            with torch.cuda.stream(decode):
                graph.replay()
                lengths[[each.slot for each in running]] += 1
        if current is not None and filled is None:
            with torch.cuda.stream(prefill):
                if current.layer == 0:
                    size = min(chunk, current.prompt - current.begin)
                    current.hidden = model.embedding[torch.randint(VOCABULARY, (size,), device="cuda")]
                # If no request waits for a token, all layers are submitted together.
                last = min(LAYERS, current.layer + (layers if running else LAYERS))
                current.hidden = model.prefill_layers(
                    current.hidden, current.slot, current.layer, last, current.begin
                )
                current.layer = last % LAYERS
                if last == LAYERS:
                    current.begin += len(current.hidden)
                if current.begin == current.prompt:
                    first = model.next_token(current.hidden[-1:])
                    filled = prefill.record_event()
        decode.synchronize()
        now = time.perf_counter() - start
        for request in running:
            request.times.append(now)
        for request in [each for each in running if len(each.times) == each.output]:
            running.remove(request)
            free.append(request.slot)
            done.append(request)
        # The host has seen the event, so work that decode submits from now on comes after the prefill's writes.
        if filled is not None and (filled.query() or not running):
            filled.synchronize()
            with torch.cuda.stream(decode):
                tokens[current.slot], lengths[current.slot] = first[0], current.prompt
            current.times.append(time.perf_counter() - start)
            current.hidden = None
            running.append(current)
            current = filled = None
    gaps = [1e3 * (b - a) for each in done for a, b in zip(each.times, each.times[1:])]
    first_tokens = [1e3 * (each.times[0] - each.arrival) for each in done]
    return (
        " ms, ".join(
            f"{name} p50 {statistics.median(times):6.1f}, p99 {statistics.quantiles(times, n=100)[98]:6.1f}"
            for name, times in (("first token", first_tokens), ("between tokens", gaps))
        )
        + " ms"
    )


def main(rate=4.0, seconds=10.0):
    model, requests = Model(), lambda: arrivals(float(rate), float(seconds))
    one = torch.cuda.Stream()
    print(f"chunks of {CHUNK}      ", serve(model, requests(), one, one, CHUNK, LAYERS))
    print("two plain streams  ", serve(model, requests(), torch.cuda.Stream(), torch.cuda.Stream()))
    with green_ctx_torch.partition({"decode": "32..", "prefill": "..100"}) as parts:
        decode = parts["decode"].create_stream(priority=-5)
        print("32.. with ..100    ", serve(model, requests(), decode, parts["prefill"].stream))


main(*sys.argv[1:])
