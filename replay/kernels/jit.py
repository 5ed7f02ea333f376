"""The one place for compiler flags: every kernel of this package is compiled by ``kernel``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles for nopython mode, cached on disk, without the interpreter lock, in exact (not fast) arithmetic."""
    compiled: Callable[P, R] = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function)
    return compiled
