"""Writes the docstrings of the built module into its stub, from which editors read them.

    target/python-venv/bin/python tests/python/stub.py

The texts come from the installed module, so install the module first. Docstrings in the stub are replaced.
"""

import ast
import inspect
import textwrap
from pathlib import Path

STUB = Path(__file__).parents[2] / "green-ctx-torch/python/green_ctx_torch/_native.pyi"


def documented(source, module):
    """Returns a stub's text with the docstrings of a module's public classes, functions, methods and properties."""
    bare = _without(source)
    lines = bare.splitlines()
    # From the end, so that the earlier line numbers stay valid.
    for node, owner in reversed(list(_definitions(ast.parse(bare).body, module))):
        doc = _text(owner, node)
        if doc is None:
            continue
        first = node.body[0]
        begin = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))]) - 1
        if isinstance(first, ast.Expr):
            lines[begin : begin + 1] = [lines[begin].removesuffix(" ..."), doc]
        else:
            lines.insert(begin, doc)
    return "\n".join(lines) + "\n"


def _without(source):
    """Returns the stub without docstrings."""
    lines = source.splitlines()
    for node, _ in reversed(list(_definitions(ast.parse(source).body))):
        if ast.get_docstring(node) is None:
            continue
        text = node.body[0]
        del lines[text.lineno - 1 : text.end_lineno]
        if len(node.body) == 1:
            lines[text.lineno - 2] += " ..."
    return "\n".join(lines) + "\n"


def _definitions(nodes, owner=None):
    """Yields the classes and functions in the order of the text, each with the object that it is an attribute of."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node, owner
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, getattr(owner, node.name, None))


def _text(owner, node):
    """Returns the lines of a docstring. A property's setter has none, and all overloads of a function share one."""
    is_setter = any(isinstance(one, ast.Attribute) for one in getattr(node, "decorator_list", []))
    found = inspect.getattr_static(owner, node.name, None)
    if isinstance(found, staticmethod):
        # pyo3's has the documentation of `staticmethod` itself.
        found = found.__func__
    if node.name.startswith("_") or is_setter or found is None or not found.__doc__:
        return None
    doc = inspect.cleandoc(found.__doc__)
    prefix, end = ("r" if "\\" in doc else ""), ("\n" if "\n" in doc or doc.endswith('"') else "")
    return textwrap.indent(f'{prefix}"""{doc}{end}"""', " " * (node.col_offset + 4))


if __name__ == "__main__":
    from green_ctx_torch import _native

    STUB.write_text(documented(STUB.read_text(), _native))
