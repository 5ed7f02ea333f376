"""Arrivals moved at the same mean rate: ties of a coarse clock spread, gaps made burstier or more even.

All times are int64 nanoseconds from the start of the window, sorted, shape (n,).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

NS = 10**9
_NEAR = 0.02
_NEARLY_ALL = 0.99


def gap_cv(times_ns: Int64Array) -> float | None:
    """Standard deviation over mean of the gaps: 1 for Poisson; ``None`` with under two gaps or no time at all."""
    gaps = np.diff(np.sort(times_ns)).astype(np.float64)
    if len(gaps) < 2 or gaps.sum() == 0:
        return None
    return float(gaps.std() / gaps.mean())


def dispersion(times_ns: Int64Array, span_ns: int, width_ns: int = NS) -> float | None:
    """Variance over mean of the counts in aligned bins, as in docs/metrics.md; ``None`` under 10 whole bins."""
    whole = span_ns // width_ns
    inside = times_ns[times_ns < whole * width_ns] // width_ns
    if whole < 10 or len(inside) == 0:
        return None
    # Empty bins count in the moments and are not laid out: a trace may have months of seconds.
    counts = np.unique(inside, return_counts=True)[1].astype(np.float64)
    mean = counts.sum() / whole
    return max(float(np.square(counts).sum() / whole - mean * mean), 0.0) / float(mean)


def burst_sentence(before: Int64Array, before_ns: int, after: Int64Array, after_ns: int) -> str:
    """What a change did to bursts: gap CV and dispersion of the counts of 1 s. ``before_ns``, ``after_ns``: spans."""
    pairs = (
        ("the gaps' coefficient of variation", gap_cv(before), gap_cv(after)),
        ("the index of dispersion of 1 s counts", dispersion(before, before_ns), dispersion(after, after_ns)),
    )
    known = [
        f"{name} is {new:.3g}, it was {old:.3g}" for name, old, new in pairs if old is not None and new is not None
    ]
    return f" {'; '.join(known).capitalize()}." if known else ""


def clock_step(times_ns: Int64Array) -> int:
    """The step in which the clock of sorted times moves, ns; 0 where all are equal.

    Where nearly all steps are near a multiple of the smallest ones (a clock that ticks every 3 s, give or take some
    milliseconds), the smallest step; else the largest one of which all steps are multiples.
    """
    steps = np.asarray(np.diff(np.unique(times_ns)), np.float64)
    if len(steps) == 0:
        return 0
    smallest = int(steps.min())
    tick = float(np.median(steps[steps < 1.5 * smallest]))
    off = np.abs(steps - np.rint(steps / tick) * tick)
    return smallest if (off <= _NEAR * tick).mean() >= _NEARLY_ALL else int(np.gcd.reduce(np.diff(times_ns)))


def spread_ties(
    times_ns: Int64Array, how: Literal["even", "uniform"], step_ns: int, end_ns: int, seed: int
) -> Int64Array:
    """Each group of equal times laid over ``[t, t + step)``: the k-th of m at ``t + k * step / m``, or drawn uniformly.

    Order is kept, and no request leaves the tick in which the clock has it, nor ``[0, end_ns)``; a request alone in its
    tick stays where it is under ``even``.
    """
    room = np.minimum(step_ns, end_ns - times_ns)
    if how == "even":
        first = np.flatnonzero(np.diff(times_ns, prepend=times_ns[0] - 1))
        size = np.diff(first, append=len(times_ns))
        rank = np.arange(len(times_ns), dtype=np.int64) - np.repeat(first, size)
        moved: Int64Array = times_ns + (rank / np.repeat(size, size) * room).astype(np.int64)
        return moved
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    return np.asarray(np.sort(times_ns + rng.integers(0, np.maximum(room, 1))), np.int64)


def reshape_gaps(times_ns: Int64Array, span_ns: int, power: float, width_ns: int) -> Int64Array:
    """Gaps raised to ``power`` and scaled back, within each window of ``width_ns`` from 0 on (the last ends at the
    span).

    The gaps of a window are those between its start, its arrivals and its end, so each window keeps its number of
    arrivals, and their order. Power 0 makes them even, 1 leaves them, above 1 makes them burstier: the coefficient of
    variation of a window's gaps grows with the power. Poisson arrivals get gaps like a Weibull distribution's of shape
    1 / power.
    """
    edges = np.append(np.arange(0, max(span_ns, 1), width_ns, dtype=np.int64), max(span_ns, 1))
    window = np.minimum(times_ns // width_ns, len(edges) - 2)
    used, first, size = np.unique(window, return_index=True, return_counts=True)
    begin, end = edges[used], edges[used + 1]
    # One gap more than arrivals in each used window: its last one runs to the window's end.
    points = np.insert(times_ns, first, begin)
    ends = np.append(np.cumsum(size + 1)[:-1], len(points)).astype(np.int64)
    following = np.append(points[1:], 0)
    following[ends - 1] = end
    share = np.maximum(following - points, 0).astype(np.float64)
    starts = ends - (size + 1)
    length = np.repeat((end - begin).astype(np.float64), size + 1)
    raised = (share / length) ** power
    total = np.repeat(np.add.reduceat(raised, starts), size + 1)
    passed = np.cumsum(raised / total)
    # Counted from each window's own start, so that no rounding is carried from window to window.
    passed -= np.repeat(passed[starts] - raised[starts] / total[starts], size + 1)
    moved = np.repeat(begin, size + 1) + np.rint(passed * length).astype(np.int64)
    is_last = np.zeros(len(points), np.bool_)
    is_last[ends - 1] = True
    out = moved[~is_last]
    return np.minimum(np.maximum.accumulate(out), max(span_ns, 1))
