"""Which named tuples travel between kernels by reference (see ``replay.kernels.passing``).

Apart from what does it, since the specifications read constants of ``state`` where nothing is compiled: there numba,
which takes a second to load, stays out.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

_CLASSES: set[type] = set()


def by_reference(tuple_class: type[T]) -> type[T]:
    """Class decorator: instances of a named tuple are passed to kernels, and between them, by reference."""
    _CLASSES.add(tuple_class)
    return tuple_class


def is_by_reference(tuple_class: type) -> bool:
    return tuple_class in _CLASSES
