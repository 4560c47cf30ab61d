"""The parts of torch.cuda that green_ctx_torch uses, with torch's signatures."""

from torch import memory as memory
from torch.memory import MemPool as MemPool
from torch.memory import current_device as current_device
from torch.memory import device as device


def is_initialized():
    return True


class ExternalStream:
    """Keeps its arguments and, like torch's class, does not own the stream."""

    def __init__(self, stream_ptr, device=None):
        assert type(stream_ptr) is int and type(device) is int
        self.cuda_stream = stream_ptr
        self.device_index = device
