"""Partitions in tasks, generators and other blocks that do not end in order."""

import asyncio
import contextlib
import gc
import signal
import sys
import types
import weakref
from concurrent import futures
from contextlib import closing

import driver
import pytest
from dropins import run
from dropins import torch as torch  # noqa: F401
from green_ctx_torch import GreenContext, PlanSet, partition, retarget


def test_a_generator_that_the_loop_closes_ends_its_block(torch):
    async def tokens(part):
        with part:
            while True:
                await asyncio.sleep(0)
                yield 1

    async def main(part, other):
        async for _ in tokens(part):
            break
        gc.collect()
        await asyncio.sleep(0.01)
        assert torch.current() == 0
        with other:
            await asyncio.sleep(0)
            assert torch.current() == other.raw_stream
        await asyncio.sleep(0)
        assert torch.current() == 0

    with closing(partition({"a": 8, "b": 8})) as parts:
        asyncio.run(main(*parts.values()))


def test_a_generator_of_one_task_that_another_closes(torch):
    def inside(part):
        with part:
            yield

    async def owner(generator):
        next(generator)
        await asyncio.sleep(0.01)
        assert torch.current() == 0

    async def main(part):
        generator = inside(part)
        task = asyncio.create_task(owner(generator))
        await asyncio.sleep(0)
        generator.close()
        await task

    with closing(partition({"a": 8})) as parts:
        asyncio.run(main(parts["a"]))


def test_what_outlives_a_block_does_not_keep_its_sms(torch):
    async def main():
        asyncio.get_running_loop().call_later(60, lambda: None)
        parts = partition({"a": 132})
        with parts["a"]:
            await asyncio.wait_for(asyncio.sleep(0), timeout=3600)
        parts.close()
        partition({"b": 132}).close()

    asyncio.run(main())


def test_a_loop_within_a_handle_gives_the_outer_task_back(torch):
    async def inner(part):
        with part:
            await asyncio.sleep(0)
            assert torch.current() == part.raw_stream

    async def main(a, b):
        with a:
            await asyncio.sleep(0)
            loop = asyncio.new_event_loop()
            outer = asyncio.get_running_loop()
            asyncio._set_running_loop(None)
            loop.run_until_complete(inner(b))
            asyncio._set_running_loop(outer)
            loop.close()
            assert torch.current() == a.raw_stream
        assert torch.current() == 0

    with closing(partition({"a": 8, "b": 8})) as parts:
        asyncio.run(main(*parts.values()))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks are started eagerly from 3.12 on")
def test_a_task_that_is_started_eagerly_enters_after_an_await(torch):
    async def eager(part):
        with pytest.raises(RuntimeError, match="started eagerly"):
            with part:
                raise AssertionError
        assert torch.current() == 0
        await asyncio.sleep(0)
        with part:
            await asyncio.sleep(0)
            assert torch.current() == part.raw_stream

    async def main(part):
        with part:
            await asyncio.sleep(0)
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await asyncio.create_task(eager(part))

    with closing(partition({"a": 8})) as parts:
        asyncio.run(main(parts["a"]))


def test_a_loop_that_does_not_say_when_tasks_change_is_refused(torch):
    class Loop:
        """An event loop of another library."""

    with closing(partition({"a": 8})) as parts:
        asyncio._set_running_loop(Loop())
        try:
            with pytest.raises(RuntimeError, match="asyncio.to_thread"):
                with parts["a"]:
                    raise AssertionError
        finally:
            asyncio._set_running_loop(None)
        assert torch.current() == 0


async def enters(part, how):
    """Is in the block while it waits."""
    with contextlib.ExitStack() as stack:
        if how == "directly":
            with part:
                await Once()
        elif how == "from a stack":
            stack.enter_context(part)
            await Once()
        else:
            with inside(part):
                await Once()


class Once:
    """Something to wait for, without an event loop."""

    def __await__(self):
        yield


@contextlib.contextmanager
def inside(part):
    with part:
        yield


@pytest.mark.parametrize("how", ["directly", "from a stack", "through a generator"])
def test_a_coroutine_that_is_no_task_is_refused(torch, how):
    with closing(partition({"a": 8})) as parts:
        # As in trio.
        coroutine = enters(parts["a"], how)
        with pytest.raises(RuntimeError, match="in a coroutine that is not an asyncio task, .* asyncio.to_thread"):
            coroutine.send(None)
        assert torch.current() == 0

        # As in trio's guest mode.
        async def main():
            coroutine = enters(parts["a"], how)
            asyncio.get_running_loop().call_soon(lambda: pytest.raises(RuntimeError, coroutine.send, None))
            await asyncio.sleep(0.01)
            # A task is accepted.
            await asyncio.gather(enters(parts["a"], how))
            assert torch.current() == 0

        asyncio.run(main())


