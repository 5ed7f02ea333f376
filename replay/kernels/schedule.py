"""One call of the vLLM v1 scheduler (``Scheduler.schedule``): running requests first, then the waiting queue.

The specification is engine semantics 1.1; the steps below are in its order.
"""

from __future__ import annotations

from replay.kernels.groups import blocks_to_admit, grow, lookup, release, take_hits
from replay.kernels.jit import inlined, inner
from replay.kernels.offload import blocks_on_host, load_from_host, loading_ps
from replay.kernels.passed_over import keeps_absent, note_absent, surely_exceeds
from replay.kernels.speculative import draft_ps, start_speculating
from replay.kernels.state import (
    BUSY,
    CHUNKS_PS,
    CONTEXT,
    DRAFTS,
    EMITTING,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    FREE_SLOTS,
    HIT_TOKENS,
    HOST_HIT_TOKENS,
    MAX_USED_BLOCKS,
    NEVER,
    ONES,
    PREEMPTIONS,
    PRIORITY,
    QUERIED_TOKENS,
    REQUESTS,
    RUNNING,
    RUNNING_REQUESTS,
    SCHEDULED_TOKENS,
    STEPS,
    TOKENS,
    USED_BLOCKS,
    WAITING,
    Config,
    Float64,
    Int64,
    Requests,
    Slots,
    State,
    StepTimes,
    UInt32,
)
from replay.kernels.steptime import attention_of_chunk, step_ps
from replay.kernels.waiting import insert, peek, put_back, ranks_before, unlink_head


@inner
def victim_position(config: Config, requests: Requests, state: State, reg: Int64, first: int) -> int:
    """Whom to preempt, as a position of the running list: the last, or by priority the largest (priority, arrival)."""
    last = reg[RUNNING] - 1
    if config.priority_policy != PRIORITY:
        return last
    slots = state.slots
    worst = last
    for i in range(last):
        if ranks_before(
            requests.priority, slots.request[slots.order[first + worst]], slots.request[slots.order[first + i]]
        ):
            worst = i
    return worst


@inner
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
    if slots.left[slot] == slots.unscheduled[slot]:  # else a token is in flight: the slot is freed when it arrives
        slots.free[first + reg[FREE_SLOTS]] = slot
        reg[FREE_SLOTS] += 1
    save_progress(state, slot)
    state.outcome.preemptions[r] += 1
    reg[PREEMPTIONS] += 1
    insert(config, requests, state.outcome, reg, r, True)


@inner
def save_progress(state: State, slot: int) -> None:
    """Writes a slot's generated tokens and last token time to its request."""
    slots, outcome = state.slots, state.outcome
    r = slots.request[slot]
    outcome.generated[r] += slots.granted[slot] - slots.left[slot]
    slots.granted[slot] = slots.left[slot]
    outcome.last_ps[r] = slots.last_ps[slot]


@inlined
def add_to_batch(
    config: Config, times: StepTimes, state: State, sums: Int64, start: int, slot: int, tokens: int
) -> None:
    """Puts ``tokens`` tokens of a slot into the batch; if they complete what is missing, it gives a token at the
    end."""
    slots = state.slots
    computed = slots.computed[slot]
    drafts = 0
    if config.speculative_tokens:
        drafts = max(0, tokens - slots.todo[slot])
        state.speculation.drafts[slot] = drafts
        sums[DRAFTS] += drafts
    sums[REQUESTS] += 1
    sums[TOKENS] += tokens
    if tokens == 1 or drafts > 0:  # drafts read their context once, all together
        sums[ONES] += 1
        sums[CONTEXT] += computed + tokens
    else:
        sums[CHUNKS_PS] += attention_of_chunk(times, tokens, computed)
    slots.computed[slot] = computed + tokens
    if config.runs_past_end and slots.unscheduled[slot] == 0:
        return  # its last token is in flight, and what it computes now is dropped
    if tokens - drafts == slots.todo[slot]:
        state.flight.slot[start + sums[EMITTING]] = slot
        sums[EMITTING] += 1
        slots.unscheduled[slot] -= 1
        slots.todo[slot] = 1
    else:
        slots.todo[slot] -= tokens


