"""The allocator: its Python class, and the C functions that torch calls."""

import ctypes
import gc
import re
from contextlib import closing
from pathlib import Path

import pytest
from green_ctx_torch import PlanSet, partition
from green_ctx_torch.allocator import Allocator, library_path, torch_allocator

EXPORTS = re.compile(r"pub (?:unsafe )?extern \"C\" fn (green_ctx_torch_\w+)")
SOURCE = Path(__file__).parents[2] / "green-ctx-torch/src/allocator/c.rs"


class Library:
    """The C functions of the file, looked up by name, as torch does."""

    def __init__(self):
        self.functions = ctypes.CDLL(library_path())
        self._alloc = self.functions.green_ctx_torch_alloc
        self._alloc.restype = ctypes.c_void_p
        self._alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self._free = self.functions.green_ctx_torch_free
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def alloc(self, size, raw_stream):
        return self._alloc(size, 0, raw_stream)

    def free(self, address, raw_stream):
        self._free(address, 0, 0, raw_stream)


library = Library()


@pytest.fixture
def allocator():
    """The allocator of device 0. Its settings are reset after the test."""
    allocator = Allocator()
    allocator.reset_peak()
    yield allocator
    allocator.limit = None
    allocator.set_outside_limit(None)
    allocator.set_foreign_limit(None)
    for name in allocator.snapshot()["partitions"]:
        allocator.set_partition_limit(name, None)
    allocator.set_shareable(False)
    assert allocator.current_bytes == 0 and not allocator.snapshot()["waiting"]


@pytest.fixture
def parts():
    with closing(partition({"decode": 16, "prefill": "rest"})) as parts:
        yield parts


def test_every_function_is_exported():
    names = EXPORTS.findall(SOURCE.read_text())
    assert len(names) > 15
    for name in names:
        assert getattr(library.functions, name)


def test_a_limit_gives_null(allocator, parts):
    stream = parts["decode"].raw_stream
    assert allocator.limit is None
    allocator.limit = 1000
    refusals = allocator.usage()["refusals"]
    block = library.alloc(600, stream)
    assert block and library.alloc(401, stream) is None
    assert allocator.limit == 1000 and allocator.usage()["limit_bytes"] == 1000
    assert allocator.usage()["refusals"] == refusals + 1
    assert "600 of the 1000 bytes of the allocator" in allocator.snapshot()["last_error"]
    allocator.limit = None
    other = library.alloc(401, stream)
    assert other
    for address in [block, other]:
        library.free(address, stream)


def test_each_partition_has_an_account(allocator, parts):
    decode, prefill = parts["decode"].raw_stream, parts["prefill"].raw_stream
    allocator.set_partition_limit("decode", 100)
    assert library.alloc(101, decode) is None
    assert "partition decode" in allocator.snapshot()["last_error"]
    blocks = {library.alloc(100, decode): decode, library.alloc(5000, prefill): prefill}
    # Memory outside partitions has an account too.
    blocks[library.alloc(7, None)] = None
    assert allocator.current_bytes == 5107
    current = {name: allocator.usage(name)["current_bytes"] for name in ("decode", "prefill")}
    assert current == {"decode": 100, "prefill": 5000}
    assert allocator.usage_outside()["current_bytes"] == 7
    assert allocator.usage_foreign()["current_bytes"] == 0
    for address, stream in blocks.items():
        library.free(address, stream)
    assert allocator.current_bytes == 0 and allocator.peak_bytes == 5107
    assert allocator.usage("decode")["peak_bytes"] == 100
    allocator.reset_peak()
    assert allocator.peak_bytes == allocator.usage("decode")["peak_bytes"] == 0


