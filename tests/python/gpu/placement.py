"""Where torch's work runs, on a GPU and on the simulated driver: `python placement.py [RESULTS.json]`.

`cargo xtask clients` runs these checks with torch on the simulated `libcuda.so.1`, which computes nothing. So they
compare partitions, streams, the states of captures and errors, and only values that copies write.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import threading
import warnings

import green_ctx_torch

# First, since its checks are forks of a process that has not used CUDA.
import placement_alone  # noqa: F401
import placement_graphs  # noqa: F401
import placement_runtime  # noqa: F401
import torch
from green_ctx_torch.allocator import Allocator
from harness import main, raises, skip
from placed import FREE, LONG, OUTSIDE, PLAIN, RESERVED, SANITIZED, captured, capped, current, model, parts, ran
from placed import settled, sine, tensor, within
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def in_block(work):
    """Registers a check that the work stays in the block's partition."""

    @settled
    @functools.wraps(work)
    def stays():
        places = within(parts()["a"], work, times=1)
        assert places == {"a"}, places


@in_block
def elementwise():
    torch.sin(tensor()) + 1


@in_block
def products():
    x = tensor()
    x @ x, torch.bmm(x[None], x[None]), torch.addmm(x, x, x), functional.linear(x, x, x[0])


@in_block
def layers():
    model()(tensor())
    functional.embedding(torch.zeros(8, dtype=torch.long, device="cuda"), tensor()).softmax(-1)


@in_block
def convolution():
    with torch.backends.cudnn.flags(enabled=False):
        functional.conv2d(tensor(2, 3, 16, 16), tensor(4, 3, 3, 3))


@in_block
def attention():
    x = tensor(1, 2, 64, 64, dtype=torch.bfloat16)
    functional.scaled_dot_product_attention(x, x, x)


@in_block
def sorting_and_counting():
    x = tensor()
    torch.sort(x), torch.topk(x, 3), x.cumsum(0), torch.nonzero(x), torch.unique(x)


@in_block
def random_numbers():
    torch.manual_seed(1)
    torch.randn(64, device="cuda"), torch.randperm(100, device="cuda"), functional.dropout(tensor())


@in_block
def foreach_and_optimizer():
    weights = [nn.Parameter(tensor()) for _ in range(3)]
    sum(weight.sum() for weight in weights).backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    torch.optim.SGD(weights, lr=0.1).step()
    torch._foreach_add(weights, 1)


@in_block
def inference_mode_and_autocast():
    with torch.inference_mode(), torch.autocast("cuda"):
        model()(tensor())


@in_block
def scaled_gradients():
    with torch.autocast("cuda"):
        loss = model()(tensor()).sum()
    torch.amp.GradScaler("cuda").scale(loss).backward()


@in_block
def transforms():
    torch.func.vmap(torch.sin)(tensor())
    torch.func.grad(lambda x: x.sum())(tensor())


@in_block
def a_reduction_that_is_read():
    (tensor() + 1).sum().item()


@in_block
def pinned_batches():
    loader = torch.utils.data.DataLoader(torch.ones(128, 64), batch_size=64, pin_memory=True)
    for batch in loader:
        model()(batch.to("cuda", non_blocking=True))


@in_block
def replicas_on_one_device():
    nn.DataParallel(model(), device_ids=[0])(tensor())


@in_block
def scripts():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.sigmoid, tensor())(tensor())


@in_block
def a_backward_pass():
    model()(tensor()).sum().backward()


@in_block
def reentrant_checkpoints():
    checkpoint(model(), tensor(requires_grad=True), use_reentrant=True).sum().backward()


@in_block
def checkpoints():
    # The hooks of torch's CUDA sanitizer lose the exception that ends the second forward pass.
    checkpoint(model(), tensor(requires_grad=True), use_reentrant=SANITIZED).sum().backward()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 2

    @staticmethod
    def backward(_, gradient):
        return gradient * 2


@in_block
def a_function_with_its_own_backward():
    Doubled.apply(tensor(requires_grad=True)).sum().backward()


# Blocks and streams.


@settled
def a_block_makes_its_stream_current():
    a = parts()["a"]
    with a as entered:
        assert entered is a and current() == a.raw_stream == a.stream.cuda_stream
    assert ran(sine) == {OUTSIDE}


@settled
def blocks_nest():
    a, b = parts().values()
    with a:
        with b:
            assert current() == b.raw_stream
            assert ran(sine) == {"b"}
        assert current() == a.raw_stream
        assert ran(sine) == {"a"}