@inner
def take_from_batch(times: StepTimes, state: State, sums: Int64, start: int, slot: int) -> None:
    """Undoes ``add_to_batch`` for a slot that is about to be preempted."""
    slots, flight = state.slots, state.flight
    tokens = slots.chunk[slot]
    computed = slots.computed[slot] - tokens
    drafts = state.speculation.drafts[slot] if len(state.speculation.drafts) > 0 else 0
    sums[DRAFTS] -= drafts
    sums[REQUESTS] -= 1
    sums[TOKENS] -= tokens
    if tokens == 1 or drafts > 0:
        sums[ONES] -= 1
        sums[CONTEXT] -= computed + tokens
    else:
        sums[CHUNKS_PS] -= attention_of_chunk(times, tokens, computed)
    for i in range(sums[EMITTING]):
        if flight.slot[start + i] == slot:
            for j in range(i, sums[EMITTING] - 1):
                flight.slot[start + j] = flight.slot[start + j + 1]
            sums[EMITTING] -= 1
            slots.unscheduled[slot] += 1
            return


@inner
def decode_run(
    order: UInt32, batch: UInt32, computed: Int64, todo: Int64, unscheduled: Int64, room: Int64, spare: int
) -> tuple[int, int]:
    """Writes the slots at the head of ``order`` to ``batch`` that are plain decodes: one token each, in a block that
    they hold and, by ``spare`` tokens, do not fill.

    Returns how many, and the context tokens that they read. A loop of its own over a few arrays: inside the scheduler
    the compiler keeps reloading where all the others lie, and it took twice as long.
    """
    context = 0
    for i in range(len(order)):
        slot = order[i]
        end = computed[slot] + 1
        if todo[slot] != 1 or unscheduled[slot] == 0 or end > room[slot] - spare:
            return i, context
        computed[slot] = end
        unscheduled[slot] -= 1
        batch[i] = slot
        context += end
    return len(order), context


@inlined
def add_decodes(config: Config, state: State, reg: Int64, sums: Int64, first: int, start: int, i: int) -> int:
    """Adds plain decodes from position ``i`` on; returns the first that is not one.

    The same as ``add_to_batch`` for each, with the sums kept in registers: nearly every request of every step is one.
    """
    slots = state.slots
    most = min(reg[RUNNING] - i, config.max_num_batched_tokens - sums[TOKENS])
    if most <= 0:
        return i
    added, context = decode_run(
        slots.order[first + i : first + i + most],
        state.flight.slot[start + sums[EMITTING] :],
        slots.computed,
        slots.todo,
        slots.unscheduled,
        slots.room,
        config.prefix_caching,  # a block that fills up must be published
    )
    sums[REQUESTS] += added
    sums[TOKENS] += added
    sums[ONES] += added
    sums[EMITTING] += added
    sums[CONTEXT] += context
    return i + added


@inlined
def runs_past_end(config: Config, slots: Slots, slot: int) -> bool:
    """Whether a request whose last token is in flight is scheduled again: 0.11 knows of no end but the context's."""
    return bool(config.runs_past_end) and slots.computed[slot] < config.max_model_len - 1


