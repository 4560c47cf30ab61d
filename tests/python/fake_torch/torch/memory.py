"""The parts of torch.cuda for memory that green_ctx_torch uses, with torch's signatures."""

import ctypes

_current = 0


def current_device():
    return _current


class device:
    """Makes a device the current one during the block."""

    def __init__(self, device):
        self._device = device

    def __enter__(self):
        global _current
        _current, self._device = self._device, _current

    def __exit__(self, *_exception):
        global _current
        _current = self._device


class _Allocator:
    """Keeps the hooks' addresses. One hook is missing, as in some versions of torch."""

    def __init__(self):
        self.hooks = {}

    def set_reset_fn(self, function):
        self._set("reset", function)

    def set_memory_fraction_fn(self, function):
        self._set("memory_fraction", function)

    def set_base_alloc_fn(self, function):
        self._set("base_alloc", function)

    def set_record_stream_fn(self, function):
        self._set("record_stream", function)

    def _set(self, name, function):
        assert type(function) is int
        self.hooks[name] = function


class CUDAPluggableAllocator:
    """Looks up the functions in the file, like torch's class."""

    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        library = ctypes.CDLL(path_to_so_file)
        assert getattr(library, alloc_fn_name) and getattr(library, free_fn_name)
        self.made_of = path_to_so_file, alloc_fn_name, free_fn_name
        self._allocator = _Allocator()

    def allocator(self):
        return self._allocator


class MemPool:
    """Belongs to the device that is current when it is created."""

    def __init__(self, allocator=None):
        self.allocator = allocator
        self.device = current_device()
