"""The library itself, with nothing but Python: its exports, versions, variables and report.

Each test starts processes of its own, since a process has one driver.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INVALID_VALUE, NOT_INITIALIZED, NEWER_DRIVER, NO_DEVICE, NOT_SUPPORTED = 1, 3, 36, 100, 801
# Of `CUdriverProcAddressQueryResult`.
NOT_FOUND = 1

# What a process does: it prints the answers of `cuInit`, `cuDeviceGetCount`, `cuDriverGetVersion`
# and of a function that drivers have from 13.1 on.
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, version = ctypes.c_int(-1), ctypes.c_int()
answers = [
    cuda.cuInit(0),
    cuda.cuDeviceGetCount(ctypes.byref(count)),
    count.value,
    cuda.cuDriverGetVersion(ctypes.byref(version)),
    version.value,
    cuda.cuStreamGetDevResource(None, None, 1),
]
print(*answers)
"""

# Submits a function to a stream, makes no call for a while, and prints how often the function ran.
SLEEPER = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, calls = ctypes.c_void_p(), []
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(calls.append)
answers = [
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuLaunchHostFunc(None, note, None),
]
end = time.monotonic() + SECONDS
while not calls and time.monotonic() < end:
    time.sleep(0.01)
print(*answers, len(calls))
"""

def ask(program=PROGRAM, **variables):
    """The answers of a program with these variables, and what it wrote on its standard error."""
    ours = {name: value for name, value in os.environ.items() if "GREEN_CTX_SIM" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ours | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(answer) for answer in done.stdout.split()], done.stderr


def test_names_of_the_real_library():
    cuda = ctypes.CDLL("libcuda.so.1")
    for name in (
        "cuInit cuGetProcAddress cuGetProcAddress_v2 cuDeviceTotalMem_v2 cuMemAlloc_v2 "
        "cuCtxPushCurrent_v2 cuStreamDestroy_v2 cuStreamGetCtx cuStreamGetCtx_v2 "
        "cuGreenCtxCreate cuDevSmResourceSplit"
    ).split():
        assert hasattr(cuda, name), name
    assert not hasattr(cuda, "cuNoSuchFunction")


# What a process does that asks a library whether it is simulated.
SIMULATED = """
import ctypes
profile = ctypes.CDLL("libcuda.so.1").greenCtxSimulatedProfile
profile.restype = ctypes.c_char_p
print(int(profile() == b"PROFILE"))
"""


def test_it_says_that_it_is_simulated():
    for spec, profile in ("", "h200"), ("b200@13.4", "b200"):
        assert ask(SIMULATED.replace("PROFILE", profile), GREEN_CTX_SIM=spec) == ([1], ""), spec


def test_every_function_that_our_programs_know():
    """Under its name in one of its forms: which form a table wants is in symbols.toml."""
    cuda = ctypes.CDLL("libcuda.so.1")
    symbols = Path(__file__).parents[3].joinpath("green-ctx-sys/symbols.toml").read_text()
    names = re.findall(r"^(cu\w+) = \d+$", symbols, re.MULTILINE)
    assert len(names) > 200
    forms = ["", "_v2", "_v3", "_v4"]
    missing = [name for name in names if not any(hasattr(cuda, name + form) for form in forms)]
    assert not missing, missing


def test_every_function_of_the_header():
    cuda = ctypes.CDLL("libcuda.so.1")
    generated = Path(__file__).parents[2] / "sim/src/entry/functions/generated.rs"
    names = re.findall(r"^ +(cu\w+): cu\w+ = ", generated.read_text(), re.MULTILINE)
    assert len(names) > 680
    some = "cuInit cuMemAlloc cuMemcpyHtoD_v2_ptds cuLaunchKernel_ptsz cuProfilerInitialize"
    assert set(some.split()) <= set(names)
    missing = [name for name in names if not hasattr(cuda, name)]
    assert not missing, missing


# Launches a kernel twice that would write memory, and prints what is there then.
UNREGISTERED = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
memory, value = ctypes.c_uint64(), ctypes.c_int(-1)
ptx = b".version 7.0 .target sm_52 .address_size 64 .visible .entry put(.param .u64 to) { ret; }"
answers = [
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuModuleLoadData(ctypes.byref(module), ptx),
    cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"put"),
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4)),
    cuda.cuMemsetD32_v2(memory, 5, ctypes.c_size_t(1)),
]
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
for _ in range(2):
    answers.append(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
answers.append(cuda.cuMemcpyDtoH_v2(ctypes.byref(value), memory, ctypes.c_size_t(4)))
print(*answers, value.value)
"""


def test_a_kernel_without_a_function_warns_once():
    answers, messages = ask(UNREGISTERED)
    assert answers == [0] * 10 + [5], answers
    assert messages.count("\n") == 1 and "warning: " in messages, messages
    assert "for the kernel put, so" in messages and "docs/simulated-libcuda.md" in messages, messages


