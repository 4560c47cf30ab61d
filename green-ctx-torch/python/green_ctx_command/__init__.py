"""The command ``green-ctx``, as the wheel installs it."""

import os
import sys

VARIABLE = "GREEN_CTX_RESERVE"


def main() -> int:
    """Runs the command with the process's arguments, and returns its exit status."""
    # The import would reserve, and a wrong value would end it with a traceback. The command reports it as its own error.
    amount = os.environ.pop(VARIABLE, None)
    from green_ctx_torch import _native

    if amount is not None:
        os.environ[VARIABLE] = amount
    return _native._main(sys.argv[1:])
