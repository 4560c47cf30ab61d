"""The module itself."""

import importlib.metadata
import pydoc

import green_ctx_torch


def test_it_imports_without_torch_and_without_a_driver(python):
    program = """
import sys
sys.modules["torch"] = None
import green_ctx_torch
assert "libcuda" not in open("/proc/self/maps").read()
print(green_ctx_torch.__version__)
"""
    assert python(program).strip() == green_ctx_torch.__version__


def test_importing_all_names_initialises_no_driver(python):
    program = """
from green_ctx_torch import *
from green_ctx_torch.green_contexts import *
print("libcuda" in open("/proc/self/maps").read())
"""
    assert python(program).strip() == "False"


def test_free_threaded_python_is_refused(python):
    program = """
import sysconfig
known = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else known(name)
import sys
try:
    import green_ctx_torch
except ImportError as error:
    # The native module may not be there, or not load, in such an interpreter.
    assert "green_ctx_torch._native" not in sys.modules
    print(error)
"""
    message = "green_ctx_torch does not support free-threaded Python; use an interpreter with the GIL"
    assert python(program).startswith(message)


def test_the_metadata_is_complete():
    metadata = importlib.metadata.metadata("green-ctx-torch")
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    assert set(metadata.get_all("License-File")) == {"LICENSE-APACHE", "LICENSE-MIT"}
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Keywords"]
    files = {file.name for file in importlib.metadata.files("green-ctx-torch")}
    assert {"LICENSE-APACHE", "LICENSE-MIT", "py.typed", "_native.pyi"} <= files


def test_what_is_exported_is_there():
    for name in green_ctx_torch.__all__:
        assert getattr(green_ctx_torch, name).__doc__
    for module in (green_ctx_torch, green_ctx_torch.green_contexts):
        assert "A type checker" not in pydoc.render_doc(module)


def test_a_driver_that_is_missing_is_a_runtime_error(python):
    program = """
import green_ctx_torch as module
from green_ctx_torch.allocator import Allocator
for ask in [module.info, module.verify, lambda: module.partition({"a": 8}),
            lambda: module.PlanSet({"day": {"a": 8}}), lambda: module.dry_run({"a": 8}),
            lambda: module.audit(1), lambda: module.GreenContext.create(8), Allocator]:
    try:
        ask()
    except RuntimeError as error:
        print(error)
"""
    output = python(program, LD_LIBRARY_PATH="/nowhere").splitlines()
    assert len(output) == 8
    for line in output:
        assert line.startswith("no usable CUDA driver: ")
        assert "LD_LIBRARY_PATH=target/sim-lib GREEN_CTX_SIM=h200@13.1; with torch, `cargo xtask sim-lib --torch`" in line


def test_a_driver_without_devices_is_a_runtime_error(python):
    program = """
import green_ctx_torch as module
try:
    module.partition({"a": 8})
except RuntimeError as error:
    print(error)
"""
    assert "CUDA_ERROR_NO_DEVICE" in python(program, GREEN_CTX_SIM_DEVICES="0")
