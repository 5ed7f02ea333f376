"""Prompts that an engine without chunked prefill passes over, where they exceed what is left of a step's budget.

Such a prompt is considered in every step, so it is not looked up each time: once a block of it was found missing, the
prefix cache can hold no more than what lies before that block until there is one of its name. What lies there may have
been evicted since, which leaves more to compute and not less.
"""

from __future__ import annotations

from replay.kernels.group_layout import is_grouped, key_of
from replay.kernels.hashing import find_bucket
from replay.kernels.jit import inlined, inner
from replay.kernels.offload import entry_of
from replay.kernels.state import FULL_FOUND, LOOKUPS, NEVER, Blocks, Config, Int64, Outcome, Requests
from replay.kernels.texts import block_id


@inlined
def keeps_absent(config: Config) -> bool:
    """Whether prompts are passed over, and a prefix cache may shorten them."""
    return config.prefix_caching == 1 and config.enable_chunked_prefill == 0 and config.unchunked_looks_further == 1


@inner
def note_absent(config: Config, blocks: Blocks, outcome: Outcome, replica: int, r: int, hits: int) -> None:
    """Request ``r`` was looked up: ``hits`` blocks of it are cached, on the GPU or the host."""
    outcome.absent[r] = blocks.memo.reg[replica, FULL_FOUND] if is_grouped(config) else hits


@inner
def is_absent(
    config: Config, requests: Requests, blocks: Blocks, reg: Int64, replica: int, r: int, i: int, mask: int
) -> bool:
    """Whether block ``i`` of request ``r`` is in no tier of the cache; of full groups, whether one of them lacks it."""
    base = replica * (mask + 1)
    if not is_grouped(config):
        reg[LOOKUPS] += 1
        key = block_id(requests, config, r, i)
        if blocks.bucket_block[find_bucket(blocks.bucket_key, blocks.bucket_block, base, mask, key)] != NEVER:
            return False
        return config.host_blocks == 0 or entry_of(config, blocks.host, reg, replica, key) == NEVER
    for group in range(config.full_groups):
        reg[LOOKUPS] += 1
        key = key_of(config, requests, r, group, i)
        if blocks.bucket_block[find_bucket(blocks.bucket_key, blocks.bucket_block, base, mask, key)] == NEVER:
            return True
    return False


@inner
def surely_exceeds(
    config: Config,
    requests: Requests,
    blocks: Blocks,
    outcome: Outcome,
    reg: Int64,
    replica: int,
    r: int,
    total: int,
    threshold: int,
    budget: int,
    mask: int,
) -> bool:
    """Whether it takes no lookup to know that more than ``budget`` of the request's ``total`` tokens are to be computed
    (of a long prompt ``threshold`` at once, if not 0)."""
    size, i = config.block_size, outcome.absent[r]
    if is_grouped(config):
        size = config.full_block_size
        if config.full_groups == 0:
            return False
    least = total - i * size
    if 0 < threshold < least:
        least = threshold
    if least <= budget:
        return False
    return (i + 1) * size >= total or is_absent(config, requests, blocks, reg, replica, r, i, mask)
