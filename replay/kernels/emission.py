"""Tokens that come out at a step's end: token times of requests, and the ITL histogram.

Nearly all tokens of a step have the same gap to the one before, so tokens are counted as runs of equal gaps: ``gap_ps``
and ``gap_tokens`` are the run that is open, and a loop closes the last one with ``count_gaps``.
"""

from __future__ import annotations

from replay.kernels.jit import inlined, inner
from replay.kernels.loglinear import bin_of
from replay.kernels.scoring import is_scored
from replay.kernels.state import (
    GAP_BITS,
    GAP_MAX_PS,
    NEVER,
    SCORED_END,
    SCORED_FIRST,
    Config,
    Int32,
    Int64,
    Meters,
    State,
    UInt32,
)


@inlined
def count_gaps(meters: Meters, gap_ps: int, tokens: int) -> None:
    """Counts ``tokens`` tokens that came ``gap_ps`` after the one before."""
    if tokens > 0:
        meters.gaps[bin_of(gap_ps, GAP_BITS)] += tokens
        meters.cluster[GAP_MAX_PS] = max(meters.cluster[GAP_MAX_PS], gap_ps)


@inlined
def emit(state: State, reg: Int64, slot: int, end: int, gap_ps: int, gap_tokens: int) -> tuple[int, int]:
    """One token of a slot at time ``end``; returns the open run of gaps."""
    slots = state.slots
    r = slots.request[slot]
    last = slots.last_ps[slot]
    slots.last_ps[slot] = end
    slots.left[slot] -= 1
    if last == NEVER:
        state.outcome.first_ps[r] = end
        return gap_ps, gap_tokens
    if end - last != gap_ps:
        count_gaps(state.meters, gap_ps, gap_tokens)
        gap_ps, gap_tokens = end - last, 0
    return gap_ps, gap_tokens + is_scored(reg, r)


@inner
def emit_run(
    batch: UInt32,
    request: Int32,
    computed: Int64,
    unscheduled: Int64,
    left: Int64,
    cached: Int64,
    last_ps: Int64,
    running: Int32,
    block_size: int,
    end: int,
    gap_ps: int,
    scored_first: int,
    scored_end: int,
) -> tuple[int, int]:
    """As many tokens at the head of ``batch`` as come ``gap_ps`` after the last one and are nothing but tokens: no
    request ends, was preempted, or has filled a block (``block_size``: of a prefix cache, 0 without one).

    Returns how many, and how many of them are scored.
    """
    scored = 0
    for i in range(len(batch)):
        slot = batch[i]
        ahead = left[slot] - 1
        if last_ps[slot] != end - gap_ps or ahead == 0 or running[slot] == 0:
            return i, scored
        if block_size > 0 and computed[slot] - ahead + unscheduled[slot] >= (cached[slot] + 1) * block_size:
            return i, scored
        last_ps[slot] = end
        left[slot] = ahead
        scored += scored_first <= request[slot] < scored_end
    return len(batch), scored


@inlined
def emit_plain(
    config: Config, state: State, reg: Int64, batch: UInt32, end: int, gap_ps: int, gap_tokens: int
) -> tuple[int, int]:
    """``emit_run`` on the rest of a batch; returns how many tokens came, and the open run's."""
    slots = state.slots
    emitted, scored = emit_run(
        batch,
        slots.request,
        slots.computed,
        slots.unscheduled,
        slots.left,
        slots.cached,
        slots.last_ps,
        slots.running,
        config.block_size * config.prefix_caching,
        end,
        gap_ps,
        reg[SCORED_FIRST],
        reg[SCORED_END],
    )
    return emitted, gap_tokens + scored
