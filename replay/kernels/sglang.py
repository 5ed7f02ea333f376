"""SGLang: a batch of prefills whenever one can be formed, else one of decodes.

The specification is engine semantics 1.3, and where that is silent or differs the scheduler of 0.5.23, whose recorded
steps this gives. One request at a time is prefilled in chunks; it goes first, and new requests fill what is left of
``chunked_prefill_size``. A request is admitted while its prompt, its declared output (at most 4096 tokens of it) and a
page fit beside a share, ``new_token_ratio``, of what the running ones may still generate. The share falls with every
decode step; when decodes find no memory, the requests with the fewest output tokens are retracted to the tail of the
queue, their token in flight is lost, and the share is set anew. With the radix cache (``radix``) prompts and outputs
stay in memory until it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.by_reference import by_reference
from replay.kernels.clock import next_instant, pass_instant
from replay.kernels.engine import drop_finished, finish_batch
from replay.kernels.groups import release
from replay.kernels.jit import inlined, inner, kernel
from replay.kernels.lpm import LPM_LONGEST_QUEUE, sort_by_prefix
from replay.kernels.memory import blocks_for
from replay.kernels.patience import drop_from_flight, free_slot
from replay.kernels.pipeline import close_batch, hold, is_idle, note_admission, open_batch, replica_is_set
from replay.kernels.radix import (
    Radix,
    keep_known,
    keep_outputs,
    let_go_of_path,
    lock,
    make_room,
    match,
    new_radix,
    unlock,
)
from replay.kernels.routers import keep_snapshot
from replay.kernels.schedule import add_to_batch, place
from replay.kernels.state import (
    CHANGED,
    FAR,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    FREE_SLOTS,
    HIT_TOKENS,
    NEVER,
    NEXT_EVENT,
    PREEMPTIONS,
    QUERIED_TOKENS,
    REQUESTS,
    RUNNING,
    WAITING,
    Config,
    Float64,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.waiting import insert, peek, unlink_head

CLIP_MAX_NEW_TOKENS = 4096
"""Of a request's declared output, the admission test counts at most so many tokens."""
RATIO_STEPS = 600
"""Decode steps from the initial ratio to the least."""
RETRACT_STEPS = 20
"""Decode steps of every kept request that the ratio set by a retraction provides for."""


@by_reference
class SglangOptions(NamedTuple):
    """What SGLang has beyond ``Config``."""

    chunked_prefill_size: int  # tokens of a prefill batch; NEVER: prompts are not cut
    max_prefill_tokens: int
    ratio_first: float
    ratio_least: float
    radix: int = 0  # 1: the radix cache is on
    lpm: int = 0  # 1: the queue is ordered by longest prefix match


@by_reference
class SglangState(NamedTuple):
    """What SGLang remembers between steps, shape (replicas,) each."""

    ratio: Float64
    chunked: Int64  # slot of the request whose prefill is under way, or NEVER
    is_full: Int64  # 1: no prefill is tried until a request leaves; forgotten where nothing ran beside the prefill
    radix: Radix
    queue: Int64  # scratch of the order by prefix


def new_sglang(config: Config, options: SglangOptions) -> SglangState:
    """The memory of idle replicas."""
    return SglangState(
        ratio=np.full(config.replicas, options.ratio_first),
        chunked=np.full(config.replicas, NEVER, np.int64),
        is_full=np.zeros(config.replicas, np.int64),
        radix=new_radix(config, bool(options.radix)),
        queue=np.zeros((3, LPM_LONGEST_QUEUE), np.int64),
    )


@inlined
def to_come(requests: Requests, r: int, generated: int) -> int:
    """Output tokens that the admission test expects of a request, at most."""
    return min(requests.max_tokens[r] - generated, CLIP_MAX_NEW_TOKENS)


@inlined
def paged(config: Config, tokens: int) -> int:
    """``tokens`` up to whole pages."""
    return blocks_for(tokens, config.block_size) * config.block_size


