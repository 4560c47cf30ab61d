"""``python -m green_ctx_torch`` runs the command ``green-ctx``."""

import sys

from green_ctx_torch import _native

if __name__ == "__main__":
    sys.exit(_native._main(sys.argv[1:]))
