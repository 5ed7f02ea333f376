"""A hash of everything that decides a replay's integers: results carry it, caches of results and machine code key on
it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.relative_to(_ROOT).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@cache
def kernel_version() -> str:
    """Twelve hex digits over every source of ``replay``: results and their caches carry it."""
    return _digest(list(_ROOT.rglob("*.py")))


@cache
def machine_code_version() -> str:
    """The same over the compiled kernels alone: the cache of machine code keys on it."""
    return _digest(list((_ROOT / "kernels").glob("*.py")))
