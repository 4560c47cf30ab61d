"""The Python code of the pages: its types, and what runs without torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "gpu"))
from pages import PROGRAMS, blocks, programs

ROOT = Path(__file__).parents[2]


def test_all_blocks_of_all_pages_are_in_a_program():
    listed = {page: set() for page, *_ in PROGRAMS}
    for page, numbers, *_ in PROGRAMS:
        listed[page].update(numbers)
    for page in (path.relative_to(ROOT) for path in ROOT.rglob("*.md")):
        if "target" in page.parts:
            continue
        page = page.as_posix()
        found = len(blocks(ROOT, page))
        assert set(range(found)) == listed.get(page, set()), f"{page}: list its blocks in tests/python/gpu/pages.py"


def test_types_are_right(tmp_path):
    for name, program, _ in programs(ROOT):
        # A block of asyncio needs a type that a page leaves out.
        (tmp_path / f"{name}.py").write_text(re.sub(r"^(async )?def (\w+\(.*\)):$", r"\1def \2 -> object:", program, flags=re.M))
    ini = tmp_path / "mypy.ini"
    ini.write_text(
        "[mypy]\n[mypy-torch.*,triton.*]\nignore_missing_imports = True\nfollow_imports = skip\n", encoding="utf-8"
    )
    check = [sys.executable, "-m", "mypy", "--config-file", ini, "--check-untyped-defs", *sorted(tmp_path.glob("*.py"))]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name,program", [each[:2] for each in programs(ROOT) if each[2] == "simulator"])
def test_programs_without_torch_run(python, name, program):
    python(program)