@settled
def an_error_leaves_the_block():
    def fails():
        with parts()["a"]:
            1 / 0

    raises(ZeroDivisionError, fails)
    assert current() == 0


def late(first, second):
    """Returns a check that a copy in the second place waits for a late write in the first."""

    def waits():
        x, y, ones = tensor(), tensor(), torch.ones(64, 64).pin_memory()
        torch.cuda.synchronize()
        with first():
            torch.cuda._sleep(LONG)
            x.copy_(ones, non_blocking=True)
        with second():
            y.copy_(x)
        assert y[0, 0].item() == 1

    return waits


in_a, in_b, outside = lambda: parts()["a"], lambda: parts()["b"], lambda: PLAIN


@settled
def a_block_waits_for_the_work_before_it():
    late(outside, in_a)()


@settled
def the_work_after_a_block_waits():
    late(in_a, outside)()


@settled
def a_block_waits_for_another():
    late(in_a, in_b)()


@settled
def an_event_orders_two_streams():
    event, stream = torch.cuda.Event(), parts()["a"].stream

    @contextlib.contextmanager
    def recorded():
        with torch.cuda.stream(stream):
            yield
            event.record()
        event.wait()

    late(recorded, outside)()
    assert event.query() and stream.query()


@settled
def events_measure_a_block():
    with parts()["a"]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(1000)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) > 0


@settled
def torchs_streams_in_a_block_run_outside():
    a, pooled = parts()["a"], torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), pooled, torch.cuda.Stream(priority=-1)):
        with a, torch.cuda.stream(stream):
            assert ran(sine) == {OUTSIDE}, stream
    with torch.cuda.stream(pooled):
        with a:
            assert current() == a.raw_stream
        assert current() == pooled.cuda_stream


@settled
def created_streams_run_in_the_partition():
    for priority in (0, -2):
        stream = parts()["b"].create_stream(priority=priority)
        assert stream.priority == priority and stream.cuda_stream != parts()["b"].raw_stream
        with torch.cuda.stream(stream):
            assert ran(sine) == {"b"}


@settled
def a_partitions_stream_is_an_external_stream_of_torch():
    a = parts()["a"]
    stream, same, other = a.stream, torch.cuda.ExternalStream(a.raw_stream), a.create_stream()
    assert stream == same and hash(stream) == hash(same) and stream != torch.cuda.default_stream()
    assert stream is a.stream and type(other) is type(same) and other.cuda_stream not in (0, a.raw_stream)


@settled
def a_stream_that_is_set_in_a_block_ends_with_it():
    with parts()["a"]:
        torch.cuda.set_stream(torch.cuda.Stream())
        assert ran(sine) == {OUTSIDE}
    assert current() == 0


@settled
def a_thread_is_in_no_partition():
    with concurrent.futures.ThreadPoolExecutor(1) as pool, parts()["a"]:
        assert pool.submit(ran, sine).result() == {OUTSIDE}


@settled
def threads_are_in_their_own_partitions():
    barrier = threading.Barrier(2)

    def enter(part):
        for _ in range(50):
            with part:
                barrier.wait()
                sine()
                assert current() == part.raw_stream
        return current()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert ran(lambda: list(pool.map(enter, parts().values()))) == {"a", "b"}


@settled
def partitions_come_and_go_in_threads():
    def churn(_):
        for _ in range(20):
            with green_ctx_torch.partition({"p": 8}) as made:
                with made["p"]:
                    loss = (tensor(requires_grad=True) * 2).sum()
                loss.backward()
        return current()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(churn, range(4))) == [0] * 4
    gc.collect()
    green_ctx_torch.partition({"most": min(60, FREE)}).close()


@settled
def a_closed_partition_is_refused():
    with green_ctx_torch.partition({"p": 8}) as made:
        part = made["p"]
    raises(RuntimeError, part.__enter__, "closed")


@settled
def hooks_of_a_module_enter_and_leave():
    both, a = nn.Sequential(nn.LayerNorm(64), nn.LayerNorm(64)).cuda(), parts()["a"]
    both[0].register_forward_pre_hook(lambda *_: a.__enter__() and None)
    both[0].register_forward_hook(lambda *_: a.__exit__(None, None, None), always_call=True)
    assert ran(lambda: both(tensor())) == {"a", OUTSIDE}
    raises(RuntimeError, lambda: both(tensor(3, 5)), "normalized_shape")


def loss_of(part):
    with part:
        return (tensor(requires_grad=True) * 2).sin().sum()


@settled
def a_backward_pass_after_the_block_runs_in_it():
    assert "a" in ran(loss_of(parts()["a"]).backward)


