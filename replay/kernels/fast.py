"""The fast loop: the vLLM v1 scheduler, first come first served, at O(1) a step.

It rests on what holds there without a long-prefill threshold, priorities or prefix caching (docs/adr/0002-fast-
loop.md):

* At most one request is partly prefilled, and it is the last of the running list. Every other running request
decodes, and
  since ``max_num_seqs <= max_num_batched_tokens`` each step advances all of them by exactly one token. So one counter
  ``D`` of non-empty batches moves them all: a decoding request has ``computed = base + D`` with a constant ``base``,
  its last batch is known on entry (the calendar), and the blocks that a step needs are one entry of a histogram of
  ``base mod block_size``.
* Preempting from the tail until a step's blocks fit pops the same requests as asking one by one in order: a pop happens
  in order only where the demand so far exceeds what is free, which the total then does too; and where the total does
  not fit, the request at which it breaks pops the tail.
* The end of a batch is known when it is scheduled, so tokens are accounted at once. Asynchronous scheduling changes
only
  *when the scheduler sees it*: a finished request keeps its slot and blocks (a *zombie*) until its last batch has been
  processed, one schedule later, and arrivals join one batch later.

It must give the general loop's integers, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.by_reference import by_reference
from replay.kernels.emission import count_gaps
from replay.kernels.jit import inlined, inner, kernel
from replay.kernels.memory import blocks_for
from replay.kernels.schedule import meter_step
from replay.kernels.scoring import is_scored
from replay.kernels.state import (
    FAR,
    FINISHED,
    FREE_BLOCKS,
    GAP_MAX_PS,
    HEAD,
    MAX_USED_BLOCKS,
    NEVER,
    NEXT_ARRIVAL,
    NEXT_EVENT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREEMPTIONS,
    PREVIOUS_END,
    REGS,
    RUNNING,
    SCHEDULED_TOKENS,
    SCORED_END,
    STEPS,
    TAIL,
    Config,
    Int32,
    Int64,
    Meters,
    Outcome,
    Requests,
    StepTimes,
)
from replay.kernels.steady import steady_run
from replay.kernels.steptime import attention_of_chunk, step_ps

# Registers beyond those of the general loop (columns of the same row).
(
    NOW,  # time of the next schedule
    COUNTER,  # D: non-empty batches scheduled
    DECODES,
    BASE_SUM,
    PARTIAL,  # slot of the request in the middle of its prefill, or NEVER
    ORDER_TAIL,  # slot admitted last
    FREE_TOP,
    IN_FLIGHT,
    GHOSTS,  # preempted while their last token was in flight: they leave with the next batch
    GHOST_TOKENS,
    # of the batch being built:
    PREEMPTED_NOW,
    COMPLETED,  # slots whose prefill it completes
    BATCH_REQUESTS,
    BATCH_TOKENS,
    BATCH_ONES,  # chunks of one token: they cost like decodes
    BATCH_CONTEXT,  # context tokens of those
    BATCH_CHUNKS_PS,  # attention of longer chunks
    SCORED_DECODES,  # of DECODES, those whose gaps are counted
    FAST_REGS,
) = range(REGS, REGS + 19)

DECODING, PREFILLING, ZOMBIE = range(3)


@by_reference
class Fast(NamedTuple):
    """Arrays of the fast loop, one row a replica; by slot unless said."""

    request: Int32
    kind: Int32
    base: Int64  # decoding: computed - D; prefilling: computed
    total: Int64  # tokens to prefill: prompt + generated at admission
    last_batch: Int64  # D of the batch that gives the last token
    residue: Int32  # base mod block_size
    order_next: Int32  # running list in admission order
    order_previous: Int32
    day_next: Int32  # requests of the same last batch
    day_previous: Int32
    free: Int32  # stack
    completed: Int32
    days: Int32  # calendar: first slot by D modulo its length (a power of two above the longest output)
    need: Int64  # decoding requests by residue, block_size of them
    flight_end_ps: Int64  # ring of batches in flight, oldest first
    flight_counter: Int64  # their D, NEVER for an empty batch


def new_fast(config: Config, longest_output: int) -> Fast:
    """Arrays of idle, empty replicas."""
    i32, i64 = np.int32, np.int64
    rows = config.replicas
    slots = (rows, config.max_num_seqs)
    days = 1 << max(4, (longest_output + 2).bit_length())
    return Fast(
        request=np.zeros(slots, i32),
        kind=np.zeros(slots, i32),
        base=np.zeros(slots, i64),
        total=np.zeros(slots, i64),
        last_batch=np.zeros(slots, i64),
        residue=np.zeros(slots, i32),
        order_next=np.full(slots, NEVER, i32),
        order_previous=np.full(slots, NEVER, i32),
        day_next=np.full(slots, NEVER, i32),
        day_previous=np.full(slots, NEVER, i32),
        free=np.tile(np.arange(config.max_num_seqs, dtype=i32)[::-1], (rows, 1)),
        completed=np.zeros(slots, i32),
        days=np.full((rows, days), NEVER, i32),
        need=np.zeros((rows, config.block_size), i64),
        flight_end_ps=np.zeros((rows, 2), i64),
        flight_counter=np.full((rows, 2), NEVER, i64),
    )


@inlined
def of_replica(fast: Fast, replica: int) -> Fast:
    """The rows of one replica."""
    return Fast(
        fast.request[replica],
        fast.kind[replica],
        fast.base[replica],
        fast.total[replica],
        fast.last_batch[replica],
        fast.residue[replica],
        fast.order_next[replica],
        fast.order_previous[replica],
        fast.day_next[replica],
        fast.day_previous[replica],
        fast.free[replica],
        fast.completed[replica],
        fast.days[replica],
        fast.need[replica],
        fast.flight_end_ps[replica],
        fast.flight_counter[replica],
    )


def new_fast_registers(config: Config) -> Int64:
    """Registers of idle, empty replicas, shape (replicas, FAST_REGS): the first REGS columns mean what they mean
    elsewhere."""
    regs = np.zeros((config.replicas, FAST_REGS), np.int64)
    regs[:, NEXT_EVENT] = FAR
    regs[:, FREE_BLOCKS] = config.num_blocks
    regs[:, HEAD] = regs[:, TAIL] = regs[:, PARTIAL] = regs[:, ORDER_TAIL] = NEVER
    regs[:, FREE_TOP] = config.max_num_seqs
    regs[:, SCORED_END] = FAR
    return regs


@inlined
def enqueue(requests: Requests, outcome: Outcome, reg: Int64, r: int) -> None:
    """Request ``r`` arrives at the replica."""
    if reg[HEAD] == NEVER:
        reg[HEAD] = r
    else:
        outcome.link[reg[TAIL]] = r
    reg[TAIL] = r
    reg[OUTSTANDING] += 1
    reg[OUTSTANDING_TOKENS] += requests.prompt_tokens[r] + requests.output_tokens[r]


@inner
def enter_day(fast: Fast, slot: int, counter: int) -> None:
    """Files a slot under its last batch."""
    day = counter & (len(fast.days) - 1)
    first = fast.days[day]
    fast.day_previous[slot] = NEVER
    fast.day_next[slot] = first
    if first != NEVER:
        fast.day_previous[first] = slot
    fast.days[day] = slot
    fast.last_batch[slot] = counter


@inner
def leave_day(fast: Fast, slot: int) -> None:
    """Takes a slot out of the calendar."""
    before, after = fast.day_previous[slot], fast.day_next[slot]
    if before == NEVER:
        fast.days[fast.last_batch[slot] & (len(fast.days) - 1)] = after
    else:
        fast.day_next[before] = after
    if after != NEVER:
        fast.day_previous[after] = before


@inlined
def leave_running(fast: Fast, reg: Int64, slot: int) -> None:
    """Takes a slot off the running list and frees it."""
    before, after = fast.order_previous[slot], fast.order_next[slot]
    if before != NEVER:
        fast.order_next[before] = after
    if after != NEVER:
        fast.order_previous[after] = before
    else:
        reg[ORDER_TAIL] = before
    reg[RUNNING] -= 1
    fast.free[reg[FREE_TOP]] = slot
    reg[FREE_TOP] += 1


@inlined
def stop_decoding(fast: Fast, reg: Int64, slot: int) -> None:
    """The slot is in no batch from the next one on."""
    reg[DECODES] -= 1
    reg[SCORED_DECODES] -= is_scored(reg, fast.request[slot])
    reg[BASE_SUM] -= fast.base[slot]
    fast.need[fast.residue[slot]] -= 1


@inner
def preempt_tail(config: Config, requests: Requests, outcome: Outcome, fast: Fast, reg: Int64) -> None:
    """Frees the request admitted last and queues it in front, to be recomputed with all it has generated."""
    slot = reg[ORDER_TAIL]
    r = fast.request[slot]
    kind = fast.kind[slot]
    if kind == PREFILLING:
        held = fast.base[slot]
        reg[PARTIAL] = NEVER
    else:
        leave_day(fast, slot)
        held = requests.prompt_tokens[r] + requests.output_tokens[r] - 1
        if kind == DECODING:
            held = fast.base[slot] + reg[COUNTER]
            stop_decoding(fast, reg, slot)
            outcome.generated[r] = requests.output_tokens[r] - (fast.last_batch[slot] - reg[COUNTER] + 1)
            outcome.last_ps[r] = reg[PREVIOUS_END]
    reg[FREE_BLOCKS] += blocks_for(held, config.block_size)
    leave_running(fast, reg, slot)
    outcome.preemptions[r] += 1
    reg[PREEMPTIONS] += 1
    reg[PREEMPTED_NOW] = 1
    if kind == ZOMBIE:  # it has all its tokens
        reg[GHOSTS] += 1
        reg[GHOST_TOKENS] += requests.prompt_tokens[r] + requests.output_tokens[r]
        return
    if reg[HEAD] == NEVER:
        reg[TAIL] = r
    outcome.link[r] = reg[HEAD]
    reg[HEAD] = r


@inlined
def release_batch(config: Config, requests: Requests, fast: Fast, reg: Int64, counter: int) -> None:
    """Batch ``counter`` has been processed: the requests that it finished give back slots and blocks."""
    day = counter & (len(fast.days) - 1)
    slot = fast.days[day]
    fast.days[day] = NEVER
    finished, tokens = reg[GHOSTS], reg[GHOST_TOKENS]
    reg[GHOSTS] = reg[GHOST_TOKENS] = 0
    while slot != NEVER:
        after = fast.day_next[slot]
        r = fast.request[slot]
        total = requests.prompt_tokens[r] + requests.output_tokens[r]
        finished += 1
        tokens += total
        reg[FREE_BLOCKS] += blocks_for(total - 1, config.block_size)
        leave_running(fast, reg, slot)
        slot = after
    reg[OUTSTANDING] -= finished
    reg[OUTSTANDING_TOKENS] -= tokens


@inlined
def add_chunk(times: StepTimes, fast: Fast, reg: Int64, slot: int, tokens: int, computed: int) -> None:
    """Puts a chunk of ``tokens`` tokens behind ``computed`` ones into the batch."""
    reg[BATCH_REQUESTS] += 1
    reg[BATCH_TOKENS] += tokens
    if tokens == 1:
        reg[BATCH_ONES] += 1
        reg[BATCH_CONTEXT] += computed + 1
    else:
        reg[BATCH_CHUNKS_PS] += attention_of_chunk(times, tokens, computed)
    fast.base[slot] = computed + tokens
    if computed + tokens == fast.total[slot]:
        reg[PARTIAL] = NEVER
        fast.completed[reg[COMPLETED]] = slot
        reg[COMPLETED] += 1
    else:
        reg[PARTIAL] = slot


@inlined
def continue_prefill(
    config: Config, requests: Requests, times: StepTimes, outcome: Outcome, fast: Fast, reg: Int64
) -> None:
    """The next chunk of the partly prefilled request, if there is one."""
    slot = reg[PARTIAL]
    budget = config.max_num_batched_tokens - reg[BATCH_TOKENS]
    if slot == NEVER or budget == 0:
        return
    computed = fast.base[slot]
    tokens = min(fast.total[slot] - computed, budget)
    need = blocks_for(computed + tokens, config.block_size) - blocks_for(computed, config.block_size)
    if need > reg[FREE_BLOCKS]:
        preempt_tail(config, requests, outcome, fast, reg)
        return
    reg[FREE_BLOCKS] -= need
    add_chunk(times, fast, reg, slot, tokens, computed)


@inlined
def admit(config: Config, requests: Requests, times: StepTimes, outcome: Outcome, fast: Fast, reg: Int64) -> None:
    """Admits from the queue while everything lasts."""
    while reg[BATCH_TOKENS] < config.max_num_batched_tokens and reg[RUNNING] < config.max_num_seqs:
        r = reg[HEAD]
        if r == NEVER:
            break
        total = requests.prompt_tokens[r] + outcome.generated[r]
        tokens = min(total, config.max_num_batched_tokens - reg[BATCH_TOKENS])
        need = blocks_for(tokens, config.block_size)
        must_fit = blocks_for(total, config.block_size) if config.reserve_full_isl else need
        if must_fit > reg[FREE_BLOCKS] - (config.watermark_blocks if reg[RUNNING] > 0 else 0):
            break
        reg[HEAD] = outcome.link[r]
        if outcome.admitted_ps[r] == NEVER:
            outcome.admitted_ps[r] = reg[NOW]
        reg[FREE_BLOCKS] -= need
        reg[FREE_TOP] -= 1
        slot = fast.free[reg[FREE_TOP]]
        tail = reg[ORDER_TAIL]
        fast.order_previous[slot] = tail
        fast.order_next[slot] = NEVER
        if tail != NEVER:
            fast.order_next[tail] = slot
        reg[ORDER_TAIL] = slot
        reg[RUNNING] += 1
        fast.request[slot] = r
        fast.total[slot] = total
        fast.kind[slot] = PREFILLING
        add_chunk(times, fast, reg, slot, tokens, 0)


@inlined
def build_batch(config: Config, requests: Requests, times: StepTimes, outcome: Outcome, fast: Fast, reg: Int64) -> None:
    """Builds one batch: all decodes (preempting from the tail until their blocks fit), the open prefill, admissions."""
    reg[PREEMPTED_NOW] = 0
    due = config.block_size - 1 - (reg[COUNTER] + config.block_size - 1) % config.block_size
    while fast.need[due] > reg[FREE_BLOCKS]:
        preempt_tail(config, requests, outcome, fast, reg)
    reg[FREE_BLOCKS] -= fast.need[due]
    decodes = reg[DECODES]
    reg[BATCH_REQUESTS] = decodes
    reg[BATCH_TOKENS] = decodes
    reg[BATCH_ONES] = decodes
    reg[BATCH_CONTEXT] = reg[BASE_SUM] + decodes * (reg[COUNTER] + 1)
    reg[BATCH_CHUNKS_PS] = 0
    continue_prefill(config, requests, times, outcome, fast, reg)
    if reg[PREEMPTED_NOW] == 0:
        admit(config, requests, times, outcome, fast, reg)


@inlined
def account(
    config: Config, requests: Requests, outcome: Outcome, meters: Meters, fast: Fast, reg: Int64, end: int
) -> None:
    """Books the tokens of the batch just scheduled, which ends at ``end``, and advances the counter."""
    counter = reg[COUNTER]
    if reg[SCORED_DECODES] > 0:
        count_gaps(meters, end - reg[PREVIOUS_END], reg[SCORED_DECODES])
    slot = fast.days[counter & (len(fast.days) - 1)]
    while slot != NEVER:
        stop_decoding(fast, reg, slot)
        fast.kind[slot] = ZOMBIE
        outcome.last_ps[fast.request[slot]] = end
        meters.cluster[FINISHED] += 1
        slot = fast.day_next[slot]
    for i in range(reg[COMPLETED]):
        slot = fast.completed[i]
        r = fast.request[slot]
        if outcome.first_ps[r] == NEVER:
            outcome.first_ps[r] = end
        elif is_scored(reg, r):
            count_gaps(meters, end - outcome.last_ps[r], 1)
        left = requests.output_tokens[r] - outcome.generated[r]
        enter_day(fast, slot, counter + left - 1)
        if left == 1:
            fast.kind[slot] = ZOMBIE
            outcome.last_ps[r] = end
            meters.cluster[FINISHED] += 1
        else:
            base = fast.total[slot] - counter - 1
            residue = base % config.block_size
            if residue < 0:
                residue += config.block_size
            fast.kind[slot] = DECODING
            fast.base[slot] = base
            fast.residue[slot] = residue
            fast.need[residue] += 1
            reg[DECODES] += 1
            reg[SCORED_DECODES] += is_scored(reg, r)
            reg[BASE_SUM] += base
    reg[COMPLETED] = 0
    reg[PREVIOUS_END] = end
    reg[COUNTER] = counter + 1


@inlined
def schedule_fast(
    config: Config,
    requests: Requests,
    times: StepTimes,
    outcome: Outcome,
    meters: Meters,
    fast: Fast,
    reg: Int64,
    replica: int,
) -> bool:
    """Schedules one batch at ``NOW``; True once the pipeline is full and its oldest batch is not empty."""
    build_batch(config, requests, times, outcome, fast, reg)
    place = reg[IN_FLIGHT]
    fast.flight_counter[place] = NEVER
    if reg[BATCH_REQUESTS] > 0:
        duration = step_ps(
            config,
            times,
            reg[BATCH_TOKENS],
            reg[BATCH_ONES],
            reg[BATCH_CONTEXT],
            reg[BATCH_CHUNKS_PS],
            reg[BATCH_REQUESTS],
        )
        end = max(reg[PREVIOUS_END], reg[NOW]) + duration
        meter_step(config, meters.meters[replica], reg, duration, reg[BATCH_TOKENS])
        fast.flight_counter[place] = reg[COUNTER]
        fast.flight_end_ps[place] = end
        account(config, requests, outcome, meters, fast, reg, end)
    reg[IN_FLIGHT] += 1
    if reg[IN_FLIGHT] < config.batches_in_flight:
        return False
    if fast.flight_counter[0] == NEVER:
        pop_batch(fast, reg)
        return False
    return True


@inlined
def pop_batch(fast: Fast, reg: Int64) -> None:
    """Takes the oldest batch out of the pipeline."""
    fast.flight_counter[0] = fast.flight_counter[1]
    fast.flight_end_ps[0] = fast.flight_end_ps[1]
    reg[IN_FLIGHT] -= 1


@inlined
def finish_oldest(config: Config, requests: Requests, fast: Fast, reg: Int64) -> None:
    """Moves to the end of the oldest batch and processes it."""
    reg[NOW] = fast.flight_end_ps[0]
    release_batch(config, requests, fast, reg, fast.flight_counter[0])
    pop_batch(fast, reg)


@inlined
def run_steady(
    config: Config, times: StepTimes, meters: Meters, fast: Fast, reg: Int64, replica: int, until: int, most: int
) -> int:
    """Schedules and processes batches, ``most`` at most, for as long as each holds all decodes and nothing else and is
    scheduled before ``until``; returns how many. Nobody waits, and the batch in flight finishes no request."""
    counter, last_day = reg[COUNTER], len(fast.days) - 1
    if reg[DECODES] == 0 or reg[HEAD] != NEVER or reg[PARTIAL] != NEVER or reg[GHOSTS] > 0:
        return 0
    if reg[IN_FLIGHT] + 1 != config.batches_in_flight or fast.days[counter & last_day] != NEVER:
        return 0
    asynchronous = reg[IN_FLIGHT]
    if asynchronous and (fast.flight_counter[0] == NEVER or fast.days[fast.flight_counter[0] & last_day] != NEVER):
        return 0
    batches, free, now, end, longest_gap_ps = steady_run(
        times.rest_ps,
        times.decode_table_ps,
        times.law,
        fast.need,
        fast.days,
        meters.gaps,
        meters.meters[replica],
        asynchronous,
        config.num_blocks,
        until,
        most,
        counter,
        reg[DECODES],
        reg[SCORED_DECODES],
        reg[RUNNING],
        reg[BASE_SUM] + reg[DECODES] * (counter + 1),
        reg[FREE_BLOCKS],
        reg[NOW],
        reg[PREVIOUS_END],
    )
    if batches == 0:
        return 0
    reg[COUNTER] = counter + batches
    reg[STEPS] += batches
    reg[SCHEDULED_TOKENS] += batches * reg[DECODES]
    reg[FREE_BLOCKS] = free
    reg[MAX_USED_BLOCKS] = max(reg[MAX_USED_BLOCKS], config.num_blocks - free)
    reg[NOW], reg[PREVIOUS_END] = now, end
    if reg[SCORED_DECODES] > 0:
        meters.cluster[GAP_MAX_PS] = max(meters.cluster[GAP_MAX_PS], longest_gap_ps)
    if asynchronous:
        fast.flight_counter[0], fast.flight_end_ps[0] = counter + batches - 1, end
    return batches


@kernel
def advance_fast(
    config: Config,
    requests: Requests,
    times: StepTimes,
    outcome: Outcome,
    meters: Meters,
    arrays: Fast,
    max_steps: int,
) -> bool:
    """One replica: schedules up to ``max_steps`` batches; False once nothing is left to do. Calling it again
    continues."""
    reg = meters.regs[0]
    fast = of_replica(arrays, 0)
    cluster = meters.cluster
    n = len(requests.arrival_ps)
    while max_steps > 0:
        arrived = cluster[NEXT_ARRIVAL]
        while arrived < n and requests.arrival_ps[arrived] <= reg[NOW]:
            enqueue(requests, outcome, reg, arrived)
            arrived += 1
        cluster[NEXT_ARRIVAL] = arrived
        max_steps -= 1
        if reg[RUNNING] == 0 and reg[HEAD] == NEVER:
            reg[IN_FLIGHT] = 0
            if arrived == n:
                return False
            reg[NOW] = requests.arrival_ps[arrived]
        elif schedule_fast(config, requests, times, outcome, meters, fast, reg, 0):
            finish_oldest(config, requests, fast, reg)
            until = requests.arrival_ps[arrived] if arrived < n else FAR
            max_steps -= run_steady(config, times, meters, fast, reg, 0, until, max_steps)
    return True
