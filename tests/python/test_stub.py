"""The stub of the compiled module has the module's docstrings, for editors that read only stubs."""

import ast

from green_ctx_torch import _native
from stub import STUB, documented


def test_the_stub_has_the_docstrings_of_the_module():
    source = STUB.read_text()
    assert documented(source, _native) == source, "run target/python-venv/bin/python tests/python/stub.py"


def test_each_public_class_and_function_has_a_docstring():
    tree = ast.parse(STUB.read_text())
    defined = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    public = [name for name in _native.__all__ if name in defined and not name.startswith("_")]
    assert len(public) > 30
    assert [name for name in public if not ast.get_docstring(defined[name])] == []
