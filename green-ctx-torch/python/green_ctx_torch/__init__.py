"""Partitions of one GPU's SMs for PyTorch."""

from green_ctx_torch import _native
