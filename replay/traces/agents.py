"""Agentic depth: each request becomes a chain of calls, each with the text of the calls before it in its prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from replay.closed_loop import ClosedLoop, unroll
from replay.traces.draft import Draft
from replay.workload import PrefixBlocks

Int64Array = npt.NDArray[np.int64]

_NS = 10**9
_PS_PER_NS = 1_000


def deepen(draft: Draft, steps: int, pause_s: float, step_tokens: int) -> tuple[Draft, str]:
    """Every request as ``steps`` calls, and a sentence on it for the report.

    Call ``j`` (from 0) is sent ``pause_s`` after call ``j - 1`` has ended (closed loop), with a prompt of
    ``prompt + j * (output + step_tokens)`` tokens and the request's output. What followed the request follows its
    last call. Where the trace has block ids, a call has the full blocks of the request's prompt and shares the text
    since with the other calls of its chain, and with nobody else. Arrivals of later calls are the earliest possible, as
    in ``ClosedLoop``.
    """
    n = draft.n
    pause_ns = round(pause_s * _NS)
    after = np.full(n, -1, np.int64) if draft.loop is None else draft.loop.after
    delay_ps = np.zeros(n, np.int64) if draft.loop is None else draft.loop.delay_ps
    depth = unroll(after, delay_ps).depth
    of = np.repeat(np.arange(n, dtype=np.int64), steps)
    call = np.tile(np.arange(steps, dtype=np.int64), n)
    times = draft.arrival_ns[of] + pause_ns * (depth[of] * (steps - 1) + call)
    first = call == 0
    before = np.arange(n * steps, dtype=np.int64) - 1
    before[first] = np.where(after >= 0, after * steps + steps - 1, -1)
    pauses = np.full(n * steps, pause_ns * _PS_PER_NS, np.int64)
    pauses[first] = delay_ps
    order = np.lexsort((call, of, depth[of], times)).astype(np.int64)
    place = np.empty(n * steps, np.int64)
    place[order] = np.arange(n * steps)
    before = before[order]
    loop = ClosedLoop(np.where(before >= 0, place[before], -1), pauses[order])
    of, call = of[order], call[order]
    session = np.arange(n, dtype=np.int64) if draft.session is None else draft.session
    alone = session < 0
    session = np.where(alone, session.max(initial=-1) + 1 + np.cumsum(alone) - 1, session)
    deeper = replace(draft, loop=None, prefix=None, session=session).take(of, times[order])
    prompt = deeper.prompt + call * (deeper.output + step_tokens)
    prefix = None if draft.prefix is None else _grown_blocks(draft.prefix, draft.prompt, of, call, prompt)
    note = (
        f"Agentic depth {steps}: each of {n:,} requests is a chain of {steps} calls, each sent {pause_s:g} s after the "
        f"one before has ended, with that one's prompt and output and {step_tokens:,} tokens more in its prompt."
    )
    if prefix is None:
        note += " The trace has no block ids, so by themselves the calls share no prefix."
    return replace(deeper, prompt=prompt, prefix=prefix, loop=loop), note


def _grown_blocks(
    prefix: PrefixBlocks, asked: Int64Array, of: Int64Array, call: Int64Array, prompt: Int64Array
) -> PrefixBlocks:
    """Block ids of the calls: those of the request's full blocks, then new ones of its chain. A first call keeps its
    own, and so does a request without any."""
    size = prefix.block_tokens
    given = np.diff(prefix.start)
    full = np.minimum(given, asked // size)
    own = np.where(call == 0, given[of], full[of])
    total = np.where((call == 0) | (given[of] == 0), given[of], np.maximum(prompt // size, own))
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(total)])
    entry = np.repeat(np.arange(len(of), dtype=np.int64), total)
    place = np.arange(int(start[-1]), dtype=np.int64) - start[entry]
    # Each chain has as many new ids as its longest call needs.
    most = np.zeros(len(asked), np.int64)
    np.maximum.at(most, of, total - full[of])
    first_new = int(prefix.ids.max(initial=-1)) + 1 + np.cumsum(most) - most
    from_trace = place < own[entry]
    ids = first_new[of[entry]] + place - full[of[entry]]
    ids[from_trace] = prefix.ids[(prefix.start[:-1][of[entry]] + place)[from_trace]]
    return PrefixBlocks(start, ids, size)
