"""A hash of everything that decides a replay's integers: results carry it, caches of results and machine code key on
it."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent
_KERNEL_IMPORT = re.compile(r"^from (replay\.kernels\.\w+) import", re.MULTILINE)


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
def machine_code_version(module: str) -> str:
    """Twelve hex digits over a kernel module and every kernel module it imports: its cached machine code keys on it."""
    needed, todo = set[str](), {module, "replay.kernels.jit"}
    while todo:
        name = todo.pop()
        needed.add(name)
        source = _file_of(name).read_text("utf-8")
        todo |= set(_KERNEL_IMPORT.findall(source)) - needed
    return _digest([_file_of(name) for name in needed])


def _file_of(module: str) -> Path:
    return _ROOT.parent.joinpath(*module.split(".")).with_suffix(".py")
