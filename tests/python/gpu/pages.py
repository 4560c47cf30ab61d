"""Runs the Python code of the pages on a GPU: `python pages.py FOLDER`, the folder of the repository.

Each list of blocks runs in its own process, after the lines that it takes for granted; a program for several GPUs runs in two
processes. tests/python/test_pages.py checks the types of the same programs without a GPU.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = """
import torch
import green_ctx_torch
model = torch.nn.Linear(64, 64, device="cuda")
tokens = torch.randn(8, 64, device="cuda")
"""
COLLECTIVES = """
import os
import torch
import torch.distributed as dist
import green_ctx_torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parts = green_ctx_torch.partition({"comm": 16, "compute": "rest"})
gradients = torch.ones(1024, device="cuda")
def other_work() -> None: ...
"""
# Of each page: the blocks that run together, what they take for granted, and what they need.
PROGRAMS = [
    ("README.md", [0], MODEL, "GPU"),
    ("README.md", [1], "", "GPU"),
    ("green-ctx-torch/README.md", [0, 1], "", "GPU"),
    ("green-ctx-torch/README.md", [2], "", "simulator"),
    ("docs/curve.md", [0], "", "GPU"),
    ("docs/reserve.md", [0], "", "GPU"),
    ("docs/pytorch.md", [0, 1, 2, 3, 4, 5], "", "GPU"),
    ("docs/pytorch-libraries.md", [0], "", "GPU"),
    ("docs/pytorch-libraries.md", [1], "", "GPU"),
    ("docs/nccl.md", [0, 1], COLLECTIVES, "several GPUs"),
]


def blocks(folder, page):
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (folder / page).read_text(encoding="utf-8"), re.M | re.S)


def programs(folder):
    """The name, the text and the needs of each program."""
    for page, numbers, before, needs in PROGRAMS:
        name = page.removesuffix(".md").replace("/", "_").replace("-", "_") + f"_{numbers[0]}"
        found = blocks(folder, page)
        yield name, before + "".join(found[number] for number in numbers), needs


def main():
    # Without torch: a process that has used the driver could disturb the programs.
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launchers = {"GPU": [], "several GPUs": several}
    failed = []
    for name, program, needs in programs(Path(sys.argv[1])):
        if needs not in launchers:
            continue
        if needs == "several GPUs" and gpus < 2:
            print("skipped", name, "needs two GPUs")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(program)
            file.flush()
            ended = subprocess.run([sys.executable, *launchers[needs], file.name], capture_output=True, text=True)
        print("ok    " if ended.returncode == 0 else "FAILED", name, ended.stdout, ended.stderr[-2000:])
        failed += [name] * (ended.returncode != 0)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
