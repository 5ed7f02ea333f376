"""How requests come to replicas: by their own clock or after another one has ended, through the router.

An open request has an arrival time. A follower (closed loop) arrives ``delay_ps`` after the request before it has
ended: finished, been refused, or been given up by its client. Followers whose time is known wait in a heap. Whatever
arrives at one instant is taken in the order of its time, then of its index. Every loop but the fast ones, which know
open requests only, takes its arrivals here.
"""

from __future__ import annotations

import numpy as np

from replay.kernels.heap import pop, push
from replay.kernels.jit import inlined, inner
from replay.kernels.routers import first_up, route
from replay.kernels.state import (
    FAR,
    FLIGHT,
    HELD,
    HELD_HEAD,
    HELD_TAIL,
    LEAVING,
    NEVER,
    NEXT_ARRIVAL,
    NEXT_EVENT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREFILLING_TOKENS,
    READY,
    REFUSED,
    REFUSED_TOKENS,
    Arrivals,
    Config,
    Int64,
    Outcome,
    Requests,
    State,
)
from replay.kernels.waiting import insert


def prepare_arrivals(config: Config, requests: Requests) -> Arrivals:
    """What is known of the arrivals before the run.

    Raises:
        ValueError: a request that follows itself or a later one; the caller orders them.
    """
    n = len(requests.arrival_ps)
    nothing = np.zeros(0, np.int64)
    leave_ps, leaving = (np.zeros(n, np.int64) if config.clients_leave else nothing for _ in range(2))
    after = requests.after
    if len(after) == 0:
        return Arrivals(nothing, nothing, nothing, nothing, leave_ps, leaving)
    if (after >= np.arange(n)).any():
        raise ValueError("a request must come after the one that it follows")
    first, following = np.full(n, NEVER, np.int64), np.full(n, NEVER, np.int64)
    for r in range(n - 1, -1, -1):
        if after[r] >= 0:
            following[r] = first[after[r]]
            first[after[r]] = r
    return Arrivals(np.full(n, NEVER, np.int64), np.zeros(n, np.int64), first, following, leave_ps, leaving)


@inlined
def arrival_of(requests: Requests, arrivals: Arrivals, r: int) -> int:
    """When request ``r``, which has arrived, did so."""
    return arrivals.sent_ps[r] if len(requests.after) > 0 else requests.arrival_ps[r]


@inner
def push_ready(arrivals: Arrivals, cluster: Int64, r: int) -> None:
    """Adds a follower whose time is known."""
    push(arrivals.heap, cluster[READY], arrivals.sent_ps, r)
    cluster[READY] += 1


@inner
def pop_ready(arrivals: Arrivals, cluster: Int64) -> int:
    """Takes the follower that comes next."""
    top = pop(arrivals.heap, cluster[READY], arrivals.sent_ps)
    cluster[READY] -= 1
    return top


@inner
def push_leaving(requests: Requests, arrivals: Arrivals, cluster: Int64, r: int) -> None:
    """Notes when the client of request ``r``, which arrives now, will leave; nothing where it stays, or would leave
    only when int64 picoseconds have ended."""
    patience_ps, arrived_ps = requests.patience_ps[r], arrival_of(requests, arrivals, r)
    if patience_ps < FAR - arrived_ps:
        arrivals.leave_ps[r] = arrived_ps + patience_ps
        push(arrivals.leaving, cluster[LEAVING], arrivals.leave_ps, r)
        cluster[LEAVING] += 1


@inner
def pop_leaving(arrivals: Arrivals, cluster: Int64) -> None:
    """Forgets the client that would leave first."""
    pop(arrivals.leaving, cluster[LEAVING], arrivals.leave_ps)
    cluster[LEAVING] -= 1


@inner
def start_followers(requests: Requests, arrivals: Arrivals, cluster: Int64, r: int, when: int) -> None:
    """Fixes the arrival of all that follow request ``r``, which ended at ``when``."""
    follower = arrivals.first[r]
    while follower != NEVER:
        arrivals.sent_ps[follower] = when + requests.delay_ps[follower]
        push_ready(arrivals, cluster, follower)
        follower = arrivals.next[follower]


@inlined
def ended(requests: Requests, state: State, r: int, when: int) -> None:
    """To be called when request ``r`` has finished, was refused, or was given up."""
    if len(requests.after) > 0:
        start_followers(requests, state.arrivals, state.meters.cluster, r, when)