def test_no_name_stands_for_what_is_in_no_partition(allocator):
    with closing(partition({"primary": 16, "borrowed": 16})) as parts:
        blocks = {}
        for size, stream in [(100, parts["primary"].raw_stream), (7, None)]:
            blocks[library.alloc(size, stream)] = stream
        assert allocator.usage("primary")["current_bytes"] == 100
        assert allocator.usage("borrowed")["current_bytes"] == 0
        assert allocator.usage_outside()["current_bytes"] == 7
        snapshot = allocator.snapshot()
        assert snapshot["partitions"]["primary"]["current_bytes"] == 100
        assert snapshot["outside"] == allocator.usage_outside()
        assert snapshot["foreign"] == allocator.usage_foreign()
        owners = {block["bytes"]: block["partition"] for block in snapshot["blocks"]}
        assert owners == {100: "primary", 7: None}
        allocator.set_outside_limit(10)
        allocator.set_foreign_limit(20)
        assert library.alloc(4, None) is None
        assert "7 of the 10 bytes of memory outside partitions" in allocator.snapshot()["last_error"]
        assert allocator.usage_outside()["limit_bytes"] == 10
        assert allocator.usage_foreign()["limit_bytes"] == 20
        assert allocator.usage("primary")["limit_bytes"] is None
        for address, stream in blocks.items():
            library.free(address, stream)


def test_each_context_of_the_drop_ins_has_an_account(python):
    python(DROP_INS)


# In its own process: closed contexts are reused, and other tests expect their own.
DROP_INS = """
import ctypes, re
from green_ctx_torch import GreenContext, _native
from green_ctx_torch.allocator import Allocator, library_path

library, allocator = ctypes.CDLL(library_path()), Allocator()
alloc, free = library.green_ctx_torch_alloc, library.green_ctx_torch_free
alloc.restype = ctypes.c_void_p
alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
# FlashInfer's and SGLang's are made by the same function.
made = [GreenContext.create(16), GreenContext.create(16), *_native.split_green(0, [16, 16], "flashinfer")]
names = [context.partition.name for context in made]
assert names == ["GreenContext 1", "GreenContext 2", "flashinfer 3", "flashinfer 4"], names
assert [allocator.usage(name)["current_bytes"] for name in names] == [0] * 4
allocator.set_partition_limit(names[0], 100)
assert alloc(101, 0, made[0].raw_stream) is None
assert "partition GreenContext 1" in allocator.snapshot()["last_error"]
blocks = [alloc(200, 0, context.raw_stream) for context in made[1:]]
assert [allocator.usage(name)["current_bytes"] for name in names] == [0, 200, 200, 200]
for address, context in zip(blocks, made[1:]):
    free(address, 0, 0, context.raw_stream)
# One that is made of the same SMs later is another one.
made[1].close()
assert GreenContext.create(16).partition.name == "GreenContext 5"
# Only names that the module has given out are known.
for name in ["GreenContext", "GreenContext 0", "GreenContext 6", "GreenContext +1"]:
    try:
        allocator.usage(name)
    except ValueError as error:
        assert f"there is no partition {name};" in str(error)
    else:
        raise AssertionError(name)
"""


def test_a_name_that_nobody_has_is_a_value_error(allocator):
    plans = {"day": {"idle a": 8}, "night": {"idle b": 8}}
    with closing(partition({"idle": 8})), closing(PlanSet(plans, sm_count=8)):
        for name in ["idle", "idle a", "idle b"]:
            assert allocator.usage(name)["current_bytes"] == 0
        with pytest.raises(ValueError, match="no partition nope; the known names are .*idle, idle a, idle b"):
            allocator.usage("nope")
    with pytest.raises(ValueError, match="there is no partition idle; the known names are "):
        allocator.usage("idle")
    # A limit can be set before the partition exists.
    allocator.set_partition_limit("later", 5)
    assert allocator.usage("later")["limit_bytes"] == 5


def test_a_snapshot_has_everything(allocator, parts):
    stream = parts["decode"].raw_stream
    block = library.alloc(4096, stream)
    snapshot = allocator.snapshot()
    assert snapshot["device"] == allocator.device == 0
    assert snapshot["total"] == allocator.usage()
    for name, usage in snapshot["partitions"].items():
        assert usage == allocator.usage(name)
    assert snapshot["blocks"] == [
        {
            "address": block,
            "bytes": 4096,
            "partition": "decode",
            "foreign": False,
            "stream": stream,
            "recorded": [],
            "graphs": 0,
            "shareable": False,
        }
    ]
    assert snapshot["pool_bytes"] >= 4096
    library.free(block, stream)


