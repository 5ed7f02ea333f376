"""One call of the vLLM v1 scheduler (``Scheduler.schedule``): running requests first, then the waiting queue.

The specification is engine semantics 1.1; the steps below are in its order.
"""

from __future__ import annotations

from replay.kernels.jit import kernel
from replay.kernels.memory import blocks_for, grow, lookup, release, take_hits
from replay.kernels.state import (
    BUSY,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    FREE_SLOTS,
    HIT_TOKENS,
    MAX_USED_BLOCKS,
    NEVER,
    PREEMPTIONS,
    QUERIED_TOKENS,
    RUNNING,
    RUNNING_REQUESTS,
    SCHEDULED_TOKENS,
    STEPS,
    USED_BLOCKS,
    WAITING,
    Config,
    Float64,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.steptime import attention_of_chunk, step_ps
from replay.kernels.waiting import insert, peek, put_back, ranks_before, unlink_head


@kernel
def victim_position(config: Config, requests: Requests, state: State, reg: Int64, first: int) -> int:
    """Whom to preempt, as a position of the running list: the last (fcfs), or the largest (priority, arrival)."""
    last = reg[RUNNING] - 1
    if not config.priority_policy:
        return last
    slots = state.slots
    worst = last
    for i in range(last):
        if ranks_before(
            requests.priority, slots.request[slots.order[first + worst]], slots.request[slots.order[first + i]]
        ):
            worst = i
    return worst


@kernel
def preempt(
    config: Config, requests: Requests, state: State, reg: Int64, replica: int, first: int, position: int
) -> None:
    """Takes a request off the running list, frees its blocks, and puts it back into the queue to be recomputed."""
    slots = state.slots
    slot = slots.order[first + position]
    for i in range(position, reg[RUNNING] - 1):
        slots.order[first + i] = slots.order[first + i + 1]
    reg[RUNNING] -= 1
    release(config, state.blocks, slots, reg, replica, slot)
    r = slots.request[slot]
    slots.running[slot] = 0
    if slots.placeholders[slot] == 0:  # else a token is in flight: the slot is freed when it arrives
        slots.free[first + reg[FREE_SLOTS]] = slot
        reg[FREE_SLOTS] += 1
    state.outcome.generated[r] = requests.output_tokens[r] - slots.left[slot]
    state.outcome.last_ps[r] = slots.last_ps[slot]
    state.outcome.preemptions[r] += 1
    reg[PREEMPTIONS] += 1
    insert(config, requests, state.outcome, reg, r, True)


@kernel
def remove_from_batch(state: State, start: int, n: int, slot: int) -> int:
    """Takes a slot out of the batch being built and returns its tokens; 0 where it is not in it."""
    flight = state.flight
    for i in range(n):
        if flight.slot[start + i] == slot:
            tokens = flight.tokens[start + i]
            for j in range(i, n - 1):
                flight.slot[start + j] = flight.slot[start + j + 1]
                flight.tokens[start + j] = flight.tokens[start + j + 1]
            return tokens
    return 0


@kernel
def schedule_running(
    config: Config, requests: Requests, state: State, reg: Int64, replica: int, start: int, threshold: int, mask: int
) -> tuple[int, int, bool]:
    """Fills the batch with running requests; returns (batch size, budget left, whether anyone was preempted)."""
    slots, flight = state.slots, state.flight
    first = replica * config.max_num_seqs
    budget = config.max_num_batched_tokens
    always_grow = config.prefix_caching == 1  # growing also publishes blocks that have filled up
    n = 0
    preempted = False
    i = 0
    while i < reg[RUNNING] and budget > 0:
        slot = slots.order[first + i]
        in_flight = slots.placeholders[slot]
        computed = slots.computed[slot]
        if in_flight > 0 and computed + 2 - in_flight >= slots.total[slot] + slots.left[slot]:
            i += 1  # the tokens in flight already complete it
            continue
        tokens = slots.total[slot] + in_flight - computed
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(min(tokens, budget), config.max_model_len - 1 - computed)
        if tokens <= 0:
            i += 1
            continue
        granted = True
        while (always_grow or computed + tokens > slots.room[slot]) and not grow(
            config, requests, state.blocks, slots, reg, replica, slot, computed + tokens, mask
        ):
            position = victim_position(config, requests, state, reg, first)
            victim = slots.order[first + position]
            returned = remove_from_batch(state, start, n, victim) if config.priority_policy else 0
            if returned > 0:
                budget += returned
                n -= 1
            if position < i:
                i -= 1
            preempt(config, requests, state, reg, replica, first, position)
            preempted = True
            if victim == slot:
                granted = False
                break
        if granted:
            flight.slot[start + n] = slot
            flight.tokens[start + n] = tokens
            n += 1
            budget -= tokens
            i += 1
        elif not config.priority_policy:
            break
    return n, budget, preempted


@kernel
def schedule_waiting(
    config: Config,
    requests: Requests,
    state: State,
    reg: Int64,
    replica: int,
    start: int,
    n: int,
    budget: int,
    threshold: int,
    mask: int,
    now: int,
) -> int:
    """Admits waiting requests in order while budget, slots and memory last; returns the batch size."""
    slots, flight, outcome = state.slots, state.flight, state.outcome
    first = replica * config.max_num_seqs
    skipped_first, skipped_last = NEVER, NEVER
    while budget > 0 and reg[RUNNING] < config.max_num_seqs and reg[FREE_SLOTS] > 0:
        r = peek(config, requests, outcome, reg)
        if r == NEVER:
            break
        total = requests.prompt_tokens[r] + outcome.generated[r]
        hits, free_hits = 0, 0
        if config.prefix_caching:
            hits, free_hits = lookup(config, requests, state.blocks, replica, r, total, mask)
        hit_tokens = hits * config.block_size
        tokens = total - hit_tokens
        if 0 < threshold < tokens:
            tokens = threshold
        if not config.enable_chunked_prefill and tokens > budget:
            if not config.unchunked_looks_further:
                break
            unlink_head(config, requests, outcome, reg)
            outcome.link[r] = NEVER
            if skipped_last == NEVER:
                skipped_first = r
            else:
                outcome.link[skipped_last] = r
            skipped_last = r
            continue
        tokens = min(tokens, budget)
        room = reg[FREE_BLOCKS] - free_hits
        if reg[RUNNING] > 0:
            room -= config.watermark_blocks
        must_fit = total if config.reserve_full_isl else hit_tokens + tokens
        if blocks_for(must_fit, config.block_size) - hits > room:
            break
        unlink_head(config, requests, outcome, reg)
        reg[WAITING] -= 1
        reg[FREE_SLOTS] -= 1
        slot = slots.free[first + reg[FREE_SLOTS]]
        slots.order[first + reg[RUNNING]] = slot
        reg[RUNNING] += 1
        slots.request[slot] = r
        slots.computed[slot] = hit_tokens
        slots.total[slot] = total
        slots.left[slot] = requests.output_tokens[r] - outcome.generated[r]
        slots.placeholders[slot] = 0
        slots.held[slot] = 0
        slots.room[slot] = 0
        slots.cached[slot] = 0
        slots.running[slot] = 1
        slots.last_ps[slot] = outcome.last_ps[r]
        if config.prefix_caching:
            take_hits(config, requests, state.blocks, slots, reg, replica, slot, hits, mask)
            outcome.hit_tokens[r] += hit_tokens
            reg[HIT_TOKENS] += hit_tokens
            reg[QUERIED_TOKENS] += total
        grow(config, requests, state.blocks, slots, reg, replica, slot, hit_tokens + tokens, mask)
        if outcome.admitted_ps[r] == NEVER:
            outcome.admitted_ps[r] = now
        flight.slot[start + n] = slot
        flight.tokens[start + n] = tokens
        n += 1
        budget -= tokens
    if skipped_last != NEVER:
        put_back(config, requests, outcome, reg, skipped_first, skipped_last)
    return n


@kernel
def meter_step(config: Config, meters: Float64, reg: Int64, duration: int, tokens: int) -> None:
    """Counts one step and weighs what it holds by its duration."""
    used = config.num_blocks - reg[FREE_BLOCKS]
    reg[STEPS] += 1
    reg[SCHEDULED_TOKENS] += tokens
    reg[MAX_USED_BLOCKS] = max(reg[MAX_USED_BLOCKS], used)
    meters[BUSY] += duration
    meters[USED_BLOCKS] += float(used) * duration
    meters[RUNNING_REQUESTS] += float(reg[RUNNING]) * duration


@kernel
def schedule(
    config: Config, requests: Requests, times: StepTimes, state: State, reg: Int64, replica: int, mask: int, now: int
) -> bool:
    """Builds the next batch of a replica at time ``now`` and queues it; True where anyone was preempted."""
    slots, flight = state.slots, state.flight
    ring = (reg[FLIGHT_FIRST] + reg[FLIGHT]) % config.batches_in_flight
    batch = replica * config.batches_in_flight + ring
    start = batch * config.max_num_seqs
    threshold = config.long_prefill_token_threshold
    if not config.threshold_binds_lone_request and reg[RUNNING] + reg[WAITING] <= 1:
        threshold = 0
    n, budget, preempted = schedule_running(config, requests, state, reg, replica, start, threshold, mask)
    if not preempted:
        n = schedule_waiting(config, requests, state, reg, replica, start, n, budget, threshold, mask, now)
    total_tokens, decodes, context_tokens, chunks_ps = 0, 0, 0, 0
    for i in range(n):
        slot = flight.slot[start + i]
        tokens = flight.tokens[start + i]
        computed = slots.computed[slot]
        total_tokens += tokens
        if tokens == 1:
            decodes += 1
            context_tokens += computed + 1
        else:
            chunks_ps += attention_of_chunk(times, tokens, computed)
        computed += tokens
        slots.computed[slot] = computed
        emits = computed == slots.total[slot] + slots.placeholders[slot]
        flight.emits[start + i] = emits
        slots.placeholders[slot] += emits
    flight.size[batch] = n
    flight.scheduled_ps[batch] = now
    flight.duration_ps[batch] = 0
    if n > 0:
        duration = step_ps(config, times, total_tokens, decodes, context_tokens, chunks_ps, n)
        flight.duration_ps[batch] = duration
        meter_step(config, state.meters.meters[replica], reg, duration, total_tokens)
    reg[FLIGHT] += 1
    return preempted