@inlined
def schedule_running(
    config: Config,
    requests: Requests,
    times: StepTimes,
    state: State,
    reg: Int64,
    sums: Int64,
    replica: int,
    start: int,
    threshold: int,
    mask: int,
) -> bool:
    """Fills the batch with running requests; True where anyone was preempted."""
    slots = state.slots
    first = replica * config.max_num_seqs
    by_priority = config.priority_policy == PRIORITY
    always_grow = config.prefix_caching == 1  # growing also publishes blocks that have filled up
    preempted = False
    i = 0
    while True:
        if not by_priority and not config.speculative_tokens:
            i = add_decodes(config, state, reg, sums, first, start, i)
        if i >= reg[RUNNING] or sums[TOKENS] >= config.max_num_batched_tokens:
            break
        slot = slots.order[first + i]
        if slots.unscheduled[slot] == 0 and not runs_past_end(config, slots, slot):
            slots.chunk[slot] = 0
            i += 1  # the tokens in flight already complete it
            continue
        tokens = slots.todo[slot]
        if config.speculative_tokens:
            tokens += state.speculation.drafts[slot]
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, config.max_num_batched_tokens - sums[TOKENS])
        if config.speculative_tokens:
            tokens = min(tokens, config.max_model_len - 1 - slots.computed[slot])
        end = slots.computed[slot] + tokens
        slots_taken = end
        if config.speculative_tokens:
            slots_taken = min(end + config.lookahead_tokens, config.max_model_len)
        granted = True
        while always_grow or slots_taken > slots.room[slot]:
            known = slots.computed[slot] + slots.todo[slot] - (slots.left[slot] - slots.unscheduled[slot])
            if grow(config, requests, state.blocks, slots, reg, replica, slot, slots_taken, min(end, known), mask):
                break
            position = victim_position(config, requests, state, reg, first)
            victim = slots.order[first + position]
            if config.victims_stay:
                if position < i:
                    state.outcome.stale[slots.request[victim]] = slots.chunk[victim]
            elif position < i:
                if slots.chunk[victim] > 0:
                    take_from_batch(times, state, sums, start, victim)
                i -= 1
            preempt(config, requests, state, reg, replica, first, position)
            preempted = True
            if config.victims_stay and i < reg[RUNNING]:
                slots.chunk[slots.order[first + i]] = (
                    0  # the list has moved up under the scheduler, which passes it over
                )
            if victim == slot:
                granted = False
                break
        if granted:
            if by_priority:
                slots.chunk[slot] = tokens
            add_to_batch(config, times, state, sums, start, slot, tokens)
            i += 1
        elif not by_priority or config.victims_stay:
            break
    return preempted


@inner
def place(config: Config, requests: Requests, state: State, reg: Int64, first: int, r: int, hit_tokens: int) -> int:
    """Gives request ``r`` a slot at the end of the running list; returns the slot."""
    slots, outcome = state.slots, state.outcome
    reg[FREE_SLOTS] -= 1
    slot = slots.free[first + reg[FREE_SLOTS]]
    slots.order[first + reg[RUNNING]] = slot
    reg[RUNNING] += 1
    total = requests.prompt_tokens[r] + outcome.generated[r]
    left = min(requests.output_tokens[r] - outcome.generated[r], config.max_model_len - total)
    slots.request[slot] = r
    slots.computed[slot] = hit_tokens
    slots.todo[slot] = total - hit_tokens
    slots.unscheduled[slot] = left
    slots.left[slot] = left
    slots.granted[slot] = left
    slots.held[slot] = 0
    slots.room[slot] = 0
    slots.cached[slot] = 0
    slots.running[slot] = 1
    slots.last_ps[slot] = outcome.last_ps[r]
    if config.speculative_tokens:
        start_speculating(state, slot)
    return slot


