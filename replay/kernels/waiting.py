"""The waiting queue of a replica, threaded through per-request links: first come first served, or by priority.

FCFS is a linked list: new requests at the tail, preempted ones at the front. Under the priority policy it is a skew
heap on (priority, arrival order). A request that finishes while it waits (its last token was in flight when it was
preempted) stays linked and is passed over when it comes up.
"""

from __future__ import annotations

from replay.kernels.jit import kernel
from replay.kernels.state import HEAD, NEVER, TAIL, WAITING, Config, Int64, Outcome, Requests


@kernel
def ranks_before(priority: Int64, a: int, b: int) -> bool:
    """Whether request ``a`` is served before ``b``: lower priority value, then earlier arrival."""
    return priority[a] < priority[b] or (priority[a] == priority[b] and a < b)


@kernel
def merge(priority: Int64, outcome: Outcome, a: int, b: int) -> int:
    """Merges two skew heaps and returns the root."""
    if a == NEVER:
        return b
    if b == NEVER:
        return a
    if ranks_before(priority, b, a):
        a, b = b, a
    root = a
    while True:
        child = outcome.right[a]
        outcome.right[a] = outcome.link[a]
        if child == NEVER:
            outcome.link[a] = b
            return root
        if ranks_before(priority, b, child):
            child, b = b, child
        outcome.link[a] = child
        a = child


@kernel
def insert(config: Config, requests: Requests, outcome: Outcome, reg: Int64, r: int, at_front: bool) -> None:
    """Adds request ``r``: at the tail, or in front (preempted); by rank under the priority policy."""
    reg[WAITING] += 1
    outcome.link[r] = NEVER
    if config.priority_policy:
        outcome.right[r] = NEVER
        reg[HEAD] = merge(requests.priority, outcome, reg[HEAD], r)
    elif reg[HEAD] == NEVER:
        reg[HEAD] = r
        reg[TAIL] = r
    elif at_front:
        outcome.link[r] = reg[HEAD]
        reg[HEAD] = r
    else:
        outcome.link[reg[TAIL]] = r
        reg[TAIL] = r


@kernel
def unlink_head(config: Config, requests: Requests, outcome: Outcome, reg: Int64) -> None:
    """Takes the first request off the queue; the count is the caller's business."""
    head = reg[HEAD]
    if config.priority_policy:
        reg[HEAD] = merge(requests.priority, outcome, outcome.link[head], outcome.right[head])
    else:
        reg[HEAD] = outcome.link[head]


@kernel
def peek(config: Config, requests: Requests, outcome: Outcome, reg: Int64) -> int:
    """The first request that still wants service, or NEVER."""
    while reg[HEAD] != NEVER:
        r = reg[HEAD]
        generated = outcome.generated[r]
        if generated < requests.output_tokens[r] and requests.prompt_tokens[r] + generated < config.max_model_len:
            return r
        unlink_head(config, requests, outcome, reg)
    return NEVER


@kernel
def put_back(config: Config, requests: Requests, outcome: Outcome, reg: Int64, first: int, last: int) -> None:
    """Returns a chain of passed-over requests to where they stood: the front, in order (by rank under priority)."""
    if config.priority_policy:
        while first != NEVER:
            after = outcome.link[first]
            reg[WAITING] -= 1  # it never left the count
            insert(config, requests, outcome, reg, first, False)
            first = after
    else:
        if reg[HEAD] == NEVER:
            reg[TAIL] = last
        outcome.link[last] = reg[HEAD]
        reg[HEAD] = first
