"""Data-parallel ranks of a mixture-of-experts model: engines of their own that step together.

The specification is engine semantics 1.1, "Data parallel". Each rank schedules its own requests, but the experts are
shared by all ranks, so no rank can step without the others: a *wave* is one step of every rank. It ends for all when
the slowest rank has finished. Where every rank's tokens fit a captured CUDA graph, all pad to the most of any; else
each computes its own, and the experts those of all ranks together. A rank without work runs a dummy step of one token
while any rank has work. Only every ``idle_check_steps`` waves do the ranks agree that all are idle: until then dummy
waves go on, and who arrives waits for the end of one. Dummy waves of an idle group are not queued ahead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.arrivals import take_arrived
from replay.kernels.by_reference import by_reference
from replay.kernels.engine import finish_batch
from replay.kernels.jit import inlined, inner, kernel
from replay.kernels.memory import prepare_free_list
from replay.kernels.routers import keep_snapshot
from replay.kernels.schedule import schedule
from replay.kernels.state import (
    BUSY,
    CHUNKS_PS,
    CONTEXT,
    FAR,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    NEXT_ARRIVAL,
    NEXT_EVENT,
    ONES,
    REQUESTS,
    RUNNING,
    RUNNING_REQUESTS,
    SUMS,
    TOKENS,
    USED_BLOCKS,
    WAITING,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.steptime import step_ps


@by_reference
class LockstepOptions(NamedTuple):
    """What a group of ranks has beyond ``Config``, whose ``replicas`` are its ranks."""

    graph_tokens: int  # the largest captured CUDA graph: up to it every rank pads to the most tokens of any
    idle_check_steps: int
    shared_ps: (
        Int64  # of the step-time record's ``rest_ps``, what all ranks compute together; shape (0,): nothing known
    )


IDLE_CHECK_STEPS = 32
"""Steps between two agreements on whether all ranks are idle, as in vLLM 0.11; later releases have an option."""

# Entries of ``LockstepState.group``.
WAVE_END, WAVES, PREVIOUS_WAVE_END, IN_FLIGHT, DUMMY_STEPS, GROUPS = range(6)


@by_reference
class LockstepState(NamedTuple):
    """What a group remembers between waves."""

    group: Int64
    sums: Int64  # the wave being built, shape (ranks, SUMS)


def new_lockstep(config: Config) -> LockstepState:
    """An idle group. ``WAVES`` counts since it woke."""
    group = np.zeros(GROUPS, np.int64)
    group[WAVE_END] = FAR
    return LockstepState(group, np.zeros((config.replicas, SUMS), np.int64))


@inlined
def has_work(config: Config, regs: Int64) -> bool:
    """Whether any rank has a request."""
    found = 0
    for rank in range(config.replicas):
        found += regs[rank, RUNNING] + regs[rank, WAITING]
    return found > 0


@inner
def wave_ps(config: Config, options: LockstepOptions, times: StepTimes, own: LockstepState) -> int:
    """How long the wave in ``own.sums`` takes: the slowest rank, dummy steps of one token included."""
    most, total = 1, 0
    for rank in range(config.replicas):
        most = max(most, own.sums[rank, TOKENS])
        total += max(own.sums[rank, TOKENS], 1)
    mean = (total + config.replicas - 1) // config.replicas
    longest = 0
    for rank in range(config.replicas):
        one = own.sums[rank]
        tokens, more_ps = most, 0
        if most > options.graph_tokens:
            tokens = max(one[TOKENS], 1)
            if len(options.shared_ps) > 0:
                more_ps = options.shared_ps[mean] - options.shared_ps[tokens]
        duration = step_ps(config, times, tokens, one[ONES], one[CONTEXT], one[CHUNKS_PS] + more_ps, one[REQUESTS])
        longest = max(longest, duration)
    return longest


@inlined
def start_wave(
    config: Config,
    options: LockstepOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: LockstepState,
    mask: int,
    now: int,
) -> None:
    """Schedules a batch, maybe an empty one, on every rank, and gives all of them the wave's duration."""
    regs, flight = state.meters.regs, state.flight
    ring = (regs[0, FLIGHT_FIRST] + regs[0, FLIGHT]) % config.batches_in_flight
    for rank in range(config.replicas):
        schedule(config, requests, times, state, regs[rank], rank, mask, now)
        for i in range(SUMS):
            own.sums[rank, i] = state.meters.sums[i]
    duration = wave_ps(config, options, times, own)
    for rank in range(config.replicas):
        batch = rank * config.batches_in_flight + ring
        if flight.size[batch] > 0:
            more = duration - flight.duration_ps[batch]
            meters, reg = state.meters.meters[rank], regs[rank]
            meters[BUSY] += more
            meters[USED_BLOCKS] += float(config.num_blocks - reg[FREE_BLOCKS]) * more
            meters[RUNNING_REQUESTS] += float(reg[RUNNING]) * more
        else:
            own.group[DUMMY_STEPS] += 1
        flight.duration_ps[batch] = duration
    own.group[IN_FLIGHT] += 1


