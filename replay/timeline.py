"""A replay over time, from its per-request table: what waited, what ran, and how fast tokens came, by bin.

Nothing is recorded while the kernels run. What a request does between its own times is taken as even: prompt tokens
from admission to the first token, output tokens from the first to the last. So counts of requests are exact, token
rates are smooth where the engine had stalls, and a preempted request counts as running until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.results import ReplayResult
from replay.workload import Int64Array

Float64Array = npt.NDArray[np.float64]

MOST_BINS = 600
WIDTHS_S = (
    *(base * scale for scale in (0.001, 0.01, 0.1) for base in (1.0, 2.0, 5.0)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0),
    86400.0,
)
"""Widths that are chosen from, in seconds."""
_SUITABLE_BINS = 300
PS_PER_S = 1e12


@dataclass(frozen=True)
class Timeline:
    """Bins ``[start_s, start_s + bin_s)`` from the window's start to the last token; all arrays shape (bins,).

    ``running`` and ``waiting`` are means over the bin, all replicas together; ``arrived``, ``admitted`` and
    ``finished`` are requests; tokens are sums; ``preemptions`` are spread evenly over each request's time in the
    engine. Percentiles of TTFT are over the served requests that arrive in the bin, ``nan`` without any.
    ``prefix_hit_rate``: prompt tokens found in the cache over prompt tokens of the requests admitted in the bin,
    ``nan`` without any; ``None`` where no cache acted. ``kv_usage``: estimated share of KV blocks in use: a
    request's tokens grow evenly to its prompt at the first token and to prompt + output - 1 at the last, and then they
    are free; ``None`` where that does not hold (prefixes shared in a cache, static batches that reserve). Preempted
    requests keep theirs.
    """

    bin_s: float
    start_s: Float64Array
    arrived: Int64Array
    admitted: Int64Array
    finished: Int64Array
    running: Float64Array
    waiting: Float64Array
    prompt_tokens: Float64Array
    output_tokens: Float64Array
    preemptions: Float64Array
    ttft_p50_s: Float64Array
    ttft_p99_s: Float64Array
    prefix_hit_rate: Float64Array | None
    kv_usage: Float64Array | None


@dataclass(frozen=True)
class KvCapacity:
    """What the KV estimate needs: usable blocks of all replicas together, and tokens of a block."""

    blocks: int
    block_size: int


def bin_width_s(end_s: float, asked_s: float | None = None) -> float:
    """The width that is used for a replay of ``end_s`` seconds: the asked one or one that suits, with at most
    ``MOST_BINS`` bins. A replay longer than 600 days has wider bins than any of ``WIDTHS_S``."""
    least = asked_s if asked_s is not None else end_s / _SUITABLE_BINS
    if asked_s is not None and end_s < asked_s * MOST_BINS:
        return asked_s
    wide = max(least, np.nextafter(end_s / MOST_BINS, np.inf)) if asked_s is not None else least
    return next((width for width in WIDTHS_S if width >= wide), float(np.ceil(wide)))


def build_timeline(result: ReplayResult, bin_s: float | None = None, kv: KvCapacity | None = None) -> Timeline:
    """The timeline of a replay in bins of ``bin_s`` seconds (see ``bin_width_s``); requests that were never served
    count as arrived and nothing else."""
    table = result.requests
    served = table.last_token_ps >= 0
    prompt, output = table.prompt_tokens[served], table.output_tokens[served]
    hits = np.minimum(table.hit_tokens[served], prompt)  # a request admitted again may have hit again
    end_ps = max(int(table.arrival_ps.max(initial=0)), int(table.last_token_ps.max(initial=0)))
    axis = _Axis(max(1, round(bin_width_s(end_ps / PS_PER_S, bin_s) * PS_PER_S)), end_ps)
    everyone = axis.moments(table.arrival_ps[table.arrival_ps >= 0])
    arrival = axis.moments(table.arrival_ps[served])
    admitted, first, last = (
        axis.moments(column[served]) for column in (table.admitted_ps, table.first_token_ps, table.last_token_ps)
    )
    ones = np.ones(len(prompt))
    admissions, ends = axis.jumps(admitted, ones), axis.jumps(last, ones)
    running = admissions.minus(ends)
    waiting = axis.jumps(arrival, ones).minus(admissions)
    ttft_p50, ttft_p99 = axis.percentiles(arrival, (first.time_ps - arrival.time_ps) / PS_PER_S, (50.0, 99.0))
    hit_rate = None
    if result.prefix_hit_rate is not None:
        hit_rate = _ratio(axis.sums(admitted, hits), axis.sums(admitted, prompt))
    generated = axis.ramps(first, last, output - 1)
    usage = None
    if kv is not None and result.loop != "static" and result.prefix_hit_rate is None:
        tokens = axis.ramps(admitted, first, prompt).plus(generated).minus(axis.jumps(last, prompt + output - 1))
        usage = _kv_usage(tokens, running, kv)
    return Timeline(
        bin_s=axis.width_s,
        start_s=np.arange(axis.bins, dtype=np.float64) * axis.width_s,
        arrived=axis.counts(everyone),
        admitted=axis.counts(admitted),
        finished=axis.counts(last),
        running=running.means(),
        waiting=waiting.means(),
        prompt_tokens=axis.ramps(admitted, first, prompt - hits).increments(),
        output_tokens=axis.sums(first, ones) + generated.increments(),
        preemptions=axis.ramps(admitted, last, table.preemptions[served]).increments(),
        ttft_p50_s=ttft_p50,
        ttft_p99_s=ttft_p99,
        prefix_hit_rate=hit_rate,
        kv_usage=usage,
    )


def _kv_usage(tokens: _Curve, running: _Curve, kv: KvCapacity) -> Float64Array:
    """Mean share of blocks in use: tokens in whole blocks, of which each running request's newest is half full."""
    blocks = (tokens.means() + running.means() * (kv.block_size - 1) / 2) / kv.block_size
    return np.clip(blocks / kv.blocks, 0.0, 1.0)