@settled
def a_backward_pass_in_another_block_runs_in_both():
    assert within(parts()["b"], loss_of(parts()["a"]).backward) == {"a", "b"}


@settled
def a_backward_pass_after_the_partition_was_closed_works():
    with green_ctx_torch.partition({"t": 16}) as made:
        loss = loss_of(made["t"])
    assert made["t"].closed and ran(loss.backward)


@settled
def the_properties_that_torch_reads_are_the_drivers():
    cuda, found, told = ctypes.CDLL("libcuda.so.1"), torch.cuda.get_device_properties(0), ctypes.c_int()
    attributes = {
        8: found.shared_memory_per_block,
        10: found.warp_size,
        16: found.multi_processor_count,
        38: found.L2_cache_size,
        39: found.max_threads_per_multi_processor,
        75: found.major,
        76: found.minor,
        81: found.shared_memory_per_multiprocessor,
        82: found.regs_per_multiprocessor,
        97: found.shared_memory_per_block_optin,
    }
    for attribute, value in attributes.items():
        assert cuda.cuDeviceGetAttribute(ctypes.byref(told), attribute, 0) == 0
        assert told.value == value and (value > 0 or attribute == 76), attribute
    assert found.total_memory == torch.cuda.mem_get_info(0)[1] > 1 << 34 and "NVIDIA" in found.name


@settled
def the_partitions_sms_are_reported():
    green_ctx_torch.sizing.install()
    try:
        sms = green_ctx_torch.info()["devices"][0]["sm_count"]
        total = torch.cuda.get_device_properties(0).multi_processor_count
        with parts()["a"]:
            inside = torch.cuda.get_device_properties(0).multi_processor_count
            assert (inside, green_ctx_torch.sm_count(), green_ctx_torch.floor()) == (parts()["a"].sm_count,) * 3
        assert total == green_ctx_torch.sm_count() == sms - RESERVED
    finally:
        green_ctx_torch.sizing.uninstall()


@settled
def a_watch_finds_what_runs_outside():
    a = parts()["a"]
    with a, green_ctx_torch.watch() as watched:
        sine()
    assert watched.ok and watched.total, watched
    with green_ctx_torch.watch(a) as watched:
        sine()
    # A reserve keeps it away from the floors.
    assert bool(RESERVED) != any("sin" in escape.name for escape in watched.escapes), watched


@settled
def a_finished_watch_holds_no_sms():
    made = green_ctx_torch.partition({"t": 16})
    watched = green_ctx_torch.watch(made["t"])
    with watched, made["t"]:
        sine()
    made.close()
    green_ctx_torch.partition({"t": FREE}).close()
    assert watched.ok


# Memory.


@settled
def memory_of_a_block_is_used_again():
    with parts()["a"]:
        first = tensor(1 << 20).data_ptr()
    with parts()["a"]:
        assert tensor(1 << 20).data_ptr() == first
    torch.cuda.empty_cache()


@settled
def a_recorded_stream_may_be_closed():
    before = torch.cuda.memory_allocated()
    with green_ctx_torch.partition({"t": 16}) as made:
        x = tensor()
        with made["t"]:
            x.record_stream(torch.cuda.current_stream())
            y = x + 1
    del x, y
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before


@settled
def a_limit_of_the_allocator_holds():
    allocator, kept = Allocator(), []
    allocator.limit = 64 << 20
    with torch.cuda.use_mem_pool(allocator.mem_pool()), parts()["a"]:
        raises(torch.OutOfMemoryError, lambda: [kept.append(tensor(4 << 20)) for _ in range(9)])
        assert "raise the limit" in allocator.snapshot()["last_error"]
        # A pool is for the thread that entered it.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(tensor, 64 << 20).result()
    assert 1 <= len(kept) <= 4, len(kept)
    allocator.limit = None
    torch.cuda.empty_cache()


@settled
def a_pool_holds_cached_memory_and_sms_until_it_is_deleted():
    allocator, made = Allocator(), green_ctx_torch.partition({"t": 16})
    pool = allocator.mem_pool()
    with torch.cuda.use_mem_pool(pool), made["t"]:
        kept, _ = tensor(1 << 20), tensor(8 << 20)
        del _
    made.close()
    torch.cuda.empty_cache()
    allocator.empty_cache()
    assert allocator.usage("t")["current_bytes"] >= 36 << 20
    raises(RuntimeError, lambda: green_ctx_torch.partition({"t": FREE}), "memory pools are deleted")
    del pool
    assert 0 < allocator.usage("t")["current_bytes"] < 36 << 20
    del kept
    torch.cuda.empty_cache()
    green_ctx_torch.partition({"t": FREE}).close()