@inlined
def next_arrival(requests: Requests, state: State) -> int:
    """The next instant at which a request arrives; FAR where none is known."""
    cluster, arrivals = state.meters.cluster, state.arrivals
    r = cluster[NEXT_ARRIVAL]
    now = requests.arrival_ps[r] if r < len(requests.arrival_ps) else FAR
    if cluster[READY] > 0:
        now = min(now, arrivals.sent_ps[arrivals.heap[0]])
    return now


@inlined
def next_taken(config: Config, requests: Requests, state: State, now: int) -> int:
    """Takes the first request that waits at the gateway, where a replica is up, or that has arrived by ``now``; NEVER
    where none is left."""
    cluster, arrivals = state.meters.cluster, state.arrivals
    r = cluster[HELD_HEAD]
    if r != NEVER and first_up(config, state.meters.regs, 0) != NEVER:
        cluster[HELD_HEAD] = state.outcome.link[r]
        return r
    n = len(requests.arrival_ps)
    r = cluster[NEXT_ARRIVAL]
    is_open = r < n and requests.arrival_ps[r] <= now
    taken = NEVER
    if cluster[READY] > 0:
        follower = arrivals.heap[0]
        when = arrivals.sent_ps[follower]
        if when <= now and (not is_open or (when, follower) < (requests.arrival_ps[r], r)):
            taken = pop_ready(arrivals, cluster)
    if taken == NEVER:
        if not is_open:
            return NEVER
        taken = r
        following = r + 1
        if len(requests.after) > 0:
            arrivals.sent_ps[r] = requests.arrival_ps[r]
            while following < n and requests.after[following] != NEVER:
                following += 1
        cluster[NEXT_ARRIVAL] = following
    if config.clients_leave:
        push_leaving(requests, arrivals, cluster, taken)
    return taken


@inner
def hold(outcome: Outcome, cluster: Int64, r: int) -> None:
    """Keeps a request at the gateway: its replica was lost, or every one is down."""
    outcome.replica[r] = HELD
    outcome.link[r] = NEVER
    if cluster[HELD_HEAD] == NEVER:
        cluster[HELD_HEAD] = r
    else:
        outcome.link[cluster[HELD_TAIL]] = r
    cluster[HELD_TAIL] = r


@inner
def unhold(outcome: Outcome, cluster: Int64, r: int) -> None:
    """Takes a request off the gateway's queue."""
    before, at = NEVER, cluster[HELD_HEAD]
    while at != r:
        before, at = at, outcome.link[at]
    if before == NEVER:
        cluster[HELD_HEAD] = outcome.link[r]
    else:
        outcome.link[before] = outcome.link[r]
    if cluster[HELD_TAIL] == r:
        cluster[HELD_TAIL] = before


@inlined
def refusal(config: Config, reg: Int64) -> int:
    """Why a replica turns an arriving request away, as ``Outcome.replica`` has it; 0 where it does not."""
    if 0 <= config.max_num_queued_reqs <= reg[OUTSTANDING]:
        return REFUSED
    if 0 <= config.max_num_queued_tokens <= reg[PREFILLING_TOKENS]:
        return REFUSED_TOKENS
    return 0


@inlined
def send(config: Config, requests: Requests, state: State, r: int, now: int) -> None:
    """Routes request ``r`` and queues it, or has it refused or held; marks an idle replica that gets it as due now."""
    cluster, outcome, regs = state.meters.cluster, state.outcome, state.meters.regs
    replica = route(config, requests, regs, cluster, state.routing, r)
    if replica == NEVER:
        hold(outcome, cluster, r)
        return
    reg = regs[replica]
    refused = refusal(config, reg)
    if refused != 0:
        outcome.replica[r] = refused
        ended(requests, state, r, now)
        return
    outcome.replica[r] = replica
    insert(config, requests, outcome, reg, r, False)
    reg[OUTSTANDING] += 1
    reg[OUTSTANDING_TOKENS] += requests.prompt_tokens[r] + requests.output_tokens[r]
    if config.max_num_queued_tokens >= 0:
        reg[PREFILLING_TOKENS] += requests.prompt_tokens[r]
    if reg[NEXT_EVENT] == FAR:
        reg[NEXT_EVENT] = now
        reg[FLIGHT] = 0


@inlined
def take_arrived(config: Config, requests: Requests, state: State, now: int) -> None:
    """Sends every request that has arrived by ``now`` to its replica; before them, those that wait at the gateway."""
    while True:
        r = next_taken(config, requests, state, now)
        if r == NEVER:
            return
        send(config, requests, state, r, now)
