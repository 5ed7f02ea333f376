"""Prefill and decode on pools of their own, with the KV cache carried from one to the other.

The specification is engine semantics 5, "Disaggregated P/D". Both pools run the vLLM V1 scheduler. The prefill pool
sees every request as one output token long: its batch that completes the prompt gives the first token. The request's
prefill blocks then stay taken (delayed free) until its KV is where it is needed:

1. A decode replica is chosen, and the request joins that replica's line.
2. When the replica schedules, a request at the head of the line takes the blocks of its whole prompt, if they are free,
   and the transfer starts as soon as the sender's and the receiver's links have done what was asked of them before.
3. At its end the prefill blocks are free, and the decode replica may take the request into its next batch.

A line is in order of hand-over and so are its transfers: one list with three cursors. What a decode replica preempts
is recomputed there (vLLM fetches nothing twice), before the line takes more blocks: first come first served. Requests
whose KV has come hold their blocks already and go first; were they behind one that needs blocks, neither could move.

At equal times batches end, then transfers, then requests arrive and are handed over, then batches start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.by_reference import by_reference
from replay.kernels.engine import finish_batch
from replay.kernels.jit import inlined, inner, kernel
from replay.kernels.memory import blocks_for, give_back, prepare_free_list
from replay.kernels.pipeline import close_batch, is_idle, note_admission, open_batch, replica_is_set
from replay.kernels.routers import keep_snapshot, route
from replay.kernels.schedule import add_to_batch, place, schedule_running, schedule_waiting
from replay.kernels.state import (
    FAR,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    FREE_SLOTS,
    NEVER,
    NEXT_ARRIVAL,
    NEXT_EVENT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    RUNNING,
    TOKENS,
    WAITING,
    Config,
    Int32,
    Int64,
    Meters,
    Requests,
    Routing,
    State,
    StepTimes,
)
from replay.kernels.waiting import insert, peek

# Columns of ``Handover.line``: the requests handed to one decode replica and not in a batch yet.
(
    FIRST,  # the next to enter a batch
    SENDING,  # the first whose transfer has not ended
    ASKING,  # the first without blocks
    LINE_TAIL,
    RECEIVER_FREE_PS,
    LINES,
) = range(6)

# Columns of ``Handover.sender``: what one prefill replica keeps for transfers.
SENDER_FREE_PS, ENTRY_FREE, ENTRIES_USED, SENDERS = range(4)

# Entries of ``Handover.scalars``.
LEAVING, SHORT, SCALARS = range(3)


@by_reference
class TransferOptions(NamedTuple):
    """How KV travels, all int64."""

    block_ps: int  # of one decode-side block over all ranks
    latency_ps: int
    first_token_from_prefill: int  # 0: the decode side computes the last prompt token again and gives the first token
    skips_prefill: int  # 1: every prompt is taken as prefilled on arrival, to measure the decode pool alone


@by_reference
class Pool(NamedTuple):
    """One pool of equal replicas, and the requests as it sees them."""

    config: Config
    requests: Requests
    times: StepTimes
    state: State
    dealt: Int32  # the replica of each request under a router that reads no state; length 0 under one that does
    mask: int  # of the hash table of a replica's blocks


@by_reference
class Handover(NamedTuple):
    """What lies between the pools: by request unless said."""

    next: Int32  # the next in a line
    kv_ps: Int64  # when its KV is on the decode replica, NEVER before its transfer has started
    held: Int32  # prefill blocks kept for the transfer; NEVER: its KV is lost and computed again
    entries: Int32  # the last of those blocks as an entry of ``entry_block`` (prefix caching)
    leaving: Int32  # prefilled at this instant, in order
    line: Int64  # shape (decode replicas, LINES)
    sender: Int64  # shape (prefill replicas, SENDERS)
    entry_block: Int32  # shape (prefill replicas, entries)
    entry_next: Int32  # the block before it, or the next free entry
    scalars: Int64


def new_handover(n: int, prefill: Config, decode: Config, entries: int) -> Handover:
    """Nothing under way. ``entries``: block references that a prefill replica can keep for transfers."""
    i32, i64 = np.int32, np.int64
    line = np.full((decode.replicas, LINES), NEVER, i64)
    line[:, RECEIVER_FREE_PS] = 0
    sender = np.zeros((prefill.replicas, SENDERS), i64)
    sender[:, ENTRY_FREE] = NEVER
    return Handover(
        next=np.full(n, NEVER, i32),
        kv_ps=np.full(n, NEVER, i64),
        held=np.zeros(n, i32),
        entries=np.full(n, NEVER, i32),
        leaving=np.zeros(n, i32),
        line=line,
        sender=sender,
        entry_block=np.zeros((prefill.replicas, entries), i32),
        entry_next=np.zeros((prefill.replicas, entries), i32),
        scalars=np.zeros(SCALARS, i64),
    )


@inner
def keep_blocks(prefill: Pool, handover: Handover, replica: int, slot: int, r: int) -> None:
    """Takes a slot's blocks over before the slot is freed. Under prefix caching they are shared, so each is noted."""
    slots = prefill.state.slots
    held = slots.held[slot]
    handover.held[r] = held
    slots.held[slot] = 0
    if not prefill.config.prefix_caching:
        return
    sender = handover.sender[replica]
    block, behind = handover.entry_block[replica], handover.entry_next[replica]
    last = NEVER
    for i in range(held):
        entry = sender[ENTRY_FREE]
        if entry != NEVER:
            sender[ENTRY_FREE] = behind[entry]
        elif sender[ENTRIES_USED] < len(block):
            entry = sender[ENTRIES_USED]
            sender[ENTRIES_USED] += 1
        else:
            handover.scalars[SHORT] = 1
            return
        block[entry] = prefill.state.blocks.table[slot * prefill.config.table_width + i]
        behind[entry] = last
        last = entry
    handover.entries[r] = last


