"""The general loop: any number of replicas, any policy, O(running) a step. It is the oracle for every faster loop.

Events in time order: a batch ends on some replica (its tokens come out, finished requests leave), requests arrive and
are routed, or what ``clock`` lists. At equal times batches end first, then requests arrive, then the next batches are
scheduled, so that an arrival at a boundary joins it.
"""

from __future__ import annotations

from replay.kernels.arrivals import ended
from replay.kernels.clock import next_instant, pass_instant
from replay.kernels.emission import count_gaps, emit, emit_plain
from replay.kernels.groups import publish, release
from replay.kernels.jit import inlined, inner, kernel
from replay.kernels.memory import prepare_free_list
from replay.kernels.pipeline import rest
from replay.kernels.routers import keep_snapshot
from replay.kernels.schedule import save_progress, schedule
from replay.kernels.scoring import is_scored
from replay.kernels.speculative import verify
from replay.kernels.state import (
    FAR,
    FINISHED,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_SLOTS,
    NEVER,
    NEXT_EVENT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREFILLING_TOKENS,
    PREVIOUS_END,
    RUNNING,
    WAITING,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
)


@inlined
def start_next(
    config: Config, requests: Requests, times: StepTimes, state: State, reg: Int64, replica: int, mask: int, now: int
) -> None:
    """Schedules until the replica's pipeline is full and sets when its oldest batch ends; FAR where it is idle."""
    flight = state.flight
    while True:
        if reg[RUNNING] == 0 and reg[WAITING] == 0:
            rest(config, flight, reg, replica)
            return
        preempted = False
        while reg[FLIGHT] < config.batches_in_flight:
            preempted |= schedule(config, requests, times, state, reg, replica, mask, now)
        in_flight = False
        for i in range(reg[FLIGHT]):
            ring = (reg[FLIGHT_FIRST] + i) % config.batches_in_flight
            in_flight |= flight.size[replica * config.batches_in_flight + ring] > 0
        batch = replica * config.batches_in_flight + reg[FLIGHT_FIRST]
        if flight.size[batch] > 0:
            reg[NEXT_EVENT] = max(reg[PREVIOUS_END], flight.scheduled_ps[batch]) + flight.duration_ps[batch]
            return
        reg[FLIGHT_FIRST] = (reg[FLIGHT_FIRST] + 1) % config.batches_in_flight
        reg[FLIGHT] -= 1
        if not in_flight and not preempted:
            reg[FLIGHT] = 0
            reg[NEXT_EVENT] = FAR  # nothing can move before another arrival
            return


@inner
def leave(config: Config, requests: Requests, state: State, reg: Int64, replica: int, slot: int, done: bool) -> None:
    """A slot has delivered its last token, or the token that was in flight when it was preempted: frees the slot."""
    slots = state.slots
    save_progress(state, slot)
    slots.free[replica * config.max_num_seqs + reg[FREE_SLOTS]] = slot
    reg[FREE_SLOTS] += 1
    if not done:
        return
    state.meters.cluster[FINISHED] += 1
    reg[OUTSTANDING] -= 1
    r = slots.request[slot]
    reg[OUTSTANDING_TOKENS] -= requests.prompt_tokens[r] + requests.output_tokens[r]
    if slots.running[slot]:
        release(config, state.blocks, slots, reg, replica, slot)
        slots.running[slot] = 0
    else:
        reg[WAITING] -= 1  # it finished while queued again; the queue passes over it
    ended(requests, state, r, slots.last_ps[slot])


@inner
def drop_finished(config: Config, state: State, reg: Int64, replica: int) -> None:
    """Closes the gaps that finished requests leave in the running list."""
    slots = state.slots
    first = replica * config.max_num_seqs
    kept = 0
    for i in range(reg[RUNNING]):
        slot = slots.order[first + i]
        if slots.running[slot]:
            slots.order[first + kept] = slot
            kept += 1
    reg[RUNNING] = kept


@inlined
def finish_batch(config: Config, requests: Requests, state: State, reg: Int64, replica: int, mask: int) -> None:
    """Processes the output of the replica's oldest batch at its end: one token for each request that is due one."""
    slots, flight = state.slots, state.flight
    end = reg[NEXT_EVENT]
    batch = replica * config.batches_in_flight + reg[FLIGHT_FIRST]
    i = batch * config.max_num_seqs
    stop = i + flight.emitting[batch]
    gap_ps, gap_tokens, at_once = -1, 0, 0
    left_running = False
    while i < stop:
        if gap_tokens > 0 and not config.speculative_tokens:
            more, gap_tokens = emit_plain(config, state, reg, flight.slot[i:stop], end, gap_ps, gap_tokens)
            i += more
            if i == stop:
                break
        slot = flight.slot[i]
        more = 0
        if config.speculative_tokens:
            more = verify(config, state, slot)
            at_once += more * is_scored(reg, slots.request[slot])
        if config.max_num_queued_tokens >= 0 and slots.last_ps[slot] == NEVER:
            reg[PREFILLING_TOKENS] -= requests.prompt_tokens[slots.request[slot]]
        gap_ps, gap_tokens = emit(state, reg, slot, end, gap_ps, gap_tokens)
        left = slots.left[slot] - more
        slots.left[slot] = left
        running = slots.running[slot] == 1
        if running and config.prefix_caching:
            known = slots.computed[slot] - (left - slots.unscheduled[slot])
            if config.runs_past_end:  # the last token itself is computed in a batch whose token is dropped
                r = slots.request[slot]
                given = state.outcome.generated[r] + slots.granted[slot] - left
                known = min(known, requests.prompt_tokens[r] + given - 1)
            if known >= (slots.cached[slot] + 1) * config.block_size:
                publish(config, requests, state.blocks, slots, replica, slot, known, mask)
        if left == 0 or not running:
            left_running |= running
            leave(config, requests, state, reg, replica, slot, left == 0)
        i += 1
    count_gaps(state.meters, gap_ps, gap_tokens)
    count_gaps(state.meters, 0, at_once)
    if left_running:
        drop_finished(config, state, reg, replica)
    reg[PREVIOUS_END] = end
    reg[FLIGHT_FIRST] = (reg[FLIGHT_FIRST] + 1) % config.batches_in_flight
    reg[FLIGHT] -= 1


@inlined
def go_to_next_instant(config: Config, requests: Requests, state: State, mask: int) -> int:
    """Ends the batches that end when something happens next, and passes that instant; FAR where nothing will."""
    regs = state.meters.regs
    now = next_instant(config, requests, state)
    if now == FAR:
        return now
    keep_snapshot(config, regs, state.meters.cluster, state.routing, now - 1)
    for replica in range(config.replicas):
        if regs[replica, NEXT_EVENT] == now:
            finish_batch(config, requests, state, regs[replica], replica, mask)
    pass_instant(config, requests, state, now)
    return now


@kernel
def advance(config: Config, requests: Requests, times: StepTimes, state: State, mask: int, max_events: int) -> bool:
    """Runs up to ``max_events`` batch ends or arrival instants; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing.
    """
    regs = state.meters.regs
    for replica in range(config.replicas):
        prepare_free_list(config, state.blocks, regs[replica], replica)
    for _ in range(max_events):
        now = go_to_next_instant(config, requests, state, mask)
        if now == FAR:
            return False
        for replica in range(config.replicas):
            if regs[replica, NEXT_EVENT] == now:
                start_next(config, requests, times, state, regs[replica], replica, mask, now)
    return True
