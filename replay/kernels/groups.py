"""KV blocks of models whose layers form several groups, all of which draw from one pool of equal blocks.

A request takes a block in each group. *Full* groups keep the whole context. *Window* groups keep what a sliding window
(or the running chunk of chunked attention) can still read: before a step is scheduled, blocks wholly outside it are
given back. *State* groups hold a fixed state, ``state_blocks`` in all. Admission counts a window group at no more than
``window_cap_blocks`` (engine semantics 2.3, 3.2).

With prefix caching every group has blocks of its own for the same text. A hit must hold in all of them: the whole
prefix in full groups, and in window groups the blocks that the next token reads.

Callers import ``grow``, ``release`` and the rest from here; models with one full group go on to ``memory``.
"""

from __future__ import annotations

from replay.kernels.group_layout import block_size_of, is_grouped, key_of, place_in_table, tokens_outside
from replay.kernels.group_memo import forget_found_of_groups, lookup_of_groups, note_registered
from replay.kernels.head_memo import drop_found, lookup_one_group
from replay.kernels.jit import inner
from replay.kernels.memory import (
    blocks_for,
    forget,
    give_back,
    grow_one_group,
    publish_one_group,
    register,
    release_one_group,
    take_hits_of_one_group,
    unlink,
)
from replay.kernels.state import FREE_BLOCKS, NEVER, Blocks, Config, Int64, Requests, Slots


