"""Where the kernels of libraries run in a partition: `python libraries.py [RESULTS.json]`.

Each case runs a library's work in a block, and the profiler reports the context of each kernel. The results are the
table of libraries in docs/pytorch.md.
"""

import json
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import green_ctx_torch

CASES = {}


def case(name):
    def add(function):
        CASES[name] = function
        return function

    return add


def simple(name, call, make):
    """Adds a case that calls a function with operands that were created before the block."""

    def prepare(part):
        operands = make()
        return lambda: call(*operands)

    CASES[name] = prepare


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def f32(*shape):
    return torch.randn(*shape, device="cuda")


simple("cuBLAS, product", torch.matmul, lambda: (bf16(2048, 2048),) * 2)
simple("cuBLAS, batched product", torch.bmm, lambda: (f32(16, 256, 256),) * 2)


@case("cuBLASLt, product with bias and GELU")
def _(part):
    a, bias = bf16(2048, 2048), bf16(2048)
    return lambda: torch._addmm_activation(bias, a, a, use_gelu=True)


@case("cuBLASLt, FP8 product")
def _(part):
    a = f32(1024, 1024).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    b = a.clone().t()
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


@case("cuDNN, convolution")
def _(part):
    net, x = torch.nn.Conv2d(64, 64, 3).cuda(), f32(16, 64, 64, 64)
    return lambda: net(x).sum().backward()


def recurrent(kind, hidden, layers=1, length=64, train=False, bidirectional=False, batch=8):
    net = kind(hidden, hidden, num_layers=layers, bidirectional=bidirectional).cuda()
    x = f32(length, batch, hidden)
    if not train:
        net.eval()

        def infer():
            with torch.no_grad():
                net(x)

        return infer
    return lambda: net(x)[0].sum().backward()


def graph_of(work, part):
    graph = torch.cuda.CUDAGraph()
    with part:
        work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            work()
    return graph.replay


CASES["cuDNN, LSTM 256, inference"] = lambda part: recurrent(torch.nn.LSTM, 256)
CASES["cuDNN, LSTM 512, training"] = lambda part: recurrent(torch.nn.LSTM, 512, train=True)
CASES["cuDNN, LSTM 1024 x 2, both directions"] = lambda part: recurrent(
    torch.nn.LSTM, 1024, layers=2, bidirectional=True
)
CASES["cuDNN, GRU 512, inference"] = lambda part: recurrent(torch.nn.GRU, 512)
CASES["cuDNN, LSTM 512 in a graph captured in the block"] = lambda part: graph_of(
    recurrent(torch.nn.LSTM, 512, train=True), part
)


@case("the same, moved with retarget")
def _(part):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    work = recurrent(torch.nn.LSTM, 512, train=True)
    work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    return green_ctx_torch.retarget(graph, part).replay


@case("torch's own LSTM (cuDNN off)")
def _(part):
    work = recurrent(torch.nn.LSTM, 256)

    def off():
        with torch.backends.cudnn.flags(enabled=False):
            work()

    return off


def attention(backend):
    def attend(q):
        with sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)

    return attend


for _name, _backend, _made in [
    ("attention, flash (CUTLASS)", SDPBackend.FLASH_ATTENTION, bf16),
    ("attention, memory-efficient (CUTLASS)", SDPBackend.EFFICIENT_ATTENTION, f32),
    ("attention, cuDNN", SDPBackend.CUDNN_ATTENTION, bf16),
]:
    simple(_name, attention(_backend), lambda made=_made: (made(4, 16, 512, 64),))


def spd(n, batch=()):
    a = f32(*batch, n, n)
    return a @ a.mT + n * torch.eye(n, device="cuda")


simple("cuSOLVER, Cholesky", torch.linalg.cholesky, lambda: (spd(512),))
simple("cuSOLVER, eigenvalues", torch.linalg.eigh, lambda: (spd(256),))
simple("cuSOLVER, SVD", torch.linalg.svd, lambda: (f32(256, 256),))
simple("cuSOLVER, QR", torch.linalg.qr, lambda: (f32(512, 512),))
simple("cuSOLVER, solve", torch.linalg.solve, lambda: (spd(512), f32(512, 8)))


def batch():
    return spd(64, (32,)), f32(32, 64, 4)


def preferring(library):
    def solve(a, b):
        torch.backends.cuda.preferred_linalg_library(library)
        torch.linalg.solve(a, b)
        torch.backends.cuda.preferred_linalg_library("default")

    return solve


simple("batched solve (cuBLAS, MAGMA)", torch.linalg.solve, batch)
simple("batched solve, MAGMA alone", preferring("magma"), batch)
simple("batched solve, cuSOLVER alone", preferring("cusolver"), batch)


@case("cuSPARSE, product")
def _(part):
    dense = f32(1024, 1024) * (torch.rand(1024, 1024, device="cuda") < 0.05)
    sparse, b = dense.to_sparse_csr(), f32(1024, 64)
    return lambda: sparse @ b


simple("cuFFT, 1D and 2D", lambda a: (torch.fft.fft(a), torch.fft.fft2(a)), lambda: (f32(64, 512, 512),))
simple("cuRAND's generators and sorting in torch", lambda: torch.rand(1 << 20, device="cuda").sort(), tuple)


@case("Triton")
def _(part):
    import triton
    import triton.language as tl

    global double

    @triton.jit
    def double(x, size: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        tl.store(x + at, tl.load(x + at) * 2)

    a = f32(1 << 16)
    return lambda: double[(64,)](a, 1024)


@case("torch.compile")
def _(part):
    a = f32(1 << 20)
    compiled = torch.compile(lambda x: (x * 2 + 1).relu().sum())
    return lambda: compiled(a)


def cupy_product(cupy):
    a = cupy.ones((512, 512), dtype=cupy.float32)
    (a @ a).sum()


@case("CuPy, on torch's stream")
def _(part):
    import cupy

    def work():
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            cupy_product(cupy)

    return work


@case("CuPy, by itself")
def _(part):
    import cupy

    def work():
        cupy_product(cupy)
        cupy.cuda.get_current_stream().synchronize()

    return work


@case("CuPy, on the partition's stream")
def _(part):
    import cupy

    stream = cupy.cuda.Stream.from_external(part)

    def work():
        with stream:
            cupy_product(cupy)

    return work


@case("JAX")
def _(part):
    import jax
    import jax.numpy as jnp

    a = jnp.ones((512, 512))
    product = jax.jit(lambda a: a @ a)
    return lambda: product(a).block_until_ready()


def look(name):
    part = green_ctx_torch.partition({"a": 16})["a"]
    try:
        work = CASES[name](part)
        with part:
            work()
            work()
        torch.cuda.synchronize()
        with part, green_ctx_torch.watch() as watched:
            work()
        first = {"inside": watched.total - sum(each.count for each in watched.escapes), "of": watched.total}
        if watched.escapes:
            first["outside"] = [[each.kind, each.name[:120], each.count] for each in watched.escapes]
        return first
    finally:
        part.close()


def main():
    only = sys.argv[2].split(";") if len(sys.argv) > 2 else list(CASES)
    results = {}
    for name in only:
        try:
            results[name] = look(name)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(name, results[name], flush=True)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(results, file, indent=1)


main()
