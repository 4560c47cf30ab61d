"""A stand-in for the little of torch that green_ctx_torch asks of its Python side."""

from torch import cuda as cuda


class _C:
    @staticmethod
    def _cuda_clearCublasWorkspaces():
        """Nothing is kept here."""