def test_a_function_that_a_coroutine_calls_may_enter(torch):
    def step(part):
        with part:
            return torch.current()

    async def calls(part):
        return step(part)

    with closing(partition({"a": 8})) as parts:
        coroutine = calls(parts["a"])
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        assert ended.value.value == parts["a"].raw_stream


def test_a_greenlet_is_refused(torch):
    greenlet = pytest.importorskip("greenlet")

    def enter(part):
        with pytest.raises(RuntimeError, match="in a greenlet"):
            with part:
                raise AssertionError
        return torch.current()

    with closing(partition({"a": 8})) as parts:
        assert greenlet.greenlet(enter).switch(parts["a"]) == 0
        with parts["a"]:
            pass


def test_a_loop_on_another_thread_is_in_no_partition(torch):
    async def elsewhere(part):
        await asyncio.sleep(0)
        assert torch.current() == 0
        with part:
            await asyncio.sleep(0)
            assert torch.current() == part.raw_stream
        assert torch.current() == 0

    async def main(a, b):
        with a:
            for part in (a, b):
                await asyncio.to_thread(lambda part=part: asyncio.run(elsewhere(part)))
                assert torch.current() == a.raw_stream

    with closing(partition({"a": 8, "b": 8})) as parts:
        asyncio.run(main(*parts.values()))


def test_a_generator_that_ends_on_another_thread(torch):
    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        for end in (lambda held: held[0].close(), lambda held: held.clear()):
            held = [generator(a)]
            next(held[0])
            assert torch.current() == a.raw_stream
            with futures.ThreadPoolExecutor(1) as other:
                other.submit(end, held).result()
            # The thread leaves at its next block.
            with b:
                assert torch.current() == b.raw_stream
            assert torch.current() == 0
            with b:
                held = [generator(a)]
                next(held[0])
                with futures.ThreadPoolExecutor(1) as other:
                    other.submit(end, held).result()
            assert torch.current() == 0
        with pytest.raises(RuntimeError, match="has not entered"):
            a.__exit__(None, None, None)


def generator(part):
    with part:
        yield


def on_another_thread(function):
    with futures.ThreadPoolExecutor(1) as other:
        return other.submit(function).result()


def test_generators_end_their_own_blocks(torch):
    def begun(part):
        made = generator(part)
        next(made)
        return made

    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        # In a block of the same partition, of a thread that has ended.
        with a:
            on_another_thread(lambda: begun(a)).close()
            assert torch.current() == a.raw_stream
        # The older one here, and the newer one elsewhere.
        older, newer = begun(a), begun(a)
        older.close()
        on_another_thread(newer.close)
        with b:
            pass
        assert torch.current() == 0

        async def owner(made):
            made.append(begun(a))
            await asyncio.sleep(0.01)
            assert torch.current() == 0

        async def closer(made):
            await asyncio.sleep(0)
            with a:
                made.pop().close()
                assert torch.current() == a.raw_stream
                await asyncio.sleep(0.02)
                assert torch.current() == a.raw_stream

        async def both():
            made = []
            await asyncio.gather(owner(made), closer(made))

        asyncio.run(both())


def test_a_task_that_another_thread_collects_leaves_its_block(torch, recwarn):
    async def waits(part, future):
        with part:
            await future

    def run(part):
        loop = asyncio.new_event_loop()
        task = loop.create_task(waits(part, loop.create_future()))
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.set_exception_handler(lambda *_: None)
        loop.close()
        assert torch.current() == 0
        return [task]

    with closing(partition({"a": 132})) as parts:
        held = run(parts["a"])
        on_another_thread(lambda: (held.clear(), gc.collect()))
    partition({"b": 132}).close()
    assert not recwarn.list


def test_an_interrupt_in_the_sanitizer_leaves_the_block(torch, monkeypatch):
    class Sanitized(types.SimpleNamespace):
        interrupted = False

        def current_stream(self, device):
            if self.interrupted:
                raise KeyboardInterrupt
            return types.SimpleNamespace(wait_stream=lambda former: None)

    cuda = Sanitized(**vars(torch.cuda))
    sanitizer = types.SimpleNamespace(cuda_sanitizer=types.SimpleNamespace(enabled=True))
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.setitem(sys.modules, "torch.cuda._sanitizer", sanitizer)
    with closing(partition({"a": 8})) as parts:
        with pytest.raises(KeyboardInterrupt):
            with parts["a"]:
                assert torch.current() == parts["a"].raw_stream
                cuda.interrupted = True
        assert torch.current() == 0


