"""vLLM's V0 scheduler with chunked prefill: everything running first, then new prompts in what is left of the budget.

The specification is engine semantics 1.2. Running requests are served in list order until the budget ends: a decode
gets one token and asks for a free block even where its token fits, a prompt under way gets what is left and asks for
one where its last block is not full. Where there is none, the last of the list is recomputed later. New prompts are
then admitted in order while budget, slots and the blocks above the watermark last, also in a step that preempted; who
was preempted is not among them before the next step. The list is rebuilt in each step: whom the budget did not reach,
decodes, prompts that end in this step, prompts that do not, new ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.by_reference import by_reference
from replay.kernels.engine import go_to_next_instant
from replay.kernels.jit import inlined, kernel
from replay.kernels.memory import blocks_for
from replay.kernels.pipeline import close_batch, hold, is_idle, note_admission, open_batch, replica_is_set
from replay.kernels.schedule import add_to_batch, place, preempt
from replay.kernels.state import (
    FAR,
    FREE_BLOCKS,
    HEAD,
    NEVER,
    NEXT_EVENT,
    PREEMPTIONS,
    RUNNING,
    TOKENS,
    WAITING,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
    UInt32,
)
from replay.kernels.v0 import V0Options
from replay.kernels.waiting import peek, put_back, unlink_head

DECODE, ENDING, UNDER_WAY = range(3)


@by_reference
class V0Lists(NamedTuple):
    """Scratch for rebuilding a running list, ``max_num_seqs`` each."""

    kind: Int64  # by place in the list: DECODE, ENDING or UNDER_WAY
    order: UInt32


def new_v0_lists(config: Config) -> V0Lists:
    """Scratch space."""
    return V0Lists(np.zeros(config.max_num_seqs, np.int64), np.zeros(config.max_num_seqs, np.uint32))


@inlined
def serve_running(
    config: Config,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: V0Lists,
    reg: Int64,
    replica: int,
    start: int,
) -> int:
    """Gives tokens to running requests in list order; returns how many of the list were reached."""
    slots, sums = state.slots, state.meters.sums
    first = replica * config.max_num_seqs
    i = 0
    while i < reg[RUNNING] and sums[TOKENS] < config.max_num_batched_tokens:
        slot = slots.order[first + i]
        todo = slots.todo[slot]
        tokens = min(todo, config.max_num_batched_tokens - sums[TOKENS])
        decodes = slots.unscheduled[slot] < slots.granted[slot]
        asked = 1 if decodes or slots.room[slot] > slots.computed[slot] + todo else 0
        while reg[FREE_BLOCKS] < asked and i < reg[RUNNING]:
            preempt(config, requests, state, reg, replica, first, reg[RUNNING] - 1)
        if i >= reg[RUNNING]:
            break  # it was the last itself
        hold(config, slots, reg, slot, slots.computed[slot] + todo)
        own.kind[i] = DECODE if decodes else ENDING if tokens == todo else UNDER_WAY
        add_to_batch(config, times, state, sums, start, slot, tokens)
        i += 1
    return i


@inlined
def rebuild_list(config: Config, state: State, own: V0Lists, reg: Int64, first: int, reached: int) -> None:
    """Puts the running list into the order of the next step."""
    order = state.slots.order
    at = 0
    for i in range(reached, reg[RUNNING]):
        own.order[at] = order[first + i]
        at += 1
    for kind in range(3):
        for i in range(reached):
            if own.kind[i] == kind:
                own.order[at] = order[first + i]
                at += 1
    for i in range(at):
        order[first + i] = own.order[i]


@inlined
def admit_prompts(
    config: Config, requests: Requests, times: StepTimes, state: State, reg: Int64, replica: int, start: int, now: int
) -> None:
    """Admits waiting requests in order, the last one perhaps in part."""
    slots, outcome, sums = state.slots, state.outcome, state.meters.sums
    first = replica * config.max_num_seqs
    while sums[TOKENS] < config.max_num_batched_tokens and reg[RUNNING] < config.max_num_seqs:
        r = peek(config, requests, outcome, reg)
        if r == NEVER:
            break
        total = requests.prompt_tokens[r] + outcome.generated[r]
        if blocks_for(total, config.block_size) > reg[FREE_BLOCKS] - config.watermark_blocks:
            break
        unlink_head(config, outcome, reg)
        reg[WAITING] -= 1
        slot = place(config, requests, state, reg, first, r, 0)
        hold(config, slots, reg, slot, total)
        note_admission(outcome, r, now)
        add_to_batch(config, times, state, sums, start, slot, min(total, config.max_num_batched_tokens - sums[TOKENS]))


@inlined
def schedule_v0(
    config: Config, requests: Requests, times: StepTimes, state: State, own: V0Lists, reg: Int64, replica: int, now: int
) -> bool:
    """Builds the next step; True where anyone was preempted."""
    link = state.outcome.link
    batch = open_batch(config, state, reg, replica)
    start = batch * config.max_num_seqs
    before = reg[PREEMPTIONS]
    reached = serve_running(config, requests, times, state, own, reg, replica, start)
    rebuild_list(config, state, own, reg, replica * config.max_num_seqs, reached)
    preempted = reg[PREEMPTIONS] - before
    first = last = reg[HEAD]
    for _ in range(preempted - 1):
        last = link[last]
    if preempted > 0:
        reg[HEAD] = link[last]
    admit_prompts(config, requests, times, state, reg, replica, start, now)
    if preempted > 0:
        put_back(config, state.outcome, reg, first, last)
    close_batch(config, times, state, reg, replica, batch, now)
    return preempted > 0


@kernel
def advance_v0_chunked(
    config: Config,
    options: V0Options,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: V0Lists,
    max_events: int,
) -> bool:
    """Runs up to ``max_events`` step ends or arrival instants; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing. ``batches_in_flight`` is 1;
    ``options`` is not read. The caller has put aside requests whose prompt plus output need more than the blocks above
    the watermark, or all blocks: they would be preempted without end.
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
                preempted = schedule_v0(config, requests, times, state, own, reg, replica, now)
                if replica_is_set(config, state, reg, replica, preempted):
                    break
    return True
