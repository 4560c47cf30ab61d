"""green_ctx_torch together with torch, on a GPU: `python test_torch.py [RESULTS.json]`.

Needs torch 2.11. Uses CuPy and cuda.core if they are installed. Exits with 1 if a check fails.
"""

import green_ctx_torch  # First, so that GREEN_CTX_RESERVE applies.
import torch
import torch.cuda.green_contexts
from harness import check, main, program, raises, skip
from probe import blocks, launch, sms
from green_ctx_torch import GreenContext, flashinfer, sglang

TOTAL = torch.cuda.get_device_properties(0).multi_processor_count
#: The SMs that only partitions can use. The other checks give the same results with and without a reserve of 48 SMs.
RESERVED = green_ctx_torch.info()["devices"][0].get("reserve", {}).get("sm_count", 0)
SIZE = 4096

torch.manual_seed(0)
A = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
B = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
PLAIN = A @ B
torch.cuda.synchronize()


def same(result, expected=PLAIN):
    """Returns whether every bit is the same. If not, prints the largest difference."""
    torch.cuda.synchronize()
    if torch.equal(result, expected):
        return True
    print("differs by at most", (result.float() - expected.float()).abs().max().item())
    return False


def time_of(work, number=10):
    """Returns the ms that the work takes on the current stream, after a warm-up."""
    stream = torch.cuda.current_stream()
    work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(stream)
    for _ in range(number):
        work()
    end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) / number


class Entered:
    """`set_context` and `pop_context` as a block."""

    def __init__(self, context):
        self.context = context

    def __enter__(self):
        self.context.set_context()
        return self.context

    def __exit__(self, *_):
        self.context.pop_context()


@check
def torch_says_the_same_of_support():
    assert green_ctx_torch.SUPPORTED is True
    # From torch 2.14 on, torch has no such name. It raises an error if green contexts are not supported.
    assert getattr(torch.cuda.green_contexts, "SUPPORTED", True) is True


@check
def a_product_in_a_context_is_the_same():
    context = GreenContext.create(16, 0)
    before = torch.cuda.current_stream()
    context.set_context()
    inside = torch.cuda.current_stream()
    result = A @ B
    context.pop_context()
    assert torch.cuda.current_stream() == before
    assert inside != before and inside.cuda_stream != 0
    # Read on the previous stream without another wait: pop_context ordered it.
    assert torch.equal(result, PLAIN)
    return {"sm_count": context.sm_count, "requested": context.requested}


POOL = """
import ctypes, sys, torch, green_ctx_torch

cuda = ctypes.CDLL("libcuda.so.1")
parts = green_ctx_torch.partition({"a": "16..48"})
if sys.argv[1] == "pushed":
    # What entering a partition was: its context current when torch is first asked for a stream.
    cuda.cuCtxPushCurrent_v2(ctypes.c_void_p(parts["a"].raw_context))
else:
    with parts["a"]:
        torch.ones(4, device="cuda")
inside = 0
for priority in (0, -1, -2, -3):
    for _ in range(32):
        stream, green = torch.cuda.Stream(priority=priority), ctypes.c_void_p()
        raw = ctypes.c_void_p(stream.cuda_stream)
        assert cuda.cuStreamGetGreenCtx(raw, ctypes.byref(green)) == 0
        inside += green.value is not None
print(inside)
"""


@check
def torchs_pool_stays_outside_of_partitions():
    if RESERVED:
        return skip("under a reserve, the pool's streams are in the green context of the rest")
    pushed, entered = (int(program(POOL, how).splitlines()[0]) for how in ("pushed", "entered"))
    assert pushed > 0 and entered == 0, (pushed, entered)
    return {"streams_of_a_pool_made_inside": pushed, "after_entering": entered}


@check
def torch_and_ours_give_as_many_sms():
    if RESERVED:
        return skip("under a reserve, torch's are cut from the rest, and ours from the reserve")
    observed = {}
    for count in (1, 8, 12, 16, 17, 64, 120, TOTAL):
        theirs = torch.cuda.green_contexts.GreenContext.create(num_sms=count, device_id=0)
        theirs.set_context()
        seen = len(sms(torch.cuda.current_stream()))
        theirs.pop_context()
        del theirs
        ours = GreenContext.create(count, 0)
        with Entered(ours):
            assert len(sms()) == ours.sm_count
        observed[count] = (seen, ours.sm_count)
        del ours
    assert all(theirs == ours for theirs, ours in observed.values()), observed
    return {"torch_and_ours": {str(count): pair for count, pair in observed.items()}}


@check
def work_runs_on_the_partition_and_nowhere_else():
    first, second = GreenContext.create(16), GreenContext.create(24)
    with Entered(first):
        inside_first = sms()
    with Entered(second):
        inside_second = sms()
    assert len(inside_first) == 16 and len(inside_second) == 24
    assert not inside_first & inside_second
    assert sms(first.Stream()) == inside_first
    assert len(sms()) == TOTAL
    return {"first": sorted(inside_first), "second": sorted(inside_second)}


@check
def two_of_torchs_own_share_sms():
    create = torch.cuda.green_contexts.GreenContext.create
    theirs = [create(num_sms=16, device_id=0) for _ in range(2)]
    seen = [sms(context.Stream()) for context in theirs]
    return {"shared_by_torchs": sorted(seen[0] & seen[1])}


