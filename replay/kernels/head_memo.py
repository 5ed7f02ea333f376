"""What is cached of the prompt at the head of a replica's waiting queue, kept from step to step.

A request that waits for memory is considered in every step. What was found of its prefix stays in ``found``; a step
seeks on from the first block that was missing, mostly in vain, so it costs one name and not a name for each block.
Three things change what an earlier step has found, and all come through here: a block that is evicted ends it there
(``forget_found``), one that its last user lets go of is free from then on (``note_freed``), and what is admitted or
lost with its replica is dropped (``drop_found``). New names need no notice: they lie beyond the first that was missing,
or queue behind an older block of the same name.

For models with one full group; the others: ``group_memo``.
"""

from __future__ import annotations

from replay.kernels.hashing import find_bucket
from replay.kernels.jit import inner
from replay.kernels.state import (
    HEAD_FREE_HITS,
    HEAD_HITS,
    HEAD_REQUEST,
    LOOKUPS,
    NEVER,
    Blocks,
    Config,
    Int64,
    Requests,
)
from replay.kernels.texts import block_id


@inner
def is_found(blocks: Blocks, row: int, hits: int, block: int) -> bool:
    """Whether ``block`` is among the ``hits`` blocks in ``found`` from ``row`` on."""
    if hits == 0:
        return False
    at = blocks.found_at[block]  # may be from an earlier request
    return 0 <= at < hits and blocks.found[row + at] == block


@inner
def lookup_one_group(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, r: int, tokens: int, mask: int
) -> tuple[int, int]:
    """Longest cached prefix of request ``r`` in full blocks, leaving at least one of ``tokens`` to compute; and how
    many of those blocks lie in the free list.

    The blocks stay in ``found`` for ``take_hits``. ``tokens`` never falls while a request waits.
    """
    if reg[HEAD_REQUEST] != r:
        drop_found(reg)
        reg[HEAD_REQUEST] = r
    base, row = replica * (mask + 1), replica * config.table_width
    hits, free_hits = reg[HEAD_HITS], reg[HEAD_FREE_HITS]
    repeats = False
    while (hits + 1) * config.block_size < tokens:
        reg[LOOKUPS] += 1
        key = block_id(requests, config, r, hits)
        block = blocks.bucket_block[find_bucket(blocks.bucket_key, blocks.bucket_block, base, mask, key)]
        if block == NEVER:
            break
        repeats |= is_found(blocks, row, hits, block)
        blocks.found[row + hits] = block
        blocks.found_at[block] = hits
        hits += 1
        free_hits += blocks.references[block] == 0
    if repeats:  # ids that are not chained may name a block twice, and ``found_at`` knows one place
        drop_found(reg)
    else:
        reg[HEAD_HITS] = hits
        reg[HEAD_FREE_HITS] = free_hits
    return hits, free_hits


@inner
def forget_found(config: Config, blocks: Blocks, reg: Int64, replica: int, block: int) -> None:
    """A free block is about to be evicted: if it was found, it and what follows it are sought again."""
    row, hits = replica * config.table_width, reg[HEAD_HITS]
    if not is_found(blocks, row, hits, block):
        return
    reg[HEAD_HITS] = blocks.found_at[block]
    for i in range(reg[HEAD_HITS], hits):
        reg[HEAD_FREE_HITS] -= blocks.references[blocks.found[row + i]] == 0


@inner
def note_freed(config: Config, blocks: Blocks, reg: Int64, replica: int, block: int) -> None:
    """A block has lost its last user."""
    reg[HEAD_FREE_HITS] += is_found(blocks, replica * config.table_width, reg[HEAD_HITS], block)


@inner
def drop_found(reg: Int64) -> None:
    """The next lookup starts from the first block."""
    reg[HEAD_REQUEST] = NEVER
    reg[HEAD_HITS] = 0
    reg[HEAD_FREE_HITS] = 0
