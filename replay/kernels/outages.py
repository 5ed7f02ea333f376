"""Replicas that are lost and come back, and replicas that start late.

A lost replica takes its batch in flight, its KV and its queue with it. Its clients see an error and ask again at once,
from the beginning: in the order of their index their requests go back to the gateway and through the router anew,
before any that arrive at that instant, with nothing generated and their arrival as it was. The replica comes back
empty. While every replica is down requests wait at the gateway, first come first served.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from replay.kernels.arrivals import hold
from replay.kernels.jit import inner
from replay.kernels.memory import forget_all
from replay.kernels.offload import forget_host
from replay.kernels.patience import is_over
from replay.kernels.schedule import save_progress
from replay.kernels.scoring import is_scored
from replay.kernels.state import (
    BUSY,
    CHANGED,
    DOWN,
    FAR,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    FREE_SLOTS,
    GONE,
    HEAD,
    LOST_GAPS,
    LOST_GAPS_PS,
    NEVER,
    NEXT_CHANGE,
    NEXT_EVENT,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREFILLING_TOKENS,
    PREVIOUS_END,
    RUNNING,
    RUNNING_REQUESTS,
    SENT_AGAIN,
    SWAPPED,
    SWAPPED_BLOCKS,
    TAIL,
    USED_BLOCKS,
    WAITING,
    WORD,
    Changes,
    Config,
    Int64,
    Requests,
    State,
)


def prepare_changes(down: Iterable[tuple[int, int, int]], regs: Int64) -> Changes:
    """Changes for ``down`` = (replica, from ps, until ps) each; FAR: for ever. From 0 on it is down before the run."""
    rows: list[tuple[int, int, int]] = []
    for replica, start_ps, end_ps in down:
        if start_ps == 0:
            regs[replica, DOWN] = 1
        else:
            rows.append((start_ps, 1, replica))
        if end_ps != FAR:
            rows.append((end_ps, 0, replica))
    rows.sort()
    table = np.array(rows, np.int64).reshape(len(rows), 3)
    return Changes(*(np.ascontiguousarray(column) for column in (table[:, 0], table[:, 2], 1 - table[:, 1])))


@inner
def unmeter_lost(config: Config, state: State, reg: Int64, replica: int, now: int) -> None:
    """Takes back what was metered, when they were scheduled, of batches that are lost before their end."""
    if reg[NEXT_EVENT] == FAR:
        return
    flight = state.flight
    lost = reg[NEXT_EVENT] - now  # of a loop without batches in flight
    for i in range(reg[FLIGHT]):
        batch = replica * config.batches_in_flight + (reg[FLIGHT_FIRST] + i) % config.batches_in_flight
        if i == 0:
            lost = max(reg[PREVIOUS_END], flight.scheduled_ps[batch]) + flight.duration_ps[batch] - now
        else:
            lost += flight.duration_ps[batch]
    meters = state.meters.meters[replica]
    meters[BUSY] -= lost
    meters[USED_BLOCKS] -= float(config.num_blocks - reg[FREE_BLOCKS]) * lost
    meters[RUNNING_REQUESTS] -= float(reg[RUNNING]) * lost


@inner
def empty_replica(config: Config, state: State, replica: int) -> None:
    """Leaves a replica idle and empty; what its requests had been given so far is written to them first."""
    reg, slots, flight = state.meters.regs[replica], state.slots, state.flight
    first = replica * config.max_num_seqs
    for i in range(reg[FLIGHT]):
        batch = replica * config.batches_in_flight + (reg[FLIGHT_FIRST] + i) % config.batches_in_flight
        for j in range(flight.emitting[batch]):  # with those preempted while a token was in flight
            save_progress(state, flight.slot[batch * config.max_num_seqs + j])
    for i in range(reg[RUNNING]):
        save_progress(state, slots.order[first + i])
    for i in range(config.max_num_seqs):
        slots.running[first + i] = 0
        slots.held[first + i] = 0
        slots.room[first + i] = 0
        slots.cached[first + i] = 0
        slots.covered[first + i] = 0
        slots.first_live[first + i] = 0
        slots.free[first + i] = first + config.max_num_seqs - 1 - i
    for i in range(config.batches_in_flight):
        flight.size[replica * config.batches_in_flight + i] = 0
    for column in (
        RUNNING,
        WAITING,
        FLIGHT,
        OUTSTANDING,
        OUTSTANDING_TOKENS,
        PREFILLING_TOKENS,
        GONE,
        SWAPPED,
        SWAPPED_BLOCKS,
    ):
        reg[column] = 0
    reg[HEAD] = NEVER
    reg[TAIL] = NEVER
    reg[FREE_SLOTS] = config.max_num_seqs
    reg[FREE_BLOCKS] = config.num_blocks
    reg[NEXT_EVENT] = FAR
    reg[CHANGED] = 1
    if config.prefix_caching:
        forget_all(config, state.blocks, reg, replica)
        if config.host_blocks > 0:
            forget_host(config, state.blocks.host, replica)
    holders = state.routing.holders
    for i in range(len(holders)):
        holders[i, replica // WORD] &= ~(1 << (replica % WORD))


@inner
def start_anew(state: State, r: int) -> None:
    """Forgets what request ``r`` was given; the gaps between its tokens were counted and stay so."""
    outcome, cluster = state.outcome, state.meters.cluster
    if outcome.first_ps[r] != NEVER and is_scored(state.meters.regs[0], r):
        cluster[LOST_GAPS] += outcome.generated[r] - 1
        cluster[LOST_GAPS_PS] += outcome.last_ps[r] - outcome.first_ps[r]
    outcome.admitted_ps[r] = NEVER
    outcome.first_ps[r] = NEVER
    outcome.last_ps[r] = NEVER
    outcome.generated[r] = 0
    if len(outcome.stale) > 0:
        outcome.stale[r] = 0


@inner
def lose(config: Config, requests: Requests, state: State, replica: int, now: int) -> None:
    """Takes a replica away; its requests go back to the gateway."""
    reg, outcome, cluster = state.meters.regs[replica], state.outcome, state.meters.cluster
    unmeter_lost(config, state, reg, replica, now)
    empty_replica(config, state, replica)
    reg[DOWN] = 1
    for r in range(len(requests.arrival_ps)):
        if outcome.replica[r] == replica and not is_over(config, requests, outcome, r):
            cluster[SENT_AGAIN] += 1
            start_anew(state, r)
            hold(outcome, cluster, r)


@inner
def change_replicas(config: Config, requests: Requests, state: State, now: int) -> None:
    """Loses and brings back the replicas whose time has come, after the batches that end now."""
    cluster, changes = state.meters.cluster, state.changes
    while cluster[NEXT_CHANGE] < len(changes.time_ps) and changes.time_ps[cluster[NEXT_CHANGE]] <= now:
        at = cluster[NEXT_CHANGE]
        cluster[NEXT_CHANGE] += 1
        if changes.is_up[at]:
            state.meters.regs[changes.replica[at], DOWN] = 0
        else:
            lose(config, requests, state, changes.replica[at], now)
