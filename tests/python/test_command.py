"""The command `green-ctx`, run from the module."""

import json
import os
import subprocess
import sys
from pathlib import Path

COMMAND = ("", "-m", "green_ctx_torch")


def test_it_verifies(python):
    output = json.loads(python(*COMMAND, "--json", "verify", "--counts", "16,24"))
    assert output["ok"] and output["driver"]["kind"] == "simulated"
    assert [part["sm_count"] for part in output["partitions"]] == [16, 24, 92]


def test_every_text_says_that_the_driver_is_simulated(python):
    for arguments in ["info"], ["split", "--counts", "16"], ["verify", "--counts", "16"]:
        assert python(*COMMAND, *arguments).startswith("driver  simulated h200, CUDA 13.0\n")


def test_statuses_are_the_commands(python):
    output = json.loads(python(*COMMAND, "--json", "split", "--counts", "200", status=2))
    assert output["error"]["kind"] == "invalid_request"
    output = json.loads(python(*COMMAND, "--json", "split", status=2))
    assert output["error"]["kind"] == "usage"
    python(*COMMAND, "--driver", "cuda:/nowhere/libcuda.so.1", "info", status=3)


def test_advice_fits_a_build_without_the_simulated_driver(python, tmp_path):
    """No advice names a choice that this build refuses."""
    (tmp_path / "libcuda.so.1").touch()

    def message(*arguments, status):
        output = json.loads(python(*COMMAND, "--json", *arguments, status=status, LD_LIBRARY_PATH=str(tmp_path)))
        return output["error"]["message"]

    broken = message("info", status=3)
    assert "driver does not work; without a GPU, build the simulated driver with `cargo xtask sim-lib`" in broken
    assert "this build has no simulated driver; without a GPU, build" in message("--driver", "sim", "info", status=2)
    choices = message("--driver", "nvidia", "info", status=2)
    assert "a driver is auto, cuda or cuda:PATH" in choices
    shown = python(*COMMAND, "--help")
    assert not any("--driver sim" in text or "sim:" in text for text in (broken, choices, shown))


def test_help_names_the_command(python):
    assert "Usage: green-ctx" in python(*COMMAND, "--help")


def test_the_script_is_installed():
    script = Path(sys.executable).with_name("green-ctx")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("green-ctx ")


def test_a_wrong_reserve_is_an_error_of_the_command():
    script = Path(sys.executable).with_name("green-ctx")
    wrong = {**os.environ, "GREEN_CTX_RESERVE": "many"}
    done = subprocess.run([script, "--json", "info"], capture_output=True, text=True, env=wrong)
    assert done.returncode == 2
    assert "GREEN_CTX_RESERVE=many is not a number" in json.loads(done.stdout)["error"]["message"]
