"""KV blocks of one replica: a counter, or with prefix caching real blocks with hashes and a free list in eviction
order.

Without caching the identity of a block never matters, so ``FREE_BLOCKS`` and each slot's ``held`` are all the state.
With caching the free list is circular around a sentinel (index ``num_blocks``): blocks are popped at the front; freed
blocks without a hash go to the front (up to vLLM 0.11: to the back too), hashed ones to the back, in reverse order of
the request, so that a prompt's tail is evicted before its head. Models whose layers form several groups: ``groups``.
"""

from __future__ import annotations

from replay.kernels.group_layout import is_grouped
from replay.kernels.group_memo import note_freed_of_groups
from replay.kernels.hashing import close_bucket, find_bucket
from replay.kernels.head_memo import drop_found, forget_found, note_freed
from replay.kernels.jit import inner
from replay.kernels.offload import keep_on_host
from replay.kernels.state import (
    FREE_BLOCKS,
    FREE_LIST_READY,
    HEAD_HITS,
    NEVER,
    Blocks,
    Config,
    Int32,
    Int64,
    Requests,
    Slots,
)
from replay.kernels.texts import block_id


@inner
def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return (tokens + block_size - 1) // block_size


@inner
def register(blocks: Blocks, base: int, mask: int, block: int, key: int) -> None:
    """Makes ``block`` findable under ``key``; a twin of the same key queues behind the older ones."""
    blocks.hash[block] = key
    blocks.twin_next[block] = NEVER
    bucket = find_bucket(blocks.bucket_key, blocks.bucket_block, base, mask, key)
    first = blocks.bucket_block[bucket]
    if first == NEVER:
        blocks.bucket_key[bucket] = key
        blocks.bucket_block[bucket] = block
        blocks.twin_previous[block] = NEVER
        return
    while blocks.twin_next[first] != NEVER:
        first = blocks.twin_next[first]
    blocks.twin_next[first] = block
    blocks.twin_previous[block] = first


@inner
def forget(blocks: Blocks, base: int, mask: int, block: int) -> None:
    """Evicts the hash of ``block``."""
    before, after = blocks.twin_previous[block], blocks.twin_next[block]
    if after != NEVER:
        blocks.twin_previous[after] = before
    if before != NEVER:
        blocks.twin_next[before] = after
    else:
        bucket = find_bucket(blocks.bucket_key, blocks.bucket_block, base, mask, blocks.hash[block])
        if after != NEVER:
            blocks.bucket_block[bucket] = after
        else:
            close_bucket(blocks.bucket_key, blocks.bucket_block, base, mask, bucket)
    blocks.hash[block] = NEVER


@inner
def link_between(blocks: Blocks, block: int, before: int, after: int) -> None:
    """Puts a block into the free list between two neighbours."""
    blocks.previous[block] = before
    blocks.next[block] = after
    blocks.next[before] = block
    blocks.previous[after] = block


@inner
def unlink(blocks: Blocks, block: int) -> None:
    """Takes a block out of the free list."""
    before, after = blocks.previous[block], blocks.next[block]
    blocks.next[before] = after
    blocks.previous[after] = before


@inner
def prepare_free_list(config: Config, blocks: Blocks, reg: Int64, replica: int) -> None:
    """Links all blocks of a fresh replica in order, once."""
    if not config.prefix_caching or reg[FREE_LIST_READY]:
        return
    first = replica * (config.num_blocks + 1)
    sentinel = first + config.num_blocks
    blocks.next[sentinel] = sentinel
    blocks.previous[sentinel] = sentinel
    for block in range(first, sentinel):
        link_between(blocks, block, blocks.previous[sentinel], sentinel)
    reg[FREE_LIST_READY] = 1


@inner
def forget_all(config: Config, blocks: Blocks, reg: Int64, replica: int) -> None:
    """Empties the cache of a lost replica: all blocks free, none with a hash."""
    first = replica * (config.num_blocks + 1)
    for block in range(first, first + config.num_blocks):
        blocks.hash[block] = NEVER
        blocks.references[block] = 0
        blocks.twin_next[block] = NEVER
        blocks.twin_previous[block] = NEVER
    buckets = len(blocks.bucket_block) // config.replicas
    for bucket in range(replica * buckets, (replica + 1) * buckets):
        blocks.bucket_block[bucket] = NEVER
    drop_found(reg)
    reg[FREE_LIST_READY] = 0
    prepare_free_list(config, blocks, reg, replica)


@inner
def take_hits_of_one_group(
    config: Config, blocks: Blocks, slots: Slots, reg: Int64, replica: int, slot: int, hits: int
) -> None:
    """Gives the ``hits`` blocks of the lookup just made to a slot that holds none."""
    for i in range(hits):
        block = blocks.found[replica * config.table_width + i]
        if blocks.references[block] == 0:
            unlink(blocks, block)
            reg[FREE_BLOCKS] -= 1
        blocks.references[block] += 1
        blocks.table[slot * config.table_width + i] = block
    slots.held[slot] = hits
    slots.room[slot] = hits * config.block_size
    slots.cached[slot] = hits
    drop_found(reg)


