"""text-generation-inference: one batch, admission for a request's whole life, no preemption.

The specification is engine semantics 1.5. Between two calls of the model server the router tries to add requests: their
blocks are reserved for prompt and declared output at once, in order of arrival, and whoever does not fit stops it.
Version 3 cuts the last prompt to the prefill budget, and the call that prefills also advances all running requests;
version 2 prefills whole prompts alone, and only once enough requests wait or enough decodes have passed. A call that
prefilled for a batch already running is followed by a decode call without another attempt.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.by_reference import by_reference
from replay.kernels.engine import go_to_next_instant
from replay.kernels.jit import inlined, kernel
from replay.kernels.memory import blocks_for
from replay.kernels.pipeline import close_batch, hold, is_idle, note_admission, open_batch, replica_is_set
from replay.kernels.schedule import add_decodes, add_to_batch, place
from replay.kernels.state import (
    CHANGED,
    FAR,
    FREE_BLOCKS,
    FREE_SLOTS,
    HEAD,
    NEVER,
    NEXT_EVENT,
    RUNNING,
    WAITING,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.waiting import unlink_head


@by_reference
class TgiOptions(NamedTuple):
    """What TGI has beyond ``Config``."""

    chunks: int  # 1: version 3, 0: version 2
    max_batch_prefill_tokens: int
    max_waiting_tokens: int
    waiting_served_ratio: float


@by_reference
class TgiState(NamedTuple):
    """What the router remembers between calls, shape (replicas,) each."""

    must_decode: Int64  # 1: the last call prefilled for a running batch
    waiting_tokens: Int64  # calls since the last prefill, itself included
    rows: Int64  # requests in the last call


def new_tgi(config: Config) -> TgiState:
    """The memory of idle replicas."""
    zeros = np.zeros(config.replicas, np.int64)
    return TgiState(zeros, zeros.copy(), zeros.copy())


@inlined
def next_chunk(todo: int, budget: int) -> int:
    """Tokens that a request advances by in a call: one, or as much of its prompt as the budget holds."""
    if todo == 1:
        return 1
    return max(min(todo, budget), 1)


@inlined
def blocks_of_life(config: Config, requests: Requests, r: int) -> int:
    """Blocks that request ``r`` could need to the end of its declared output."""
    return blocks_for(requests.prompt_tokens[r] + requests.max_tokens[r] - 1, config.block_size)


@inlined
def newcomers(
    config: Config, options: TgiOptions, requests: Requests, state: State, reg: Int64, budget: int, least: int
) -> int:
    """How many requests at the head of the queue join; none where fewer than ``least`` would."""
    if budget <= 0 or reg[WAITING] < least:
        return 0
    budget = blocks_for(budget, config.block_size) * config.block_size
    room, slots_left = reg[FREE_BLOCKS], reg[FREE_SLOTS]
    r, count, tokens = reg[HEAD], 0, 0
    while r != NEVER and count < slots_left:
        room -= blocks_of_life(config, requests, r)
        if room < 0:
            break
        tokens += requests.prompt_tokens[r]
        if tokens > budget:
            if options.chunks and tokens - requests.prompt_tokens[r] < budget:
                count += 1
            break
        count += 1
        r = state.outcome.link[r]
    return count if count >= least else 0


@inlined
def schedule_tgi(
    config: Config,
    options: TgiOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: TgiState,
    reg: Int64,
    replica: int,
    now: int,
) -> None:
    """Builds the next call: a prefill where requests can be added, else a decode."""
    slots, outcome, sums = state.slots, state.outcome, state.meters.sums
    batch = open_batch(config, state, reg, replica)
    start = batch * config.max_num_seqs
    first = replica * config.max_num_seqs
    running = reg[RUNNING]
    # Prompts under way share what the last call's batch left of the budget, oldest first.
    chunk_budget = options.max_batch_prefill_tokens - max(own.rows[replica] - 1, 0)
    add = 0
    budget = options.max_batch_prefill_tokens
    if running == 0 or not own.must_decode[replica]:
        least = 0
        if options.chunks and reg[WAITING] > 0:
            left = chunk_budget
            for i in range(running):
                todo = slots.todo[slots.order[first + i]]
                tokens = next_chunk(todo, left)
                left -= tokens if todo > 1 else 0
                budget -= tokens
        elif running > 0 and own.waiting_tokens[replica] < options.max_waiting_tokens:
            least = int(np.floor(running * options.waiting_served_ratio))
        add = newcomers(config, options, requests, state, reg, budget, least)
    if options.chunks or add == 0:
        left = chunk_budget
        i = add_decodes(config, state, reg, sums, first, start, 0)
        while i < running:
            slot = slots.order[first + i]
            todo = slots.todo[slot]
            tokens = next_chunk(todo, left)
            left -= tokens if todo > 1 else 0
            add_to_batch(config, times, state, sums, start, slot, tokens)
            i = add_decodes(config, state, reg, sums, first, start, i + 1)
    budget = blocks_for(max(budget, 0), config.block_size) * config.block_size
    for _ in range(add):
        r = reg[HEAD]
        unlink_head(config, outcome, reg)
        reg[WAITING] -= 1
        slot = place(config, requests, state, reg, first, r, 0)
        hold(config, slots, reg, slot, requests.prompt_tokens[r] + requests.max_tokens[r] - 1)
        note_admission(outcome, r, now)
        tokens = min(requests.prompt_tokens[r], budget)
        budget -= tokens
        add_to_batch(config, times, state, sums, start, slot, tokens)
    own.rows[replica] = reg[RUNNING]
    own.must_decode[replica] = 1 if add > 0 and running > 0 else 0
    own.waiting_tokens[replica] = 1 if add > 0 else own.waiting_tokens[replica] + 1
    close_batch(config, times, state, reg, replica, batch, now)


@kernel
def advance_tgi(
    config: Config,
    options: TgiOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: TgiState,
    max_events: int,
) -> bool:
    """Runs up to ``max_events`` ends of calls or arrival instants; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing. ``max_num_seqs`` is at least the
    number of requests in the system; ``batches_in_flight`` is 1. The caller has put aside the requests that can never
    run.
    """
    regs = state.meters.regs
    for _ in range(max_events):
        now = go_to_next_instant(config, requests, state, 0)
        if now == FAR:
            return False
        for replica in range(config.replicas):
            reg = regs[replica]
            while reg[NEXT_EVENT] == now:
                if reg[CHANGED]:
                    reg[CHANGED] = 0
                    if reg[RUNNING] == 0:  # a lost replica comes back as new; so is one whose clients have all gone
                        own.must_decode[replica], own.waiting_tokens[replica], own.rows[replica] = 0, 0, 0
                if is_idle(config, state.flight, reg, replica):
                    break
                schedule_tgi(config, options, requests, times, state, own, reg, replica, now)
                if replica_is_set(config, state, reg, replica, False):
                    break
    return True