@inner
def room_of(config: Config, computed: int, covered: int) -> int:
    """Up to how many tokens a slot can go on from ``computed`` in steps of one without taking or giving back a block,
    where its blocks reach to ``covered`` tokens."""
    room = covered + config.max_num_batched_tokens
    if config.full_groups > 0:
        room = blocks_for(covered, config.full_block_size) * config.full_block_size
    if config.window_groups > 0:
        size = config.window_block_size
        room = min(room, blocks_for(covered, size) * size)
        if config.window_chunked:
            leaves = (computed // config.window_tokens + 1) * config.window_tokens
        else:
            leaves = (tokens_outside(config, computed) // size + 1) * size + config.window_tokens - 1
        room = min(room, leaves)
    return room


@inner
def blocks_to_admit(config: Config, tokens: int, hits: int, first_live: int) -> int:
    """Blocks that the admission test counts for ``tokens`` tokens, of which ``hits`` blocks of ``block_size`` tokens
    are cached, in window groups from block ``first_live`` on."""
    if not is_grouped(config):
        return blocks_for(tokens, config.block_size) - hits
    hit_tokens = hits * config.block_size
    need = config.full_groups * (
        blocks_for(tokens, config.full_block_size) - blocks_for(hit_tokens, config.full_block_size)
    )
    if config.window_groups > 0:
        hit_blocks = blocks_for(hit_tokens, config.window_block_size)
        new = blocks_for(tokens, config.window_block_size) - hit_blocks
        need += config.window_groups * min(new, config.window_cap_blocks - (hit_blocks - first_live))
    return need + config.state_blocks


@inner
def lookup(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, r: int, tokens: int, mask: int
) -> tuple[int, int, int]:
    """Longest cached prefix of request ``r`` in blocks of ``block_size`` tokens, leaving at least one of ``tokens`` to
    compute; how many of the blocks lie in the free list; and the first block of it that window groups keep. The blocks
    stay in ``found`` for ``take_hits``."""
    if not is_grouped(config):
        hits, free_hits = lookup_one_group(config, requests, blocks, reg, replica, r, tokens, mask)
        return hits, free_hits, 0
    return lookup_of_groups(config, requests, blocks, reg, replica, r, tokens, mask)


@inner
def take_hits(
    config: Config, blocks: Blocks, slots: Slots, reg: Int64, replica: int, slot: int, hits: int, first_live: int
) -> None:
    """Gives the blocks of the lookup just made to a slot that holds none."""
    if not is_grouped(config):
        take_hits_of_one_group(config, blocks, slots, reg, replica, slot, hits)
        return
    hit_tokens = hits * config.block_size
    for group in range(config.full_groups + config.window_groups):
        first = 0 if group < config.full_groups else first_live
        for i in range(first, hit_tokens // block_size_of(config, group)):
            block = blocks.found[place_in_table(config, replica, group, i)]
            if blocks.references[block] == 0:
                unlink(blocks, block)
                reg[FREE_BLOCKS] -= 1
            blocks.references[block] += 1
            blocks.table[place_in_table(config, slot, group, i)] = block
            slots.held[slot] += 1
    slots.covered[slot] = hit_tokens
    slots.first_live[slot] = first_live
    slots.cached[slot] = hits
    drop_found(reg)


@inner
def publish(
    config: Config, requests: Requests, blocks: Blocks, slots: Slots, replica: int, slot: int, tokens: int, mask: int
) -> None:
    """Gives a hash to the slot's blocks that are full within its first ``tokens`` tokens."""
    if not is_grouped(config):
        publish_one_group(config, requests, blocks, slots, replica, slot, tokens, mask)
        return
    base, r = replica * (mask + 1), slots.request[slot]
    before = slots.cached[slot] * config.block_size
    if tokens <= before:
        return
    for group in range(config.full_groups + config.window_groups):
        size = block_size_of(config, group)
        first = before // size
        if group >= config.full_groups:
            first = max(first, slots.first_live[slot])
        for i in range(first, tokens // size):
            block = blocks.table[place_in_table(config, slot, group, i)]
            key = key_of(config, requests, r, group, i)
            register(blocks, base, mask, block, key)
            note_registered(config, blocks, replica, key)
    slots.cached[slot] = tokens // config.block_size


@inner
def leave_window(config: Config, blocks: Blocks, slots: Slots, reg: Int64, replica: int, slot: int) -> None:
    """Gives back the blocks of window groups that the slot's next token does not read."""
    size = config.window_block_size
    first = slots.first_live[slot]
    end = min(tokens_outside(config, slots.computed[slot]) // size, blocks_for(slots.covered[slot], size))
    if end <= first:
        return
    if config.prefix_caching:
        for group in range(config.full_groups, config.full_groups + config.window_groups):
            give_back_blocks(config, blocks, reg, replica, slot, group, first, end)
    else:
        reg[FREE_BLOCKS] += config.window_groups * (end - first)
    slots.held[slot] -= config.window_groups * (end - first)
    slots.first_live[slot] = end


@inner
def give_back_blocks(
    config: Config, blocks: Blocks, reg: Int64, replica: int, slot: int, group: int, first: int, end: int
) -> None:
    """Lets go of blocks ``first`` to before ``end`` of a group, the last one first."""
    front = replica * (config.num_blocks + 1) + config.num_blocks
    for i in range(end - 1, first - 1, -1):
        front = give_back(config, blocks, reg, replica, blocks.table[place_in_table(config, slot, group, i)], front)


@inner
def grow(
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

    False, and no block taken, where they are not free.
    """
    if not is_grouped(config):
        return grow_one_group(config, requests, blocks, slots, reg, replica, slot, tokens, known, mask)
    if config.window_groups > 0:
        leave_window(config, blocks, slots, reg, replica, slot)
    covered = slots.covered[slot]
    need = config.state_blocks if slots.held[slot] == 0 else 0
    for group in range(config.full_groups + config.window_groups):
        size = block_size_of(config, group)
        need += max(0, blocks_for(tokens, size) - blocks_for(covered, size))
    if need > reg[FREE_BLOCKS]:
        return False
    reg[FREE_BLOCKS] -= need
    slots.held[slot] += need
    slots.covered[slot] = max(covered, tokens)
    if config.prefix_caching:
        sentinel = replica * (config.num_blocks + 1) + config.num_blocks
        for group in range(config.full_groups + config.window_groups):
            size = block_size_of(config, group)
            for i in range(blocks_for(covered, size), blocks_for(tokens, size)):
                block = blocks.next[sentinel]
                unlink(blocks, block)
                if blocks.hash[block] != NEVER:
                    forget_found_of_groups(config, blocks, replica, block)
                    forget(blocks, replica * (mask + 1), mask, block)
                blocks.references[block] = 1
                blocks.table[place_in_table(config, slot, group, i)] = block
        publish(config, requests, blocks, slots, replica, slot, min(tokens, known), mask)
    slots.room[slot] = room_of(config, slots.computed[slot], slots.covered[slot])
    return True


@inner
def release(config: Config, blocks: Blocks, slots: Slots, reg: Int64, replica: int, slot: int) -> None:
    """Gives back all blocks of a slot."""
    if not is_grouped(config):
        release_one_group(config, blocks, slots, reg, replica, slot)
        return
    if config.prefix_caching:
        for group in range(config.full_groups + config.window_groups):
            first = 0 if group < config.full_groups else slots.first_live[slot]
            end = blocks_for(slots.covered[slot], block_size_of(config, group))
            give_back_blocks(config, blocks, reg, replica, slot, group, first, end)
    else:
        reg[FREE_BLOCKS] += slots.held[slot]
    slots.held[slot] = 0
    slots.room[slot] = 0
    slots.cached[slot] = 0
    slots.covered[slot] = 0
    slots.first_live[slot] = 0
