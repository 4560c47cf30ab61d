"""Runs checks and measurements in order, and writes their results as JSON."""

import functools
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
import warnings

import torch

import green_ctx_torch

CHECKS = []
MEASUREMENTS = []


def check(function):
    """Registers a check. The dict that it returns is written together with the verdict."""
    CHECKS.append(function)
    return function


def alone(function):
    """Makes a check run in a fork of this process. It must come before all checks that use CUDA."""

    @functools.wraps(function)
    def forked():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(200)
            result = {"output": None, "error": None}
            try:
                result["output"] = function()
            except BaseException as error:
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
                result["error"] = f"{type(error).__name__}: {error}"
            os.write(write, json.dumps(result, default=str).encode())
            os._exit(0)
        os.close(write)
        with open(read) as pipe:
            result = json.loads(pipe.read() or '{"error": "the process died"}')
        os.waitpid(child, 0)
        assert result["error"] is None, result["error"]
        return result["output"]

    return forked


def measurement(function):
    """Registers a measurement. It returns numbers, and `holds` if one of them has a bound."""
    MEASUREMENTS.append(function)
    return function


def per_call(call, number, rounds=5, between=None):
    """Returns the µs that one call takes: the median of the means of several rounds."""
    means = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(number):
            call()
        means.append((time.perf_counter_ns() - start) / number / 1000)
        if between is not None:
            between()
    return round(statistics.median(means), 3)


def run(path=None, **about):
    """Runs everything, prints a line for each, and returns whether all of it passed. `about` goes into the results."""
    result = {"checks": {}, "measurements": {}}
    for kind, functions in (("checks", CHECKS), ("measurements", MEASUREMENTS)):
        for function in functions:
            name, start = function.__name__, time.perf_counter()
            try:
                output = function() or {}
                entry = {"ok": output.pop("holds", True), **output}
            except Exception as error:
                entry = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                traceback.print_exc()
            # Free the SMs before the next function begins.
            gc.collect()
            result[kind][name] = entry
            details = {key: value for key, value in entry.items() if key != "ok"}
            print("ok    " if entry["ok"] else "FAILED", name, details or "", f"{time.perf_counter() - start:.1f} s", flush=True)
    entries = [*result["checks"].values(), *result["measurements"].values()]
    result["ok"] = all(entry["ok"] for entry in entries)
    passed = sum(entry["ok"] for entry in entries)
    print(f"{passed} passed, {len(entries) - passed} failed")
    # Not before the checks: some must be forked from a process that has not used CUDA.
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "driver": green_ctx_torch.info()["driver"]["version"],
        **about,
    }
    result = {**about, **result}
    if path is not None:
        with open(path, "w") as file:
            json.dump(result, file, indent=1)
    return result["ok"]


def main():
    """Runs everything on the current device. The process exits with 0 if all of it passed.

    The results go to the file that the command line names, if any.
    """
    sys.exit(0 if run(*sys.argv[1:2]) else 1)


def program(source, *arguments, status=0, **variables):
    """Runs a program in its own Python process, and returns its output. With a status of `None`, any exit status is
    accepted."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    output = done.stdout + done.stderr
    assert status in (None, done.returncode), (done.returncode, output[-2000:])
    return output


def raises(kind, call, *words):
    """Checks that a call raises this type, with these words in its message. Returns the message."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return str(error)
    raise AssertionError(f"{call} raised no {kind}")


def warns(call, *words):
    """Checks that a call gives a RuntimeWarning with these words."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        call()
    texts = [str(one.message) for one in given if one.category is RuntimeWarning]
    assert any(all(word in text for word in words) for text in texts), texts


def skip(reason):
    """The result of a check that could not run."""
    print("skipped:", reason, file=sys.stderr)
    return {"skipped": reason}
