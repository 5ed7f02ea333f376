"""What schedulers other than vLLM's share: opening and closing a batch, and a replica's batches in flight.

A scheduler's file calls ``open_batch``, fills it with ``add_to_batch``, closes it with ``close_batch``, and repeats
until ``replica_is_set`` has found the batch that ends next.
"""

from __future__ import annotations

from replay.kernels.jit import inlined, inner
from replay.kernels.memory import blocks_for
from replay.kernels.schedule import meter_step
from replay.kernels.state import (
    CHUNKS_PS,
    CONTEXT,
    EMITTING,
    FAR,
    FLIGHT,
    FLIGHT_FIRST,
    FREE_BLOCKS,
    NEXT_EVENT,
    ONES,
    PREVIOUS_END,
    REQUESTS,
    RUNNING,
    TOKENS,
    WAITING,
    Config,
    Flight,
    Int64,
    Outcome,
    Slots,
    State,
    StepTimes,
)
from replay.kernels.steptime import step_ps


@inlined
def open_batch(config: Config, state: State, reg: Int64, replica: int) -> int:
    """Clears the sums and gives the ring position (over all replicas) of the batch to build."""
    sums = state.meters.sums
    for i in range(len(sums)):
        sums[i] = 0
    ring = (reg[FLIGHT_FIRST] + reg[FLIGHT]) % config.batches_in_flight
    return replica * config.batches_in_flight + ring


@inlined
def close_batch(config: Config, times: StepTimes, state: State, reg: Int64, replica: int, batch: int, now: int) -> None:
    """Prices the batch, meters it and puts it in flight; an empty one counts as a batch too."""
    flight, sums = state.flight, state.meters.sums
    flight.size[batch] = sums[REQUESTS]
    flight.emitting[batch] = sums[EMITTING]
    flight.scheduled_ps[batch] = now
    flight.duration_ps[batch] = 0
    if sums[REQUESTS] > 0:
        duration = step_ps(config, times, sums[TOKENS], sums[ONES], sums[CONTEXT], sums[CHUNKS_PS], sums[REQUESTS])
        flight.duration_ps[batch] = duration
        meter_step(config, state.meters.meters[replica], reg, duration, sums[TOKENS])
    reg[FLIGHT] += 1


@inlined
def is_idle(config: Config, flight: Flight, reg: Int64, replica: int) -> bool:
    """Whether a replica has no request; marks it as idle then."""
    if reg[RUNNING] > 0 or reg[WAITING] > 0:
        return False
    rest(config, flight, reg, replica)
    return True


@inner
def rest(config: Config, flight: Flight, reg: Int64, replica: int) -> None:
    """Sets when a replica without requests is idle: now, or once the batch of clients that have gone has ended."""
    batch = replica * config.batches_in_flight + reg[FLIGHT_FIRST]
    if reg[FLIGHT] > 0 and flight.size[batch] > 0:
        reg[NEXT_EVENT] = max(reg[PREVIOUS_END], flight.scheduled_ps[batch]) + flight.duration_ps[batch]
    else:
        reg[FLIGHT] = 0
        reg[NEXT_EVENT] = FAR


@inlined
def replica_is_set(config: Config, state: State, reg: Int64, replica: int, preempted: bool) -> bool:
    """Sets when the oldest batch in flight ends; False where that was an empty one, now dropped, and the pipeline needs
    another. A replica that nothing but an arrival can move is idle."""
    flight = state.flight
    in_flight = False
    for i in range(reg[FLIGHT]):
        ring = (reg[FLIGHT_FIRST] + i) % config.batches_in_flight
        in_flight |= flight.size[replica * config.batches_in_flight + ring] > 0
    batch = replica * config.batches_in_flight + reg[FLIGHT_FIRST]
    if flight.size[batch] > 0:
        reg[NEXT_EVENT] = max(reg[PREVIOUS_END], flight.scheduled_ps[batch]) + flight.duration_ps[batch]
        return True
    reg[FLIGHT_FIRST] = (reg[FLIGHT_FIRST] + 1) % config.batches_in_flight
    reg[FLIGHT] -= 1
    if in_flight or preempted:
        return False
    reg[FLIGHT] = 0
    reg[NEXT_EVENT] = FAR
    return True


@inlined
def hold(config: Config, slots: Slots, reg: Int64, slot: int, tokens: int) -> None:
    """Gives a slot the blocks for ``tokens`` tokens; the caller has seen that they are free."""
    need = blocks_for(tokens, config.block_size) - slots.held[slot]
    if need > 0:
        reg[FREE_BLOCKS] -= need
        slots.held[slot] += need
        slots.room[slot] = slots.held[slot] * config.block_size


@inner
def note_admission(outcome: Outcome, r: int, now: int) -> None:
    """Records when request ``r`` was first admitted."""
    if outcome.admitted_ps[r] < 0:
        outcome.admitted_ps[r] = now
