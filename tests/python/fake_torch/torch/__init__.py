"""A stand-in for the little of torch that green_ctx_torch asks of its Python side."""

from torch import cuda as cuda