@inlined
def end_wave(
    config: Config, options: LockstepOptions, requests: Requests, state: State, own: LockstepState, mask: int, now: int
) -> None:
    """Ends the oldest wave on every rank; where all agree that they are idle, the group sleeps."""
    regs, group = state.meters.regs, own.group
    for rank in range(config.replicas):
        regs[rank, NEXT_EVENT] = now
        finish_batch(config, requests, state, regs[rank], rank, mask)
    group[PREVIOUS_WAVE_END] = now
    group[IN_FLIGHT] -= 1
    group[WAVES] += 1
    if group[WAVES] % options.idle_check_steps == 0 and not has_work(config, regs):
        group[WAVES] = 0
        group[WAVE_END] = FAR
        group[IN_FLIGHT] = 0
        for rank in range(config.replicas):
            regs[rank, NEXT_EVENT] = FAR
            regs[rank, FLIGHT] = 0


@kernel
def advance_lockstep(
    config: Config,
    options: LockstepOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    own: LockstepState,
    max_events: int,
) -> bool:
    """Runs up to ``max_events`` ends of waves or arrival instants; False once nothing is left to do.

    Calling it again continues; how the events are cut into calls changes nothing.
    """
    regs, cluster, group = state.meters.regs, state.meters.cluster, own.group
    n, mask = len(requests.arrival_ps), len(state.blocks.bucket_key) // config.replicas - 1
    for rank in range(config.replicas):
        prepare_free_list(config, state.blocks, regs[rank], rank)
    for _ in range(max_events):
        now = requests.arrival_ps[cluster[NEXT_ARRIVAL]] if cluster[NEXT_ARRIVAL] < n else FAR
        now = min(now, group[WAVE_END])
        if now == FAR:
            return False
        keep_snapshot(config, regs, cluster, state.routing, now - 1)
        is_due = group[WAVE_END] == now
        if is_due:
            end_wave(config, options, requests, state, own, mask, now)
        keep_snapshot(config, regs, cluster, state.routing, now)
        take_arrived(config, requests, state, now)
        is_awake = group[WAVE_END] != FAR
        if not is_awake and has_work(config, regs):
            is_due = is_awake = True
        if is_due and is_awake:
            while group[IN_FLIGHT] < config.batches_in_flight and (group[IN_FLIGHT] == 0 or has_work(config, regs)):
                start_wave(config, options, requests, times, state, own, mask, now)
            batch = regs[0, FLIGHT_FIRST]
            start = max(group[PREVIOUS_WAVE_END], state.flight.scheduled_ps[batch])
            group[WAVE_END] = start + state.flight.duration_ps[batch]
            for rank in range(config.replicas):
                regs[rank, NEXT_EVENT] = group[WAVE_END]
    return True
