"""Routers that read the replicas' state: which replica an arriving request goes to.

A router sees the state at the arrival, after the batches that end then and before those that start then; or, with
``router_snapshot_ps``, the state that an arrival at the last multiple of it would have seen. Adding a router means
adding its function and one line of ``route`` (or of ``load`` where it takes the replica with the least of something).
Routers that read no state deal the requests out beforehand, in ``replay.routing``; where replicas meet all the same
(one is lost, or requests follow others), ``route`` looks up what was dealt. No router sends to a replica that is down.
"""

from __future__ import annotations

from replay.kernels.jit import inlined, inner
from replay.kernels.state import (
    DEALT,
    DOWN,
    FREE_BLOCKS,
    LEAST_KV_USAGE,
    LEAST_OUTSTANDING_TOKENS,
    NEVER,
    NEXT_SNAPSHOT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    POWER_OF_TWO,
    PREFIX_AWARE,
    ROUND_ROBIN,
    ROUTER_NEXT,
    RUNNING,
    VLLM_DP,
    VLLM_DP_OLD,
    WORD,
    Config,
    Int64,
    Requests,
    Routing,
)

MATCH_PERCENT = 30
"""Prefix aware: share of the prompt that must be known to a replica for it to be preferred."""
LOAD_DIFFERENCE = 64
LOAD_RATIO_PERCENT = 150
"""Prefix aware: it goes by load alone where the most loaded replica has more than both of these over the least
loaded."""


@inlined
def vllm_dp_score(config: Config, regs: Int64, seen: Int64, replica: int) -> int:
    """vLLM 0.33 with one API server: max(own in flight, waiting + running) + 6 waiting max(0, KV usage - 1/2).

    Times twice the blocks, so that it is an integer.
    """
    outstanding, used = seen[replica, OUTSTANDING], config.num_blocks - seen[replica, FREE_BLOCKS]
    waiting = outstanding - seen[replica, RUNNING]
    crowded = max(0, 2 * used - config.num_blocks)
    return max(regs[replica, OUTSTANDING], outstanding) * 2 * config.num_blocks + 6 * waiting * crowded


@inlined
def vllm_dp_score_old(seen: Int64, replica: int) -> int:
    """vLLM up to 0.11: 4 waiting + running."""
    return 4 * seen[replica, OUTSTANDING] - 3 * seen[replica, RUNNING]


@inlined
def load(config: Config, regs: Int64, seen: Int64, replica: int) -> int:
    """What the router weighs the replicas by; less is better."""
    if config.router == LEAST_OUTSTANDING_TOKENS:
        return seen[replica, OUTSTANDING_TOKENS]
    if config.router == LEAST_KV_USAGE:
        return -seen[replica, FREE_BLOCKS]
    if config.router == VLLM_DP:
        return vllm_dp_score(config, regs, seen, replica)
    if config.router == VLLM_DP_OLD:
        return vllm_dp_score_old(seen, replica)
    return seen[replica, OUTSTANDING]


@inlined
def least_loaded(config: Config, regs: Int64, seen: Int64, start: int) -> int:
    """The replica with the least load of those that are up; among equals the first from ``start``, which is, around."""
    best = start
    least = load(config, regs, seen, start)
    for i in range(1, config.replicas):
        replica = start + i
        if replica >= config.replicas:
            replica -= config.replicas
        if config.replicas_may_be_down and regs[replica, DOWN]:
            continue
        other = load(config, regs, seen, replica)
        if other < least:
            best, least = replica, other
    return best


@inlined
def first_up(config: Config, regs: Int64, start: int) -> int:
    """The first replica from ``start`` on, around, that is up; NEVER where none is."""
    if not config.replicas_may_be_down:
        return start
    for i in range(config.replicas):
        replica = (start + i) % config.replicas
        if not regs[replica, DOWN]:
            return replica
    return NEVER


@inlined
def better_of_two(config: Config, regs: Int64, routing: Routing, start: int, r: int) -> int:
    """Of the two replicas drawn for the request, the one with fewer outstanding requests; the first if equal. Where one
    is down the other; where both are, the best of all."""
    seen = routing.seen
    one, other = routing.pair[r, 0], routing.pair[r, 1]
    if config.replicas_may_be_down and (regs[one, DOWN] or regs[other, DOWN]):
        if regs[one, DOWN] and regs[other, DOWN]:
            return least_loaded(config, regs, seen, start)
        return other if regs[one, DOWN] else one
    return other if seen[other, OUTSTANDING] < seen[one, OUTSTANDING] else one


