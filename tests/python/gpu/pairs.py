"""Jobs that run together, and the pairs of them that the tuner is judged on.

A job is a function that submits one iteration of 50 µs to 1 ms, on shapes as programs have them. The first six pairs are those
of a former judgement; the four others were chosen before the tuner had run on any of them.
"""

import torch

BF16 = torch.bfloat16


def numbers(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def product(side=4096):
    a, b = numbers(side, side), numbers(side, side)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def decode_attention(batch=32, heads=32, length=2048):
    query = numbers(batch, heads, 1, 128)
    keys, values = numbers(batch, heads, length, 128), numbers(batch, heads, length, 128)
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, keys, values)


def prefill_attention(batch=4, heads=32, length=2048):
    query, keys, values = (numbers(batch, heads, length, 128) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)


def experts(count=16, tokens=64, width=4096):
    rows, weights = numbers(count, tokens, width), numbers(count, width, width // 2)
    out = torch.empty(count, tokens, width // 2, device="cuda", dtype=BF16)
    return lambda: torch.bmm(rows, weights, out=out)


def decode_layers(rows=16, width=8192, layers=2):
    tokens, weights = numbers(rows, width), [numbers(width, width) for _ in range(layers)]
    out = torch.empty_like(tokens)
    return lambda: [torch.mm(tokens, weight, out=out) for weight in weights]


def softmax(rows=8192, width=8192):
    values = numbers(rows, width)
    out = torch.empty_like(values)
    return lambda: torch.softmax(values, dim=-1, out=out)


def sort(count=1 << 21):
    values = numbers(count, dtype=torch.float32)
    return lambda: torch.sort(values)


def gather(rows=1 << 20, width=128):
    table, index = numbers(rows, width), torch.randint(rows, (rows,), device="cuda")
    out = torch.empty_like(table)
    return lambda: torch.index_select(table, 0, index, out=out)


def convolution(batch=32, channels=256, side=56):
    images, weights = numbers(batch, channels, side, side), numbers(channels, channels, 3, 3)
    return lambda: torch.nn.functional.conv2d(images, weights, padding=1)


def fft(rows=2048, width=8192):
    values = numbers(rows, width, dtype=torch.float32)
    return lambda: torch.fft.rfft(values)


def layer_norm(rows=16384, width=4096):
    values = numbers(rows, width)
    return lambda: torch.nn.functional.layer_norm(values, (width,))


def scan(rows=4096, width=8192):
    values = numbers(rows, width, dtype=torch.float32)
    out = torch.empty_like(values)
    return lambda: torch.cumsum(values, dim=-1, out=out)


PAIRS = {
    "decode attention + product": (decode_attention, product),
    "experts + product": (experts, product),
    "softmax + convolution": (softmax, convolution),
    "sort + product": (sort, product),
    "convolution + gather": (convolution, gather),
    "fft + convolution": (fft, convolution),
    "decode layers + prefill attention": (decode_layers, prefill_attention),
    "layer norm + product": (layer_norm, product),
    "scan + prefill attention": (scan, prefill_attention),
    "decode attention + prefill attention": (decode_attention, prefill_attention),
}


def graphs(pair):
    """The two jobs of a pair as captured graphs."""
    made = []
    for job in PAIRS[pair]:
        work, stream = job(), torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                work()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        # What it uses lives as long as the graph.
        graph.work = work
        made.append(graph)
    torch.cuda.synchronize()
    return made
