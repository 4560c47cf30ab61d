"""Persistent kernels in partitions: a product whose grid is `sm_count`, and the kernels of torch.compile.

    python persistent.py [RESULTS.json]
"""

import os
import re
import statistics

import torch
import triton
import triton.language as tl
from harness import check, main, measurement
from triton.tools.tensor_descriptor import TensorDescriptor

import green_ctx_torch
from green_ctx_torch import sizing

TOTAL = torch.cuda.get_device_properties(0).multi_processor_count
COUNTS = (32, 64, 96)
SIZE = 8192
ROUNDS = int(os.environ.get("ROUNDS", 15))
#: The part of the speed expected from the share of SMs that must be reached.
REACHED = 0.95

BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M = 128, 256, 64, 8
#: FLATTEN=0 is for versions of Triton that cannot fuse the loops.
FLATTEN = os.environ.get("FLATTEN", "1") == "1"


@triton.jit
def _tile(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Returns the position of the result's n-th tile. Groups of rows share loads in L2."""
    in_group = GROUP_M * tiles_n
    group = tile // in_group
    first = group * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    return first + (tile % rows), (tile % in_group) // rows


@triton.jit
def _product(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCKS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Computes c = a @ b.T. Each of BLOCKS blocks computes every BLOCKS-th tile of c."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, BLOCKS, flatten=FLATTEN):
        row, column = _tile(tile, tiles_m, tiles_n, GROUP_M)
        at_m = row * BLOCK_M
        at_n = column * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(steps):
            left = a.load([at_m, step * BLOCK_K])
            right = b.load([at_n, step * BLOCK_K])
            sums = tl.dot(left, right.T, sums)
        c.store([at_m, at_n], sums.to(tl.bfloat16))


class Product:
    """The product of two matrices, the second one transposed."""

    def __init__(self, size=SIZE):
        torch.manual_seed(0)
        self.a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self.c = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
        self.size = size
        self.tiles = triton.cdiv(size, BLOCK_M) * triton.cdiv(size, BLOCK_N)
        self.descriptors = (
            TensorDescriptor.from_tensor(self.a, [BLOCK_M, BLOCK_K]),
            TensorDescriptor.from_tensor(self.b, [BLOCK_N, BLOCK_K]),
            TensorDescriptor.from_tensor(self.c, [BLOCK_M, BLOCK_N]),
        )
        torch.cuda.synchronize()

    def __call__(self, sms):
        blocks = min(sms, self.tiles)
        _product[(blocks,)](
            *self.descriptors,
            self.size,
            self.size,
            self.size,
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_N,
            BLOCK_K=BLOCK_K,
            GROUP_M=GROUP_M,
            BLOCKS=blocks,
            FLATTEN=FLATTEN,
            num_warps=8,
            num_stages=3,
        )

    def milliseconds(self, sms, number=4):
        """Returns the ms of one product on the current stream. `sms` is a count, or a function that returns one."""
        stream = torch.cuda.current_stream()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        for _ in range(number):
            self(sms() if callable(sms) else sms)
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / number

    def tflops(self, milliseconds):
        return round(2 * self.size**3 / milliseconds / 1e9, 1)


@check
def the_persistent_product_is_right():
    product = Product(2048)
    expected = product.a.float() @ product.b.float().T
    for blocks in (TOTAL, 32, 1):
        product.c.zero_()
        product(blocks)
        error = (product.c.float() - expected).abs().max().item()
        assert error <= 0.01 * expected.abs().max().item(), (blocks, error)


@check
def what_torch_and_triton_report():
    """With `install`, the partition's count is reported inside and the device's count outside."""
    from torch._inductor.utils import get_num_sms, is_big_gpu
    from triton.runtime import driver

    def reported():
        return (
            torch.cuda.get_device_properties("cuda").multi_processor_count,
            driver.active.utils.get_device_properties(0)["multiprocessor_count"],
            get_num_sms(),
        )

    part = green_ctx_torch.partition({"a": 32})["a"]
    name = torch.cuda.get_device_properties(0).name
    with part:
        assert reported() == (TOTAL,) * 3
    sizing.install()
    try:
        assert reported() == (TOTAL,) * 3
        with part:
            assert reported() == (32,) * 3
            assert torch.cuda.get_device_properties(0).name == name
            assert is_big_gpu(0)
        assert reported() == (TOTAL,) * 3
    finally:
        sizing.uninstall()
    with part:
        assert reported() == (TOTAL,) * 3


OPTIONS = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "triton.enable_persistent_tma_matmul": True,
}


@check
def compiled_persistent_templates_follow():
    """Code that was compiled outside is compiled again inside, and both versions are kept."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import run_and_get_code

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    expected = (a @ b).float()
    part = green_ctx_torch.partition({"a": 32})["a"]

    def compilations():
        return counters["stats"]["unique_graphs"]

    def sizes(codes):
        return sorted(
            {int(n) for code in codes for n in re.findall(r"NUM_SMS.{0,20}?= (\d+)", code)}
        )

    torch._dynamo.reset()
    sizing.install()
    try:
        # Without dynamic shapes, which are not tested here.
        product = torch.compile(lambda a, b: a @ b, options=OPTIONS, dynamic=False)
        before = compilations()
        outside, codes = run_and_get_code(product, a, b)
        sizes_outside = sizes(codes)
        assert compilations() == before + 1
        with part:
            inside, codes = run_and_get_code(product, a, b)
            sizes_inside = sizes(codes)
        assert compilations() == before + 2, "what was compiled outside ran inside"
        # `run_and_get_code` discards earlier compilations, so this compiles once more for the outside.
        for _ in range(3):
            product(a, b)
            with part:
                product(a, b)
        assert compilations() == before + 3, "the guards do not distinguish the two versions"
        torch.cuda.synchronize()
        for result in (outside, inside):
            assert torch.allclose(result.float(), expected, rtol=2e-2, atol=1.0)

        # After a reset, the right version is found in the cache.
        torch._dynamo.reset()
        with part:
            again, codes = run_and_get_code(product, a, b)
        assert sizes(codes) in ([], sizes_inside)

        # Code without a count is compiled only once.
        torch._dynamo.reset()
        plain = torch.compile(lambda x: torch.relu(x) + 1)
        before = compilations()
        plain(a)
        with part:
            plain(a)
        assert compilations() == before + 1
    finally:
        sizing.uninstall()
        torch._dynamo.reset()
    # The lists are empty if another template was faster.
    return {"num_sms_outside": sizes_outside, "num_sms_inside": sizes_inside}


@check
def sm_count_in_compiled_code():
    part = green_ctx_torch.partition({"a": 32})["a"]
    x = torch.ones(4, device="cuda")
    torch._dynamo.reset()
    sizing.install()
    try:
        counted = torch.compile(lambda x: x * green_ctx_torch.sm_count(), fullgraph=True)
        assert counted(x).tolist() == [float(TOTAL)] * 4
        with part:
            result = counted(x)
        assert result.tolist() == [32.0] * 4
        assert counted(x).tolist() == [float(TOTAL)] * 4
    finally:
        sizing.uninstall()
        torch._dynamo.reset()


@measurement
def persistent_product():
    """The speed with several counts, relative to the full speed, with a grid of `sm_count` blocks and with one of
    all SMs."""
    product = Product()
    product(TOTAL)
    reference = torch.empty_like(product.c)
    torch.matmul(product.a, product.b.T, out=reference)
    torch.cuda.synchronize()
    rows, holds = {}, True
    for count in COUNTS:
        part = green_ctx_torch.partition({"part": count})["part"]

        def full():
            return product.milliseconds(TOTAL)

        def cublas():
            stream = torch.cuda.current_stream()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            for _ in range(4):
                torch.matmul(product.a, product.b.T, out=reference)
            end.record(stream)
            end.synchronize()
            return start.elapsed_time(end) / 4

        def sized(part=part):
            with part:
                return product.milliseconds(green_ctx_torch.sm_count)

        def fixed(part=part):
            with part:
                return product.milliseconds(TOTAL)

        def cublas_inside(part=part):
            with part:
                return cublas()

        arms = (full, sized, fixed, cublas, cublas_inside)
        times = {arm.__name__: [] for arm in arms}
        for turn in range(ROUNDS + 2):
            # Each round uses another order. The first two rounds warm up.
            for index in range(len(arms)):
                arm = arms[(index + turn) % len(arms)]
                milliseconds = arm()
                if turn >= 2:
                    times[arm.__name__].append(milliseconds)
        median = {name: statistics.median(each) for name, each in times.items()}
        share = count / TOTAL
        reached = median["full"] / median["sized"] / share
        holds = holds and part.sm_count == count and reached >= REACHED
        rows[str(count)] = {
            "ms": {name: round(each, 3) for name, each in median.items()},
            "tflops": {name: product.tflops(each) for name, each in median.items()},
            "of_full_speed": round(median["full"] / median["sized"], 3),
            "of_its_share": round(reached, 3),
            "of_its_share_with_all_blocks": round(median["full"] / median["fixed"] / share, 3),
            "cublas_of_its_share": round(median["cublas"] / median["cublas_inside"] / share, 3),
        }
        part.close()
    expected = product.a[:256].float() @ product.b.float().T
    error = (product.c[:256].float() - expected).abs().max().item()
    assert error <= 0.02 * expected.abs().max().item(), error
    return {"size": SIZE, "counts": rows, "least_of_its_share": REACHED, "holds": holds}


if __name__ == "__main__":
    main()
