"""The messages of the drop-ins if torch is missing, too old or for the CPU only: `absent.py none|cpu|old`."""

import ctypes
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import green_ctx_torch
from green_ctx_torch import GreenContext

how = sys.argv[1]
folder = tempfile.mkdtemp()


def load(name, source):
    """Loads a library as Python loads torch's: by name, and not globally."""
    path = f"{folder}/{name}"
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", path]
    subprocess.run(command, input=source, text=True, check=True)
    return ctypes.CDLL(path)


if how != "none":
    cuda = None if how == "cpu" else "12.8"
    version = "2.11.0+cpu" if how == "cpu" else "2.7.1+cu128"
    sys.modules["torch"] = SimpleNamespace(
        version=SimpleNamespace(cuda=cuda),
        __version__=version,
        cuda=SimpleNamespace(is_initialized=lambda: False),
    )
    load("libtorch_cpu.so", "int cpu;")
if how == "old":
    load("libtorch_cuda.so", "int cuda;")

print(green_ctx_torch.SUPPORTED)
context = GreenContext.create(16)
for call in (context.set_context, context.pop_context):
    try:
        call()
    except (ImportError, RuntimeError) as error:
        print(error)
print(GreenContext.create(116).sm_count)
