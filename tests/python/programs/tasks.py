"""Random tasks that enter and leave partitions, compared with a model of the expected stream: `tasks.py SEED`.

A task that is created in a block is in the block until the block ends.
"""

import asyncio
import contextlib
import random
import sys
import threading

import dropins
import libtorch

from green_ctx_torch import partition

torch = sys.modules["torch"] = dropins.Torch()
parts = list(partition({name: 8 for name in "abcdef"}).values())


class Block:
    def __init__(self, part):
        self.part, self.open = part, True


class Boom(Exception):
    pass


class World:
    """One event loop on one thread."""

    def __init__(self, seed):
        self.random, self.errors, self.live = random.Random(seed), [], set()

    def check(self, stack, where):
        open_blocks = [block for block in stack if block.open]
        wanted = open_blocks[-1].part.raw_stream if open_blocks else 0
        if libtorch.current() != wanted:
            self.errors.append((where, hex(libtorch.current()), hex(wanted)))

    def thread(self):
        if libtorch.current():
            self.errors.append(("a thread", hex(libtorch.current()), "0x0"))

    async def pause(self, stack, where):
        kind = self.random.randrange(4)
        if kind == 0:
            await asyncio.sleep(0)
        elif kind == 1:
            await asyncio.sleep(self.random.random() * 0.002)
        elif kind == 2:
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(lambda: future.done() or future.set_result(1))
            await future
        else:
            await asyncio.to_thread(self.thread)
        self.check(stack, where)

    async def tokens(self, part, stack):
        with part:
            for token in range(3):
                await asyncio.sleep(0)
                self.check([*stack, Block(part)], "in an async generator")
                yield token

    @staticmethod
    def steps(part):
        with part:
            yield 1
            yield 2

    async def task(self, base, depth):
        stack = list(base)
        self.check(stack, "begin")
        with contextlib.suppress(Boom):
            await self.body(stack, depth)
        self.check(stack, "end")

    async def body(self, stack, depth):
        for _ in range(self.random.randrange(1, 5)):
            kind, part = self.random.randrange(9), self.random.choice(parts)
            if kind < 4 and len(stack) < 4:
                await self.block(part, stack, depth)
            elif kind == 4 and depth < 3:
                await self.child(stack, depth)
            elif kind == 5:
                async with contextlib.aclosing(self.tokens(part, stack)) as tokens:
                    async for _ in tokens:
                        self.check([*stack, Block(part)], "among tokens")
                        if self.random.random() < 0.3:
                            break
                self.check(stack, "after tokens")
            elif kind == 6:
                with contextlib.closing(self.steps(part)) as steps:
                    for _ in steps:
                        await self.pause([*stack, Block(part)], "among steps")
                self.check(stack, "after steps")
            elif kind == 7 and self.random.random() < 0.3:
                raise Boom
            else:
                await self.pause(stack, "in between")

    async def block(self, part, stack, depth):
        try:
            with part:
                block = Block(part)
                stack.append(block)
                try:
                    await self.pause(stack, "in a block")
                    await self.body(stack, depth)
                finally:
                    stack.pop()
                    block.open = False
        finally:
            self.check(stack, "after a block")

    async def child(self, stack, depth):
        task = asyncio.create_task(self.task(list(stack), depth + 1))
        if self.random.random() < 0.5:
            await task
            self.check(stack, "after a child")
            return
        self.live.add(task)
        task.add_done_callback(self.live.discard)
        if self.random.random() < 0.2:
            task.cancel()

    async def main(self, base):
        tasks = (self.task(base, 0) for _ in range(6))
        await asyncio.gather(*tasks, return_exceptions=True)
        while self.live:
            await asyncio.gather(*list(self.live), return_exceptions=True)
        self.check(base, "main")

    def run(self):
        if self.random.random() < 0.5:
            part = self.random.choice(parts)
            with part:
                asyncio.run(self.main([Block(part)]))
                self.check([Block(part)], "around the loop")
        else:
            asyncio.run(self.main([]))
        self.check([], "at the end")


worlds = [World(10 * int(sys.argv[1]) + index) for index in range(2)]
threads = [threading.Thread(target=world.run) for world in worlds]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for world in worlds:
    assert not world.errors, world.errors[:5]
for part in parts:
    part.close()
partition({"all": 132}).close()
