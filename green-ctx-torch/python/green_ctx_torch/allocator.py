"""An allocator for torch's memory that keeps an account for each partition.

    import torch
    from green_ctx_torch.allocator import Allocator

    allocator = Allocator()
    allocator.set_partition_limit("decode", 2 << 30)
    pool = allocator.mem_pool()
    with torch.cuda.use_mem_pool(pool):     # for this thread only
        ...  # beyond the limit: torch.OutOfMemoryError

torch calls the C functions `green_ctx_torch_*` in the shared library whose path `library_path()` returns.
"""

from green_ctx_torch._native import Allocator, library_path, torch_allocator

__all__ = ["Allocator", "library_path", "torch_allocator"]