@inner
def schedule_waiting(
    config: Config,
    requests: Requests,
    times: StepTimes,
    state: State,
    reg: Int64,
    sums: Int64,
    replica: int,
    start: int,
    threshold: int,
    mask: int,
    now: int,
) -> None:
    """Admits waiting requests in order while budget, slots and memory last."""
    slots, outcome = state.slots, state.outcome
    first = replica * config.max_num_seqs
    skipped_first, skipped_last = NEVER, NEVER
    while sums[TOKENS] < config.max_num_batched_tokens and reg[RUNNING] < config.max_num_seqs and reg[FREE_SLOTS] > 0:
        r = peek(config, requests, outcome, reg)
        if r == NEVER:
            break
        budget = config.max_num_batched_tokens - sums[TOKENS]
        total = requests.prompt_tokens[r] + outcome.generated[r]
        hits, free_hits, first_live, on_host = 0, 0, 0, 0
        stale = outcome.stale[r] if config.victims_stay else 0
        seeks = config.prefix_caching and stale == 0
        exceeds = (
            seeks
            and keeps_absent(config)
            and surely_exceeds(config, requests, state.blocks, outcome, reg, replica, r, total, threshold, budget, mask)
        )
        if seeks and not exceeds:
            hits, free_hits, first_live = lookup(config, requests, state.blocks, reg, replica, r, total, mask)
            if config.host_blocks > 0:
                end = (total - 1) // config.block_size
                on_host = blocks_on_host(config, requests, state.blocks, reg, replica, r, hits, end)
            if keeps_absent(config):
                note_absent(config, state.blocks, outcome, replica, r, hits + on_host)
        hit_tokens = (hits + on_host) * config.block_size
        tokens = total - hit_tokens - stale
        if 0 < threshold < tokens:
            tokens = threshold
        if exceeds or (not config.enable_chunked_prefill and tokens > budget):
            if not config.unchunked_looks_further:
                break
            unlink_head(config, outcome, reg)
            outcome.link[r] = skipped_first  # 0.11 puts those it passed over back last first
            skipped_first = r
            if skipped_last == NEVER:
                skipped_last = r
            continue
        tokens = min(tokens, budget)
        room = reg[FREE_BLOCKS] - free_hits
        if reg[RUNNING] > 0:
            room -= config.watermark_blocks
        slots_taken = hit_tokens + stale + tokens
        must_fit = total if config.reserve_full_isl else slots_taken
        if config.reserve_whole_life:
            slots_taken = min(requests.prompt_tokens[r] + requests.max_tokens[r], config.max_model_len)
            must_fit = slots_taken
        if blocks_to_admit(config, must_fit, hits, first_live) > room:
            break
        unlink_head(config, outcome, reg)
        reg[WAITING] -= 1
        slot = place(config, requests, state, reg, first, r, hit_tokens + stale)
        if config.victims_stay:
            outcome.stale[r] = 0
        if config.prefix_caching:
            take_hits(config, state.blocks, slots, reg, replica, slot, hits, first_live)
            outcome.hit_tokens[r] += hit_tokens
            reg[HIT_TOKENS] += hit_tokens
            if on_host > 0:
                load_from_host(config, requests, state.blocks, replica, r, hits, on_host)
                reg[HOST_HIT_TOKENS] += on_host * config.block_size
            reg[QUERIED_TOKENS] += total
        grow(config, requests, state.blocks, slots, reg, replica, slot, slots_taken, total, mask)
        if outcome.admitted_ps[r] == NEVER:
            outcome.admitted_ps[r] = now
        add_to_batch(config, times, state, sums, start, slot, tokens)
    if skipped_last != NEVER:
        put_back(config, outcome, reg, skipped_first, skipped_last)


@inlined
def meter_step(config: Config, meters: Float64, reg: Int64, duration: int, tokens: int) -> None:
    """Counts one step and weighs what it holds by its duration."""
    used = config.num_blocks - reg[FREE_BLOCKS]
    reg[STEPS] += 1
    reg[SCHEDULED_TOKENS] += tokens
    reg[MAX_USED_BLOCKS] = max(reg[MAX_USED_BLOCKS], used)
    meters[BUSY] += duration
    meters[USED_BLOCKS] += float(used) * duration
    meters[RUNNING_REQUESTS] += float(reg[RUNNING]) * duration


@inlined
def schedule(
    config: Config, requests: Requests, times: StepTimes, state: State, reg: Int64, replica: int, mask: int, now: int
) -> bool:
    """Builds the next batch of a replica at time ``now`` and queues it; True where anyone was preempted."""
    flight, sums = state.flight, state.meters.sums
    ring = (reg[FLIGHT_FIRST] + reg[FLIGHT]) % config.batches_in_flight
    batch = replica * config.batches_in_flight + ring
    start = batch * config.max_num_seqs
    threshold = config.long_prefill_token_threshold
    if not config.threshold_binds_lone_request and reg[RUNNING] + reg[WAITING] <= 1:
        threshold = 0
    for i in range(len(sums)):
        sums[i] = 0
    preempted = schedule_running(config, requests, times, state, reg, sums, replica, start, threshold, mask)
    if not preempted:
        schedule_waiting(config, requests, times, state, reg, sums, replica, start, threshold, mask, now)
    flight.size[batch] = sums[REQUESTS]
    flight.emitting[batch] = sums[EMITTING]
    flight.scheduled_ps[batch] = now
    flight.duration_ps[batch] = 0
    if sums[REQUESTS] > 0:
        duration = step_ps(config, times, sums[TOKENS], sums[ONES], sums[CONTEXT], sums[CHUNKS_PS], sums[REQUESTS])
        if sums[DRAFTS] > 0:
            duration += draft_ps(config, times, sums[DRAFTS], sums[ONES], sums[CONTEXT])
        if config.prefix_caching and config.host_blocks > 0:
            duration += loading_ps(config, state.blocks.host, replica)
        flight.duration_ps[batch] = duration
        meter_step(config, state.meters.meters[replica], reg, duration, sums[TOKENS])
    reg[FLIGHT] += 1
    return preempted
