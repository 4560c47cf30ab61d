"""The notebook of the examples is valid, and runs from top to bottom without torch."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

NOTEBOOK = Path(__file__).parents[2] / "green-ctx-torch/examples/partitions.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def test_it_is_of_format_4_5(notebook):
    # The keys that nbformat.v4.5.schema.json requires and allows.
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    kernel = notebook["metadata"]["kernelspec"]
    assert set(kernel) == {"display_name", "language", "name"} and kernel["name"] == "python3"
    assert notebook["metadata"]["language_info"]["name"] == "python"
    cells = notebook["cells"]
    assert 10 <= len(cells) <= 20
    for cell in cells:
        keys = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            keys |= {"execution_count", "outputs"}
            assert cell["execution_count"] is None and cell["outputs"] == []
        else:
            assert cell["cell_type"] == "markdown"
        assert set(cell) == keys and cell["metadata"] == {}
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        lines = cell["source"]
        assert lines and all(isinstance(line, str) for line in lines)
        assert all(line.endswith("\n") for line in lines[:-1]) and not lines[-1].endswith("\n")
    assert len({cell["id"] for cell in cells}) == len(cells)


# Runs the cells like Jupyter: in one namespace, with the value of each cell's last line.
RUN = """
import ast, importlib.abc, json, sys

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def find_spec(name, package=None, original=__import__("importlib.util").util.find_spec):
    return None if name == "torch" else original(name, package)

sys.meta_path.insert(0, NoTorch())
sys.modules["importlib.util"].find_spec = find_spec
namespace, pictures = {"__name__": "__main__"}, {}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, cell["id"], "exec"), namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), namespace)
        if hasattr(value, "_repr_svg_"):
            pictures[cell["id"]] = value._repr_svg_()
import green_ctx_torch
with __import__("contextlib").closing(green_ctx_torch.partition({"all": "rest"})) as parts:
    left = green_ctx_torch.info()["devices"][0]["sm_count"] - parts["all"].sm_count
print(json.dumps({"pictures": pictures, "left": left, "torch": "torch" in sys.modules}))
"""


def test_it_runs_without_torch(python):
    *printed, result = python(RUN, str(NOTEBOOK), GREEN_CTX_TUNE_DIR=str(NOTEBOOK.parent)).splitlines()
    result = json.loads(result)
    assert result["left"] == 0 and not result["torch"]
    printed = "\n".join(printed)
    for words in [
        "the cells that need it do nothing",
        "decode 17 -> 24 SMs",
        "<Partition prefill: 116 SMs of device 0>",
        "<Report: verified, simulated: decode on 16 of 16 SMs, prefill on 116 of 116 SMs>",
        "skipped: this cell needs torch",
        "shares with [('prefill', 100)]",
        "night {'decode': 64, 'prefill': 68}",
        "with p99 of decode at",
    ]:
        assert words in printed
    assert list(result["pictures"]) == ["verify", "tuner"]
    for picture in map(ElementTree.fromstring, result["pictures"].values()):
        assert picture.tag.endswith("svg") and len(list(picture.iter())) > 100


def test_the_readme_names_it():
    readme = NOTEBOOK.parents[1] / "README.md"
    assert "green-ctx-torch/examples/partitions.ipynb" in readme.read_text(encoding="utf-8")
