"""Contexts that a program creates itself, through `cuda.bindings`, as old programs do."""

from checks import fails, ok, run
from cuda.bindings import driver

SIZE = 4096


def test_initialisation():
    ok(driver.cuInit(0))


def test_a_context_is_created_and_destroyed():
    context = ok(driver.cuCtxCreate(None, 0, 0))
    assert int(ok(driver.cuCtxGetCurrent())) == int(context)
    assert int(ok(driver.cuCtxGetDevice())) == 0
    stream = ok(driver.cuStreamCreate(0))
    memory = ok(driver.cuMemAlloc(SIZE))
    source, target = b"\1\2\3\4" * (SIZE // 4), bytearray(SIZE)
    ok(driver.cuMemcpyHtoDAsync(memory, source, SIZE, stream))
    ok(driver.cuMemcpyDtoHAsync(target, memory, SIZE, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert target == source
    # The stream and the memory go with it.
    ok(driver.cuCtxDestroy(context))
    fails("CONTEXT_IS_DESTROYED", driver.cuStreamSynchronize(stream))
    assert int(ok(driver.cuCtxGetCurrent())) == 0


def test_contexts_stand_on_each_other():
    primary = ok(driver.cuDevicePrimaryCtxRetain(0))
    ok(driver.cuCtxSetCurrent(primary))
    created = ok(driver.cuCtxCreate(None, driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC, 0))
    # Such a context does not state that it maps memory of the host, as recorded on an H200.
    assert ok(driver.cuCtxGetFlags()) == driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC.value
    assert int(ok(driver.cuCtxPopCurrent())) == int(created)
    assert int(ok(driver.cuCtxGetCurrent())) == int(primary)
    fails("INVALID_CONTEXT", driver.cuCtxDestroy(primary))
    ok(driver.cuCtxDestroy(created))
    fails("CONTEXT_IS_DESTROYED", driver.cuCtxDestroy(created))
    fails("INVALID_VALUE", driver.cuCtxCreate(None, 3, 0))
    fails("INVALID_DEVICE", driver.cuCtxCreate(None, 0, 1))
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(0))


def test_what_old_programs_ask():
    assert ok(driver.cuDeviceComputeCapability(0)) == (9, 0)
    assert ok(driver.cuDeviceGetProperties(0)).maxThreadsPerBlock == 1024
    assert int(ok(driver.cuDeviceGetByPCIBusId(b"0000:19:00.0"))) == 0
    kind = driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    assert ok(driver.cuDeviceGetExecAffinitySupport(kind, 0)) == 0


if __name__ == "__main__":
    run(dict(globals()))
