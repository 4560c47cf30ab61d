"""Runs programs that rely on what a green context lacks, with and without a reserve of 32 SMs.

`python reserved_programs.py RESULTS.json --seconds 300` compares each answer with the expected one, and then measures
the costs of calls. It needs nvcc, PyTorch, CuPy, and either the executable `in_front` or a folder that it has written,
as --front or GREEN_CTX_FRONT. The exit status is 1 if an answer is unexpected.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESERVED = 32
PROGRAMS = ["order", "threads", "graphs", "replays", "reset", "costs"]
CALLS = ["torch.cuda.synchronize", "cudaDeviceSynchronize", "cuCtxSynchronize", "cudaFree"]
CALLS += ["cuCtxRecordEvent", "cuCtxWaitEvent"]
WAITS = {"calls": dict.fromkeys(CALLS, "waits") | {"stream": "returns"}}
#: The calls after a kernel and after a graph; 1 for those that wait.
REPLAYS = dict.fromkeys(["cudaDeviceSynchronize", "cuCtxSynchronize", "cuCtxRecordEvent", "cudaFree"], [1, 1])
REPLAYS |= dict.fromkeys(["cudaFree of managed memory", "cudaFreeHost", "cudaHostUnregister", "cudaFreeArray"], [1, 1])
REPLAYS |= dict.fromkeys(["cudaFreeMipmappedArray", "cudaIpcCloseMemHandle", "cuModuleUnload"], [1, 1])
REPLAYS |= {"cuLibraryUnload": [1, 1], "cudaDeviceSynchronize after cudaStreamDestroy": [1, 1], "cudaFreeAsync": [0, 0]}
SUMS = {"wrong": 0, "errors": 0}
ORDERED = {"wrong": [0, 0, 0, 0]}
CUPY = {"default": "right", "non_blocking": "right", "unordered": "wrong", "blocking": "right"}

#: The program of each case, and what its answer must contain without and with a reserve.
CASES = [
    ("order blocking", ORDERED, ORDERED),
    ("order events", ORDERED, ORDERED),
    ("order threads", {"wrong": 0}, {"wrong": 0}),
    ("order none", {"wrong": [5, 5, 5, 5]}, {"wrong": [5, 5, 5, 5]}),
    ("threads", SUMS, SUMS),
    ("graphs", {"wrong": 0}, {"wrong": 0}),
    ("replays", {"waits": REPLAYS}, {"waits": REPLAYS}),
    ("reset", {"wrong": 0}, {"wrong": 0}),
    ("waits", WAITS, WAITS),
    ("cupy", CUPY, CUPY),
]


NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def in_front():
    """Returns the path of the executable, or None."""
    known = [path for path in (HERE / "in_front", HERE.parent / "in_front") if path.exists()]
    return known[0] if known else shutil.which("in_front")


def front(folder, program):
    """Writes the library in front of the driver into a folder."""
    subprocess.run([program, folder, str(RESERVED)], check=True)


def compiled(folder, nvcc, names, *more):
    """Compiles programs into a folder."""
    for name in names:
        # In the bundle, the sources are in the folder of this file.
        source = next(HERE.rglob(f"{name}.cu"))
        # Machine code only: a driver refuses the PTX of a newer compiler.
        flags = ["-O2", "-cudart", "static", "-arch=native", *more]
        subprocess.run([nvcc, source, *flags, "-o", Path(folder, name)], check=True)


def run(case, reserved, folder, front, seconds):
    """Runs a program, and returns its exit status, its answer, and what it wrote to standard error."""
    name, *arguments = case.split()
    in_python = [sys.executable, HERE / "reserved_in_python.py", name]
    command = [Path(folder, name), *arguments] if name in PROGRAMS else in_python
    # Without a reserve it shows only that the program notices nothing.
    command += [str(seconds if reserved else min(seconds, 10))] if name == "threads" else []
    environment = {name: value for name, value in os.environ.items() if name != "GREEN_CTX_RESERVE"}
    if reserved and name == "waits":
        # It uses partitions, so it has the reserve of green_ctx_torch.
        environment["GREEN_CTX_RESERVE"] = str(RESERVED)
    elif reserved:
        others = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{front}:{others}" if others else str(front)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 200)
    except subprocess.TimeoutExpired:
        return {"status": "it did not end", "answer": {}, "stderr": ""}
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = {}
    return {"status": done.returncode, "answer": answer, "stderr": done.stderr[-4000:]}


def problems(found, expected, reserved, total):
    """Returns what is unexpected. `total` is the number of SMs of the device."""
    answer, wrong = found["answer"], []
    if found["status"] != 0:
        wrong.append(f"exit status {found['status']}")
    for key, value in expected.items():
        if answer.get(key) != value:
            wrong.append(f"{key} is {answer.get(key)}, not {value}")
    rest = total - RESERVED
    least, most = (1, rest) if reserved else (rest + 1, total)
    if answer.get("told") != most:
        wrong.append(f"it was told {answer.get('told')} SMs, not {most}")
    # Without a reserve, the program must see the other SMs too, or it would not notice that work uses them.
    if not answer.get("sms") or not all(least <= count <= most for count in answer["sms"]):
        wrong.append(f"it saw {answer.get('sms')} SMs, not {least} to {most}")
    lines = [line for line in found["stderr"].splitlines() if "green-ctx:" in line]
    if lines:
        wrong.append(f"the reserve wrote {lines}")
    return wrong


def compared(runs):
    """Returns the medians of the costs without and with a reserve, and the least and the largest ratio of a pair."""
    table = {}
    for key in [key for key in runs[0][0] if key.endswith("_ns")]:
        pairs = [(plain[key], confined[key]) for plain, confined in runs]
        plain, confined = (statistics.median(side) for side in zip(*pairs))
        ratios = sorted(confined / plain for plain, confined in pairs)
        ratio, least, most = statistics.median(ratios), ratios[0], ratios[-1]
        table[key] = {"without": plain, "with": confined, "ratio": ratio, "least": least, "most": most, "pairs": pairs}
        print(f"{key:10} {plain:9.0f} without, {confined:9.0f} with, ratio {ratio:.3f} ({least:.3f} to {most:.3f})")
    return table


def finish(results, failed, path):
    """Writes the results, and ends the process."""
    results["ok"] = not failed
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    print(f"{failed} unexpected")
    sys.exit(failed > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--seconds", type=float, default=20, help="for how long the threads run")
    parser.add_argument("--processes", type=int, default=5, help="the number of pairs of processes for the costs")
    parser.add_argument("--front", default=os.environ.get("GREEN_CTX_FRONT"), type=Path)
    parser.add_argument("--in-front", default=in_front())
    parser.add_argument("--nvcc", default=NVCC)
    options = parser.parse_args()
    if options.front is None and options.in_front is None:
        parser.error("--front or --in-front is required")

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    about = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    results, total, failed = {"devices": about, "seconds": options.seconds, "cases": {}}, None, 0
    with tempfile.TemporaryDirectory() as folder:
        ahead = options.front or Path(folder, "front")
        if options.front is None:
            front(ahead, options.in_front)
        for name in ("libcuda.so.1", "libcuda.so"):
            assert (ahead / name).exists(), f"{ahead} has no {name}"
        compiled(folder, options.nvcc, PROGRAMS)

        def judged(case, expected, reserved):
            nonlocal total, failed
            found = run(case, reserved, folder, ahead.resolve(), options.seconds)
            # The first program runs without a reserve, and is told all SMs.
            total = total or found["answer"].get("told", 0)
            found["problems"] = problems(found, expected, reserved, total)
            failed += bool(found["problems"])
            name = f"{case}, {'with' if reserved else 'without'} a reserve"
            results["cases"].setdefault(name, []).append(found)
            print("FAILED" if found["problems"] else "ok    ", name, json.dumps(found["answer"]), flush=True)
            if found["problems"]:
                print("       " + "; ".join(found["problems"]), found["stderr"], sep="\n       ", flush=True)
            return found["answer"]

        for case, *expected in CASES:
            for reserved in (False, True):
                judged(case, expected[reserved], reserved)
        # Processes of both kinds alternate, so that a drift of the machine changes both.
        pairs = [[judged("costs", {}, reserved) for reserved in (False, True)] for _ in range(options.processes)]
        if not failed:
            results["costs"] = compared(pairs)
    finish(results, failed, options.results)


if __name__ == "__main__":
    main()