# What a process does with functions that are not simulated: it prints what one answers before and
# after `cuInit`, what one answers that is newer than the driver, whether it is found, and why not.
REFUSED = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
array, found, why = ctypes.c_void_p(), ctypes.c_void_p(1), ctypes.c_int(-1)
answers = [cuda.cuArrayCreate_v2(ctypes.byref(array), None), cuda.cuInit(0)]
answers += [cuda.cuArrayCreate_v2(ctypes.byref(array), None), cuda.cuLogicalEndpointDestroy(None)]
answers += [
    cuda.cuGetProcAddress_v2(
        b"cuArrayCreate", ctypes.byref(found), 12000, ctypes.c_uint64(0), ctypes.byref(why)
    ),
    found.value or 0,
    why.value,
]
print(*answers)
"""


def test_what_is_not_simulated():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report")
        answers, _ = ask(REFUSED, GREEN_CTX_SIM_REPORT=str(path))
        assert answers == [NOT_SUPPORTED, 0, NOT_SUPPORTED, NEWER_DRIVER, 0, 0, NOT_FOUND]
        report = path.read_text()
        assert "\nnot simulated: cuArrayCreate\n" in report and '"cuArrayCreate": 2,' in report
        assert report.count("not simulated") == 1
        answers, _ = ask(REFUSED, GREEN_CTX_SIM="h200@13.4")
        assert answers[3] == NOT_SUPPORTED


# What a process does that looks NVIDIA's own tables up by name, as NVRTC does, and whose null stream
# is the thread's: it prints the answer and what is left of its pointer, and three streams' numbers.
BY_NAME = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
table, context, number = ctypes.c_void_p(1), ctypes.c_void_p(), ctypes.c_uint64()
answers = [cuda.cuGetExportTable(ctypes.byref(table), bytes(16)), table.value or 0]
answers += [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
answers += [cuda.cuCtxPushCurrent_v2(context)]
for function, stream in (
    (cuda.cuStreamGetId_ptsz, 0), (cuda.cuStreamGetId, 2), (cuda.cuStreamGetId, 0)
):
    answers.append(function(ctypes.c_void_p(stream), ctypes.byref(number)) or number.value)
print(*answers)
"""


def test_functions_by_their_exported_names():
    answers, _ = ask(BY_NAME)
    assert answers[:5] == [INVALID_VALUE, 0, 0, 0, 0]
    own, per_thread, legacy = answers[5:]
    assert own == per_thread != legacy


def test_without_variables_it_is_the_recorded_driver():
    answers, messages = ask()
    assert answers[:5] == [0, 0, 1, 0, 13000]
    assert messages == ""


def test_variables_say_what_is_played():
    answers, _ = ask(GREEN_CTX_SIM="h200@13.1", GREEN_CTX_SIM_DEVICES="3")
    assert answers[:5] == [0, 0, 3, 0, 13010]
    answers, _ = ask(GREEN_CTX_SIM="h200")
    assert answers[:5] == [0, 0, 1, 0, 13000]


def test_functions_newer_than_the_driver():
    for spec, newer in ("h200@12.4", True), ("h200@13.0", True), ("h200@13.1", False):
        answers, _ = ask(GREEN_CTX_SIM=spec)
        assert (answers[5] == NEWER_DRIVER) == newer, (spec, answers)


def test_no_devices():
    answers, messages = ask(GREEN_CTX_SIM_DEVICES="0")
    assert answers[:3] == [NO_DEVICE, NOT_INITIALIZED, -1]
    assert messages == ""


def test_a_clock_that_runs():
    for clock, seconds, calls in ("real", 30, 1), ("virtual", 0.1, 0), ("", 0.1, 0):
        program = SLEEPER.replace("SECONDS", str(seconds))
        answers, messages = ask(program, GREEN_CTX_SIM_CLOCK=clock)
        assert (answers, messages) == ([0, 0, 0, 0, calls], ""), clock


def test_variables_that_make_no_sense():
    for variables, word in (
        ({"GREEN_CTX_SIM": "h201"}, "h201"),
        ({"GREEN_CTX_SIM": "h200@9.9"}, "9.9"),
        ({"GREEN_CTX_SIM_DEVICES": "many"}, "many"),
        ({"GREEN_CTX_SIM_DEVICES": "-1"}, "-1"),
        ({"GREEN_CTX_SIM_DEVICES": "1000"}, "1000"),
        ({"GREEN_CTX_SIM_CLOCK": "wrong"}, "wrong"),
    ):
        answers, messages = ask(**variables)
        assert answers[0] == NO_DEVICE, variables
        assert messages.count("\n") == 1 and word in messages, messages


def test_the_report():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report")
        ask(GREEN_CTX_SIM="h200@13.1", GREEN_CTX_SIM_REPORT=str(path))
        report = path.read_text()
        assert report.startswith("h200@13.1\n")
        assert '"cuDeviceGetCount": 1,' in report and "green_contexts: 0," in report
        _, messages = ask(GREEN_CTX_SIM_REPORT=folder)
        assert folder in messages


if __name__ == "__main__":
    for name, test in dict(globals()).items():
        if name.startswith("test_"):
            test()
            print(f"library: {name.removeprefix('test_').replace('_', ' ')}")
