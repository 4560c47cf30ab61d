"""A tensor is written on the current stream and read on a partition's.

    ordering.py no-wait       the bug: nothing says that the reading comes after the writing
    ordering.py wait          the cure: the partition's stream waits for the current one
    ordering.py set_context   the other cure: set_context waits, and pop_context waits back
"""

import ctypes
import sys

import dropins
import driver

import green_ctx_torch

how = sys.argv[1]
torch = dropins.Torch()

# What torch has after its first tensor: the primary context, and a current stream.
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
    # stream.wait_stream(torch.cuda.current_stream())
    event = ctypes.c_void_p()
    driver.call("cuEventCreate", ctypes.byref(event), 2)
    driver.call("cuEventRecord", event, current)
    driver.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
    driver.call("cuEventDestroy_v2", event)
if how == "set_context":
    context.set_context()
    assert torch.current() == stream

read = tensor.read(stream)
# Without a wait it may be anything.
assert how == "no-wait" or read == bytes([7]) * 4096

if how == "set_context":
    tensor.fill(8, stream)
    context.pop_context()
    assert torch.current() == current.value
    assert tensor.read(current.value) == bytes([8]) * 4096
driver.synchronize(stream)
tensor.free(current.value)
