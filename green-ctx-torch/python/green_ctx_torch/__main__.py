"""The command ``green-ctx``, which ``python -m green_ctx_torch`` also runs."""

import sys

from green_ctx_torch import _native


def main() -> int:
    """Runs the command with the process's arguments, and returns its exit status."""
    return _native._main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
