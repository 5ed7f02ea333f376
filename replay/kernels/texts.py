"""Names of KV blocks, so that equal names mean equal text up to a block's end.

A trace may name the blocks of a prompt itself. Else prompts may extend earlier ones, as the turns of a session do.

Request ``k`` may begin with the first ``shared_tokens[k]`` tokens of the text (prompt and output) of an earlier one.
The owner of a token is the request that wrote it first; a KV block is named after the owner of its last token and its
place, so requests with equal text up to there give it the same name. Lists of block ids would grow with the square of a
session's turns; here a request costs three integers.

``up`` leads to the nearest ancestor that shares less, so ``shared_tokens`` falls along it, and ``jump`` skips ahead
along ``up`` as in Myers' skew-binary random-access lists (1983): an owner is found in logarithmic time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.kernels.jit import inner, kernel
from replay.kernels.state import NEVER, Config, Int64, Requests, Texts


@kernel
def owner_of(texts: Texts, text: int, position: int) -> int:
    """The text whose request first wrote the token at ``position`` of ``text``."""
    while position < texts.shared_tokens[text]:
        ahead = texts.jump[text]
        text = ahead if position < texts.shared_tokens[ahead] else texts.up[text]
    return text


@inner
def name_of(requests: Requests, config: Config, r: int, last: int) -> int:
    """The chained id of the block of request ``r`` that ends with token ``last``: from the trace where it gives one,
    else named after the request that first wrote that token, which is ``r`` itself unless its prompt extends an earlier
    text.

    A trace's ids stand for blocks of its own size. They are chained, so the id that holds the block's last token, with
    that token's place in it, tells the whole prefix.
    """
    nth = last // config.prefix_block_tokens
    start = requests.prefix_start[r]
    if start + nth < requests.prefix_start[r + 1] and last < requests.prompt_tokens[r]:
        return requests.prefix_ids[start + nth] * config.prefix_block_tokens + last % config.prefix_block_tokens
    owner = r
    if len(requests.texts.of_request) > 0:
        owner = owner_of(requests.texts, requests.texts.of_request[r], last)
    return -2 - (owner * (config.table_width * config.block_size) + last)


@inner
def block_id(requests: Requests, config: Config, r: int, i: int) -> int:
    """The name of block ``i`` of request ``r``."""
    return name_of(requests, config, r, (i + 1) * config.block_size - 1)


@kernel
def _link(follows: Int64, shared_tokens: Int64, up: Int64, jump: Int64, depth: Int64) -> None:
    for k in range(len(follows)):
        above = follows[k]
        if above == NEVER:
            up[k] = jump[k] = k
            continue
        while shared_tokens[above] >= shared_tokens[k]:
            above = up[above]
        up[k] = above
        depth[k] = depth[above] + 1
        far = jump[above]
        jump[k] = jump[far] if depth[above] - depth[far] == depth[far] - depth[jump[far]] else above


def link_texts(follows: Int64, shared_tokens: Int64, requests: npt.NDArray[np.int64]) -> Texts:
    """Texts of a workload: request ``k`` begins with ``shared_tokens[k]`` tokens of request ``follows[k]`` < k
    (-1: of none). ``requests``: those that are replayed, in order."""
    n = len(follows)
    shared = np.where(follows == NEVER, 0, shared_tokens).astype(np.int64)
    up, jump, depth = (np.zeros(n, np.int64) for _ in range(3))
    _link(np.ascontiguousarray(follows, np.int64), shared, up, jump, depth)
    return Texts(np.ascontiguousarray(requests, np.int64), shared, up, jump)


def repeat_texts(texts: Texts, rounds: int) -> Texts:
    """The same requests ``rounds`` times over, each round with texts of its own."""
    if len(texts.of_request) == 0:
        return texts
    n = len(texts.up)

    def shifted(one_round: Int64) -> Int64:
        shift = np.repeat(np.arange(rounds, dtype=np.int64) * n, len(one_round))
        return np.tile(one_round, rounds) + shift

    return Texts(
        shifted(texts.of_request), np.tile(texts.shared_tokens, rounds), shifted(texts.up), shifted(texts.jump)
    )
