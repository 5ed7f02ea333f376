"""The one place for compiler flags: every kernel of this package is compiled by ``kernel``.

Numba's cache on disk does not notice a change in a callee or a constant of another file, so the cache folder is named
after a hash of the sources: machine code of another version is never run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba

from replay.kernel_version import machine_code_version

P = ParamSpec("P")
R = TypeVar("R")


def _cache_folder() -> Path:
    """Below ``NUMBA_CACHE_DIR`` where it is set, else in the user's own cache folder."""
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else Path.home() / ".cache" / "capreplay" / "numba"
    return base / f"{machine_code_version()}-numba{numba.__version__}"


config: Any = numba.config  # filled from the environment at run time, so unknown to the type checker
config.CACHE_DIR = str(_cache_folder())

# Kernels own no memory (the caller allocates every array), so reference counting is switched off: with it, handing the
# state's arrays from kernel to kernel took ten times the work itself. ``_nrt`` is not in numba's published signature.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles for nopython mode, cached on disk, without the interpreter lock, in exact (not fast) arithmetic."""
    compiled: Callable[P, R] = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A kernel that is always inlined: for helpers on the path of every token, where handing over the arrays costs more
    than the work."""
    compiled: Callable[P, R] = numba.njit(**_OPTIONS, forceinline=True)(function)
    return compiled
