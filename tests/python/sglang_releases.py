"""Compares releases of SGLang with what the plug-in expects, and runs their multiplexing loop with it.

    python tests/python/sglang_releases.py 0.5.12 0.5.14 newest /path/to/site-packages ...

Each argument is a version, which pip downloads without what it depends on (10 to 40 MB), `newest`, or a folder that
has the folder `sglang`. It needs the module green_ctx_torch and the simulated driver; torch, the model and the
scheduler around the loop are stand-ins. It fails where a release does not fit. A newest release that does not fit is
reported and no failure: the plug-in refuses it until its list is changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from green_ctx_torch.engines.sglang.seams import HOOKED, USED, Sources

LOOP = Path(__file__).parent / "programs" / "sglang_loop.py"
SETTING = "decode=32..,prefill=..100,layers=2;decode=48..,prefill=..84,batch=2"
NEWEST = "newest"

#: Hooks that are not applied, one at a time. The last names none, and must end well.
BREAKAGES = (
    "ServerArgs.__post_init__",
    "load_pdmux_config",
    "initialize_stream_groups",
    "set_current_stream_idx",
    "init_pdmux",
    "update_split_prefill_batch",
    "forward_batch_split_prefill",
    "maybe_init_pdmux",
    "_make_graph_key",
    "get_internal_state",
    "none",
)


def fetch(version: str, folder: Path) -> str:
    """Downloads a release and extracts its sources. Returns its version."""
    wanted = "sglang" if version == NEWEST else f"sglang=={version}"
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (34, 28, 17)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    # SGLang has wheels for some versions of Python, and none of them is imported.
    pip += ["--only-binary=:all:", "--python-version=3.12", *platforms, wanted]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        paths = {path.partition(":")[0] for seam in (*HOOKED.values(), *USED) for path in seam.paths()}
        paths |= {"srt/plugins/__init__.py"}
        names = set(archive.namelist())
        archive.extractall(folder, sorted(names & {f"sglang/{path}" for path in paths}))
    return wheel.name.split("-")[1]


def run_loop(folder: Path, breakage: str) -> str | None:
    """Runs the loop, and returns what went wrong."""
    command = [sys.executable, "-W", "ignore", str(LOOP), str(folder), breakage]
    done = subprocess.run(
        command, env={**os.environ, "GREEN_CTX_SGLANG": SETTING}, capture_output=True, text=True, timeout=120
    )
    if breakage == "none":
        return None if done.returncode == 0 else done.stderr.strip()
    stopped = done.returncode != 0 and "green_ctx_torch: SGLang" in done.stderr
    return None if stopped else f"went on without the hook on {breakage}: {done.stdout}{done.stderr}"


def compare(version: str, folder: Path) -> int:
    """Reports one release, and returns how much of it differs."""
    sources = Sources(folder / "sglang")
    problems = sources.problems()
    print(f"SGLang {version}: {len(HOOKED) + len(USED)} seams, {len(problems)} differ")
    if not problems:
        found = (run_loop(folder, breakage) for breakage in BREAKAGES)
        problems = [problem for problem in found if problem is not None]
        mended = ", its wrong argument mended" if sources.has_wrong_sample() else ""
        if not problems:
            stops = len(BREAKAGES) - 1
            print(
                f"  the loop ran with the plug-in{mended}; without any one of {stops} hooks the process ended"
            )
    for problem in problems:
        print(f"  {problem}")
    return len(problems)


def main(arguments: list[str]) -> int:
    if not arguments:
        raise SystemExit(__doc__)
    differing = 0
    for argument in arguments:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(argument) if Path(argument).is_dir() else Path(temporary)
            version = argument if folder == Path(argument) else fetch(argument, folder)
            found = compare(version, folder)
            if argument == NEWEST and found:
                print("  the plug-in refuses this release; change its list of seams, and docs/engines.md")
            else:
                differing += found
    print(
        "not run: the engine itself, its models, kernels and CUDA graphs, which need a GPU (tests/python/gpu/sglang_engine.py)"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
