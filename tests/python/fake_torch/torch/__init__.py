"""A substitute for the few parts of torch's Python side that green_ctx_torch uses."""

from torch import cuda as cuda


class _C:
    @staticmethod
    def _cuda_clearCublasWorkspaces():
        """Does nothing, because no workspaces exist."""
