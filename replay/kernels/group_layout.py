"""How the blocks of several groups of layers lie in a slot's row of the block table, and what they are called.

A row holds the full groups' blocks, then a ring of each window group's live ones. A replica's row of ``found`` is laid
out in the same way.
"""

from __future__ import annotations

from replay.kernels.jit import inlined, inner
from replay.kernels.state import Config, Requests
from replay.kernels.texts import name_of


@inlined
def is_grouped(config: Config) -> bool:
    """Whether the model has anything but one full group."""
    return config.full_groups != 1 or config.window_groups > 0 or config.state_blocks > 0


@inner
def tokens_outside(config: Config, computed: int) -> int:
    """Leading tokens that window layers do not read once ``computed`` tokens are computed."""
    if config.window_chunked:
        return computed // config.window_tokens * config.window_tokens
    return max(0, computed - config.window_tokens + 1)


@inner
def place_in_table(config: Config, row: int, group: int, i: int) -> int:
    """Where a row keeps block ``i`` of a group: full groups first, then the window groups' rings."""
    width, ring = config.table_width, config.window_ring
    first = row * (config.full_groups * width + config.window_groups * ring)
    if group < config.full_groups:
        return first + group * width + i
    return first + config.full_groups * width + (group - config.full_groups) * ring + i % ring


@inner
def block_size_of(config: Config, group: int) -> int:
    """Tokens in a block of a group."""
    return config.full_block_size if group < config.full_groups else config.window_block_size


@inner
def key_of(config: Config, requests: Requests, r: int, group: int, i: int) -> int:
    """The name of block ``i`` of request ``r`` in a group: that of its last token, apart for each group."""
    last = (i + 1) * block_size_of(config, group) - 1
    return name_of(requests, config, r, last) * (config.full_groups + config.window_groups) + group


@inner
def group_of(config: Config, key: int) -> int:
    """The group whose block is named ``key``."""
    return key % (config.full_groups + config.window_groups)
