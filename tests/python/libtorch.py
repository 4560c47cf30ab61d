"""The stand-in for libtorch, of which a process has one."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_torch" / "libtorch.c"


@functools.cache
def load():
    """Compiles it, and loads it where the process looks for libtorch's functions."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    library = Path(tempfile.mkdtemp(prefix="green-ctx-torch-")) / "libtorch.so"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    # The mapping stays without the file.
    shutil.rmtree(library.parent)
    return loaded


def current(device=0):
    """The raw handle of the thread's current stream; 0 for the default stream."""
    stream = ctypes.c_void_p()
    assert load().aoti_torch_get_current_cuda_stream(device, ctypes.byref(stream)) == 0
    return stream.value or 0


def make_current(raw, device=0):
    """Makes a raw stream the thread's current one."""
    assert load().torch_set_current_cuda_stream(ctypes.c_void_p(raw), device) == 0
