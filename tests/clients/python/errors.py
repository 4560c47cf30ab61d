"""The errors that the driver's documentation and records name, through `cuda.bindings`."""

from checks import PTX, fails, ok, run, version
from cuda.bindings import driver

SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
DEFAULT_STREAM = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value

# What a call on a stream of a destroyed green context answers.
DETACHED = "STREAM_DETACHED" if version() >= 13010 else "CONTEXT_IS_DESTROYED"


def split(count, minimum, flags=0, resource=None):
    """Groups of the device, and what is left."""
    resource = resource or ok(driver.cuDeviceGetDevResource(0, SM))
    return driver.cuDevSmResourceSplitByCount(count, resource, flags, minimum)


def green(sms=16):
    """A green context."""
    groups, _, _ = ok(split(1, sms))
    desc = ok(driver.cuDevResourceGenerateDesc(groups[:1], 1))
    return ok(driver.cuGreenCtxCreate(desc, 0, DEFAULT_STREAM))


def test_nothing_works_before_initialisation():
    fails("NOT_INITIALIZED", driver.cuDeviceGetCount())
    fails("INVALID_VALUE", driver.cuInit(1))
    ok(driver.cuInit(0))


def test_errors_have_names_and_texts():
    status = driver.CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
    assert ok(driver.cuGetErrorName(status)) == b"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
    assert ok(driver.cuGetErrorString(status))


def test_functions_are_found_by_version():
    newest = version()
    found = driver.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS
    missing = driver.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    older = driver.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
    name = b"cuGreenCtxStreamCreate"
    assert ok(driver.cuGetProcAddress(name, 12050, 0))[1] == found
    assert ok(driver.cuGetProcAddress(name, 12040, 0)) == (0, older)
    assert ok(driver.cuGetProcAddress(b"cuNoSuchFunction", newest, 0)) == (0, missing)
    structured = ok(driver.cuGetProcAddress(b"cuDevSmResourceSplit", newest, 0))[1]
    assert structured == (found if newest >= 13010 else missing)
    # A version above the driver's fails for every function.
    fails("INVALID_VALUE", driver.cuGetProcAddress(b"cuInit", newest + 10, 0))


def test_devices_that_are_not_there():
    fails("INVALID_DEVICE", driver.cuDeviceGet(99))
    fails("INVALID_DEVICE", driver.cuDeviceGetDevResource(99, SM))


def test_splits_that_cannot_be():
    fails("INVALID_RESOURCE_CONFIGURATION", split(1, 133))
    both = 3
    fails("INVALID_VALUE", split(1, 8, flags=both))
    fails("INVALID_RESOURCE_TYPE", split(1, 8, resource=driver.CUdevResource()))
    # Results of a split cannot be split again.
    groups, _, _ = ok(split(1, 64))
    fails("INVALID_RESOURCE_CONFIGURATION", split(1, 8, resource=groups[0]))


def test_resources_that_make_no_context():
    fails("INVALID_RESOURCE_TYPE", driver.cuDevResourceGenerateDesc([driver.CUdevResource()], 1))
    groups, _, _ = ok(split(1, 16))
    desc = ok(driver.cuDevResourceGenerateDesc(groups[:1], 1))
    fails("INVALID_DEVICE", driver.cuGreenCtxCreate(desc, 99, DEFAULT_STREAM))
    fails("INVALID_VALUE", driver.cuGreenCtxCreate(desc, 0, 2))


def test_streams_of_green_contexts_do_not_block():
    context = green()
    fails("INVALID_VALUE", driver.cuGreenCtxStreamCreate(context, 0, 0))
    ok(driver.cuGreenCtxDestroy(context))


def test_a_green_context_is_destroyed_as_one():
    context = green()
    fails("INVALID_CONTEXT", driver.cuCtxDestroy(ok(driver.cuCtxFromGreenCtx(context))))
    # It holds the primary context.
    fails("NOT_PERMITTED", driver.cuDevicePrimaryCtxReset(0))
    ok(driver.cuGreenCtxDestroy(context))
    fails("CONTEXT_IS_DESTROYED", driver.cuGreenCtxDestroy(context))
    fails("INVALID_CONTEXT", driver.cuGreenCtxDestroy(driver.CUgreenCtx()))


def test_streams_outlive_their_green_context_badly():
    # The primary context, so that streams are not gone with the last green one.
    ok(driver.cuDevicePrimaryCtxRetain(0))
    context = green()
    stream = ok(driver.cuGreenCtxStreamCreate(context, NON_BLOCKING, 0))
    ok(driver.cuGreenCtxDestroy(context))
    fails(DETACHED, driver.cuStreamSynchronize(stream))
    fails(DETACHED, driver.cuStreamQuery(stream))
    if version() >= 13010:
        ok(driver.cuStreamDestroy(stream))
    else:
        fails("CONTEXT_IS_DESTROYED", driver.cuStreamDestroy(stream))
    ok(driver.cuDevicePrimaryCtxRelease(0))


def test_a_default_stream_needs_a_context():
    fails("INVALID_CONTEXT", driver.cuStreamSynchronize(driver.CUstream(0)))
    fails("INVALID_CONTEXT", driver.cuEventCreate(0))
    fails("INVALID_CONTEXT", driver.cuCtxGetStreamPriorityRange())


def test_kernels_that_are_not_there():
    library = ok(driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    fails("NOT_FOUND", driver.cuLibraryGetKernel(library, b"absent"))
    ok(driver.cuLibraryUnload(library))


def test_events_that_say_nothing_of_time():
    primary = ok(driver.cuDevicePrimaryCtxRetain(0))
    ok(driver.cuCtxPushCurrent(primary))
    silent = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
    first, second = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(silent))
    fails("INVALID_HANDLE", driver.cuEventElapsedTime(first, second))
    ok(driver.cuEventRecord(first, 0))
    ok(driver.cuEventRecord(second, 0))
    fails("INVALID_HANDLE", driver.cuEventElapsedTime(first, second))
    ok(driver.cuEventDestroy(first))
    ok(driver.cuEventDestroy(second))
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(0))
    fails("INVALID_CONTEXT", driver.cuDevicePrimaryCtxRelease(0))


def test_captures_refuse_to_wait():
    context = green()
    stream = ok(driver.cuGreenCtxStreamCreate(context, NON_BLOCKING, 0))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    ok(driver.cuStreamBeginCapture(stream, mode))
    fails("STREAM_CAPTURE_UNSUPPORTED", driver.cuStreamSynchronize(stream))
    fails("STREAM_CAPTURE_INVALIDATED", driver.cuStreamEndCapture(stream))
    ok(driver.cuStreamDestroy(stream))
    ok(driver.cuGreenCtxDestroy(context))


if __name__ == "__main__":
    run(dict(globals()))