@dataclass(frozen=True)
class _Curve:
    """A function of time: its value at each bin's start and at the last one's end, and its integral over each bin."""

    width: float
    level: Float64Array
    area: Float64Array

    def plus(self, other: _Curve) -> _Curve:
        return _Curve(self.width, self.level + other.level, self.area + other.area)

    def minus(self, other: _Curve) -> _Curve:
        return _Curve(self.width, self.level - other.level, self.area - other.area)

    def means(self) -> Float64Array:
        """Mean over each bin, never below zero (where rounding would leave a trace of it)."""
        return np.maximum(self.area / self.width, 0.0)

    def increments(self) -> Float64Array:
        """Growth within each bin of a curve that only grows."""
        return np.maximum(np.diff(self.level), 0.0)


@dataclass(frozen=True)
class _Moments:
    """Times with the bin of each, and what is left of that bin, in seconds."""

    time_ps: Int64Array
    index: Int64Array
    left_s: Float64Array

    def take(self, chosen: npt.NDArray[np.bool_]) -> _Moments:
        return _Moments(self.time_ps[chosen], self.index[chosen], self.left_s[chosen])


class _Axis:
    """Equal bins from 0 that reach beyond ``end_ps``; a time on an edge belongs to the bin that it starts."""

    def __init__(self, width_ps: int, end_ps: int) -> None:
        self.width_ps = width_ps
        self.width_s = width_ps / PS_PER_S
        self.bins = end_ps // width_ps + 1

    def moments(self, time_ps: Int64Array) -> _Moments:
        index = time_ps // self.width_ps
        return _Moments(time_ps, index, (self.width_ps - (time_ps - index * self.width_ps)) / PS_PER_S)

    def sums(self, when: _Moments, amount: Float64Array | Int64Array) -> Float64Array:
        return np.bincount(when.index, weights=amount, minlength=self.bins).astype(np.float64)

    def counts(self, when: _Moments) -> Int64Array:
        return np.bincount(when.index, minlength=self.bins).astype(np.int64)

    def jumps(self, when: _Moments, amount: Float64Array | Int64Array) -> _Curve:
        """Rises by ``amount`` at each time."""
        level = _running_sum(self.sums(when, amount))
        return _Curve(self.width_s, level, level[:-1] * self.width_s + self.sums(when, amount * when.left_s))

    def ramps(self, start: _Moments, end: _Moments, amount: Float64Array | Int64Array) -> _Curve:
        """Rises by ``amount`` evenly from each start to each end.

        Inside one bin a jump at the middle has the same integral and no slope to take back, which keeps rounding small.
        """
        inside = start.index == end.index
        middle = start.time_ps[inside] + (end.time_ps[inside] - start.time_ps[inside]) // 2
        jumps = self.jumps(self.moments(middle), amount[inside])
        start, end, amount = start.take(~inside), end.take(~inside), amount[~inside]
        slope = amount / ((end.time_ps - start.time_ps) / PS_PER_S)
        return self._slopes(start, slope).minus(self._slopes(end, slope)).plus(jumps)

    def _slopes(self, when: _Moments, slope: Float64Array) -> _Curve:
        """Rises with ``slope`` for ever after each time."""
        width, left = self.width_s, when.left_s
        before = _running_sum(self.sums(when, slope))[:-1]
        level = _running_sum(before * width + self.sums(when, slope * left))
        area = level[:-1] * width + before * width**2 / 2 + self.sums(when, slope * left * left / 2)
        return _Curve(width, level, area)

    def percentiles(self, when: _Moments, value: Float64Array, at: tuple[float, ...]) -> list[Float64Array]:
        """Numpy-linear percentiles of the values whose time is in each bin, ``nan`` without any."""
        order = np.argsort(when.index, kind="stable")
        edges = np.searchsorted(when.index[order], np.arange(self.bins + 1))
        found = np.full((len(at), self.bins), np.nan)
        for i in np.flatnonzero(np.diff(edges)):
            found[:, i] = np.percentile(value[order[edges[i] : edges[i + 1]]], at)
        return list(found)


def _running_sum(values: Float64Array) -> Float64Array:
    """0, then the sums of the first 1, 2, ... values."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def _ratio(part: Float64Array, whole: Float64Array) -> Float64Array:
    ratio = np.full(len(whole), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio
