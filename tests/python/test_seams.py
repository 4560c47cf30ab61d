"""The list of torch's private names, and the script that compares it with releases."""

import re
import sys
import types

import pytest
import seams
from green_ctx_torch import _seams, sizing


def write(folder, version="2.11.0", **modules):
    """Writes sources of torch. `modules` maps module names to texts, with two underscores for each dot."""
    modules = {"torch__version": f'__version__ = "{version}"', **modules}
    for name, text in modules.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return seams.Sources(folder)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("def f(self, a, b=1, *rest, c=2, **named): pass", None),
        ("def f(self, a): pass", None),
        ("def f(self, b): pass", "torch.m.f takes (self, b) where (self, a) is expected"),
        ("def f(self, a, b): pass", "torch.m.f takes (self, a, b) where (self, a) is expected"),
        ("def f(self, a, *, b): pass", "torch.m.f takes (self, a, b) where (self, a) is expected"),
        ("def f(self): pass", "torch.m.f takes (self) where (self, a) is expected"),
        ("if True:\n    def f(self, a): pass", None),
        ("try:\n    from torch.n import f\nexcept ImportError:\n    pass", None),
        ("def g(self, a): pass", "torch.m.f is absent"),
    ],
)
def test_parameters(tmp_path, text, expected):
    seam = _seams.Seam("torch.m", "f", ("self", "a"))
    assert seams.problem(seam, write(tmp_path, torch__m=text)) == expected


def test_a_parameter_that_some_versions_want(tmp_path):
    seam = _seams.Seam("torch.m", "f", ("a",), optional=("b",))
    assert seams.problem(seam, write(tmp_path, torch__m="def f(a, b): pass")) is None
    assert seams.problem(seam, write(tmp_path / "2", torch__m="def f(a): pass")) is None


def test_what_a_class_sets(tmp_path):
    text = """
class C:
    field: int

    def __init__(self, device, *, size=None):
        self.a = self.b = 1
        with lock:
            self.c: int = 2

    def run(self):
        self.d = 3
"""
    sources = write(tmp_path, torch__m=text)
    known = frozenset("abc")
    fits = _seams.Seam("torch.m", "C", ("device",), attributes=("a", "d", "field"), state=known)
    assert seams.problem(fits, sources) is None
    differs = _seams.Seam("torch.m", "C", ("index",), attributes=("e", "a"), state=frozenset("ab"))
    assert seams.problem(differs, sources) == (
        "torch.m.C has no e; torch.m.C has state that is not known: c; "
        "torch.m.C takes (device, size) where (index) is expected"
    )
    assert seams.problem(_seams.Seam("torch.m", "C.run", ("self",)), sources) is None
    assert seams.problem(_seams.Seam("torch.m", "C.walk"), sources) == "torch.m.C.walk is absent"
    assert seams.problem(_seams.Seam("torch.n", "C"), sources) == "torch.n.C is absent"


def test_a_name_that_is_newer_than_the_release(tmp_path):
    seam = _seams.Seam("torch.m", "f", since="2.14")
    assert seams.problem(seam, write(tmp_path / "old", "2.9.1+cu130", torch__m="")) is None
    new = write(tmp_path / "new", "2.14.0", torch__m="")
    assert seams.problem(seam, new) == "torch.m.f is absent"


def test_the_whole_list(tmp_path, capsys):
    write(tmp_path, torch__compiler="_is_exporting_flag: bool = False")
    assert seams.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "torch 2.11.0"
    assert "  fits      torch.compiler._is_exporting_flag" in lines
    assert "  absent    torch.cuda.graphs.CUDAGraph.replay" in lines
    assert "  from 2.14 torch.cuda.graphs.register_graph_capture_start_hook" in lines
    assert "  absent    torch._dynamo.variables.*" in lines
    assert len(lines) == 1 + len(_seams.ALL) + len(_seams.FOLLOWING_MODULES)