@inner
def publish_one_group(
    config: Config, requests: Requests, blocks: Blocks, slots: Slots, replica: int, slot: int, tokens: int, mask: int
) -> None:
    """Gives a hash to the slot's blocks that are full within its first ``tokens`` tokens."""
    base = replica * (mask + 1)
    r = slots.request[slot]
    for i in range(slots.cached[slot], tokens // config.block_size):
        block = blocks.table[slot * config.table_width + i]
        register(blocks, base, mask, block, block_id(requests, config, r, i))
        slots.cached[slot] = i + 1


@inner
def grow_one_group(
    config: Config,
    requests: Requests,
    blocks: Blocks,
    slots: Slots,
    reg: Int64,
    replica: int,
    slot: int,
    tokens: int,
    known: int,
    mask: int,
) -> bool:
    """Blocks for ``tokens`` tokens of a slot, of which the first ``known`` are decided (a token in flight is not).

    False, and nothing changed, where they are not free.
    """
    need = blocks_for(tokens, config.block_size) - slots.held[slot]
    if need > reg[FREE_BLOCKS]:
        return False
    if need > 0:
        reg[FREE_BLOCKS] -= need
    if config.prefix_caching:
        sentinel = replica * (config.num_blocks + 1) + config.num_blocks
        held = slots.held[slot]
        for i in range(held, held + need):
            block = blocks.next[sentinel]
            unlink(blocks, block)
            if blocks.hash[block] != NEVER:
                if config.host_blocks > 0:
                    keep_on_host(config, requests, blocks.host, replica, blocks.hash[block])
                forget_found(config, blocks, reg, replica, block)
                forget(blocks, replica * (mask + 1), mask, block)
            blocks.references[block] = 1
            blocks.table[slot * config.table_width + i] = block
        slots.held[slot] = held + max(need, 0)
        slots.room[slot] = slots.held[slot] * config.block_size
        publish_one_group(config, requests, blocks, slots, replica, slot, min(tokens, known), mask)
    elif need > 0:
        slots.held[slot] += need
        slots.room[slot] = slots.held[slot] * config.block_size
    return True


@inner
def give_back(config: Config, blocks: Blocks, reg: Int64, replica: int, block: int, front: int) -> int:
    """Lets go of one block. Into the free list it goes behind ``front`` without a hash, else at the back; returns the
    new ``front`` (the list's sentinel before the first block of a request)."""
    blocks.references[block] -= 1
    if blocks.references[block] > 0:
        return front
    reg[FREE_BLOCKS] += 1
    if is_grouped(config):
        note_freed_of_groups(config, blocks, replica, block)
    else:
        note_freed(config, blocks, reg, replica, block)
    if blocks.hash[block] == NEVER and not config.frees_in_order:
        link_between(blocks, block, front, blocks.next[front])
        return block
    sentinel = replica * (config.num_blocks + 1) + config.num_blocks
    link_between(blocks, block, blocks.previous[sentinel], sentinel)
    return front


@inner
def give_back_run(
    row: Int32, references: Int32, hashes: Int64, following: Int32, previous: Int32, sentinel: int, in_order: int
) -> int:
    """``give_back`` for all blocks of a request, the last first, where none is in ``found``; returns how many are free.

    A small function that gets the few arrays it writes: see ``schedule.decode_run``.
    """
    front, freed = sentinel, 0
    for i in range(len(row) - 1, -1, -1):
        block = row[i]
        references[block] -= 1
        if references[block] > 0:
            continue
        freed += 1
        before = previous[sentinel]
        if hashes[block] == NEVER and not in_order:
            before = front
            front = block
        after = following[before]
        previous[block], following[block] = before, after
        following[before], previous[after] = block, block
    return freed


@inner
def release_one_group(config: Config, blocks: Blocks, slots: Slots, reg: Int64, replica: int, slot: int) -> None:
    """Gives back all blocks of a slot."""
    held = slots.held[slot]
    if not config.prefix_caching:
        reg[FREE_BLOCKS] += held
    elif reg[HEAD_HITS] == 0:
        row = blocks.table[slot * config.table_width : slot * config.table_width + held]
        sentinel = replica * (config.num_blocks + 1) + config.num_blocks
        reg[FREE_BLOCKS] += give_back_run(
            row, blocks.references, blocks.hash, blocks.next, blocks.previous, sentinel, config.frees_in_order
        )
    else:
        front = replica * (config.num_blocks + 1) + config.num_blocks
        for i in range(held - 1, -1, -1):
            front = give_back(config, blocks, reg, replica, blocks.table[slot * config.table_width + i], front)
    slots.held[slot] = 0
    slots.room[slot] = 0
    slots.cached[slot] = 0
