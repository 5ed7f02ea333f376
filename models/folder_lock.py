"""A lock file in the data folder: one process at a time, freed by the system however that process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderTakenError(Exception):
    """Another process holds the lock; ``holder`` is its process id, where it could be read."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds the lock file ``path``, whose folder is made. Raises FolderTakenError where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip()
            raise FolderTakenError(holder if holder.isdigit() else "unknown") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
