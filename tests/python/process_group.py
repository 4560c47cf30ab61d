"""A stand-in for torch.distributed: a group whose ranks are processes, and whose store is a folder."""

import os
import sys
import types
from datetime import timedelta
from pathlib import Path


class FileStore:
    """torch's Store: texts, one a file."""

    def __init__(self, folder, timeout):
        self.folder, self.timeout = Path(folder), timeout
        self.folder.mkdir(exist_ok=True)

    def _path(self, key):
        return self.folder / key.replace("/", "%")

    def set(self, key, value):
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(value)
        part.rename(path)

    def get(self, key):
        return self._path(key).read_bytes()

    def check(self, keys):
        return all(self._path(key).exists() for key in keys)

    def delete_key(self, key):
        self._path(key).unlink()
        return True


class ProcessGroup:
    """A group with a communicator that can be aborted."""

    def __init__(self, rank, size, store, name):
        self.rank, self.size, self.store, self.name, self.aborts = rank, size, store, name, 0

    def _get_backend(self, device):
        if device.type != "cuda":
            raise RuntimeError(f"no backend for {device.type}")

        def abort():
            self.aborts += 1

        options = types.SimpleNamespace(_timeout=self.store.timeout)
        return types.SimpleNamespace(options=options, abort=abort)


def install(torch, rank, size, folder, seconds):
    """Gives a stand-in for torch the module distributed, and returns its group of all ranks."""
    store = FileStore(folder, timedelta(seconds=seconds))
    world = ProcessGroup(rank, size, store, "0")
    dist = types.ModuleType("torch.distributed")
    dist.ProcessGroup = ProcessGroup
    dist.GroupMember = types.SimpleNamespace(WORLD=world, NON_GROUP_MEMBER=object())
    dist.group = types.SimpleNamespace(WORLD=world)
    dist.get_rank = lambda group: group.rank
    dist.get_world_size = lambda group: group.size
    dist.distributed_c10d = types.SimpleNamespace(
        GroupMember=dist.GroupMember,
        _world=types.SimpleNamespace(pg_map={world: None}),
        _get_process_group_store=lambda group: group.store,
        _get_process_group_name=lambda group: group.name,
    )
    torch.distributed = dist
    sys.modules["torch.distributed"] = dist
    return world
