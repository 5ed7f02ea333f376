"""Host memory as a second tier of vLLM's prefix cache: blocks evicted from the GPU, least recently used ones dropped.

A block whose name is forgotten on the GPU is kept on the host under that name. A waiting request takes the GPU's blocks
of its prefix first, then goes on with the host's: those get GPU blocks of their own and are copied back before the step
that admits it, which takes ``host_latency_ps`` and ``host_block_ps`` a block longer. Copying out is taken to be hidden
behind the steps.

What is found for a waiting request is kept from step to step, as ``head_memo`` keeps what the GPU has: the host has
its blocks from ``HOST_FIRST`` to before ``HOST_END``. A step seeks on from the first that was missing. A block that is
dropped ends the stretch there (``cut_stretch``); those that the GPU evicts are sought up to where the stretch begins.
"""

from __future__ import annotations

from replay.kernels.hashing import close_bucket, find_bucket, mask_of
from replay.kernels.jit import inner
from replay.kernels.state import (
    HOST_BLOCKS,
    HOST_END,
    HOST_FIRST,
    HOST_REQUEST,
    LOADED_BLOCKS,
    LOOKUPS,
    NEVER,
    Blocks,
    Config,
    HostTier,
    Int64,
    Requests,
)
from replay.kernels.texts import block_id


@inner
def make_newest(host: HostTier, sentinel: int, entry: int) -> None:
    """Moves an entry, or links one that is in no list (its neighbours are itself), to the end of the list."""
    before, after = host.previous[entry], host.next[entry]
    host.next[before], host.previous[after] = after, before
    last = host.previous[sentinel]
    host.next[last], host.previous[entry] = entry, last
    host.next[entry], host.previous[sentinel] = sentinel, entry


@inner
def keep_on_host(config: Config, requests: Requests, host: HostTier, replica: int, key: int) -> None:
    """A block named ``key`` leaves the GPU."""
    mask = mask_of(host.bucket_entry, config.replicas)
    base, sentinel = replica * (mask + 1), replica * (config.host_blocks + 1) + config.host_blocks
    bucket = find_bucket(host.bucket_key, host.bucket_entry, base, mask, key)
    entry = host.bucket_entry[bucket]
    if entry == NEVER:
        if host.reg[replica, HOST_BLOCKS] < config.host_blocks:
            entry = replica * (config.host_blocks + 1) + host.reg[replica, HOST_BLOCKS]
            host.reg[replica, HOST_BLOCKS] += 1
        else:
            entry = host.next[sentinel]
            cut_stretch(config, requests, host, replica, entry)
            old = find_bucket(host.bucket_key, host.bucket_entry, base, mask, host.key[entry])
            close_bucket(host.bucket_key, host.bucket_entry, base, mask, old)
            bucket = find_bucket(host.bucket_key, host.bucket_entry, base, mask, key)
        host.key[entry] = key
        host.bucket_key[bucket] = key
        host.bucket_entry[bucket] = entry
    make_newest(host, sentinel, entry)


@inner
def entry_of(config: Config, host: HostTier, reg: Int64, replica: int, key: int) -> int:
    """The entry named ``key``, or NEVER."""
    reg[LOOKUPS] += 1
    mask = mask_of(host.bucket_entry, config.replicas)
    return host.bucket_entry[find_bucket(host.bucket_key, host.bucket_entry, replica * (mask + 1), mask, key)]


@inner
def is_between(
    config: Config, requests: Requests, host: HostTier, replica: int, entry: int, first: int, end: int
) -> bool:
    """Whether an entry was found as one of the blocks ``first`` to before ``end`` of the request last sought."""
    at = host.found_at[entry]  # may be from an earlier request
    return first <= at < end and host.key[entry] == block_id(requests, config, host.reg[replica, HOST_REQUEST], at)


@inner
def cut_stretch(config: Config, requests: Requests, host: HostTier, replica: int, entry: int) -> None:
    """An entry is about to be dropped: if it was found, it and what follows it are sought again."""
    own = host.reg[replica]
    if is_between(config, requests, host, replica, entry, own[HOST_FIRST], own[HOST_END]):
        own[HOST_END] = host.found_at[entry]


@inner
def blocks_on_host(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, r: int, hits: int, end: int
) -> int:
    """How many of the blocks of request ``r`` from ``hits`` to before ``end`` the host has, up to the first miss."""
    host, own = blocks.host, blocks.host.reg[replica]
    if own[HOST_REQUEST] != r:
        own[HOST_REQUEST] = r
        own[HOST_FIRST] = own[HOST_END] = 0
    first, last = own[HOST_FIRST], own[HOST_END]
    if not first <= hits <= last:
        own[HOST_FIRST] = hits
    at = last if first <= hits <= last else hits
    repeats = False
    while at < end:
        if at == first and first < last:
            at = last
            continue
        entry = entry_of(config, host, reg, replica, block_id(requests, config, r, at))
        if entry == NEVER:
            break
        repeats |= is_between(config, requests, host, replica, entry, hits, at)
        repeats |= is_between(config, requests, host, replica, entry, first, last)
        host.found_at[entry] = at
        at += 1
    own[HOST_END] = at
    if repeats:  # ids that are not chained may name a block twice, and ``found_at`` knows one place
        own[HOST_FIRST] = own[HOST_END] = 0
    return at - hits


@inner
def load_from_host(
    config: Config, requests: Requests, blocks: Blocks, replica: int, r: int, first: int, count: int
) -> None:
    """The batch being built copies ``count`` blocks of request ``r`` back; they stay on the host as the newest."""
    host = blocks.host
    mask = mask_of(host.bucket_entry, config.replicas)
    base, sentinel = replica * (mask + 1), replica * (config.host_blocks + 1) + config.host_blocks
    for i in range(first, first + count):
        key = block_id(requests, config, r, i)
        bucket = find_bucket(host.bucket_key, host.bucket_entry, base, mask, key)
        make_newest(host, sentinel, host.bucket_entry[bucket])
    host.reg[replica, LOADED_BLOCKS] += count


@inner
def loading_ps(config: Config, host: HostTier, replica: int) -> int:
    """Time that the copies of the batch just built take; forgets them."""
    count = host.reg[replica, LOADED_BLOCKS]
    host.reg[replica, LOADED_BLOCKS] = 0
    return config.host_latency_ps + count * config.host_block_ps if count > 0 else 0


@inner
def forget_host(config: Config, host: HostTier, replica: int) -> None:
    """A lost replica takes its host's memory with it."""
    buckets, first = mask_of(host.bucket_entry, config.replicas) + 1, replica * (config.host_blocks + 1)
    for bucket in range(replica * buckets, (replica + 1) * buckets):
        host.bucket_entry[bucket] = NEVER
    for entry in range(first, first + config.host_blocks + 1):
        host.next[entry] = entry
        host.previous[entry] = entry
    for column in range(len(host.reg[replica])):
        host.reg[replica, column] = 0