@check
def an_eighth_of_the_sms_is_slower():
    context = GreenContext.create(TOTAL // 8)
    everywhere = time_of(lambda: A @ B)
    with Entered(context):
        partition = time_of(lambda: A @ B)
    again = time_of(lambda: A @ B)
    assert partition > 3 * everywhere, (partition, everywhere)
    assert again < 1.5 * everywhere, (again, everywhere)
    return {"all_ms": round(everywhere, 3), "eighth_ms": round(partition, 3)}


@check
def streams_run_in_the_context():
    context = GreenContext.create(16)
    stream = context.Stream()
    assert isinstance(stream, torch.cuda.Stream) and stream.device.index == 0
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = A @ B
    torch.cuda.current_stream().wait_stream(stream)
    assert same(result)
    assert sms(stream) == sms(context.Stream())


@check
def contexts_nest():
    outer, inner = GreenContext.create(16), GreenContext.create(24)
    plain = torch.cuda.current_stream()
    outer.set_context()
    first = torch.cuda.current_stream()
    seen = [len(sms())]
    inner.set_context()
    seen.append(len(sms()))
    result = A @ B
    inner.pop_context()
    assert torch.cuda.current_stream() == first
    seen.append(len(sms()))
    raises(RuntimeError, outer.set_context, "called twice")
    with outer:
        result = result + 0
    outer.pop_context()
    assert torch.cuda.current_stream() == plain
    seen.append(len(sms()))
    assert seen == [16, 24, 16, TOTAL], seen
    assert same(result)


@check
def a_context_set_inside_of_a_capture():
    context = GreenContext.create(16)
    out = blocks()
    with Entered(context):
        A @ B
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = A + A
        context.set_context()
        product = doubled @ B
        launch(out, torch.cuda.current_stream())
        context.pop_context()
        result = product + product
    result.zero_()
    graph.replay()
    assert same(result, ((A + A) @ B) * 2)
    assert len(set(out.tolist())) == 16


@check
def watching_finds_what_runs_outside():
    part = green_ctx_torch.partition({"small": 16})["small"]
    graph, plain = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    A @ B
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = A @ B
    with part, green_ctx_torch.watch() as inside:
        A @ B
    assert inside.ok and inside.total > 0, inside
    with part, green_ctx_torch.watch() as outside:
        A @ B
        with torch.cuda.stream(plain):
            torch.relu(A)
            A.sum()
    # Work that a reserve confines does not count as an escape.
    assert bool(RESERVED) == outside.ok and (RESERVED or len(outside.escapes) >= 2), outside
    with part, green_ctx_torch.watch(spinning=["*"]) as small:
        torch.relu(A[0])
    with part, green_ctx_torch.watch(spinning=["*"]) as large:
        torch.relu(torch.empty(1 << 24, device="cuda"))
    assert small.ok and [each.resident <= 16 * 32 for each in large.oversized] == [True], (small, large)
    # The driver also reports the context of a graph's kernels.
    with green_ctx_torch.watch(part) as replayed:
        graph.replay()
    assert bool(RESERVED) == replayed.ok and same(result), replayed
    return {"outside": [escape.name[:40] for escape in outside.escapes], "oversized": str(large.oversized)}


@check
def verified_by_the_probe_of_the_library():
    parts = green_ctx_torch.partition({"decode": 16, "prefill": "rest"})
    report = green_ctx_torch.verify(parts)
    assert report.ok
    for part in parts.values():
        assert len(sms(part.stream)) == part.sm_count
        with part:
            assert len(sms()) == part.sm_count
            result = A @ B
        assert same(result)
        part.close()


@check
def cupy_takes_our_stream():
    try:
        import cupy
    except ImportError as error:
        return skip(f"no CuPy: {error}")
    context = GreenContext.create(16)
    stream = cupy.cuda.Stream.from_external(context)
    with stream:
        total = cupy.arange(1000).sum()
    stream.synchronize()
    assert int(total) == 499500
    assert stream.ptr == context.raw_stream
    return {"cupy": cupy.__version__}


@check
def cuda_core_takes_our_stream():
    try:
        from cuda.core import Device
    except ImportError as error:
        return skip(f"no cuda.core: {error}")
    device = Device(0)
    device.set_current()
    parts = green_ctx_torch.partition({"small": 16})
    stream = device.create_stream(parts["small"])
    assert int(stream.handle) == parts["small"].raw_stream
    context = GreenContext.create(16)
    other = device.create_stream(context)
    assert int(other.handle) == context.raw_stream
    other.sync()
    stream.sync()


@check
def flashinfers_functions():
    device = torch.device("cuda:0")
    streams, resources = flashinfer.split_device_green_ctx(device, 2, 16)
    counts = [resource.sm.smCount for resource in resources]
    assert counts == [16, 16, RESERVED + TOTAL - 32], counts
    seen = [sms(stream) for stream in streams]
    assert [len(each) for each in seen] == counts
    assert len(set.union(*seen)) == RESERVED + TOTAL
    for stream in streams:
        with torch.cuda.stream(stream):
            result = A @ B
        assert same(result)
    del streams, stream, resources
    _, resources = flashinfer.split_device_green_ctx_by_sm_count(device, [7, 16, 24])
    assert [resource.sm.smCount for resource in resources] == [8, 16, 24, RESERVED + TOTAL - 48]


@check
def sglangs_function():
    a, b = sglang.create_greenctx_stream_by_value(16, 24, 0)
    seen = sms(a), sms(b)
    assert [len(each) for each in seen] == [16, 24] and not seen[0] & seen[1]


if __name__ == "__main__":
    import measurements  # noqa: F401
    import memory  # noqa: F401

    main()
