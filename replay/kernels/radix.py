"""SGLang's radix cache of one replica: a tree of token runs, the least recently used leaves evicted first.

The specification is engine semantics 1.3 and 2.2. A node stands for a run of tokens; the path from the root is a prefix
that is in the KV cache. Tokens are compared by their chained names (``texts.name_of``): equal names mean equal text up
to there, so a whole run matches where its last name does, a partial match is a binary search, and the name of a run's
first page finds the child in one hash table for all nodes.

``FREE_BLOCKS`` counts pages that are available or evictable, as SGLang's admission does; ``EVICTABLE`` those in nodes
that no running request locks. A lock holds the whole path. Nodes are kept in one list, least recently used first: an
access moves a path to the end from its tip to the root, so the first unlocked node is always a leaf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.by_reference import by_reference
from replay.kernels.hashing import close_bucket, find_bucket, mask_of
from replay.kernels.jit import inner
from replay.kernels.state import (
    FREE_BLOCKS,
    LOOKUPS,
    NEVER,
    Config,
    Int32,
    Int64,
    Requests,
    Slots,
    State,
    bucket_count,
)
from replay.kernels.texts import name_of

EVICTABLE, NODES, FREE_NODES, TREE_REGS = range(4)


@by_reference
class Radix(NamedTuple):
    """Nodes of all replicas, ``num_blocks + 1`` each: every one holds a page at least. The first is the root, and the
    sentinel of the list. All shape (0,) where the cache is off."""

    reg: Int64  # shape (replicas, TREE_REGS): pages evictable; nodes made, free ones
    text: Int32  # a request whose text the run is part of
    first: Int64  # token at which the run starts
    end: Int64
    parent: Int32
    locks: Int32
    next: Int32  # in the list; of a free node: the next free one
    previous: Int32
    bucket_key: Int64
    bucket_node: Int32
    node: Int32  # by slot: the tip of its locked path


def new_radix(config: Config, is_on: bool) -> Radix:
    """Empty trees."""
    nodes = config.replicas * (config.num_blocks + 1) if is_on else 0
    buckets = config.replicas * bucket_count(config.num_blocks) if is_on else 0
    i32, i64 = np.int32, np.int64
    reg = np.zeros((config.replicas if is_on else 0, TREE_REGS), i64)
    reg[:, FREE_NODES] = NEVER
    roots = np.repeat(np.arange(config.replicas if is_on else 0), config.num_blocks + 1) * (config.num_blocks + 1)
    return Radix(
        reg=reg,
        text=np.zeros(nodes, i32),
        first=np.zeros(nodes, i64),
        end=np.zeros(nodes, i64),
        parent=np.full(nodes, NEVER, i32),
        locks=np.zeros(nodes, i32),
        next=roots.astype(i32),
        previous=roots.astype(i32),
        bucket_key=np.zeros(buckets, i64),
        bucket_node=np.full(buckets, NEVER, i32),
        node=np.full(config.replicas * config.max_num_seqs if is_on else 0, NEVER, i32),
    )


@inner
def move_to_end(radix: Radix, root: int, node: int) -> None:
    """Makes a node that is in the list, or in none (its neighbours are itself), the most recently used."""
    before, after = radix.previous[node], radix.next[node]
    radix.next[before], radix.previous[after] = after, before
    last = radix.previous[root]
    radix.next[last], radix.previous[node] = node, last
    radix.next[node], radix.previous[root] = root, node


@inner
def touch(config: Config, radix: Radix, replica: int, node: int) -> None:
    """Makes the path to ``node`` the most recently used."""
    root = replica * (config.num_blocks + 1)
    while node != root:
        move_to_end(radix, root, node)
        node = radix.parent[node]


@inner
def new_node(config: Config, radix: Radix, replica: int, text: int, first: int, end: int, parent: int) -> int:
    """A node in no list."""
    reg = radix.reg[replica]
    if reg[FREE_NODES] != NEVER:
        node = reg[FREE_NODES]
        reg[FREE_NODES] = radix.next[node]
    else:
        reg[NODES] += 1
        node = replica * (config.num_blocks + 1) + reg[NODES]
    radix.text[node], radix.first[node], radix.end[node] = text, first, end
    radix.parent[node], radix.locks[node] = parent, 0
    radix.next[node] = radix.previous[node] = node
    return node


@inner
def split(config: Config, requests: Requests, radix: Radix, replica: int, node: int, at: int) -> int:
    """Cuts a run at token ``at``; returns the new node of its head, which the rest now hangs from."""
    page, mask = config.block_size, mask_of(radix.bucket_node, config.replicas)
    base, root = replica * (mask + 1), replica * (config.num_blocks + 1)
    text = radix.text[node]
    head = new_node(config, radix, replica, text, radix.first[node], at, radix.parent[node])
    radix.locks[head] = radix.locks[node]
    bucket = find_bucket(
        radix.bucket_key, radix.bucket_node, base, mask, name_of(requests, config, text, radix.first[node] + page - 1)
    )
    radix.bucket_node[bucket] = head
    radix.first[node], radix.parent[node] = at, head
    key = name_of(requests, config, text, at + page - 1)
    bucket = find_bucket(radix.bucket_key, radix.bucket_node, base, mask, key)
    radix.bucket_key[bucket], radix.bucket_node[bucket] = key, node
    move_to_end(radix, root, head)  # behind the rest: whoever comes this way has just used it
    return head


@inner
def match(config: Config, requests: Requests, radix: Radix, reg: Int64, replica: int, r: int, tokens: int) -> int:
    """The node that ends the longest cached prefix of the first ``tokens`` tokens of request ``r``, in whole pages; its
    path becomes the most recently used. A run that matches in part is cut."""
    page, mask = config.block_size, mask_of(radix.bucket_node, config.replicas)
    base, root = replica * (mask + 1), replica * (config.num_blocks + 1)
    tip = root
    tokens = tokens // page * page
    while radix.end[tip] < tokens:
        reg[LOOKUPS] += 1
        place = radix.end[tip]
        node = radix.bucket_node[
            find_bucket(radix.bucket_key, radix.bucket_node, base, mask, name_of(requests, config, r, place + page - 1))
        ]
        if node == NEVER:
            break
        text = radix.text[node]
        end = min(radix.end[node], tokens)
        low, high = 1, (end - place) // page  # pages that surely match, and that may
        if name_of(requests, config, r, end - 1) == name_of(requests, config, text, end - 1):
            low = high
        while low < high:
            middle = (low + high + 1) // 2
            last = place + middle * page - 1
            if name_of(requests, config, r, last) == name_of(requests, config, text, last):
                low = middle
            else:
                high = middle - 1
        end = place + low * page
        if end < radix.end[node]:
            tip = split(config, requests, radix, replica, node, end)
            break
        tip = node
    touch(config, radix, replica, tip)
    return tip


@inner
def lock(config: Config, radix: Radix, reg: Int64, replica: int, node: int) -> None:
    """A running request now reads the path to ``node``."""
    root = replica * (config.num_blocks + 1)
    while node != root:
        if radix.locks[node] == 0:
            pages = (radix.end[node] - radix.first[node]) // config.block_size
            radix.reg[replica, EVICTABLE] -= pages
            reg[FREE_BLOCKS] -= pages
        radix.locks[node] += 1
        node = radix.parent[node]


@inner
def unlock(config: Config, radix: Radix, reg: Int64, replica: int, node: int) -> None:
    """Undoes ``lock``."""
    root = replica * (config.num_blocks + 1)
    while node != root:
        radix.locks[node] -= 1
        if radix.locks[node] == 0:
            pages = (radix.end[node] - radix.first[node]) // config.block_size
            radix.reg[replica, EVICTABLE] += pages
            reg[FREE_BLOCKS] += pages
        node = radix.parent[node]


@inner
def insert_text(
    config: Config, requests: Requests, radix: Radix, slots: Slots, reg: Int64, replica: int, slot: int, known: int
) -> int:
    """Puts the first ``known`` tokens of a slot into the tree, in whole pages, and drops its lock; returns the tip of
    its path. Of the slot's own pages those that the tree has already are free again, the others are now the tree's, and
    ``held`` is what is left."""
    page, mask = config.block_size, mask_of(radix.bucket_node, config.replicas)
    r, tokens = slots.request[slot], known // page * page
    old = radix.node[slot]
    own_pages = (tokens - radix.end[old]) // page
    slots.held[slot] -= radix.end[old] // page + own_pages
    reg[FREE_BLOCKS] += own_pages
    unlock(config, radix, reg, replica, old)
    tip = match(config, requests, radix, reg, replica, r, tokens)
    if radix.end[tip] < tokens:
        place = radix.end[tip]
        tip = new_node(config, radix, replica, r, place, tokens, tip)
        radix.reg[replica, EVICTABLE] += (tokens - place) // page
        key = name_of(requests, config, r, place + page - 1)
        bucket = find_bucket(radix.bucket_key, radix.bucket_node, replica * (mask + 1), mask, key)
        radix.bucket_key[bucket], radix.bucket_node[bucket] = key, tip
        touch(config, radix, replica, tip)
    radix.node[slot] = NEVER
    return tip


@inner
def keep_known(
    config: Config, requests: Requests, radix: Radix, slots: Slots, reg: Int64, replica: int, slot: int, known: int
) -> None:
    """Puts the first ``known`` tokens of a running slot into the tree; the slot goes on from there."""
    tip = insert_text(config, requests, radix, slots, reg, replica, slot, known)
    lock(config, radix, reg, replica, tip)
    radix.node[slot] = tip
    slots.held[slot] += radix.end[tip] // config.block_size


@inner
def let_go_of_path(config: Config, radix: Radix, slots: Slots, reg: Int64, replica: int, slot: int) -> None:
    """Drops a slot's lock; ``held`` is then what it does not share with the tree."""
    tip = radix.node[slot]
    slots.held[slot] -= radix.end[tip] // config.block_size
    unlock(config, radix, reg, replica, tip)
    radix.node[slot] = NEVER