@inlined
def schedule_prefill(
    config: Config,
    options: SglangOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: SglangState,
    reg: Int64,
    replica: int,
    start: int,
    now: int,
) -> None:
    """Fills the batch with the chunk under way and new requests; leaves it empty where no prefill can be formed."""
    slots, outcome, sums = state.slots, state.outcome, state.meters.sums
    first = replica * config.max_num_seqs
    chunked = own.chunked[replica]
    if chunked != NEVER or reg[RUNNING] == 0:
        own.is_full[replica] = 0
    if chunked == NEVER and (own.is_full[replica] or reg[WAITING] == 0):
        return
    running = reg[RUNNING] - (chunked != NEVER)
    if chunked == NEVER and running >= config.max_num_seqs:
        own.is_full[replica] = 1
        return
    radix = own.radix
    if options.radix and chunked != NEVER:
        keep_known(config, requests, radix, slots, reg, replica, chunked, slots.computed[chunked])
    if options.radix and options.lpm:
        sort_by_prefix(config, requests, radix, outcome, reg, replica, own.queue)
    reserved = 0.0  # tokens, summed in the engine's order: sums of shares are not exact
    for i in range(reg[RUNNING]):
        slot = slots.order[first + i]
        if slot != chunked:
            r = slots.request[slot]
            reserved += to_come(requests, r, requests.output_tokens[r] - slots.left[slot]) * own.ratio[replica]
    memory_left = reg[FREE_BLOCKS] * config.block_size
    free_tokens = memory_left
    input_left = options.max_prefill_tokens
    chunk_left = options.chunked_prefill_size if options.chunked_prefill_size != NEVER else FAR
    if chunked != NEVER:
        r = slots.request[chunked]
        limit = min(chunk_left, int(max(free_tokens - reserved, 0.0)))
        if limit <= 0:
            limit = chunk_left
        tokens = slots.todo[chunked]
        if tokens > limit:
            tokens = limit
        else:
            own.chunked[replica] = NEVER
            reserved += to_come(requests, r, 0)
        hold(config, slots, reg, chunked, slots.computed[chunked] + tokens)
        add_to_batch(config, times, state, sums, start, chunked, tokens)
        charge = paged(config, tokens)
        reserved += charge + config.block_size
        memory_left -= charge + config.block_size
        input_left -= charge
        chunk_left -= charge
    while reg[WAITING] > 0 and reg[FREE_SLOTS] > 0:
        if free_tokens > reserved and memory_left > 0 and (input_left <= 0 or chunk_left <= 0):
            return
        if running + sums[REQUESTS] >= config.max_num_seqs:
            own.is_full[replica] = int(running > 0)
            return
        r = peek(config, requests, outcome, reg)
        total = requests.prompt_tokens[r] + outcome.generated[r]
        hit, tip, extend, locked = 0, NEVER, total, 0
        if options.radix:  # what it is about to share can no longer be evicted
            tip = match(config, requests, radix, reg, replica, r, total - 1)
            hit = radix.end[tip]
            extend = total - hit
            free = reg[FREE_BLOCKS]
            lock(config, radix, reg, replica, tip)
            locked = (free - reg[FREE_BLOCKS]) * config.block_size
        tokens, output, charge = extend, to_come(requests, r, 0), paged(config, extend)
        fits = extend + to_come(requests, r, outcome.generated[r]) + config.block_size < free_tokens - locked - reserved
        if fits and charge > chunk_left:
            tokens = chunk_left // config.block_size * config.block_size
            charge, output = tokens, 0
        whole_over_limit = chunk_left == FAR and charge >= input_left and sums[REQUESTS] > 0
        if not fits or tokens <= 0 or whole_over_limit:
            if not fits:
                own.is_full[replica] = int(running > 0)
            if options.radix:
                unlock(config, radix, reg, replica, tip)
            return
        unlink_head(config, outcome, reg)
        reg[WAITING] -= 1
        slot = place(config, requests, state, reg, first, r, hit)
        if tokens < extend:
            own.chunked[replica] = slot
        if options.radix:
            radix.node[slot] = tip
            slots.held[slot] = hit // config.block_size
            free_tokens -= locked
            memory_left -= locked
            outcome.hit_tokens[r] += hit
            reg[HIT_TOKENS] += hit
            reg[QUERIED_TOKENS] += total
        hold(config, slots, reg, slot, hit + tokens)
        note_admission(outcome, r, now)
        add_to_batch(config, times, state, sums, start, slot, tokens)
        reserved += charge + config.block_size + output
        memory_left -= charge + config.block_size
        input_left -= charge
        if options.chunked_prefill_size != NEVER:
            chunk_left -= charge
        if free_tokens <= reserved or memory_left <= 0:
            own.is_full[replica] = int(running > 0)
            return
        if input_left <= 0 or chunk_left <= 0:
            return