@pytest.fixture
def torch(monkeypatch):
    """A torch that lacks almost everything."""
    torch = types.ModuleType("torch")
    torch.__version__ = "2.99.0"
    torch.compiler = types.SimpleNamespace(_is_exporting_flag=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_the_imported_torch_is_asked_in_the_same_way(torch):
    class Holder:
        def plain(self, a, b=1):
            pass

        @classmethod
        def of_class(cls, a):
            pass

    torch.m = types.SimpleNamespace(Holder=Holder, native=len)

    def problem(name, *parameters, **named):
        return _seams.Seam("torch.m", name, parameters, **named).problem()

    assert problem("Holder.plain", "self", "a") is None
    assert problem("Holder.of_class", "cls", "a") is None
    assert problem("Holder.of_class", "cls", "b") == (
        "torch.m.Holder.of_class takes (a) where (b) is expected"
    )
    assert problem("Holder.gone", "self") == "torch.m.Holder.gone is absent"
    assert problem("Holder.gone", "self", since="3.0") is None
    assert problem("Holder.gone", "self", since="2.14") == "torch.m.Holder.gone is absent"
    assert problem("Holder") is None and problem("native", "obj") is None


def test_sizing_replaces_nothing_where_torch_does_not_fit(torch):
    expected = r"torch 2\.99\.0 .*get_device_properties is absent; .*Nothing is replaced"
    with pytest.warns(RuntimeWarning, match=expected):
        sizing.install()
    assert not sizing._installed and not sizing._undo
    sizing.uninstall()


@pytest.mark.parametrize("lacks", ["class", "function"])
def test_a_triton_that_does_not_fit_is_a_warning(monkeypatch, lacks):
    class CudaUtils:
        def __init__(self):
            pass

    triton, driver = types.ModuleType("triton"), types.ModuleType("driver")
    triton.__version__ = "9.9.0"
    if lacks == "function":
        driver.CudaUtils = CudaUtils
    for name, module in (("triton", triton), ("triton.backends.nvidia.driver", driver)):
        monkeypatch.setitem(sys.modules, name, module)
    try:
        with pytest.warns(RuntimeWarning, match=r"triton 9\.9\.0 .* is absent.* report all SMs"):
            sizing._replace_triton()
            CudaUtils()
    finally:
        sizing._revert()


def test_sizing_without_torch():
    with pytest.raises(ImportError, match="torch"):
        sizing.install()


def test_guards_of_every_version():
    class Root:
        def add_lambda_guard(self, guard, texts, *stack):
            if len(stack) != self.takes:
                raise TypeError("incompatible function arguments")
            self.texts = texts

    guard = sizing._SameCount.__new__(sizing._SameCount)
    guard.count = 16
    for takes in (0, 1):
        root = Root()
        root.takes = takes
        sizing._add_guard(root, guard)
        assert root.texts == ["green_ctx_torch.sm_count() is 16"]


EXPORTS = """
import sys
import types

import dropins

torch = dropins.Torch()
sys.modules["torch"] = torch
import green_ctx_torch

part = green_ctx_torch.partition({"a": 16})["a"]
context = green_ctx_torch.GreenContext.create(16)
for entered in (part, context):
    with entered:
        # What is exported in a block has none of its own.
        torch.compiler._is_exporting_flag = True
    try:
        with entered:
            print("entered")
    except RuntimeError as error:
        print(error)
    print(torch.current())
    torch.compiler._is_exporting_flag = False
    with entered:
        print("again")
"""


def test_torch_export_does_not_drop_a_block(python):
    folder = str(seams.LIST.parents[3] / "tests/python")
    refused = "torch.export records operations but no `with` blocks, .* call the exported program inside one"
    lines = python(EXPORTS, PYTHONPATH=folder).splitlines()
    assert len(lines) == 6
    assert re.match(refused, lines[0]) and re.match(refused, lines[3])
    assert lines[1:3] == lines[4:] == ["0", "again"]


def test_looking_for_a_name_imports_nothing(monkeypatch):
    asked = []

    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "torch", Lazy("torch"))
    assert _seams.TREE_MANAGER.find() is None and _seams.GET_MANAGER.find() is None
    assert asked == []


@pytest.mark.parametrize(
    "version, missing", [("2.11.0+cu130", False), ("2.14.1", True), ("2.16.0", True)]
)
def test_a_newer_name_is_missed_from_its_version_on(monkeypatch, version, missing):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
    problem = _seams.CAPTURE_START_HOOK.problem()
    assert (problem is not None) == missing, problem
