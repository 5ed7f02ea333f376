"""``head_memo`` for models whose layers form several groups: what is cached of the prompt at the head of a replica's
queue, kept from step to step.

*Full groups* are sought on from the first block that was missing, and so is the running chunk of *chunked attention*. A
*sliding window* is sought backwards from the end of what the full groups have, down to the first run of blocks that is
long enough. Where that end falls or a block of the run is evicted, the search goes on downwards: every longer prefix
stays out of reach. Names that it missed are noted (``sought_key``); once one of them is registered, or the full groups
have more, it starts from the end again. So a step costs one name, a block that is evicted or freed costs no more than
itself, and a new block of the prompt at most what the first search did.

``FREE_FULL`` and ``FREE_RUN`` count those of the found blocks that lie in the free list.
"""

from __future__ import annotations

from replay.kernels.group_layout import group_of, key_of, place_in_table, tokens_outside
from replay.kernels.hashing import bucket_of, find_bucket, mask_of
from replay.kernels.jit import inner
from replay.kernels.state import (
    FREE_FULL,
    FREE_RUN,
    FULL_COUNTED,
    FULL_FOUND,
    HEAD_REQUEST,
    LIMIT,
    LOOKUPS,
    NEVER,
    RUN_COUNTED,
    RUN_END,
    RUN_FIRST,
    SEARCH,
    STALE,
    Blocks,
    Config,
    GroupMemo,
    Int64,
    Requests,
)


@inner
def is_at(config: Config, blocks: Blocks, replica: int, group: int, block: int, first: int, end: int) -> bool:
    """Whether ``block`` was found as one of the blocks ``first`` to before ``end`` of a group."""
    at = blocks.found_at[block]  # may be from an earlier request
    return first <= at < end and blocks.found[place_in_table(config, replica, group, at)] == block


@inner
def count_free(
    config: Config, blocks: Blocks, replica: int, first_group: int, end_group: int, first: int, end: int
) -> int:
    """How many of the blocks ``first`` to before ``end`` found of these groups lie in the free list."""
    count = 0
    for group in range(first_group, end_group):
        for i in range(first, end):
            count += blocks.references[blocks.found[place_in_table(config, replica, group, i)]] == 0
    return count


@inner
def count_full_to(config: Config, blocks: Blocks, replica: int, end: int) -> None:
    """``FREE_FULL`` is to count the blocks of full groups before block ``end``."""
    memo, full = blocks.memo.reg[replica], config.full_groups
    before = memo[FULL_COUNTED]
    memo[FREE_FULL] += count_free(config, blocks, replica, 0, full, before, end)
    memo[FREE_FULL] -= count_free(config, blocks, replica, 0, full, end, before)
    memo[FULL_COUNTED] = end


@inner
def count_run_to(config: Config, blocks: Blocks, replica: int, end: int) -> None:
    """``FREE_RUN`` is to count the run's blocks before block ``end``."""
    memo, full, everyone = blocks.memo.reg[replica], config.full_groups, config.full_groups + config.window_groups
    end = max(end, memo[RUN_FIRST])
    before = memo[RUN_COUNTED]
    memo[FREE_RUN] += count_free(config, blocks, replica, full, everyone, before, end)
    memo[FREE_RUN] -= count_free(config, blocks, replica, full, everyone, end, before)
    memo[RUN_COUNTED] = end


@inner
def start_run(memo: Int64, at: int) -> None:
    """The run is empty and lies at block ``at``."""
    memo[RUN_FIRST] = memo[RUN_END] = memo[RUN_COUNTED] = at
    memo[FREE_RUN] = 0


@inner
def whole_blocks(config: Config, tokens: int) -> int:
    """``tokens`` down to whole blocks of every group."""
    step = config.window_block_size
    if config.full_groups > 0:
        step = max(step, config.full_block_size)
    return tokens // step * step


@inner
def bucket_of_sought(memo: GroupMemo, replicas: int, replica: int, key: int) -> int:
    """Bucket that holds ``key`` among the names missed in the replica's running search, or the one where it belongs."""
    search = memo.reg[replica, SEARCH]
    mask = mask_of(memo.sought_in, replicas)
    home = bucket_of(key, mask)
    base = replica * (mask + 1)
    while memo.sought_in[base + home] == search and memo.sought_key[base + home] != key:
        home = (home + 1) & mask
    return base + home


