"""Tests of the library in plain Python: its exports, environment variables and report.

A process has one driver, so each check starts this script again with the name of a function.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from ctypes import byref, c_int, c_uint64, c_void_p
from pathlib import Path

NEWER_DRIVER, NO_DEVICE, NOT_SUPPORTED = 36, 100, 801
# `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND` of `CUdriverProcAddressQueryResult`.
NOT_FOUND = 1

cuda = ctypes.CDLL("libcuda.so.1")


def start():
    """Prints the number of devices, the version, and whether a newer function is unsupported."""
    count, version = c_int(-1), c_int()
    print(
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(byref(count)),
        count.value,
        cuda.cuDriverGetVersion(byref(version)),
        version.value,
        cuda.cuStreamGetDevResource(None, None, 1) == NEWER_DRIVER,
    )


def profile():
    """Prints the simulated device's name, through a function that NVIDIA's library lacks."""
    cuda.greenCtxSimulatedProfile.restype = ctypes.c_char_p
    print(cuda.greenCtxSimulatedProfile().decode())


def not_simulated():
    """Prints the status of a function that is not simulated, and whether a look-up finds it."""
    found, why = c_void_p(1), c_int(-1)
    answers = [cuda.cuInit(0), cuda.cuArrayCreate_v2(None, None)]
    answers.append(
        cuda.cuGetProcAddress_v2(b"cuArrayCreate", byref(found), 12000, c_uint64(0), byref(why))
    )
    print(*answers, found.value, why.value)


def current():
    """Initialises the driver and makes the primary context current."""
    context = c_void_p()
    assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def null_stream():
    """Prints whether the null stream is the per-thread one in the `_ptsz` form only."""
    current()
    streams = (cuda.cuStreamGetId_ptsz, 0), (cuda.cuStreamGetId, 2), (cuda.cuStreamGetId, 0)
    numbers = []
    for function, stream in streams:
        number = c_uint64()
        assert function(c_void_p(stream), byref(number)) == 0
        numbers.append(number.value)
    print(numbers[0] == numbers[1] != numbers[2])


def kernel():
    """Launches a kernel twice. A Python program cannot register an implementation for it."""
    current()
    module, function = c_void_p(), c_void_p()
    ptx = b".version 7.0 .target sm_52 .address_size 64 .visible .entry put() { ret; }"
    assert cuda.cuModuleLoadData(byref(module), ptx) == 0
    assert cuda.cuModuleGetFunction(byref(function), module, b"put") == 0
    for _ in range(2):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0


def sleep(seconds):
    """Submits a host function, makes no calls for up to `seconds`, and prints its call count."""
    current()
    calls = []
    note = ctypes.CFUNCTYPE(None, c_void_p)(calls.append)
    assert cuda.cuLaunchHostFunc(None, note, None) == 0
    end = time.monotonic() + float(seconds)
    while not calls and time.monotonic() < end:
        time.sleep(0.01)
    print(len(calls))


def ask(*program, **variables):
    """Runs a function in a process with these variables. Returns its output and errors."""
    ours = {name: value for name, value in os.environ.items() if "GREEN_CTX_SIM" not in name}
    done = subprocess.run(
        [sys.executable, __file__, *program],
        env=ours | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def check_exports():
    generated = Path(__file__).parents[3] / "green-ctx/sim/src/entry/functions/generated.rs"
    names = re.findall(r"^ +(cu\w+): cu\w+ = ", generated.read_text(), re.MULTILINE)
    assert len(names) > 680
    assert {"cuInit", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuProfilerStart"} <= set(names)
    missing = [name for name in names if not hasattr(cuda, name)]
    assert not missing, missing
    assert ask("null_stream") == ("True", "")


def check_variables():
    assert ask("start") == ("0 0 1 0 13000 True", "")
    assert ask("start", GREEN_CTX_SIM="h200@13.1", GREEN_CTX_SIM_DEVICES="3") == (
        "0 0 3 0 13010 False",
        "",
    )
    assert ask("profile") == ("h200", "")
    assert ask("profile", GREEN_CTX_SIM="a100") == ("a100", "")
    assert ask("sleep", "30", GREEN_CTX_SIM_CLOCK="real") == ("1", "")
    assert ask("sleep", "0.1") == ("0", "")
    for name, value in (
        ("GREEN_CTX_SIM", "h201"),
        ("GREEN_CTX_SIM", "h200@9.9"),
        ("GREEN_CTX_SIM_DEVICES", "many"),
        ("GREEN_CTX_SIM_DEVICES", "1000"),
        ("GREEN_CTX_SIM_CLOCK", "wrong"),
    ):
        answers, messages = ask("start", **{name: value})
        assert answers.startswith(f"{NO_DEVICE} "), answers
        assert messages.count("\n") == 1 and value in messages, messages


def check_report():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report")
        answers, _ = ask("not_simulated", GREEN_CTX_SIM_REPORT=str(path))
        assert answers == f"0 {NOT_SUPPORTED} 0 None {NOT_FOUND}", answers
        report = path.read_text()
        assert report.startswith("h200@13.0\n") and "green_contexts: 0," in report
        assert "\nnot simulated: cuArrayCreate\n" in report and '"cuArrayCreate": 1,' in report
        _, messages = ask("start", GREEN_CTX_SIM_REPORT=folder)
        assert folder in messages
    # Only the first launch prints a warning.
    _, messages = ask("kernel")
    assert messages.count("\n") == 1 and "for the kernel put, so" in messages, messages


def main():
    check_exports()
    check_variables()
    check_report()
    print("library: done")


if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or ["main"]
    globals()[name](*arguments)