def test_a_signal_leaves_nothing_entered(torch):
    class Alarm(Exception):
        pass

    armed = []

    def alarm(*_):
        if armed:
            armed.clear()
            raise Alarm

    async def main(part):
        missed = 0
        for _ in range(3000):
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, 1e-5)
                with part:
                    pass
                for _ in range(20):
                    pass
                armed.clear()
            except Alarm:
                missed += 1
            assert torch.current() == 0
        await asyncio.sleep(0)
        assert torch.current() == 0
        return missed

    former = signal.signal(signal.SIGALRM, alarm)
    try:
        with closing(partition({"a": 8})) as parts:
            assert asyncio.run(main(parts["a"])) > 0
    finally:
        signal.signal(signal.SIGALRM, former)


def test_green_contexts_in_tasks(torch):
    async def inside(count):
        with GreenContext.create(count) as context:
            for _ in range(5):
                assert torch.current() == context.raw_stream
                await asyncio.sleep(0)

    async def main():
        await asyncio.gather(inside(8), inside(16), inside(8))

    asyncio.run(main())


def test_a_generator_that_is_closed_late_leaves_then(torch):
    def inside(part):
        with part:
            yield

    with closing(partition({"a": 8, "b": 8})) as parts:
        a, b = parts.values()
        generator = inside(a)
        next(generator)
        with b:
            # The outer block ends first.
            generator.close()
            assert torch.current() == b.raw_stream
        assert torch.current() == 0


def test_blocks_that_end_out_of_order_all_end(torch):
    with closing(partition({"a": 8, "b": 8, "c": 8})) as parts:
        a, b, c = parts.values()
        for part in (a, b, a, c):
            part.__enter__()
        for part in (a, b):
            part.__exit__(None, None, None)
            assert torch.current() == c.raw_stream
        c.__exit__(None, None, None)
        # Leaving c also left the inner entry of a. The outer one remains.
        assert torch.current() == a.raw_stream
        a.__exit__(None, None, None)
        assert torch.current() == 0
        with pytest.raises(RuntimeError, match="has not entered"):
            a.__exit__(None, None, None)


def test_a_context_of_a_handle_that_comes_again_is_another(torch):
    # No other test leaves contexts with this number of SMs.
    old = GreenContext.create(56)
    handle = old.raw_context
    old.close()
    new = GreenContext.create(56)
    assert new.raw_context == handle, "used again"
    new.set_context()
    with pytest.raises(RuntimeError):
        old.pop_context()
    assert torch.current() == new.raw_stream
    new.pop_context()


def test_partitions_of_an_inactive_plan_are_not_entered(torch):
    plans = {"day": {"a": 16, "b": 16}, "night": {"a": 32, "c": 16}}
    with closing(PlanSet(plans, sm_count=64)) as plans:
        day = plans.active
        with day.partitions["a"]:
            assert torch.current() != 0
        night = plans.switch("night")
        for name in ("a", "b"):
            with pytest.raises(RuntimeError, match=f"partition {name} belongs to plan day.*switch"):
                with day.partitions[name]:
                    raise AssertionError
        assert torch.current() == 0
        with night.partitions["a"]:
            pass
        plans.switch(day)
        with day.partitions["b"]:
            pass


class Graph:
    """A captured graph that accepts attributes."""

    def __init__(self, raw):
        self.raw = raw

    def raw_cuda_graph(self):
        return self.raw


def test_cycles_through_partitions_are_collected(torch):
    parts = partition({"a": 132})
    raw = driver.capture(parts["a"].raw_stream, lambda: driver.keep_busy(parts["a"].raw_stream))
    graph = Graph(raw)
    graph.moved = retarget(graph, parts["a"])
    parts["a"].stream.owner = parts["a"]
    parts["a"].stream.all = parts
    gone = [weakref.ref(graph), weakref.ref(parts["a"].stream)]
    del graph, parts
    gc.collect()
    assert [known() for known in gone] == [None, None]
    driver.destroy_graph(raw)
    # The SMs are free.
    partition({"b": 132}).close()


@pytest.mark.parametrize("seed", range(6))
def test_random_tasks_are_where_a_model_says(seed, tmp_path):
    assert "race" not in run("tasks.py", str(seed), tmp_path=tmp_path)