@settled
def memory_of_a_pool_outlives_its_partition():
    allocator = Allocator()
    with torch.cuda.use_mem_pool(allocator.mem_pool()):
        with green_ctx_torch.partition({"t": 16}) as made, made["t"]:
            x = tensor(1 << 20)
    assert allocator.current_bytes >= 4 << 20
    x.copy_(torch.ones(1 << 20))
    assert x[5].item() == 1


@settled
def rows_are_copied():
    x = torch.arange(64.0).reshape(8, 8)
    with parts()["a"]:
        y = tensor(8, 8)
        y[:, 2:4].copy_(x[:, 2:4])
        assert torch.equal(y[:, 2:4].cpu(), x[:, 2:4]) and torch.equal(x.to("cuda")[2].cpu(), x[2])


# asyncio.


def in_task(function):
    """Registers a check that is a coroutine."""

    @settled
    @functools.wraps(function)
    def run():
        asyncio.run(function(*parts().values()))


@in_task
async def a_task_stays_in_its_partition(a, b):
    with a:
        await asyncio.sleep(0)
        assert ran(sine) == {"a"}
        await asyncio.sleep(0.001)
        assert current() == a.raw_stream
    assert current() == 0


@in_task
async def tasks_stay_in_their_own_partitions(a, b):
    async def inside(part):
        for _ in range(5):
            with part:
                await asyncio.sleep(0)
                assert current() == part.raw_stream
            await asyncio.sleep(0)
            assert current() == 0

    await asyncio.gather(inside(a), inside(b), inside(a))


@in_task
async def a_timeout_leaves_the_block_alone(a, b):
    with a:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(9), 0.001)
        assert current() == a.raw_stream


@in_task
async def a_cancelled_task_leaves_its_block(a, b):
    async def waits():
        with contextlib.suppress(asyncio.CancelledError), a:
            await asyncio.sleep(9)
        return current()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == 0 == current()


@in_task
async def an_executors_thread_is_outside(a, b):
    with a:
        assert await asyncio.get_running_loop().run_in_executor(None, current) == 0


@in_task
async def an_asynchronous_manager_enters(a, b):
    @contextlib.asynccontextmanager
    async def serving():
        with a:
            yield

    async with serving():
        await asyncio.sleep(0)
        assert current() == a.raw_stream


# PyTorch's interface to green contexts.


@settled
def a_green_context_is_entered():
    context = green_ctx_torch.GreenContext.create(16)
    with context:
        assert current() == context.raw_stream
        assert ran(sine, context.partition) == {context.partition.name}


# Two devices.


def on_two_devices(function):
    """Registers a check that needs a second device. It runs in a partition of each."""

    @settled
    @functools.wraps(function)
    def run():
        if torch.cuda.device_count() < 2:
            return skip("there is one device")
        with green_ctx_torch.partition({"c": capped(24)}, device=1) as made:
            function(parts()["a"], made["c"])
        torch.cuda.set_device(0)


@on_two_devices
def blocks_of_two_devices(a, c):
    with a, c:
        assert torch.cuda.current_device() == 1
        assert (current(0), current(1)) == (a.raw_stream, c.raw_stream)
        assert ran(sine, c, device=1) == {"c"}
        with torch.cuda.device(0):
            assert ran(sine) == {"a"}
    assert torch.cuda.current_device() == 0 and current(1) == 0


@on_two_devices
def tensors_go_to_the_other_device(a, c):
    with a:
        x = torch.ones(64).to("cuda")
    with c:
        assert x.to("cuda:1")[0].item() == 1


@on_two_devices
def captures_and_backward_passes_of_the_other_device(a, c):
    with c:
        sine()
        x = tensor(requires_grad=True)
        assert ran(lambda: (x * 2).sum().backward(), c, device=1) == {"c"}
        # torch captures on a stream of the device of its first capture.
        graph = captured()
        graph.instantiate()
        assert ran(graph.replay, c, device=1) == {"c"}


@on_two_devices
def tasks_on_two_devices(a, c):
    async def inside(part, device):
        with part:
            await asyncio.sleep(0)
            assert torch.cuda.current_device() == device and current() == part.raw_stream

    async def both():
        await asyncio.gather(inside(a, 0), inside(c, 1), inside(a, 0))

    asyncio.run(both())


if __name__ == "__main__":
    # The objects of the imports are not searched again after each check.
    gc.freeze()
    main()
