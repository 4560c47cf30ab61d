"""A tensor is written on the current stream and read on a partition's stream.

    ordering.py no-wait       the bug: nothing orders the read after the write
    ordering.py wait          a fix: the partition's stream waits for the current one
    ordering.py set_context   another fix: set_context waits, and pop_context waits in the other direction
"""

import ctypes
import sys

import dropins
import driver

import green_ctx_torch

how = sys.argv[1]
torch = dropins.Torch()

# The state after torch's first tensor: the primary context and a current stream.
primary, current = ctypes.c_void_p(), ctypes.c_void_p()
driver.call("cuInit", 0)
driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), 0)
driver.call("cuCtxSetCurrent", primary)
driver.call("cuStreamCreate", ctypes.byref(current), 1)
torch.make_current(current.value)

context = green_ctx_torch.GreenContext.create(16)
stream = context.raw_stream

tensor = driver.Memory(4096, current.value)
tensor.fill(7, current.value)

if how == "wait":
    # Like `stream.wait_stream(torch.cuda.current_stream())`.
    event = ctypes.c_void_p()
    driver.call("cuEventCreate", ctypes.byref(event), 2)
    driver.call("cuEventRecord", event, current)
    driver.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
    driver.call("cuEventDestroy_v2", event)
if how == "set_context":
    context.set_context()
    assert torch.current() == stream

read = tensor.read(stream)
# Without a wait, any value may be read.
assert how == "no-wait" or read == bytes([7]) * 4096

if how == "set_context":
    tensor.fill(8, stream)
    context.pop_context()
    assert torch.current() == current.value
    assert tensor.read(current.value) == bytes([8]) * 4096
driver.synchronize(stream)
tensor.free(current.value)
