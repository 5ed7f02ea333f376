"""vLLM's V0 scheduler without chunked prefill: prompts first and alone, else everything running decodes.

The specification is engine semantics 1.2. A step is either a prefill of whole prompts from the head of the waiting
queue (admitted while the token budget, the slots and the blocks above the watermark last), or, where none can be
admitted, a decode of all running requests. A decode asks for a free block even where its token still fits into the
block it has; where there is none, the last of the running list leaves: its KV is dropped and it goes to the front of
the queue (recompute), or it moves to host memory (swap). While anything is swapped out no prompt starts; it returns in
order once it fits above the watermark, in a step that preempted nobody. Moving blocks is added to the step's time.

The running list is dense here: its i-th request is slot ``replica * max_num_seqs + i``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.kernels.arrivals import ended
from replay.kernels.by_reference import by_reference
from replay.kernels.clock import next_instant, pass_instant
from replay.kernels.emission import count_gaps, emit
from replay.kernels.jit import inlined, inner, kernel
from replay.kernels.memory import blocks_for
from replay.kernels.routers import keep_snapshot
from replay.kernels.schedule import meter_step, save_progress
from replay.kernels.state import (
    CHUNKS_PS,
    CONTEXT,
    FAR,
    FINISHED,
    FREE_BLOCKS,
    NEVER,
    NEXT_EVENT,
    ONES,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREEMPTIONS,
    PREVIOUS_END,
    REQUESTS,
    RUNNING,
    SWAP_HEAD,
    SWAP_SPACE_SHORT,
    SWAP_TAIL,
    SWAPPED,
    SWAPPED_BLOCKS,
    TOKENS,
    WAITING,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.steptime import attention_of_chunk, step_ps
from replay.kernels.waiting import insert, peek, unlink_head

if TYPE_CHECKING:
    from replay.deployment import Deployment

PS_PER_S = 10**12
GIB = 2**30


@by_reference
class V0Options(NamedTuple):
    """What the V0 scheduler has beyond ``Config``, all int64."""

    swap: int  # 1: a preempted request keeps its KV in host memory; 0: it is recomputed
    cpu_blocks: int  # host memory, in blocks
    block_copy_ps: int  # moving one block one way


def v0_options(deployment: Deployment) -> V0Options:
    """The options of a deployment. Every rank moves its own share of a block, over its own link."""
    engine = deployment.engine
    block_bytes = deployment.memory.kv_bytes_per_token * deployment.block_size
    cpu_blocks = int(engine.swap_space_gib * GIB) // block_bytes
    copy_ps = round(block_bytes / (engine.pcie_gb_per_s * 1e9) * PS_PER_S) if engine.pcie_gb_per_s > 0 else 0
    return V0Options(int(engine.preemption_mode == "swap"), cpu_blocks, copy_ps)


@inner
def join_running(config: Config, requests: Requests, state: State, reg: Int64, first: int, r: int, tokens: int) -> None:
    """Puts request ``r`` at the end of the running list with the KV of ``tokens`` tokens, and takes its blocks."""
    slots, generated = state.slots, state.outcome.generated[r]
    slot = first + reg[RUNNING]
    reg[RUNNING] += 1
    left = min(requests.output_tokens[r] - generated, config.max_model_len - requests.prompt_tokens[r] - generated)
    held = blocks_for(tokens, config.block_size)
    reg[FREE_BLOCKS] -= held
    slots.request[slot] = r
    slots.computed[slot] = tokens
    slots.left[slot] = left
    slots.granted[slot] = left
    slots.held[slot] = held
    slots.room[slot] = held * config.block_size
    slots.last_ps[slot] = state.outcome.last_ps[r]


@inner
def preempt_last(config: Config, options: V0Options, requests: Requests, state: State, reg: Int64, first: int) -> int:
    """Takes the last request off the running list; returns the blocks that move to host memory."""
    slots, outcome = state.slots, state.outcome
    reg[RUNNING] -= 1
    slot = first + reg[RUNNING]
    r = slots.request[slot]
    save_progress(state, slot)
    outcome.preemptions[r] += 1
    reg[PREEMPTIONS] += 1
    held = slots.held[slot]
    reg[FREE_BLOCKS] += held
    if not options.swap:
        insert(config, requests, outcome, reg, r, True)
        return 0
    if reg[SWAPPED_BLOCKS] + slots.computed[slot] // config.block_size + 1 > options.cpu_blocks:
        reg[SWAP_SPACE_SHORT] = 1
    outcome.link[r] = NEVER
    if reg[SWAPPED] == 0:
        reg[SWAP_HEAD] = r
    else:
        outcome.link[reg[SWAP_TAIL]] = r
    reg[SWAP_TAIL] = r
    reg[SWAPPED] += 1
    reg[SWAPPED_BLOCKS] += held
    return held


@inlined
def schedule_prefills(
    config: Config, requests: Requests, times: StepTimes, state: State, reg: Int64, sums: Int64, first: int, now: int
) -> None:
    """Admits whole prompts in order; the first that does not fit ends the pass."""
    outcome = state.outcome
    while reg[RUNNING] < config.max_num_seqs:
        r = peek(config, requests, outcome, reg)
        if r == NEVER:
            break
        tokens = requests.prompt_tokens[r] + outcome.generated[r]
        room = reg[FREE_BLOCKS] - config.watermark_blocks
        if sums[TOKENS] + tokens > config.max_num_batched_tokens or blocks_for(tokens, config.block_size) > room:
            break
        unlink_head(config, outcome, reg)
        reg[WAITING] -= 1
        join_running(config, requests, state, reg, first, r, tokens)
        if outcome.admitted_ps[r] == NEVER:
            outcome.admitted_ps[r] = now
        sums[REQUESTS] += 1
        sums[TOKENS] += tokens
        if tokens == 1:
            sums[ONES] += 1
            sums[CONTEXT] += 1
        else:
            sums[CHUNKS_PS] += attention_of_chunk(times, tokens, 0)


@inlined
def schedule_decodes(
    config: Config, options: V0Options, requests: Requests, state: State, reg: Int64, sums: Int64, first: int
) -> int:
    """Gives every running request a token, preempting from the end; returns the blocks swapped out."""
    slots = state.slots
    moved = 0
    i = 0
    while i < reg[RUNNING]:
        while reg[FREE_BLOCKS] < 1 and i < reg[RUNNING]:
            moved += preempt_last(config, options, requests, state, reg, first)
        if i >= reg[RUNNING]:
            break  # it was the last itself
        slot = first + i
        if slots.computed[slot] == slots.room[slot]:
            reg[FREE_BLOCKS] -= 1
            slots.held[slot] += 1
            slots.room[slot] += config.block_size
        slots.computed[slot] += 1
        sums[CONTEXT] += slots.computed[slot]
        i += 1
    sums[REQUESTS] += i
    sums[TOKENS] += i
    sums[ONES] += i
    return moved


@inlined
def swap_in(config: Config, requests: Requests, state: State, reg: Int64, sums: Int64, first: int) -> int:
    """Brings swapped requests back in order, each with the block of its next token; returns the blocks moved."""
    outcome = state.outcome
    moved = 0
    while reg[SWAPPED] > 0 and reg[RUNNING] < config.max_num_seqs:
        r = reg[SWAP_HEAD]
        tokens = requests.prompt_tokens[r] + outcome.generated[r]  # its KV and the token it computes now
        if blocks_for(tokens, config.block_size) > reg[FREE_BLOCKS] - config.watermark_blocks:
            break
        held = blocks_for(tokens - 1, config.block_size)
        reg[SWAP_HEAD] = outcome.link[r]
        reg[SWAPPED] -= 1
        reg[SWAPPED_BLOCKS] -= held
        moved += held
        join_running(config, requests, state, reg, first, r, tokens)
        sums[REQUESTS] += 1
        sums[TOKENS] += 1
        sums[ONES] += 1
        sums[CONTEXT] += tokens
    return moved


@inlined
def start_step(
    config: Config,
    options: V0Options,
    requests: Requests,
    times: StepTimes,
    state: State,
    reg: Int64,
    replica: int,
    now: int,
) -> None:
    """Builds the next step and sets when it ends; FAR where nothing can run."""
    sums = state.meters.sums
    first = replica * config.max_num_seqs
    while True:
        reg[NEXT_EVENT] = FAR
        if reg[RUNNING] == 0 and reg[WAITING] == 0 and reg[SWAPPED] == 0:
            return
        for i in range(len(sums)):
            sums[i] = 0
        preempted_before = reg[PREEMPTIONS]
        moved = 0
        if reg[SWAPPED] == 0:
            schedule_prefills(config, requests, times, state, reg, sums, first, now)
        if sums[REQUESTS] == 0:
            moved = schedule_decodes(config, options, requests, state, reg, sums, first)
            if reg[PREEMPTIONS] == preempted_before:
                moved += swap_in(config, requests, state, reg, sums, first)
        if sums[REQUESTS] > 0 or moved > 0:
            duration = moved * options.block_copy_ps
            if sums[REQUESTS] > 0:
                duration += step_ps(
                    config, times, sums[TOKENS], sums[ONES], sums[CONTEXT], sums[CHUNKS_PS], sums[REQUESTS]
                )
            meter_step(config, state.meters.meters[replica], reg, duration, sums[TOKENS])
            state.flight.size[replica] = sums[REQUESTS]
            reg[NEXT_EVENT] = now + duration
            return
        if reg[PREEMPTIONS] == preempted_before:
            return  # nothing can move before another arrival


@inlined
def finish_step(config: Config, requests: Requests, state: State, reg: Int64, replica: int) -> None:
    """One token for each request of the step, which are the last of the running list; finished ones leave."""
    slots, cluster = state.slots, state.meters.cluster
    end = reg[NEXT_EVENT]
    first = replica * config.max_num_seqs
    begin = first + reg[RUNNING] - state.flight.size[replica]
    gap_ps, gap_tokens = -1, 0
    kept = begin
    for slot in range(begin, first + reg[RUNNING]):
        gap_ps, gap_tokens = emit(state, reg, slot, end, gap_ps, gap_tokens)
        if slots.left[slot] == 0:
            save_progress(state, slot)
            reg[FREE_BLOCKS] += slots.held[slot]
            r = slots.request[slot]
            reg[OUTSTANDING] -= 1
            reg[OUTSTANDING_TOKENS] -= requests.prompt_tokens[r] + requests.output_tokens[r]
            cluster[FINISHED] += 1
            ended(requests, state, r, end)
            continue
        if kept < slot:
            slots.request[kept] = slots.request[slot]
            slots.computed[kept] = slots.computed[slot]
            slots.left[kept] = slots.left[slot]
            slots.granted[kept] = slots.granted[slot]
            slots.held[kept] = slots.held[slot]
            slots.room[kept] = slots.room[slot]
            slots.last_ps[kept] = slots.last_ps[slot]
        kept += 1
    count_gaps(state.meters, gap_ps, gap_tokens)
    reg[RUNNING] = kept - first
    reg[PREVIOUS_END] = end


@kernel
def advance_v0(
    config: Config, options: V0Options, requests: Requests, times: StepTimes, state: State, max_events: int
) -> bool:
    """Runs up to ``max_events`` step ends or arrival instants; False once nothing is left to do, or host memory is
    short (``SWAP_SPACE_SHORT``).

    Calling it again continues; how the events are cut into calls changes nothing. The caller has put aside requests
    that can never run: prompt plus output over the budget, or over the blocks above the watermark.
    """
    regs, cluster = state.meters.regs, state.meters.cluster
    for _ in range(max_events):
        now = next_instant(config, requests, state)
        if now == FAR:
            return False
        keep_snapshot(config, regs, cluster, state.routing, now - 1)
        for replica in range(config.replicas):
            if regs[replica, NEXT_EVENT] == now:
                finish_step(config, requests, state, regs[replica], replica)
                state.flight.size[replica] = 0
        pass_instant(config, requests, state, now)
        for replica in range(config.replicas):
            if regs[replica, NEXT_EVENT] == now:
                start_step(config, options, requests, times, state, regs[replica], replica, now)
                if regs[replica, SWAP_SPACE_SHORT]:
                    return False
    return True
