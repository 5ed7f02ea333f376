"""Prefix reuse as a function of the cache's size: exact LRU stack distances of block ids, in O(n log n).

The least recently used block leaves the cache. A request looks up its blocks from the first on and stops at the first
that is missing; then all its blocks count as used, the last one first, so that the end of a prompt leaves before its
beginning.
Method: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9 (1970): one pass
gives the hits of every size, because a smaller LRU cache holds a part of what a larger one holds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

COLD = np.iinfo(np.int64).max
"""Distance of a block that no earlier request had."""


def greater_before(values: Int64Array) -> Int64Array:
    """For each element, how many earlier ones are greater. ``values`` are distinct and >= 0; shape (n,).

    Bit by bit from the highest: elements that agree in all higher bits stand together in their first order, and each
    with a 0 counts those with a 1 before it in its group; then zeros go before ones within the group.
    """
    n = len(values)
    counts = np.zeros(n, np.int64)
    order = np.arange(n, dtype=np.int64)
    group = np.zeros(n, np.int64)
    for bit in range(int(values.max(initial=0)).bit_length() - 1, -1, -1):
        ones = (values[order] >> bit) & 1
        before = np.cumsum(ones) - ones
        in_group = before - before[group]
        zero = ones == 0
        counts[order[zero]] += in_group[zero]
        # A group's zeros keep their place less the ones before them; its ones follow all its zeros.
        last = np.append(np.flatnonzero(np.diff(group)), n - 1)
        size = np.diff(last, prepend=-1)
        zeros_of_group = np.repeat(size - (in_group[last] + ones[last]), size)
        place = np.where(zero, np.arange(n) - in_group, group + zeros_of_group + in_group)
        start = np.where(zero, group, group + zeros_of_group)
        moved, begins = np.empty(n, np.int64), np.empty(n, np.int64)
        moved[place], begins[place] = order, start
        order, group = moved, begins
    return counts


def lookup_distances(ids: Int64Array, start: Int64Array) -> Int64Array:
    """Of each block of each request, the smallest cache that does not have it at the request's arrival, in blocks: a
    cache of more blocks than that serves it and all before it in the prompt; ``COLD``: none does.

    ``ids`` has the chained block ids of request ``i`` at ``start[i]:start[i + 1]``, in arrival order; equal ids have
    equal ids before them.
    """
    counts = np.diff(start)
    owner_start = np.repeat(start[:-1], counts)
    position = np.arange(len(ids), dtype=np.int64)
    used_at = owner_start + np.repeat(start[1:], counts) - 1 - position  # last block of a request first
    sequence = np.empty(len(ids), np.int64)
    sequence[used_at] = ids
    by_id = np.argsort(sequence, kind="stable")
    previous = np.full(len(ids), -1, np.int64)
    again = sequence[by_id][1:] == sequence[by_id][:-1]
    previous[by_id[1:][again]] = by_id[:-1][again]
    warm = np.flatnonzero(previous >= 0)
    # Different blocks used since: all uses since, less those whose block was used again since.
    distance = np.full(len(ids), COLD, np.int64)
    distance[warm] = -greater_before(previous[warm])
    in_prompt = distance[used_at]
    before = previous[used_at]
    known = before >= 0
    in_prompt[known] += owner_start[known] - before[known] - 1
    return _running_maximum(in_prompt, counts)


def _running_maximum(values: Int64Array, counts: Int64Array) -> Int64Array:
    """The maximum of each request's values so far."""
    rank = np.unique(values, return_inverse=True)[1].astype(np.int64)
    lift = np.repeat(np.arange(len(counts), dtype=np.int64), counts) * (int(rank.max(initial=0)) + 1)
    sorted_values = np.unique(values)
    highest: Int64Array = sorted_values[np.maximum.accumulate(rank + lift) - lift]
    return highest


def served_tokens(
    ids: Int64Array, start: Int64Array, prompt_tokens: Int64Array, block_tokens: int, distinct: int
) -> list[tuple[int, int]]:
    """Cache size in blocks (powers of two up to all ``distinct`` ones), and the prompt tokens that it would serve."""
    counts = np.diff(start)
    place = np.arange(len(ids), dtype=np.int64) - np.repeat(start[:-1], counts)
    tokens = np.clip(np.repeat(prompt_tokens, counts) - place * block_tokens, 0, block_tokens)
    distances = lookup_distances(ids, start)
    order = np.argsort(distances, kind="stable")
    distances, served = distances[order], np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens[order])])
    sizes = [2**k for k in range(max(distinct - 1, 1).bit_length() + 1)]
    return [(size, int(served[np.searchsorted(distances, size, side="left")])) for size in sizes]
