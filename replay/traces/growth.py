"""More or less load from the same requests: copies at almost the same time, copies moved apart, or time compressed.

Times are int64 nanoseconds from the start of the window. Requests that follow others (closed loop) go with the head of
their chain: ``root`` has the index of that, shape (n,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.traces.arrivals import burst_sentence

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NS = 10**9
JITTER_S = 0.5
"""Superposed copies are shifted by so much at most, and by a thousandth of the span: bursts grow with the load."""


@dataclass(frozen=True)
class Grown:
    """The grown load in order of time: arrivals, the request that each stands for, the number of its copy (0: the
    first), whether it was carried over the window's end to its start, and a sentence for the report."""

    times_ns: Int64Array
    index: Int64Array
    copy: Int64Array
    wrapped: npt.NDArray[np.bool_]
    note: str


def superpose(times_ns: Int64Array, root: Int64Array, factor: FloatArray, said: str, span_ns: int, seed: int) -> Grown:
    """``floor(factor)`` copies of every request and one more of a seeded share of them; ``factor`` has shape (n,).

    The first copy keeps its time; further ones move by a uniform time of at most half a second and a thousandth of the
    span either way, reflected at the window's ends: rate curve and bursts both grow, and no exact tie is doubled.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    index, copy = _copies(root, factor, rng)
    leader = _leaders(index, copy, root)
    jitter_s = min(JITTER_S, span_ns / NS / 1000)
    times = times_ns[index]
    since_head = times - times[leader]
    heads = times.copy()
    further = copy > 0
    shift = np.rint(rng.uniform(-jitter_s, jitter_s, int(further.sum())) * NS).astype(np.int64)
    heads[further] = np.abs(heads[further] + shift)
    heads = np.where(heads > span_ns, 2 * span_ns - heads, heads)
    times = heads[leader] + since_head
    note = f"{said}: {len(index):,} requests from {len(times_ns):,}"
    if further.any():
        note += (
            f" by superposing {_numbers(copy)}; all but the first copy are shifted by up to {jitter_s:.3g} s either "
            f"way (seed {seed}). Bursts grow with the load: the busiest second has {_busiest_second(times):,} "
            f"requests, it had {_busiest_second(times_ns):,}."
        )
    else:
        note += f" by keeping each with the probability of that factor (seed {seed})."
    return _sorted(times, index, copy, np.zeros(len(index), np.bool_), note, times_ns, span_ns, root)


def shift_copies(
    times_ns: Int64Array,
    root: Int64Array,
    factor: FloatArray,
    said: str,
    span_ns: int,
    seed: int,
    most_s: float | None,
) -> Grown:
    """Copies as ``superpose`` draws them, each copy moved as a whole by one drawn time: at most ``most_s`` either way,
    ``None``: anywhere in the window. What passes an end of the window comes in at the other."""
    rng = np.random.Generator(np.random.PCG64(seed))
    index, copy = _copies(root, factor, rng)
    leader = _leaders(index, copy, root)
    most_ns = span_ns if most_s is None else min(round(most_s * NS), span_ns)
    offset = rng.integers(-most_ns if most_s is not None else 0, most_ns + 1, int(copy.max(initial=0)) + 1)
    offset[0] = 0
    times = times_ns[index]
    since_head = times - times[leader]
    moved = times[leader] + offset[copy]
    heads = moved % (span_ns + 1)
    note = f"{said}: {len(index):,} requests from {len(times_ns):,}"
    if (copy > 0).any():
        note += (
            f" by {_numbers(copy)}, each but the first moved by one time "
            f"{'anywhere in the window' if most_s is None else f'of up to {most_s:g} s either way'} "
            f"(seed {seed}; what passes the window's end comes in at its start). Bursts of different copies do not "
            "meet, and the rate curve is smoother than the recorded one."
        )
    else:
        note += f" by keeping each with the probability of that factor (seed {seed})."
    wrapped = heads != moved
    return _sorted(heads + since_head, index, copy, wrapped, note, times_ns, span_ns, root)


def compress(
    times_ns: Int64Array, root: Int64Array, growth: float, span_ns: int
) -> tuple[Int64Array, Int64Array, int, str]:
    """Every request, ``growth`` times as fast (below 1: slower): times in order, the order, the new span, a sentence.

    The gaps' coefficient of variation stays; a bin of the clock holds ``growth`` times as much of the recorded time, so
    the day's curve is as much shorter, and drifts and long bursts weigh more in short bins.
    """
    heads = np.rint(times_ns / growth).astype(np.int64)
    times = heads[root] + (times_ns - times_ns[root])
    order = np.argsort(times, kind="stable")
    new_span_ns = round(span_ns / growth)
    note = (
        f"Load times {growth:g} by time compression: all {len(times_ns):,} requests in {new_span_ns / NS:,.6g} s, "
        f"recorded in {span_ns / NS:,.6g} s. An hour of the trace passes in {60 / growth:.3g} minutes, so its busy and "
        "quiet times are shorter too." + _together(root) + burst_sentence(times_ns, span_ns, times, new_span_ns)
    )
    return times[order], order, new_span_ns, note


def _copies(root: Int64Array, factor: FloatArray, rng: np.random.Generator) -> tuple[Int64Array, Int64Array]:
    """Which request each entry stands for, and the number of its copy; chains are copied whole."""
    whole = np.floor(factor).astype(np.int64)
    drawn = (rng.random(len(factor)) < factor - whole)[root]
    whole = whole[root]
    parts = [np.flatnonzero(whole > number) for number in range(int(whole.max(initial=0)))]
    extra = np.flatnonzero(drawn)
    index = np.concatenate([*parts, extra]).astype(np.int64)
    numbers = [np.full(len(part), number, np.int64) for number, part in enumerate(parts)]
    return index, np.concatenate([*numbers, whole[extra]]).astype(np.int64)


def _leaders(index: Int64Array, copy: Int64Array, root: Int64Array) -> Int64Array:
    """The entry that is the same copy of each entry's head."""
    n = len(root)
    if np.array_equal(root, np.arange(n)):
        return np.arange(len(index), dtype=np.int64)
    key = copy * n + index
    by_key = np.argsort(key)
    return np.asarray(by_key[np.searchsorted(key[by_key], copy * n + root[index])], np.int64)


def _numbers(copy: Int64Array) -> str:
    counts = np.bincount(copy)
    whole = int((counts == counts[0]).sum())
    rest = int(counts[whole:].sum())
    copies = "one copy" if whole == 1 else f"{whole} copies"
    return copies + (f" and {rest:,} drawn requests" if rest else "")


def _together(root: Int64Array) -> str:
    follows = not np.array_equal(root, np.arange(len(root)))
    return " Requests that follow others go with the first of their session." if follows else ""


def _busiest_second(times_ns: Int64Array) -> int:
    return int(np.unique(times_ns // NS, return_counts=True)[1].max(initial=0))


def _sorted(
    times: Int64Array,
    index: Int64Array,
    copy: Int64Array,
    wrapped: npt.NDArray[np.bool_],
    note: str,
    before_ns: Int64Array,
    span_ns: int,
    root: Int64Array,
) -> Grown:
    order = np.argsort(times, kind="stable")
    times = times[order]
    said = note + _together(root) + burst_sentence(before_ns, span_ns, times, span_ns)
    return Grown(times, index[order], copy[order], wrapped[order], said)