@inner
def retract(
    config: Config,
    options: SglangOptions,
    requests: Requests,
    state: State,
    own: SglangState,
    reg: Int64,
    replica: int,
    slot: int,
) -> None:
    """Frees a running request's memory and puts it at the tail of the queue; its token in flight is dropped. What it
    has in the radix tree stays there, unlocked; what it generated since does not enter it."""
    slots, outcome = state.slots, state.outcome
    if slots.left[slot] != slots.unscheduled[slot]:
        drop_from_flight(config, state, reg, replica, slots.request[slot])
    if options.radix:
        let_go_of_path(config, own.radix, slots, reg, replica, slot)
    release(config, state.blocks, slots, reg, replica, slot)
    slots.running[slot] = 0
    free_slot(config, state, reg, replica, slot)
    r = slots.request[slot]
    outcome.preemptions[r] += 1
    reg[PREEMPTIONS] += 1
    insert(config, requests, outcome, reg, r, False)


@inner
def blocks_of_next_decode(config: Config, state: State, reg: Int64, replica: int) -> tuple[int, int]:
    """(blocks that the next decode step takes, requests that it has): not those that a token in flight ends."""
    slots = state.slots
    first = replica * config.max_num_seqs
    need, rows = 0, 0
    for i in range(reg[RUNNING]):
        slot = slots.order[first + i]
        if slots.running[slot] and slots.unscheduled[slot] > 0:
            rows += 1
            need += slots.computed[slot] + 1 > slots.room[slot]
    return need, rows


@inner
def retract_until_it_fits(
    config: Config,
    options: SglangOptions,
    requests: Requests,
    state: State,
    own: SglangState,
    reg: Int64,
    replica: int,
) -> None:
    """Retracts at least one request, but never the last: fewest output tokens first, of equals the longest prompt."""
    slots = state.slots
    first = replica * config.max_num_seqs
    is_first = True
    while True:
        need, rows = blocks_of_next_decode(config, state, reg, replica)
        if options.radix:
            make_room(config, requests, own.radix, reg, replica, need)
        if rows <= 1 or (not is_first and need <= reg[FREE_BLOCKS]):
            break
        is_first = False
        victim, least, longest = NEVER, FAR, 0
        for i in range(reg[RUNNING]):
            slot = slots.order[first + i]
            if not slots.running[slot] or slots.unscheduled[slot] == 0:
                continue
            r = slots.request[slot]
            generated, prompt = requests.output_tokens[r] - slots.left[slot], requests.prompt_tokens[r]
            if generated < least or (generated == least and prompt >= longest):
                victim, least, longest = slot, generated, prompt
        retract(config, options, requests, state, own, reg, replica, victim)
        if options.radix:
            ahead = blocks_for((rows - 1) * RETRACT_STEPS, config.block_size)
            make_room(config, requests, own.radix, reg, replica, ahead)
    drop_finished(config, state, reg, replica)
    generated_sum, declared_sum = 0, 0
    for i in range(reg[RUNNING]):
        slot = slots.order[first + i]
        r = slots.request[slot]
        generated_sum += requests.output_tokens[r] - slots.left[slot]
        declared_sum += requests.max_tokens[r]
    own.ratio[replica] = min(1.0, (generated_sum + RETRACT_STEPS * reg[RUNNING]) / (declared_sum + 1))