@inner
def note_missed(config: Config, blocks: Blocks, replica: int, key: int) -> None:
    """A longer prefix could be had if there were a block of this name."""
    memo = blocks.memo
    bucket = bucket_of_sought(memo, config.replicas, replica, key)
    memo.sought_key[bucket] = key
    memo.sought_in[bucket] = memo.reg[replica, SEARCH]


@inner
def note_registered(config: Config, blocks: Blocks, replica: int, key: int) -> None:
    """There is a block of this name now."""
    memo = blocks.memo
    if config.window_chunked or group_of(config, key) < config.full_groups:
        return
    bucket = bucket_of_sought(memo, config.replicas, replica, key)
    if memo.sought_in[bucket] == memo.reg[replica, SEARCH]:
        memo.reg[replica, STALE] = 1


@inner
def first_group_without(
    config: Config,
    requests: Requests,
    blocks: Blocks,
    reg: Int64,
    replica: int,
    mask: int,
    r: int,
    first: int,
    end: int,
    i: int,
) -> int:
    """The first of the groups ``first`` to before ``end`` that lacks block ``i`` of request ``r``, else ``end``.

    Notes the others in ``found``, but not in ``found_at``: see ``note_places``.
    """
    for group in range(first, end):
        reg[LOOKUPS] += 1
        key = key_of(config, requests, r, group, i)
        bucket = find_bucket(blocks.bucket_key, blocks.bucket_block, replica * (mask + 1), mask, key)
        block = blocks.bucket_block[bucket]
        if block == NEVER:
            return group
        blocks.found[place_in_table(config, replica, group, i)] = block
    return end


@inner
def note_places(
    config: Config, blocks: Blocks, replica: int, first_group: int, end_group: int, i: int, first: int, end: int
) -> bool:
    """Notes in ``found_at`` that blocks were found as the groups' block ``i``; True where one of them is among the
    blocks ``first`` to before ``end``, too."""
    repeats = False
    for group in range(first_group, end_group):
        block = blocks.found[place_in_table(config, replica, group, i)]
        repeats |= is_at(config, blocks, replica, group, block, first, end)
        blocks.found_at[block] = i
    return repeats


@inner
def seek_full(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, mask: int, r: int, tokens: int
) -> bool:
    """Seeks on in the full groups; True where names repeat."""
    memo, full = blocks.memo.reg[replica], config.full_groups
    repeats = False
    at = memo[FULL_FOUND]
    while (at + 1) * config.full_block_size < tokens:
        if first_group_without(config, requests, blocks, reg, replica, mask, r, 0, full, at) < full:
            break
        repeats |= note_places(config, blocks, replica, 0, full, at, 0, at)
        at += 1
    memo[FULL_FOUND] = at
    return repeats


@inner
def seek_chunk(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, mask: int, r: int, limit: int
) -> bool:
    """Seeks on in the chunk that token ``limit`` lies in; True where names repeat."""
    memo, full, everyone = blocks.memo.reg[replica], config.full_groups, config.full_groups + config.window_groups
    size = config.window_block_size
    first = tokens_outside(config, limit) // size
    if memo[STALE] or memo[RUN_FIRST] != first:
        start_run(memo, first)
        memo[STALE] = 0
    repeats = False
    at = min(memo[RUN_END], limit // size)
    while (at + 1) * size <= limit:
        if first_group_without(config, requests, blocks, reg, replica, mask, r, full, everyone, at) < everyone:
            break
        repeats |= note_places(config, blocks, replica, full, everyone, at, first, at)
        at += 1
    count_run_to(config, blocks, replica, whole_blocks(config, at * size) // size)
    memo[RUN_END] = at
    return repeats


@inner
def seek_window(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, mask: int, r: int, limit: int
) -> bool:
    """Seeks on downwards for a run of blocks that a sliding window needs, ending at token ``limit`` or before; True
    where names repeat."""
    memo, full, everyone = blocks.memo.reg[replica], config.full_groups, config.full_groups + config.window_groups
    size = config.window_block_size
    if memo[STALE] or limit > memo[LIMIT]:
        start_run(memo, limit // size)
        memo[STALE] = 0
        memo[SEARCH] += 1
    elif limit < memo[RUN_END] * size:
        shorten_run(config, blocks, replica, limit // size)
    memo[LIMIT] = limit
    repeats = False
    wanted = (config.window_tokens + size - 2) // size  # blocks of window_tokens - 1 tokens
    while memo[RUN_FIRST] > 0 and memo[RUN_END] - memo[RUN_FIRST] < max(wanted, 1):
        i = memo[RUN_FIRST] - 1
        if memo[RUN_END] == memo[RUN_FIRST] and whole_blocks(config, (i + 1) * size) != (i + 1) * size:
            start_run(memo, i)
            continue
        group = first_group_without(config, requests, blocks, reg, replica, mask, r, full, everyone, i)
        if group < everyone:
            note_missed(config, blocks, replica, key_of(config, requests, r, group, i))
            start_run(memo, i)
            continue
        repeats |= note_places(config, blocks, replica, full, everyone, i, i + 1, memo[RUN_END])
        memo[RUN_FIRST] = i
        memo[FREE_RUN] += count_free(config, blocks, replica, full, everyone, i, i + 1)
    return repeats


@inner
def shorten_run(config: Config, blocks: Blocks, replica: int, end: int) -> None:
    """A sliding window's run can end at block ``end`` at the latest, in whole blocks of every group."""
    memo, size = blocks.memo.reg[replica], config.window_block_size
    end = whole_blocks(config, end * size) // size
    if end <= memo[RUN_FIRST]:
        start_run(memo, end)
    else:
        count_run_to(config, blocks, replica, end)
        memo[RUN_END] = end


@inner
def lookup_of_groups(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, r: int, tokens: int, mask: int
) -> tuple[int, int, int]:
    """Longest cached prefix of request ``r`` in blocks of ``block_size`` tokens, leaving at least one of ``tokens`` to
    compute; how many of the blocks lie in the free list; and the first block of it that window groups keep.

    The blocks stay in ``found`` for ``take_hits``. ``tokens`` never falls while a request waits.
    """
    memo = blocks.memo.reg[replica]
    if reg[HEAD_REQUEST] != r:
        reg[HEAD_REQUEST] = r
        memo[FULL_FOUND] = memo[FULL_COUNTED] = memo[FREE_FULL] = 0
        memo[STALE] = 1
    limit, repeats = tokens - 1, False
    if config.full_groups > 0:
        repeats = seek_full(config, requests, blocks, reg, replica, mask, r, tokens)
        limit = memo[FULL_FOUND] * config.full_block_size
    hit_tokens, first_live = limit, 0
    if config.window_groups > 0:
        size = config.window_block_size
        if config.window_chunked:
            repeats |= seek_chunk(config, requests, blocks, reg, replica, mask, r, limit)
        else:
            repeats |= seek_window(config, requests, blocks, reg, replica, mask, r, limit)
        hit_tokens = whole_blocks(config, memo[RUN_END] * size)
        first_live = min(memo[RUN_FIRST], hit_tokens // size)
    count_full_to(config, blocks, replica, hit_tokens // config.full_block_size if config.full_groups > 0 else 0)
    free_hits = memo[FREE_FULL] + memo[FREE_RUN]
    if repeats:  # ``found_at`` knows one place of a block
        reg[HEAD_REQUEST] = NEVER
    return hit_tokens // config.block_size, free_hits, first_live


@inner
def forget_found_of_groups(config: Config, blocks: Blocks, replica: int, block: int) -> None:
    """A free block is about to be evicted: if it was found, it and what follows it are sought again."""
    memo, key = blocks.memo.reg[replica], blocks.hash[block]
    group = group_of(config, key)
    if group < config.full_groups:
        if is_at(config, blocks, replica, group, block, 0, memo[FULL_FOUND]):
            at = blocks.found_at[block]
            if at < memo[FULL_COUNTED]:
                count_full_to(config, blocks, replica, at)
            memo[FULL_FOUND] = at
    elif is_at(config, blocks, replica, group, block, memo[RUN_FIRST], memo[RUN_END]):
        at = blocks.found_at[block]
        if config.window_chunked:
            count_run_to(config, blocks, replica, min(at, memo[RUN_COUNTED]))
            memo[RUN_END] = at
        elif blocks.twin_next[block] != NEVER:
            memo[STALE] = 1  # the name is still there
        else:
            note_missed(config, blocks, replica, key)
            shorten_run(config, blocks, replica, at)


@inner
def note_freed_of_groups(config: Config, blocks: Blocks, replica: int, block: int) -> None:
    """A block has lost its last user."""
    key = blocks.hash[block]
    if key == NEVER:
        return
    memo, group = blocks.memo.reg[replica], group_of(config, key)
    if group < config.full_groups:
        memo[FREE_FULL] += is_at(config, blocks, replica, group, block, 0, memo[FULL_COUNTED])
    else:
        memo[FREE_RUN] += is_at(config, blocks, replica, group, block, memo[RUN_FIRST], memo[RUN_COUNTED])
