"""Clients that leave: a request not finished ``patience_ps`` after its arrival is taken out.

Each client has a patience of its own, so deadlines wait in a heap. At the deadline the request leaves the queue; where
it runs, no further token of it is delivered, and it leaves, with its blocks, at the replica's next batch boundary. A
request that finishes at its deadline has finished.
"""

from __future__ import annotations

from replay.kernels.arrivals import ended, pop_leaving, unhold
from replay.kernels.groups import release
from replay.kernels.jit import inlined, inner
from replay.kernels.schedule import save_progress
from replay.kernels.state import (
    CHANGED,
    FAR,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_SLOTS,
    GAVE_UP,
    GONE,
    HELD,
    LEAVING,
    NEVER,
    NEXT_EVENT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREFILLING_TOKENS,
    REFUSED,
    REFUSED_TOKENS,
    RUNNING,
    WAITING,
    Config,
    Int64,
    Outcome,
    Requests,
    State,
)
from replay.kernels.waiting import withdraw


@inlined
def is_over(config: Config, requests: Requests, outcome: Outcome, r: int) -> bool:
    """Whether request ``r``, which has arrived, has finished, was refused, or was given up."""
    replica, generated = outcome.replica[r], outcome.generated[r]
    if replica in (REFUSED, REFUSED_TOKENS, GAVE_UP):
        return True
    return generated >= requests.output_tokens[r] or requests.prompt_tokens[r] + generated >= config.max_model_len


@inner
def next_deadline(config: Config, requests: Requests, state: State) -> int:
    """When the next client leaves unless its request ends before; FAR where none will."""
    cluster, arrivals = state.meters.cluster, state.arrivals
    while cluster[LEAVING] > 0:
        r = arrivals.leaving[0]
        if not is_over(config, requests, state.outcome, r):
            return arrivals.leave_ps[r]
        pop_leaving(arrivals, cluster)
    return FAR


@inner
def drop_from_flight(config: Config, state: State, reg: Int64, replica: int, r: int) -> int:
    """Drops the tokens in flight of request ``r``; returns the slot that would have given them, or NEVER."""
    slots, flight = state.slots, state.flight
    found = NEVER
    for i in range(reg[FLIGHT]):
        batch = replica * config.batches_in_flight + (reg[FLIGHT_FIRST] + i) % config.batches_in_flight
        start = batch * config.max_num_seqs
        kept = 0
        for j in range(flight.emitting[batch]):
            slot = flight.slot[start + j]
            if slots.request[slot] == r:
                found = slot
            else:
                flight.slot[start + kept] = slot
                kept += 1
        flight.emitting[batch] = kept
    return found


@inlined
def free_slot(config: Config, state: State, reg: Int64, replica: int, slot: int) -> None:
    """Gives back a slot that holds no blocks."""
    save_progress(state, slot)
    state.slots.free[replica * config.max_num_seqs + reg[FREE_SLOTS]] = slot
    reg[FREE_SLOTS] += 1


@inner
def is_running(config: Config, state: State, reg: Int64, replica: int, r: int) -> bool:
    """Whether request ``r`` is in the replica's running list."""
    first = replica * config.max_num_seqs
    found = False
    for i in range(reg[RUNNING]):
        found |= state.slots.request[state.slots.order[first + i]] == r
    return found


@inlined
def count_out(config: Config, requests: Requests, outcome: Outcome, reg: Int64, r: int) -> None:
    """Takes a request that was given up out of the counts that routers and limits read."""
    reg[OUTSTANDING] -= 1
    reg[OUTSTANDING_TOKENS] -= requests.prompt_tokens[r] + requests.output_tokens[r]
    if config.max_num_queued_tokens >= 0 and outcome.first_ps[r] == NEVER:
        reg[PREFILLING_TOKENS] -= requests.prompt_tokens[r]


@inner
def give_up(config: Config, requests: Requests, state: State, r: int, now: int) -> None:
    """Takes out request ``r``, whose client's patience ends now."""
    outcome = state.outcome
    replica = outcome.replica[r]
    outcome.replica[r] = GAVE_UP
    ended(requests, state, r, now)
    if replica == HELD:
        unhold(outcome, state.meters.cluster, r)
        return
    reg = state.meters.regs[replica]
    slot = drop_from_flight(config, state, reg, replica, r)
    if is_running(config, state, reg, replica, r):
        reg[GONE] += 1
    else:
        if slot != NEVER:
            free_slot(config, state, reg, replica, slot)  # it was preempted with this token in flight
        withdraw(config, outcome, reg, r)
        reg[WAITING] -= 1
        count_out(config, requests, outcome, reg, r)
    if reg[NEXT_EVENT] == FAR:
        reg[NEXT_EVENT] = now  # what it blocked may move


@inner
def clear_gone(config: Config, requests: Requests, state: State, reg: Int64, replica: int) -> None:
    """At a batch boundary: frees what the running requests held whose clients have gone."""
    slots = state.slots
    first = replica * config.max_num_seqs
    kept = 0
    for i in range(reg[RUNNING]):
        slot = slots.order[first + i]
        if state.outcome.replica[slots.request[slot]] == GAVE_UP:
            count_out(config, requests, state.outcome, reg, slots.request[slot])
            release(config, state.blocks, slots, reg, replica, slot)
            slots.running[slot] = 0
            free_slot(config, state, reg, replica, slot)
        else:
            slots.order[first + kept] = slot
            kept += 1
    reg[RUNNING] = kept
    reg[GONE] = 0
    reg[CHANGED] = 1


@inner
def give_up_overdue(config: Config, requests: Requests, state: State, now: int) -> None:
    """Takes out every request whose deadline is ``now``, after the batches that end then."""
    while next_deadline(config, requests, state) <= now:
        give_up(config, requests, state, state.arrivals.leaving[0], now)
    for replica in range(config.replicas):
        reg = state.meters.regs[replica]
        if reg[GONE] > 0 and reg[NEXT_EVENT] == now:
            clear_gone(config, requests, state, reg, replica)
