"""Batches that hold the same decodes and nothing else, one after the other: the whole state fits into registers.

From one such batch to the next each context grows by one token. So their mean does too, the attention time moves
along one line of the table for as long as the mean stays between two knots, and the gap between tokens mostly stays in
one bin of the histogram.
"""

from __future__ import annotations

from replay.kernels.jit import inner
from replay.kernels.loglinear import bin_of, floor_of, line_of
from replay.kernels.state import (
    BUSY,
    GAP_BITS,
    LAW_DECODE_REQUEST,
    LAW_DECODE_TOKEN,
    LAW_HOST,
    LAW_HOST_REQUEST,
    NEVER,
    RUNNING_REQUESTS,
    USED_BLOCKS,
    Float64,
    Int32,
    Int64,
)


@inner
def steady_run(
    rest_ps: Int64,
    decode_table_ps: Int64,
    law: Int64,
    need: Int64,
    days: Int32,
    gaps: Int64,
    meters: Float64,
    asynchronous: int,
    num_blocks: int,
    until: int,
    most: int,
    counter: int,
    decodes: int,
    scored: int,
    running: int,
    context: int,
    free: int,
    now: int,
    end: int,
) -> tuple[int, int, int, int, int]:
    """Up to ``most`` batches of ``decodes`` decodes, of which ``scored`` count their gaps, scheduled before ``until``.

    Batch ``counter`` reads ``context`` tokens, is scheduled at ``now`` and starts at ``end``, when the one before it
    ends. The run stops before a batch with which a request finishes (``days``), or which asks for more blocks (``need``
    by residue) than are ``free``. ``meters``: of the replica, as ``meter_step`` keeps them.

    Returns how many batches, what is free, the time of the next schedule, the last batch's end and the longest gap.
    """
    last_day, block_size = len(days) - 1, len(need)
    due = block_size - 1 - (counter + block_size - 1) % block_size
    fixed_ps = rest_ps[decodes] + law[LAW_DECODE_REQUEST] * decodes
    host_ps = law[LAW_HOST] + law[LAW_HOST_REQUEST] * decodes
    context_ps, context_step_ps = law[LAW_DECODE_TOKEN] * context, law[LAW_DECODE_TOKEN] * decodes
    mean, knot, next_knot, bits = context // decodes, 0, 0, 0
    at_knot_ps = slope_ps = 0
    bin_, bin_low, bin_end, tokens, longest = 0, 0, 0, 0, 0
    has_table = decode_table_ps.shape[0] > 0
    busy, used_blocks, running_requests = meters[BUSY], meters[USED_BLOCKS], meters[RUNNING_REQUESTS]
    batches = 0
    while batches < most and now < until and days[counter & last_day] == NEVER and need[due] <= free:
        free -= need[due]
        due = due - 1 if due > 0 else block_size - 1
        if has_table and mean >= next_knot:
            at_knot_ps, slope_ps, knot, next_knot, bits = line_of(decode_table_ps, decodes, mean)
        duration = fixed_ps + context_ps + at_knot_ps + (slope_ps * (mean - knot) >> bits)
        duration = max(duration, host_ps) if asynchronous else duration + host_ps
        mean += 1
        context_ps += context_step_ps
        busy += duration
        used_blocks += float(num_blocks - free) * duration
        running_requests += float(running) * duration
        if duration < bin_low or duration >= bin_end:
            gaps[bin_] += tokens
            bin_, tokens = bin_of(duration, GAP_BITS), 0
            bin_low, bin_end = floor_of(bin_, GAP_BITS), floor_of(bin_ + 1, GAP_BITS)
        tokens += scored
        longest = max(longest, duration)
        now = end if asynchronous else end + duration
        end += duration
        counter += 1
        batches += 1
    gaps[bin_] += tokens
    meters[BUSY], meters[USED_BLOCKS], meters[RUNNING_REQUESTS] = busy, used_blocks, running_requests
    return batches, free, now, end, longest