@inlined
def mark_all_up(config: Config, regs: Int64, matched: Int64) -> None:
    """Sets the bits of the replicas that are up."""
    for word in range(len(matched)):
        matched[word] = (1 << min(WORD, config.replicas - word * WORD)) - 1
    if config.replicas_may_be_down:
        for replica in range(config.replicas):
            if regs[replica, DOWN]:
                matched[replica // WORD] &= ~(1 << (replica % WORD))


@inner
def longest_prefix(config: Config, requests: Requests, regs: Int64, routing: Routing, start: int, r: int) -> int:
    """Of the replicas that were sent the longest part of the prompt before, the one with the fewest outstanding
    requests;
    the one with the fewest of all where that part is short or the load is uneven. Ties as in ``least_loaded``.

    What a replica was sent counts as known until it is lost: this router never learns of evictions.
    """
    seen, matched, holders = routing.seen, routing.matched, routing.holders
    lowest = highest = seen[start, OUTSTANDING]
    for replica in range(config.replicas):
        if config.replicas_may_be_down and regs[replica, DOWN]:
            continue
        lowest = min(lowest, seen[replica, OUTSTANDING])
        highest = max(highest, seen[replica, OUTSTANDING])
    mark_all_up(config, regs, matched)
    uneven = highest - lowest > LOAD_DIFFERENCE and 100 * highest > LOAD_RATIO_PERCENT * lowest
    first, end = requests.prefix_start[r], requests.prefix_start[r + 1]
    if not uneven:
        known = 0
        for i in range(first, end):
            left = 0
            for word in range(len(matched)):
                left |= matched[word] & holders[requests.prefix_ids[i], word]
            if left == 0:
                break
            for word in range(len(matched)):
                matched[word] &= holders[requests.prefix_ids[i], word]
            known += 1
        tokens = min(known * config.prefix_block_tokens, requests.prompt_tokens[r])
        if 100 * tokens < MATCH_PERCENT * requests.prompt_tokens[r]:
            mark_all_up(config, regs, matched)
    best = -1
    for i in range(config.replicas):
        replica = (start + i) % config.replicas
        if matched[replica // WORD] >> (replica % WORD) & 1 and (
            best < 0 or seen[replica, OUTSTANDING] < seen[best, OUTSTANDING]
        ):
            best = replica
    for i in range(first, end):
        holders[requests.prefix_ids[i], best // WORD] |= 1 << (best % WORD)
    return best


@inlined
def route(config: Config, requests: Requests, regs: Int64, cluster: Int64, routing: Routing, r: int) -> int:
    """The replica for request ``r``, which arrives now; NEVER where all are down. Equal replicas take turns, from the
    last choice on."""
    start = first_up(config, regs, cluster[ROUTER_NEXT])
    if start == NEVER:
        return NEVER
    if config.router == ROUND_ROBIN:
        replica = start
    elif config.router == DEALT:
        replica = first_up(config, regs, routing.pair[r, 0])
    elif config.router == POWER_OF_TWO:
        replica = better_of_two(config, regs, routing, start, r)
    elif config.router == PREFIX_AWARE:
        replica = longest_prefix(config, requests, regs, routing, start, r)
    else:
        replica = least_loaded(config, regs, routing.seen, start)
    cluster[ROUTER_NEXT] = replica + 1 if replica + 1 < config.replicas else 0
    if config.router_snapshot_ps and (config.router == VLLM_DP or config.router == VLLM_DP_OLD):
        routing.seen[replica, OUTSTANDING] += 1  # vLLM's front end adds what it sends to the snapshot it has
    return replica


@inlined
def take_snapshot(config: Config, regs: Int64, cluster: Int64, routing: Routing, now: int) -> None:
    """Shows the router the registers, which are those of the last snapshot time up to ``now``; sets the next time."""
    for replica in range(config.replicas):
        for column in (OUTSTANDING, OUTSTANDING_TOKENS, RUNNING, FREE_BLOCKS):
            routing.seen[replica, column] = regs[replica, column]
    cluster[NEXT_SNAPSHOT] = (now // config.router_snapshot_ps + 1) * config.router_snapshot_ps


@inlined
def keep_snapshot(config: Config, regs: Int64, cluster: Int64, routing: Routing, until: int) -> None:
    """Takes the snapshot that is due by ``until``, if one is: called before events change the registers and after."""
    if config.router_snapshot_ps and cluster[NEXT_SNAPSHOT] <= until:
        take_snapshot(config, regs, cluster, routing, until)
