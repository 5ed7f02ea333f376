"""TensorRT-LLM: a capacity scheduler over memory, then a micro-batch scheduler over the token budget.

The specification is engine semantics 1.4. Under GUARANTEED_NO_EVICT and STATIC_BATCH a request is admitted when the
blocks of its whole life (prompt and declared ``max_tokens``) fit beside those of all running ones, so nobody is paused.
Under MAX_UTILIZATION it needs the blocks of its prompt only, and a decode that finds no block pauses the request
started last. A context takes the blocks of its whole prompt with its first chunk. Whoever does not fit stops admission.
"""

from __future__ import annotations

from typing import NamedTuple

from replay.kernels.by_reference import by_reference
from replay.kernels.engine import go_to_next_instant
from replay.kernels.jit import inlined, kernel
from replay.kernels.memory import blocks_for
from replay.kernels.pipeline import close_batch, hold, is_idle, note_admission, open_batch, replica_is_set
from replay.kernels.schedule import add_decodes, add_to_batch, place, preempt
from replay.kernels.state import (
    FAR,
    FLIGHT,
    FREE_BLOCKS,
    FREE_SLOTS,
    NEVER,
    NEXT_EVENT,
    RUNNING,
    TOKENS,
    WAITING,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.waiting import peek, unlink_head

GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH = range(3)


@by_reference
class TrtllmOptions(NamedTuple):
    """What TensorRT-LLM has beyond ``Config``, all int64."""

    policy: int  # GUARANTEED_NO_EVICT, MAX_UTILIZATION or STATIC_BATCH


@inlined
def whole_life(config: Config, requests: Requests, r: int) -> int:
    """Blocks that request ``r`` could need to the end of its declared output."""
    return blocks_for(requests.prompt_tokens[r] + requests.max_tokens[r], config.block_size)


@inlined
def chunk_of(config: Config, todo: int, budget: int) -> int:
    """Tokens of a context in this step; 0 where it must wait. The unit of a chunk is a block."""
    if todo <= budget:
        return todo
    if config.enable_chunked_prefill:
        return budget // config.block_size * config.block_size
    return 0


@inlined
def schedule_decodes(
    config: Config,
    options: TrtllmOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    reg: Int64,
    replica: int,
    start: int,
) -> bool:
    """One token for every generating request, in order of start; True where a request was paused for memory."""
    slots, sums = state.slots, state.meters.sums
    first = replica * config.max_num_seqs
    paused = False
    i = 0
    while True:
        i = add_decodes(config, state, reg, sums, first, start, i)
        if i >= reg[RUNNING]:
            return paused
        slot = slots.order[first + i]
        if slots.todo[slot] > 1 or slots.unscheduled[slot] == 0:
            i += 1  # a context, or complete with the tokens in flight
            continue
        gone = False
        while slots.computed[slot] + 1 > slots.room[slot] and reg[FREE_BLOCKS] == 0:
            gone = slots.order[first + reg[RUNNING] - 1] == slot
            preempt(config, requests, state, reg, replica, first, reg[RUNNING] - 1)
            paused = True
            if gone:
                break
        if gone:
            return paused
        hold(config, slots, reg, slot, slots.computed[slot] + 1)
        add_to_batch(config, times, state, sums, start, slot, 1)
        i += 1


@inlined
def schedule_contexts(
    config: Config,
    options: TrtllmOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    reg: Int64,
    replica: int,
    start: int,
    admits: bool,
    now: int,
) -> None:
    """Contexts under way, then new ones in order while memory, slots and budget last."""
    slots, outcome, sums = state.slots, state.outcome, state.meters.sums
    first = replica * config.max_num_seqs
    if config.enable_chunked_prefill:
        for i in range(reg[RUNNING]):
            slot = slots.order[first + i]
            if slots.todo[slot] > 1:
                tokens = chunk_of(config, slots.todo[slot], config.max_num_batched_tokens - sums[TOKENS])
                if tokens > 0:
                    add_to_batch(config, times, state, sums, start, slot, tokens)
    if not admits or reg[WAITING] == 0:
        return
    reserved = 0
    if options.policy != MAX_UTILIZATION:
        for i in range(reg[RUNNING]):
            reserved += whole_life(config, requests, slots.request[slots.order[first + i]])
    while reg[RUNNING] < config.max_num_seqs and reg[FREE_SLOTS] > 0:
        r = peek(config, requests, outcome, reg)
        if r == NEVER:
            return
        total = requests.prompt_tokens[r] + outcome.generated[r]
        if options.policy == MAX_UTILIZATION:
            if blocks_for(total, config.block_size) > reg[FREE_BLOCKS]:
                return
        else:
            reserved += whole_life(config, requests, r)
            if reserved > config.num_blocks:
                return
        tokens = chunk_of(config, total, config.max_num_batched_tokens - sums[TOKENS])
        if tokens == 0:
            return
        unlink_head(config, outcome, reg)
        reg[WAITING] -= 1
        slot = place(config, requests, state, reg, first, r, 0)
        hold(config, slots, reg, slot, total)
        note_admission(outcome, r, now)
        add_to_batch(config, times, state, sums, start, slot, tokens)


@inlined
def schedule_trtllm(
    config: Config,
    options: TrtllmOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    reg: Int64,
    replica: int,
    now: int,
) -> bool:
    """Builds the next batch of a replica; True where a request was paused."""
    batch = open_batch(config, state, reg, replica)
    start = batch * config.max_num_seqs
    paused = schedule_decodes(config, options, requests, times, state, reg, replica, start)
    admits = not paused and (options.policy != STATIC_BATCH or reg[RUNNING] == 0)
    schedule_contexts(config, options, requests, times, state, reg, replica, start, admits, now)
    close_batch(config, times, state, reg, replica, batch, now)
    return paused


@kernel
def advance_trtllm(
    config: Config,
    options: TrtllmOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    max_events: int,
) -> bool:
    """Runs up to ``max_events`` batch ends or arrival instants; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing. ``max_num_seqs`` is at most
    ``max_num_batched_tokens``; the caller has put aside the requests that can never run.
    """
    regs = state.meters.regs
    for _ in range(max_events):
        now = go_to_next_instant(config, requests, state, 0)
        if now == FAR:
            return False
        for replica in range(config.replicas):
            reg = regs[replica]
            while reg[NEXT_EVENT] == now:
                if is_idle(config, state.flight, reg, replica):
                    break
                paused = False
                while reg[FLIGHT] < config.batches_in_flight:
                    paused |= schedule_trtllm(config, options, requests, times, state, reg, replica, now)
                if replica_is_set(config, state, reg, replica, paused):
                    break
    return True
