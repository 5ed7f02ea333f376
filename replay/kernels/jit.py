"""The one place for compiler flags: ``kernel`` compiles what Python calls, ``inner`` and ``inlined`` all the rest.

Numba's cache on disk does not notice a change in a callee or a constant of another file, so the cache folder is named
after a hash of a kernel's module and all it imports: machine code of another version is never run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.registry import CPUDispatcher

import replay.kernels.passing  # noqa: F401  # teaches numba how named tuples travel
from replay.kernel_version import machine_code_version
from replay.kernels.linking import PartCompiler, WholeCompiler

P = ParamSpec("P")
R = TypeVar("R")


config: Any = numba.config  # filled from the environment at run time, so unknown to the type checker
_BASE = Path(config.CACHE_DIR) if config.CACHE_DIR else Path.home() / ".cache" / "capreplay" / "numba"
"""Below ``NUMBA_CACHE_DIR`` where it is set, else in the user's own cache folder."""

# Kernels own no memory (the caller allocates every array), so reference counting is switched off: with it, handing the
# state's arrays from kernel to kernel took ten times the work itself. ``_nrt`` is not in numba's published signature.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def _compile(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    config.CACHE_DIR = str(_BASE / f"{machine_code_version(function.__module__)}-numba{numba.__version__}")
    compiled: Callable[P, R] = numba.njit(**_OPTIONS, **options)(function)
    return compiled


def is_cached(module: str) -> bool:
    """Whether machine code of a module's kernels is in the cache: else the first call compiles for a while."""
    folder = _BASE / f"{machine_code_version(module)}-numba{numba.__version__}"
    return any(folder.rglob("*.nbi"))


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles for nopython mode, cached on disk, without the interpreter lock, in exact (not fast) arithmetic."""
    return _compile(function, cache=True, no_cfunc_wrapper=True, pipeline_class=WholeCompiler)


class _Inner(CPUDispatcher):
    # It has no entry from Python, so a call would crash.
    def __call__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"{self.py_func.__name__} is called by kernels only: compile it with kernel to call it here")


def _compile_inner(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    compiled = _compile(
        function, pipeline_class=PartCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
    )
    if isinstance(compiled, CPUDispatcher):  # else numba is switched off (NUMBA_DISABLE_JIT)
        compiled.__class__ = _Inner
    return compiled


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """A kernel that only other kernels call."""
    return _compile_inner(function)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """As ``inner``, and always inlined: for helpers on the path of every step, where handing over the arrays costs more
    than the work."""
    return _compile_inner(function, forceinline=True)
