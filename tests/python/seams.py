"""Compares the private names of torch that green_ctx_torch uses with the sources of torch releases.

    python tests/python/seams.py 2.15.0 /path/to/site-packages ...

Each argument is a version, which pip downloads (about 540 MB, without dependencies), or a folder that contains the
folder `torch`. Nothing of torch is imported. The names are those of `green_ctx_torch/_seams.py`. For each name the
script prints `fits`, `differs` or `absent`, with the difference, or the version `from` which there is such a name, if
the release is older. The script fails if any name differs or is absent.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIST = Path(__file__).parents[2] / "green-ctx-torch/python/green_ctx_torch/_seams.py"


def load_list():
    """Loads the module `_seams` without the package and its native module."""
    spec = importlib.util.spec_from_file_location("_seams", LIST)
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks up its annotations here.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Sources:
    """The modules of a release."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.version = _version(self.folder)
        self._trees = {}

    def module(self, name):
        """Returns a module's syntax tree, or None if there is no such file."""
        if name not in self._trees:
            path = self.folder.joinpath(*name.split("."))
            names = ("__init__.py", "__init__.pyi")
            files = [path / each for each in names] + [path.with_suffix(".py"), path.with_suffix(".pyi")]
            found = next((file for file in files if file.is_file()), None)
            self._trees[name] = found and ast.parse(found.read_text(encoding="utf-8"))
        return self._trees[name]

    def find(self, module, name):
        """Returns the statement that defines a name of a module: a class, a function, an assignment or an import."""
        node = self.module(module)
        for part in name.split("."):
            node = node and _define(node, part)
        return node


def _version(folder):
    """Returns the version of a folder's release, from torch/version.py."""
    text = (folder / "torch/version.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if _names(node) == ["__version__"]:
            return ast.literal_eval(node.value)
    raise SystemExit(f"{folder}/torch/version.py does not say its version")


def _names(node):
    """Returns the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _define(outer, name):
    """Returns the last statement in a module or class that defines a name, or None."""
    found = None
    statements = list(getattr(outer, "body", []))
    while statements:
        node = statements.pop(0)
        if name in _names(node):
            found = node
        if isinstance(node, ast.If | ast.Try):
            statements = [*node.body, *node.orelse, *statements]
    return found


def _parameters(function):
    """Returns the names of a function's parameters, and the names of those without a default."""
    arguments = function.args
    by_place = [*arguments.posonlyargs, *arguments.args]
    without = by_place[: len(by_place) - len(arguments.defaults)]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults)
    without += [argument for argument, default in by_name if default is None]
    takes = [*by_place, *arguments.kwonlyargs]
    return [each.arg for each in takes], [each.arg for each in without]


def _attributes(node):
    """Returns all attributes of a class's objects, and those that `__init__` sets."""
    fields = {name for each in node.body if isinstance(each, ast.AnnAssign) for name in _names(each)}
    initial, later = set(), set()
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        found = initial if method.name == "__init__" else later
        for each in ast.walk(method):
            is_set = isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            if is_set and isinstance(each.value, ast.Name) and each.value.id == "self":
                found.add(each.attr)
    return fields | initial | later, initial


def problem(seam, sources):
    """Returns how a release differs from the expectation for a name, or None if it does not."""
    node = sources.find(seam.module, seam.name)
    if node is None:
        return None if seam.since and older(sources.version, seam.since) else f"{seam} is absent"
    if isinstance(node, ast.ClassDef):
        has, initial = _attributes(node)
        constructor = _define(node, "__init__")
        found = [seam.lacks(has), seam.unknown(initial)]
        if constructor is not None and seam.parameters is not None:
            takes, needs = _parameters(constructor)
            found.append(seam.differs(seam.parameters, takes[1:], needs[1:]))
        return "; ".join(filter(None, found)) or None
    if isinstance(node, ast.FunctionDef) and seam.parameters is not None:
        return seam.differs(seam.parameters, *_parameters(node))
    return None


def older(version, other):
    """Returns whether a version is older than another one, by its first two numbers."""
    return [int(part) for part in version.split(".")[:2]] < [int(part) for part in other.split(".")]


def compare(seams, sources):
    """Returns the lines of output for one release, and the number of names that differ."""
    lines, differing = [f"torch {sources.version}"], 0
    for seam in seams.ALL:
        found, there = problem(seam, sources), sources.find(seam.module, seam.name)
        differing += found is not None
        if there:
            lines.append(f"  {'differs':9} {found}" if found else f"  {'fits':9} {seam}")
        else:
            lines.append(f"  {'absent' if found else f'from {seam.since}':9} {seam}")
    for prefix in seams.FOLLOWING_MODULES:
        there = sources.folder.joinpath(*prefix.rstrip(".").split(".")).is_dir()
        differing += not there
        lines.append(f"  {'fits' if there else 'absent':9} {prefix}*")
    return lines, differing


def fetch(version, folder):
    """Downloads a release and extracts its sources."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, f"torch=={version}"], check=True)
    (wheel,) = Path(folder).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", ".pyi"))]
        archive.extractall(folder, names)
    wheel.unlink()


def main(arguments):
    if not arguments:
        raise SystemExit(__doc__)
    seams, total = load_list(), 0
    for argument in arguments:
        with tempfile.TemporaryDirectory() as folder:
            if Path(argument).is_dir():
                folder = argument
            else:
                fetch(argument, folder)
            lines, differing = compare(seams, Sources(folder))
        print("\n".join(lines), flush=True)
        total += differing
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
