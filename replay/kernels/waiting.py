"""The waiting queue of a replica, threaded through per-request links: first come first served, or by rank.

FCFS is a linked list: new requests at the tail, preempted ones at the front. Every other order is a skew heap on
(rank, arrival order). A rank is fixed while a request waits: its priority, or the length predicted for it; shortest
remaining first takes off what it had given when it was queued again. A request that finishes while it waits (its last
token was in flight when it was preempted) stays linked and is passed over when it comes up, as in a heap is one that
its client gives up.
"""

from __future__ import annotations

from replay.kernels.jit import inner
from replay.kernels.state import (
    GAVE_UP,
    HEAD,
    NEVER,
    RANKS_A_TOKEN,
    SHORTEST_REMAINING,
    TAIL,
    WAITING,
    Config,
    Int64,
    Outcome,
    Requests,
)


@inner
def ranks_before(rank: Int64, a: int, b: int) -> bool:
    """Whether request ``a`` is served before ``b``: lower rank, then earlier arrival."""
    return rank[a] < rank[b] or (rank[a] == rank[b] and a < b)


@inner
def merge(outcome: Outcome, a: int, b: int) -> int:
    """Merges two skew heaps and returns the root."""
    if a == NEVER:
        return b
    if b == NEVER:
        return a
    rank = outcome.rank
    if ranks_before(rank, b, a):
        a, b = b, a
    root = a
    while True:
        child = outcome.right[a]
        outcome.right[a] = outcome.link[a]
        if child == NEVER:
            outcome.link[a] = b
            return root
        if ranks_before(rank, b, child):
            child, b = b, child
        outcome.link[a] = child
        a = child


@inner
def insert(config: Config, requests: Requests, outcome: Outcome, reg: Int64, r: int, at_front: bool) -> None:
    """Adds request ``r``: at the tail, or in front (preempted); by rank in the orders that have one."""
    reg[WAITING] += 1
    outcome.link[r] = NEVER
    if config.priority_policy:
        outcome.right[r] = NEVER
        outcome.rank[r] = requests.priority[r]
        if config.priority_policy == SHORTEST_REMAINING:
            outcome.rank[r] -= outcome.generated[r] * RANKS_A_TOKEN
        reg[HEAD] = merge(outcome, reg[HEAD], r)
    elif reg[HEAD] == NEVER:
        reg[HEAD] = r
        reg[TAIL] = r
    elif at_front:
        outcome.link[r] = reg[HEAD]
        reg[HEAD] = r
    else:
        outcome.link[reg[TAIL]] = r
        reg[TAIL] = r


@inner
def unlink_head(config: Config, outcome: Outcome, reg: Int64) -> None:
    """Takes the first request off the queue; the count is the caller's business."""
    head = reg[HEAD]
    if config.priority_policy:
        reg[HEAD] = merge(outcome, outcome.link[head], outcome.right[head])
    else:
        reg[HEAD] = outcome.link[head]


@inner
def peek(config: Config, requests: Requests, outcome: Outcome, reg: Int64) -> int:
    """The first request that still wants service, or NEVER."""
    while reg[HEAD] != NEVER:
        r = reg[HEAD]
        generated = outcome.generated[r]
        if config.priority_policy and outcome.replica[r] == GAVE_UP:
            unlink_head(config, outcome, reg)
            continue
        if generated < requests.output_tokens[r] and requests.prompt_tokens[r] + generated < config.max_model_len:
            return r
        unlink_head(config, outcome, reg)
    return NEVER


@inner
def withdraw(config: Config, outcome: Outcome, reg: Int64, r: int) -> None:
    """Takes out a request whose client gave up; the count is the caller's business.

    A heap keeps it until it comes up. In the list it is sought from the front, where the oldest wait.
    """
    if config.priority_policy:
        return
    before, at = NEVER, reg[HEAD]
    while at != r:
        before, at = at, outcome.link[at]
    if before == NEVER:
        reg[HEAD] = outcome.link[r]
    else:
        outcome.link[before] = outcome.link[r]
    if reg[TAIL] == r:
        reg[TAIL] = before


@inner
def put_back(config: Config, outcome: Outcome, reg: Int64, first: int, last: int) -> None:
    """Returns a chain of passed-over requests to the front, in the chain's order; or by the rank they had."""
    if config.priority_policy:
        while first != NEVER:
            after = outcome.link[first]
            outcome.link[first] = NEVER
            outcome.right[first] = NEVER
            reg[HEAD] = merge(outcome, reg[HEAD], first)
            first = after
    else:
        if reg[HEAD] == NEVER:
            reg[TAIL] = last
        outcome.link[last] = reg[HEAD]
        reg[HEAD] = first
