"""Copies of blobs on the local disk: those used last, up to a limit. Any number of processes share the folder."""

from __future__ import annotations

import os
from pathlib import Path

_PART = ".part"


class BlobCache:
    """Files ``FOLDER/cache/<hash>``. What one process drops another may still read: an open file outlives its name."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder / "cache"
        self._limit_bytes = limit_bytes
        self.folder.mkdir(parents=True, exist_ok=True)

    def find(self, sha256: str) -> Path | None:
        """The copy, marked as used; ``None`` where there is none."""
        path = self.folder / sha256
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def new_part(self, name: str) -> Path:
        """Where a copy may be written before it is kept."""
        return self.folder / f"{name}{_PART}"

    def keep(self, path: Path, sha256: str) -> Path:
        """Moves a complete file in and drops those used longest ago; where it is now."""
        kept = self.folder / sha256
        path.replace(kept)
        os.utime(kept)
        self._shrink(kept)
        return kept

    def forget(self, sha256: str) -> None:
        """Drops a copy; one that is not here is no error."""
        (self.folder / sha256).unlink(missing_ok=True)

    def _shrink(self, newest: Path) -> None:
        """Drops copies, oldest use first, until the rest is within the limit; never the newest."""
        held = []
        for path in self.folder.iterdir():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            if path != newest and path.suffix != _PART:
                held.append((found.st_mtime, found.st_size, path))
        room = self._limit_bytes - newest.stat().st_size
        for _, size, path in sorted(held, reverse=True):
            room -= size
            if room < 0:
                path.unlink(missing_ok=True)