def test_every_object_is_the_same_allocator(allocator):
    other = Allocator(device=0)
    other.limit = 5
    assert allocator.limit == 5
    del other
    gc.collect()
    assert Allocator().limit == 5 and library.alloc(6, None) is None


def test_memory_goes_back(python, tmp_path):
    report = tmp_path / "report"
    program = """
import ctypes
from green_ctx_torch.allocator import Allocator, library_path
allocator = Allocator()
allocator.empty_cache()
alloc = ctypes.CDLL(library_path()).green_ctx_torch_alloc
alloc.restype = ctypes.c_void_p
assert alloc(ctypes.c_size_t(64), 0, None)
allocator.set_release_threshold(1 << 40)
allocator.empty_cache()
"""
    python(program, GREEN_CTX_SIM_REPORT=str(report))
    output = report.read_text()
    # At the first `empty_cache` there was no pool to trim.
    assert '"cuMemPoolTrimTo": 1' in output
    # Two when the pool is created, and one for the threshold.
    assert '"cuMemPoolSetAttribute": 3' in output


def test_blocks_with_ipc_handles(allocator, parts):
    stream = parts["decode"].raw_stream
    pooled = library.alloc(64, stream)
    with pytest.raises(ValueError, match="make the allocator shareable before"):
        allocator.ipc_handle(pooled)
    allocator.set_shareable(True)
    shared = library.alloc(64, stream)
    handle = allocator.ipc_handle(shared)
    assert type(handle) is bytes and len(handle) == 64
    assert allocator.ipc_handle(shared + 63) == handle
    for address in [pooled, shared]:
        library.free(address, stream)
    with pytest.raises(ValueError, match="there is no block at"):
        allocator.ipc_handle(shared)


def test_torch_gets_the_functions(python):
    fake_torch = str(Path(__file__).parent / "fake_torch")
    output = python(TORCH, fake_torch, GREEN_CTX_SIM_DEVICES="2")
    assert output.split() == ["made", "called", "pools"]


# In its own process: objects passed to torch are kept until the process ends.
TORCH = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import torch
from green_ctx_torch.allocator import Allocator, library_path, torch_allocator

allocator = torch_allocator()
assert allocator is torch_allocator()
assert allocator.made_of == (
    library_path(), "green_ctx_torch_alloc", "green_ctx_torch_free")
print("made")

# The addresses are those of the functions with torch's signatures.
hooks = allocator.allocator().hooks
library = ctypes.CDLL(library_path())
for name, address in hooks.items():
    function = getattr(library, f"green_ctx_torch_{name}")
    assert ctypes.cast(function, ctypes.c_void_p).value == address
assert set(hooks) == {"reset", "memory_fraction", "base_alloc", "record_stream"}
ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(hooks["memory_fraction"])(0.0, 0)
assert Allocator().limit == 0
print("called")

pools = [Allocator(device).mem_pool() for device in (1, 0)]
assert [pool.device for pool in pools] == [1, 0]
assert all(pool.allocator is allocator.allocator() for pool in pools)
assert torch.cuda.current_device() == 0
torch.cuda.MemPool = None
try:
    Allocator(1).mem_pool()
except TypeError:
    assert torch.cuda.current_device() == 0
    print("pools")
"""


def test_without_torch_the_error_says_what_to_do():
    for ask in [torch_allocator, Allocator().mem_pool]:
        with pytest.raises(ImportError, match="install it, or call the C functions of"):
            ask()


def test_a_limit_holds_for_the_name_of_the_active_plan(allocator):
    # One context with two names.
    plans = PlanSet({"day": {"train": 16}, "night": {"chat": 16}}, sm_count=16)
    with closing(plans):
        allocator.set_partition_limit("train", 100)
        allocator.set_partition_limit("chat", 5000)
        raw = plans.active.partitions["train"].raw_stream
        assert library.alloc(101, raw) is None
        chat = plans.switch("night").partitions["chat"]
        assert chat.raw_stream == raw
        block = library.alloc(4000, raw)
        assert block is not None and library.alloc(1001, raw) is None
        assert allocator.usage("chat")["current_bytes"] == 4000
        plans.switch("day")
        assert library.alloc(101, raw) is None
        library.free(block, raw)
        for name in ("train", "chat"):
            assert allocator.usage(name)["current_bytes"] == 0