@inner
def free_kept_blocks(prefill: Pool, handover: Handover, r: int) -> None:
    """Gives back what ``keep_blocks`` took, last block first; an idle replica that waits for memory is due now."""
    config, blocks = prefill.config, prefill.state.blocks
    replica = prefill.state.outcome.replica[r]
    reg = prefill.state.meters.regs[replica]
    if not config.prefix_caching:
        reg[FREE_BLOCKS] += handover.held[r]
        return
    behind, sender = handover.entry_next[replica], handover.sender[replica]
    sentinel = replica * (config.num_blocks + 1) + config.num_blocks
    front, entry = sentinel, int(handover.entries[r])
    while entry != NEVER:
        front = give_back(config, blocks, reg, replica, handover.entry_block[replica, entry], front)
        before = int(behind[entry])
        behind[entry] = sender[ENTRY_FREE]
        sender[ENTRY_FREE] = entry
        entry = before


@inlined
def wake(reg: Int64, now: int) -> None:
    """An idle replica has something to do."""
    if reg[NEXT_EVENT] == FAR:
        reg[NEXT_EVENT] = now
        reg[FLIGHT] = 0


@inner
def choose(pool: Pool, r: int) -> int:
    """Routes request ``r`` into a pool; returns the replica."""
    state = pool.state
    if len(pool.dealt) > 0:
        replica = int(pool.dealt[r])
    else:
        replica = route(pool.config, pool.requests, state.meters.regs, state.meters.cluster, state.routing, r)
    reg = state.meters.regs[replica]
    state.outcome.replica[r] = replica
    reg[OUTSTANDING] += 1
    reg[OUTSTANDING_TOKENS] += pool.requests.prompt_tokens[r] + pool.requests.output_tokens[r]
    return replica


@inner
def finish(pool: Pool, replica: int) -> None:
    """Ends a replica's oldest batch. Not inlined: both pools share its machine code, and it compiles once."""
    finish_batch(pool.config, pool.requests, pool.state, pool.state.meters.regs[replica], replica, pool.mask)


@inner
def finish_prefills(options: TransferOptions, prefill: Pool, handover: Handover, outputs: Int64, replica: int) -> None:
    """Ends a prefill batch; the prompts that it completes leave for the decode pool and keep their blocks."""
    config, state = prefill.config, prefill.state
    batch = replica * config.batches_in_flight + state.meters.regs[replica, FLIGHT_FIRST]
    for i in range(state.flight.emitting[batch]):
        slot = int(state.flight.slot[batch * config.max_num_seqs + i])
        r = int(state.slots.request[slot])
        if options.first_token_from_prefill and outputs[r] == 1:
            continue
        handover.leaving[handover.scalars[LEAVING]] = r
        handover.scalars[LEAVING] += 1
        if state.slots.running[slot]:
            keep_blocks(prefill, handover, replica, slot, r)
        else:
            handover.held[r] = NEVER  # preempted while its last chunk was under way
    finish(prefill, replica)


@inner
def end_transfers(prefill: Pool, decode: Pool, handover: Handover, replica: int, now: int) -> None:
    """Frees the prefill blocks of the decode replica's transfers that end now, and wakes whom it concerns."""
    line = handover.line[replica]
    while line[SENDING] != NEVER and handover.kv_ps[line[SENDING]] == now:
        r = line[SENDING]
        free_kept_blocks(prefill, handover, r)
        sender = prefill.state.meters.regs[prefill.state.outcome.replica[r]]
        if sender[WAITING] > 0:
            wake(sender, now)
        after = handover.next[r]
        line[SENDING] = after if after != NEVER and handover.kv_ps[after] != NEVER else NEVER
    wake(decode.state.meters.regs[replica], now)


