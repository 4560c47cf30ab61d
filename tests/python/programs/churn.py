"""Creates contexts of four sizes in turn, uses each, and releases it."""

import sys

import dropins

from green_ctx_torch import GreenContext

torch = sys.modules["torch"] = dropins.Torch()
for cycle in range(int(sys.argv[1])):
    context = GreenContext.create((8, 16, 24, 32)[cycle % 4])
    context.set_context()
    context.pop_context()
    stream = context.Stream()
    if cycle % 3 == 0:
        context.close()
    del context, stream
assert GreenContext.create(132).sm_count == 132