@inlined
def schedule_sglang(
    config: Config,
    options: SglangOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: SglangState,
    reg: Int64,
    replica: int,
    now: int,
) -> bool:
    """Builds the next batch of a replica; True where a request was retracted."""
    slots, sums = state.slots, state.meters.sums
    batch = open_batch(config, state, reg, replica)
    start = batch * config.max_num_seqs
    first = replica * config.max_num_seqs
    schedule_prefill(config, options, requests, times, state, own, reg, replica, start, now)
    retractions = reg[PREEMPTIONS]
    if sums[REQUESTS] == 0:
        need, rows = blocks_of_next_decode(config, state, reg, replica)
        if rows < reg[RUNNING]:
            own.is_full[replica] = 0
        if rows > 0 and need <= reg[FREE_BLOCKS]:
            decay = (options.ratio_first - options.ratio_least) / RATIO_STEPS
            own.ratio[replica] = max(own.ratio[replica] - decay, options.ratio_least)
        elif rows == reg[RUNNING] and rows > 0:  # else what ends with a token in flight makes room for the next step
            retract_until_it_fits(config, options, requests, state, own, reg, replica)
            need, rows = blocks_of_next_decode(config, state, reg, replica)
        if need <= reg[FREE_BLOCKS]:
            for i in range(reg[RUNNING]):
                slot = slots.order[first + i]
                if slots.unscheduled[slot] > 0:
                    hold(config, slots, reg, slot, slots.computed[slot] + 1)
                    add_to_batch(config, times, state, sums, start, slot, 1)
    if options.radix:
        make_room(config, requests, own.radix, reg, replica, 0)
    close_batch(config, times, state, reg, replica, batch, now)
    if reg[PREEMPTIONS] == retractions:
        return False
    own.is_full[replica] = 0
    return True


@kernel
def advance_sglang(
    config: Config,
    options: SglangOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: SglangState,
    max_events: int,
) -> bool:
    """Runs up to ``max_events`` batch ends or arrival instants; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing. The caller has put aside the requests
    that can never run.
    """
    regs, cluster = state.meters.regs, state.meters.cluster
    for _ in range(max_events):
        now = next_instant(config, requests, state)
        if now == FAR:
            return False
        keep_snapshot(config, regs, cluster, state.routing, now - 1)
        for replica in range(config.replicas):
            if regs[replica, NEXT_EVENT] == now:
                running = regs[replica, RUNNING]
                if options.radix:
                    batch = replica * config.batches_in_flight + regs[replica, FLIGHT_FIRST]
                    keep_outputs(config, requests, own.radix, state, regs[replica], replica, batch)
                finish_batch(config, requests, state, regs[replica], replica, 0)
                if regs[replica, RUNNING] < running:
                    own.is_full[replica] = 0
        pass_instant(config, requests, state, now)
        for replica in range(config.replicas):
            reg = regs[replica]
            while reg[NEXT_EVENT] == now:
                if reg[CHANGED]:
                    reg[CHANGED] = 0
                    own.is_full[replica] = 0
                    if own.chunked[replica] != NEVER and not state.slots.running[own.chunked[replica]]:
                        own.chunked[replica] = NEVER
                if is_idle(config, state.flight, reg, replica):
                    own.ratio[replica] = options.ratio_first
                    break
                retracted = False
                while reg[FLIGHT] < config.batches_in_flight:
                    retracted |= schedule_sglang(config, options, requests, times, state, own, reg, replica, now)
                if replica_is_set(config, state, reg, replica, retracted):
                    break
    return True