@inner
def take_prompts(options: TransferOptions, prefill: Pool, handover: Handover, now: int) -> None:
    """Routes and queues every request that has arrived by ``now`` in the prefill pool."""
    requests, state = prefill.requests, prefill.state
    r = state.meters.cluster[NEXT_ARRIVAL]
    while r < len(requests.arrival_ps) and requests.arrival_ps[r] <= now:
        if options.skips_prefill:
            state.outcome.replica[r] = 0
            state.outcome.first_ps[r] = now
            handover.leaving[handover.scalars[LEAVING]] = r
            handover.scalars[LEAVING] += 1
        else:
            reg = state.meters.regs[choose(prefill, r)]
            insert(prefill.config, requests, state.outcome, reg, r, False)
            wake(reg, now)
        r += 1
    state.meters.cluster[NEXT_ARRIVAL] = r


@inner
def hand_over(options: TransferOptions, prefill: Pool, decode: Pool, handover: Handover, now: int) -> None:
    """Sends every request that was prefilled at this instant to a decode replica."""
    outcome = decode.state.outcome
    for i in range(handover.scalars[LEAVING]):
        r = int(handover.leaving[i])
        replica = choose(decode, r)
        reg, line = decode.state.meters.regs[replica], handover.line[replica]
        if options.first_token_from_prefill:
            outcome.generated[r] = 1
            outcome.last_ps[r] = prefill.state.outcome.first_ps[r]
        if handover.held[r] == NEVER:
            insert(decode.config, decode.requests, outcome, reg, r, False)
        else:
            reg[WAITING] += 1
            if line[LINE_TAIL] != NEVER:
                handover.next[line[LINE_TAIL]] = r
            line[LINE_TAIL] = r
            if line[FIRST] == NEVER:
                line[FIRST] = r
            if line[ASKING] == NEVER:
                line[ASKING] = r
        wake(reg, now)
    handover.scalars[LEAVING] = 0


@inlined
def blocks_on_arrival(pool: Pool, r: int) -> int:
    """Decode blocks that request ``r`` takes before its transfer: of its prompt, and of the token that it computes
    first where that is none of the prompt."""
    return blocks_for(pool.requests.prompt_tokens[r] + pool.state.outcome.generated[r], pool.config.block_size)


@inlined
def take_from_line(pool: Pool, handover: Handover, reg: Int64, replica: int, start: int, now: int) -> None:
    """Puts requests whose KV has come into the batch: one token each, in blocks that they hold."""
    config, state, sums = pool.config, pool.state, pool.state.meters.sums
    line, slots = handover.line[replica], state.slots
    while sums[TOKENS] < config.max_num_batched_tokens and reg[RUNNING] < config.max_num_seqs and reg[FREE_SLOTS] > 0:
        r = line[FIRST]
        if r == NEVER or handover.kv_ps[r] == NEVER or handover.kv_ps[r] > now:
            break
        line[FIRST] = handover.next[r]
        reg[WAITING] -= 1
        total = pool.requests.prompt_tokens[r] + state.outcome.generated[r]
        slot = place(config, pool.requests, state, reg, replica * config.max_num_seqs, r, total - 1)
        slots.held[slot] = blocks_on_arrival(pool, r)
        slots.room[slot] = slots.held[slot] * config.block_size
        note_admission(state.outcome, r, now)
        add_to_batch(config, pool.times, state, sums, start, slot, 1)


@inlined
def start_transfers(
    options: TransferOptions, pool: Pool, senders: Int32, handover: Handover, reg: Int64, replica: int, now: int
) -> None:
    """Gives blocks to the requests of the line that have none, in order, while they are free, and starts their
    transfers."""
    config, line = pool.config, handover.line[replica]
    while line[ASKING] != NEVER:
        r = line[ASKING]
        need = blocks_on_arrival(pool, r)
        room = reg[FREE_BLOCKS]
        if reg[RUNNING] > 0:
            room -= config.watermark_blocks
        if need > room:
            break
        reg[FREE_BLOCKS] -= need
        sender = handover.sender[senders[r]]
        carried = blocks_for(pool.requests.prompt_tokens[r], config.block_size)
        end = max(now, sender[SENDER_FREE_PS], line[RECEIVER_FREE_PS]) + carried * options.block_ps
        sender[SENDER_FREE_PS] = end
        line[RECEIVER_FREE_PS] = end
        handover.kv_ps[r] = end + options.latency_ps
        if line[SENDING] == NEVER:
            line[SENDING] = r
        line[ASKING] = handover.next[r]


