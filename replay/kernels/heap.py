"""A binary heap of requests by (key, index), the least on top. The caller keeps its size."""

from __future__ import annotations

from replay.kernels.jit import inlined, inner
from replay.kernels.state import Int64


@inlined
def comes_before(key: Int64, a: int, b: int) -> bool:
    """Whether request ``a`` is above ``b``."""
    return key[a] < key[b] or (key[a] == key[b] and a < b)


@inner
def push(heap: Int64, size: int, key: Int64, r: int) -> None:
    """Adds request ``r`` to a heap of ``size``."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if not comes_before(key, r, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = r


@inner
def pop(heap: Int64, size: int, key: Int64) -> int:
    """Takes the top off a heap of ``size``, which is then one less."""
    top = heap[0]
    size -= 1
    last = heap[size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and comes_before(key, heap[child + 1], heap[child]):
            child += 1
        if not comes_before(key, heap[child], last):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return top
