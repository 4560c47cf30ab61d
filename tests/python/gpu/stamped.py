"""Work that writes the SM of each of its blocks, and rows of results that say where it ran."""

import torch
import triton
import triton.language as tl
from kernels import recorded
from probe import sms
from torch.library import custom_op, triton_op, wrap_triton

import green_ctx_torch

TOTAL = torch.cuda.get_device_properties(0).multi_processor_count
COUNT = 16
#: Enough blocks for all SMs at the same time. Each block stays on its SM for a while, so that the blocks spread.
BLOCKS = 8 * TOTAL
STAY_NS = 100_000
SLOTS = 8
SIZE = 1024

#: The output of `stamp`, by slot: even slots for the forward pass, odd slots for the backward pass.
BUFFERS = torch.full((SLOTS, BLOCKS), -1, dtype=torch.int32, device="cuda")


@triton.jit
def _stamp(x, y, count, out, stay, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    sm = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    end = now + stay
    while now < end:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    tl.store(out + block, sm)
    for start in range(block * BLOCK, count, BLOCK * tl.num_programs(0)):
        at = start + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)


@triton.jit
def _where(out, stay):
    block = tl.program_id(0)
    sm = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    end = now + stay
    while now < end:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    tl.store(out + block, sm)


@custom_op("green_ctx_tests::stamp", mutates_args=())
def stamp(x: torch.Tensor, slot: int) -> torch.Tensor:
    """Copies a tensor with a kernel that writes the SM of each block to BUFFERS[slot].

    The schema omits this write deliberately: a graph tree refuses work that changes memory it has not allocated.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    _stamp[(BLOCKS,)](x, y, x.numel(), BUFFERS[slot], STAY_NS, BLOCK=1024)
    return y


@stamp.register_fake
def _(x, slot):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(ctx, gradient):
    return stamp(gradient, ctx.slot + 1), None


def _setup(ctx, inputs, output):
    ctx.slot = inputs[1]


stamp.register_autograd(_backward, setup_context=_setup)


@triton_op("green_ctx_tests::where", mutates_args={})
def where(x: torch.Tensor, blocks: int) -> torch.Tensor:
    """Returns the SM of each block of a kernel that torch.compile launches itself."""
    out = torch.full((blocks,), -1, dtype=torch.int32, device=x.device)
    wrap_triton(_where)[(blocks,)](out, STAY_NS)
    return out


class Net(torch.nn.Module):
    """Two products with a stamp between them."""

    def __init__(self, slot=0):
        super().__init__()
        self.slot = slot
        self.first = torch.nn.Linear(SIZE, SIZE, device="cuda")
        self.second = torch.nn.Linear(SIZE, SIZE, device="cuda")

    def forward(self, x):
        return self.second(stamp(torch.relu(self.first(x)), self.slot))


class Traced(Net):
    """The same, with a kernel that a compiler launches itself. Its result says where it ran."""

    def forward(self, x):
        return super().forward(x), where(x, BLOCKS)


torch.manual_seed(0)
X = torch.randn(SIZE, SIZE, device="cuda")
torch.cuda.synchronize()


def partitions(**division):
    return green_ctx_torch.partition(division or {"small": COUNT})


def one():
    return partitions()["small"]


def ran_on(slots, more=()):
    """Returns the SMs that the stamps of some slots ran on. Every block must have run."""
    torch.cuda.synchronize()
    written = BUFFERS[list(slots)].flatten().tolist()
    for tensor in more:
        written += tensor.flatten().tolist()
    assert -1 not in written, f"{written.count(-1)} of {len(written)} blocks never ran"
    return set(written)


def clear():
    BUFFERS.fill_(-1)
    torch.cuda.synchronize()


_graphs_told = None


def contexts_of_graphs_are_told():
    """Returns whether CUPTI reports the context of a graph's node for its kernel.

    The graph is captured on the partition's stream, where it certainly runs, and launched on another stream.
    """
    global _graphs_told
    if _graphs_told is None:
        part, x = one(), torch.ones(SIZE, device="cuda")
        graph = torch.cuda.CUDAGraph()
        x + x
        with torch.cuda.graph(graph, stream=part.stream):
            x + x
        graph.replay()
        found = recorded(graph.replay, part)
        assert found.kernels, "CUPTI records no kernels of graphs"
        _graphs_told = not found.outside()
    return _graphs_told


def row(name, work, part, *, must, slots=(0,), graph=False):
    """Runs work once and returns where it ran. `work` may return tensors of SM numbers.

    With `graph`, CUPTI's contexts count only if they are known to be right for graphs.
    """
    allowed = sms(part.stream)
    clear()
    found = recorded(work, part)
    more = found.result if isinstance(found.result, (list, tuple)) else ()
    seen = ran_on(slots, more)
    outside = found.outside()
    told = not graph or contexts_of_graphs_are_told()
    inside = seen <= allowed and not (outside and told)
    return {
        "row": name,
        "sms": len(seen),
        "of": len(allowed),
        "kernels": len(found.kernels),
        "outside": outside,
        "contexts_told": told,
        "inside": inside,
        "must": must,
        "holds": inside or not must,
    }


def refusal(work):
    """Returns the message with which the module refuses to run a graph that it cannot move, or None."""
    try:
        work()
    except RuntimeError as error:
        if "retarget" not in str(error):
            raise
        torch.cuda.synchronize()
        return str(error)
    return None


def refused(name, message, must):
    """Returns the row of work that was refused with an error, so that nothing ran outside."""
    return {"row": name, "of": COUNT, "refused": message, "inside": None, "must": must}
