"""How many tokens of each prompt a prefix cache of each size would serve: exact LRU stack distances, in one pass.

The least recently used block leaves the cache. A request looks up its blocks from the first on and stops at the first
that is missing; then all its blocks count as used, the last one first, so that the end of a prompt leaves before its
beginning. A cache serves a block if it has more blocks than there are others used since (a smaller LRU cache holds a
part of what a larger one holds: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems
Journal 9, 1970). Those others are counted by a Fenwick tree over the instants of use, with a mark at each block's last.
"""

from __future__ import annotations

from typing import NamedTuple

from replay.kernels.jit import inlined, kernel
from replay.kernels.state import NEVER, Int32, Int64

SIZES = 63
"""Cache sizes are powers of two below this exponent."""


class Uses(NamedTuple):
    """When blocks were used last. Instants count uses of blocks; 0 is none."""

    last: Int32
    """Instant of the last use of each block id; ``NEVER``: not used yet. Shape (ids,)."""
    marks: Int32
    """Fenwick tree: one mark at each block's last use. Shape (instants + 1,)."""
    counts: Int64
    """[instants so far, blocks ever used, leading blocks that an earlier request had, their tokens]. Shape (4,)."""
    served_tokens: Int64
    """Tokens of the leading blocks that a cache of ``2**k`` blocks serves and no smaller power of two. Shape (63,)."""


NOW, BLOCKS, REUSED, REUSED_TOKENS = range(4)


@inlined
def _move_mark(marks: Int32, instant: int, change: int) -> None:
    while instant < len(marks):
        marks[instant] += change
        instant += instant & -instant


@inlined
def _marks_until(marks: Int32, instant: int) -> int:
    total = 0
    while instant > 0:
        total += marks[instant]
        instant &= instant - 1
    return total


@kernel
def use_blocks(uses: Uses, ids: Int32, start: Int64, prompt_tokens: Int64, block_tokens: int) -> None:
    """Requests in arrival order: request ``i`` has the block ids ``ids[start[i]:start[i + 1]]``. ``uses.marks`` has
    room for as many more instants as there are ids."""
    last, marks, counts, served_tokens = uses
    for request in range(len(start) - 1):
        first, end = start[request], start[request + 1]
        farthest, used_before, between = 0, 0, 0
        left = prompt_tokens[request]
        for i in range(first, end):
            used = last[ids[i]]
            if used == NEVER:
                break
            # Blocks that were used one right after the other lie one mark apart.
            between = between + 1 if used == used_before - 1 else counts[BLOCKS] - _marks_until(marks, used)
            used_before = used
            farthest = max(farthest, between)
            size = 0
            while farthest >> size:
                size += 1
            tokens = min(block_tokens, left)
            left -= tokens
            served_tokens[size] += tokens
            counts[REUSED] += 1
            counts[REUSED_TOKENS] += tokens
        for i in range(end - 1, first - 1, -1):
            block = ids[i]
            if last[block] == NEVER:
                counts[BLOCKS] += 1
            else:
                _move_mark(marks, last[block], -1)
            counts[NOW] += 1
            last[block] = counts[NOW]
            _move_mark(marks, counts[NOW], 1)