@inner
def evict(config: Config, requests: Requests, radix: Radix, replica: int, pages: int) -> None:
    """Evicts whole leaves, least recently used first, until ``pages`` pages are gone or all that is left is locked."""
    mask = mask_of(radix.bucket_node, config.replicas)
    base, root = replica * (mask + 1), replica * (config.num_blocks + 1)
    node = radix.next[root]
    while pages > 0 and node != root:
        after = radix.next[node]
        if radix.locks[node] == 0:
            size = (radix.end[node] - radix.first[node]) // config.block_size
            pages -= size
            radix.reg[replica, EVICTABLE] -= size
            key = name_of(requests, config, radix.text[node], radix.first[node] + config.block_size - 1)
            close_bucket(
                radix.bucket_key,
                radix.bucket_node,
                base,
                mask,
                find_bucket(radix.bucket_key, radix.bucket_node, base, mask, key),
            )
            before = radix.previous[node]
            radix.next[before], radix.previous[after] = after, before
            radix.next[node] = radix.reg[replica, FREE_NODES]
            radix.reg[replica, FREE_NODES] = node
        node = after


@inner
def make_room(config: Config, requests: Requests, radix: Radix, reg: Int64, replica: int, pages: int) -> None:
    """Evicts what is missing of ``pages`` pages that are to be free beside the tree."""
    evict(config, requests, radix, replica, pages - (reg[FREE_BLOCKS] - radix.reg[replica, EVICTABLE]))


@inner
def keep_outputs(
    config: Config, requests: Requests, radix: Radix, state: State, reg: Int64, replica: int, batch: int
) -> None:
    """The batch is about to be processed: a prompt that it completed goes into the tree, and so does the whole text of
    a request that ends with it (but for its last token, whose KV was never written)."""
    slots, flight = state.slots, state.flight
    for i in range(flight.emitting[batch]):
        slot = flight.slot[batch * config.max_num_seqs + i]
        left = slots.left[slot] - 1
        known = slots.computed[slot] - (left - slots.unscheduled[slot])
        if left == 0:
            insert_text(config, requests, radix, slots, reg, replica, slot, known)
        elif slots.granted[slot] == slots.left[slot]:
            keep_known(config, requests, radix, slots, reg, replica, slot, known)