@inner
def start_batches(
    options: TransferOptions, pool: Pool, senders: Int32, handover: Handover, replica: int, now: int
) -> None:
    """Schedules until a replica's pipeline is full and sets when its oldest batch ends. ``senders``: the prefill
    replica of each request, for a decode replica; of length 0 for a prefill replica, which receives nothing.

    One function for both pools, and not inlined, so that the scheduler compiles once.
    """
    config, requests, times, state = pool.config, pool.requests, pool.times, pool.state
    reg, sums = state.meters.regs[replica], state.meters.sums
    receives = len(senders) > 0
    while reg[NEXT_EVENT] == now:
        if is_idle(config, state.flight, reg, replica):
            break
        preempted = False
        while reg[FLIGHT] < config.batches_in_flight:
            batch = open_batch(config, state, reg, replica)
            start = batch * config.max_num_seqs
            threshold = config.long_prefill_token_threshold
            if not config.threshold_binds_lone_request and reg[RUNNING] + reg[WAITING] <= 1:
                threshold = 0
            loses = schedule_running(config, requests, times, state, reg, sums, replica, start, threshold, pool.mask)
            if not loses:
                if receives:
                    take_from_line(pool, handover, reg, replica, start, now)
                schedule_waiting(config, requests, times, state, reg, sums, replica, start, threshold, pool.mask, now)
                is_open = sums[TOKENS] < config.max_num_batched_tokens and reg[RUNNING] < config.max_num_seqs
                if receives and is_open and peek(config, requests, state.outcome, reg) == NEVER:
                    start_transfers(options, pool, senders, handover, reg, replica, now)
            close_batch(config, times, state, reg, replica, batch, now)
            preempted |= loses
        if replica_is_set(config, state, reg, replica, preempted):
            break


@inlined
def next_instant(prefill: Pool, decode: Pool, handover: Handover) -> int:
    """When something happens next."""
    r = prefill.state.meters.cluster[NEXT_ARRIVAL]
    now = prefill.requests.arrival_ps[r] if r < len(prefill.requests.arrival_ps) else FAR
    for replica in range(prefill.config.replicas):
        now = min(now, prefill.state.meters.regs[replica, NEXT_EVENT])
    for replica in range(decode.config.replicas):
        now = min(now, decode.state.meters.regs[replica, NEXT_EVENT])
        sending = handover.line[replica, SENDING]
        if sending != NEVER:
            now = min(now, handover.kv_ps[sending])
    return now


@inner
def look(config: Config, meters: Meters, routing: Routing, until: int) -> None:
    """The pool's router takes the snapshot that is due."""
    keep_snapshot(config, meters.regs, meters.cluster, routing, until)


@kernel
def advance_disaggregated(
    options: TransferOptions, prefill: Pool, decode: Pool, handover: Handover, max_events: int
) -> bool:
    """Runs up to ``max_events`` instants at which something happens; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing. It ends early, with ``SHORT`` set,
    where ``Handover`` has too few entries.
    """
    for replica in range(prefill.config.replicas):
        prepare_free_list(prefill.config, prefill.state.blocks, prefill.state.meters.regs[replica], replica)
    prefills, decodes = prefill.state.meters, decode.state.meters
    outputs, senders = decode.requests.output_tokens, prefill.state.outcome.replica
    nobody, n = senders[:0], len(outputs)
    for _ in range(max_events):
        now = next_instant(prefill, decode, handover)
        if now == FAR or handover.scalars[SHORT]:
            return False
        look(prefill.config, prefills, prefill.state.routing, now - 1)
        look(decode.config, decodes, decode.state.routing, now - 1)
        for replica in range(prefill.config.replicas):
            if prefills.regs[replica, NEXT_EVENT] == now:
                finish_prefills(options, prefill, handover, outputs, replica)
        for replica in range(decode.config.replicas):
            if decodes.regs[replica, NEXT_EVENT] == now:
                finish(decode, replica)
        for replica in range(decode.config.replicas):
            sending = handover.line[replica, SENDING]
            if sending != NEVER and handover.kv_ps[sending] == now:
                end_transfers(prefill, decode, handover, replica, now)
        look(prefill.config, prefills, prefill.state.routing, now)
        look(decode.config, decodes, decode.state.routing, now)
        if prefills.cluster[NEXT_ARRIVAL] < n and prefill.requests.arrival_ps[prefills.cluster[NEXT_ARRIVAL]] == now:
            take_prompts(options, prefill, handover, now)
        if handover.scalars[LEAVING] > 0:
            hand_over(options, prefill, decode, handover, now)
        for replica in range(prefill.config.replicas):
            if prefills.regs[replica, NEXT_EVENT] == now:
                start_batches(options, prefill, nobody, handover, replica, now)
        for replica in range(decode.config.replicas):
            if decodes.regs[replica, NEXT_EVENT] == now:
                start_batches(options, decode, senders, handover, replica, now)
    return True
