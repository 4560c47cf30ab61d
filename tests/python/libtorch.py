"""The substitute for libtorch, which a process loads once."""

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
    """Compiles and loads it in such a way that the process finds its functions."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    library = Path(tempfile.mkdtemp(prefix="green-ctx-torch-")) / "libtorch.so"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    # The library stays mapped without the file.
    shutil.rmtree(library.parent)
    return loaded


def current(device=0):
    """Returns the raw handle of the thread's current stream, or 0 for the default stream."""
    stream = ctypes.c_void_p()
    assert load().aoti_torch_get_current_cuda_stream(device, ctypes.byref(stream)) == 0
    return stream.value or 0


def make_current(raw, device=0):
    """Makes a raw stream the thread's current stream."""
    assert load().torch_set_current_cuda_stream(ctypes.c_void_p(raw), device) == 0
