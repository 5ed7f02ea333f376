"""The profile of a canonical trace, computed a slice at a time. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.hardware.catalogue import shipped_catalogue
from replay.traces import canonical
from replay.traces.canonical import Meta
from replay.traces.report import HeatCell, LengthCell, OverLength, Series, SeriesBin, TenantShare, TraceProfile
from replay.traces.retries import Retries
from replay.traces.tally import Tally, TimeTally
from replay.traces.turns import measure_sessions

if TYPE_CHECKING:
    from replay.traces.prefix import PrefixReuse

Int64Array = npt.NDArray[np.int64]

NS = 10**9
SERIES_BINS = 300
TOP_MODELS, TOP_TENANTS, TOP_GAPS = 20, 100, 20
_STRIDE = 16
_MINUTE_NS = 60 * NS
_LENGTHS = ("prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
_WINDOWS = {"1s": NS, "1min": 60 * NS, "1h": 3600 * NS}


@dataclass
class Arrivals:
    """Running statistics of sorted arrivals (ns), a slice at a time."""

    n: int = 0
    last: int | None = None
    gap_sum: float = 0.0
    gap_squares: float = 0.0
    largest_gap: int = 0
    largest_gap_at: int = 0
    top_gaps: list[tuple[int, int]] = field(default_factory=list)
    """The longest gaps: length and start."""
    smallest_step: int | None = None
    ties: int = 0
    bins: dict[str, dict[int, int]] = field(default_factory=lambda: {"1s": {}, "1min": {}})
    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WINDOWS, 0))
    _tail: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, arrivals: Int64Array) -> None:
        if len(arrivals) == 0:
            return
        joined = arrivals if self.last is None else np.concatenate([np.array([self.last], dtype=np.int64), arrivals])
        gaps = np.diff(joined)
        if len(gaps):
            seconds = gaps / NS
            self.gap_sum += float(seconds.sum())
            self.gap_squares += float(np.square(seconds).sum())
            top = int(gaps.argmax())
            if int(gaps[top]) > self.largest_gap:
                self.largest_gap, self.largest_gap_at = int(gaps[top]), int(joined[top])
            long = np.argpartition(gaps, -TOP_GAPS)[-TOP_GAPS:] if len(gaps) > TOP_GAPS else np.arange(len(gaps))
            self.top_gaps += zip(gaps[long].tolist(), joined[long].tolist(), strict=True)
            self.top_gaps = sorted(self.top_gaps, reverse=True)[:TOP_GAPS]
            self.ties += int(np.count_nonzero(gaps == 0))
            steps = gaps[gaps > 0]
            if len(steps):
                step = int(steps.min())
                self.smallest_step = step if self.smallest_step is None else min(self.smallest_step, step)
        self.n += len(arrivals)
        self.last = int(arrivals[-1])
        for name, counts in self.bins.items():
            index = arrivals // _WINDOWS[name]
            starts = _runs(index)
            number = np.diff(starts, append=len(index))
            for key, count in zip(index[starts].tolist(), number.tolist(), strict=True):
                counts[key] = counts.get(key, 0) + count
        self._peaks(arrivals)

    def _peaks(self, arrivals: Int64Array) -> None:
        """Most arrivals in any half-open window [a, a + w): windows that begin at an arrival are enough.

        Looks at every 16th arrival first: the count there bounds the counts of the 15 before it.
        """
        joined = np.concatenate([self._tail, arrivals])
        for name, width in _WINDOWS.items():
            coarse = np.arange(0, len(joined), _STRIDE)
            ends = np.searchsorted(joined, joined[coarse] + width, side="left")
            best = max(self.peak[name], int((ends - coarse).max()))
            bound = np.append(ends[1:], len(joined)) - coarse
            hot = coarse[bound > best]
            fine = (hot[:, None] + np.arange(_STRIDE)).ravel()
            fine = fine[fine < len(joined)]
            if len(fine):
                best = max(best, int((np.searchsorted(joined, joined[fine] + width, side="left") - fine).max()))
            self.peak[name] = best
        keep = int(np.searchsorted(joined, int(joined[-1]) - max(_WINDOWS.values()), side="right"))
        self._tail = joined[keep:]

    def dispersion(self, name: str) -> float | None:
        """Variance over mean of counts in aligned bins, empty ones included; ``None`` under 10 whole bins."""
        if self.last is None:
            return None
        whole = self.last // _WINDOWS[name]  # the last, partial bin is left out
        if whole < 10:
            return None
        counts = np.array([count for key, count in self.bins[name].items() if key < whole], dtype=np.float64)
        mean = float(counts.sum()) / whole
        if mean == 0:
            return None
        variance = float(np.square(counts).sum()) / whole - mean * mean
        return max(variance, 0.0) / mean

    def gap_cv(self) -> float | None:
        """Standard deviation over mean of the gaps; ``None`` with under two gaps or no time at all."""
        gaps = self.n - 1
        if gaps < 2 or self.gap_sum == 0:
            return None
        mean = self.gap_sum / gaps
        return float(np.sqrt(max(self.gap_squares / gaps - mean * mean, 0.0)) / mean)


@dataclass(frozen=True)
class Measured:
    """The profile, and the clock's facts that the cleaning report wants."""

    profile: TraceProfile
    arrivals: Arrivals
    requests: int
    missing_prompt: int
    missing_output: int
    closed_loop: int
    cancel_times: int
    timeless: int
    """Closed-loop requests that also lack a time of their own."""
    twins: int
    """Requests that are equal in time, lengths and labels to one or two others."""
    retries: Retries
    us_per_output_token: float | None
    """Median of what the old system took for a whole request, over its output tokens."""
    chance_twins: float
    """How many there would be if requests of one instant had lengths drawn at random."""
    lengths_vary: bool
    statuses: dict[str, int]


def _prefix_reuse(meta: Meta) -> PrefixReuse:
    # Compiled code: numba takes a second to load, and most traces have no block ids.
    from replay.traces.prefix import PrefixReuse

    return PrefixReuse(meta)


def measure(path: Path, meta: Meta, span_ns: int, tick: Callable[[int], None]) -> Measured:
    """Profiles the canonical file at ``path``, whose arrivals lie in 0..``span_ns``; ``tick`` is told the rows done
    before each slice, and may raise to cancel."""
    arrivals = Arrivals()
    tallies = {name: Tally() for name in _LENGTHS}
    both = Tally()
    sources = {f"source_{name}_ns": TimeTally() for name in ("ttft", "e2e", "queue")}
    labels: dict[str, Counter[str]] = {name: Counter() for name in ("model", "tenant", "status")}
    heat = np.zeros((7, 24), dtype=np.int64)
    bin_ns = max(-(-(span_ns + 1) // SERIES_BINS), 1)
    series = np.zeros((3, SERIES_BINS), dtype=np.int64)
    joint = np.zeros((64, 64), dtype=np.int64)
    prefix = _prefix_reuse(meta) if meta.block_size_tokens is not None else None
    retries, pace = Retries(), Tally()
    requests = closed = timeless = twins = in_sessions = cancel_times = 0
    for frame in canonical.slices(path):
        tick(requests)
        requests += frame.height
        open_loop = frame.filter(pl.col("arrival_ns").is_not_null())
        timeless += frame.height - open_loop.height
        closed += frame.filter(pl.col("after_line").is_not_null() | pl.col("arrival_ns").is_null()).height
        times = open_loop["arrival_ns"].to_numpy()
        ties = arrivals.ties
        arrivals.add(times)
        retries.add(frame)
        cancel_times += frame.height - frame["cancel_after_ns"].null_count()
        took = frame.filter(pl.col("source_e2e_ns") > 0, pl.col("output_tokens") > 0)
        if took.height:
            pace.add((took["source_e2e_ns"] // took["output_tokens"] // 1000).to_numpy())
        twins += _twins(open_loop) if arrivals.ties > ties else 0
        for name, tally in tallies.items():
            if frame[name].null_count() < frame.height:
                tally.add(frame[name].drop_nulls().to_numpy())
        for name, times_ns in sources.items():
            if frame[name].null_count() < frame.height:
                times_ns.add(frame[name].drop_nulls().to_numpy())
        for name, counter in labels.items():
            if frame[name].null_count() < frame.height:
                counter.update(dict(frame.drop_nulls(name).group_by(name).len().rows()))
        in_sessions += frame.height - frame["session"].null_count()
        both.add((frame["prompt_tokens"] + frame["output_tokens"]).drop_nulls().to_numpy())
        _add_joint(joint, frame)
        _add_series(series, times // bin_ns, open_loop)
        if meta.start_epoch_ns is not None:
            heat += _heat(open_loop, meta)
        if prefix is not None:
            prefix.add(frame)
    lengths = {name: tally.profile() for name, tally in tallies.items()}
    sessions = measure_sessions(path, in_sessions, lambda: tick(requests))
    profile = TraceProfile(
        requests=requests,
        span_s=span_ns / NS,
        start_utc=_iso(meta.start_epoch_ns),
        mean_rps=arrivals.n / (span_ns / NS) if span_ns > 0 else None,
        peak_rps_1s=_peak(arrivals, "1s", span_ns),
        peak_rps_1min=_peak(arrivals, "1min", span_ns),
        peak_rps_1h=_peak(arrivals, "1h", span_ns),
        gap_cv=arrivals.gap_cv(),
        dispersion_1s=arrivals.dispersion("1s"),
        dispersion_1min=arrivals.dispersion("1min"),
        prompt_tokens=lengths["prompt_tokens"],
        output_tokens=lengths["output_tokens"],
        joint_lengths=[
            LengthCell(prompt_from=1 << int(i), output_from=1 << int(j), requests=int(joint[i, j]))
            for i, j in np.argwhere(joint)
        ],
        cached_tokens=lengths["cached_tokens"] if lengths["cached_tokens"].n else None,
        reasoning_tokens=lengths["reasoning_tokens"] if lengths["reasoning_tokens"].n else None,
        prefix=prefix.profile(lengths["prompt_tokens"].total) if prefix is not None else None,
        tenants=len(labels["tenant"]),
        top_tenants=[
            TenantShare(tenant=name, requests=n, share=n / requests)
            for name, n in sorted(labels["tenant"].items(), key=lambda item: (-item[1], item[0]))[:TOP_TENANTS]
        ],
        sessions=sessions.sessions if sessions is not None else 0,
        session_profile=sessions,
        over_length=_over_length(both),
        models=dict(sorted(labels["model"].items(), key=lambda item: (-item[1], item[0]))[:TOP_MODELS]),
        heat_map=_cells(heat) if meta.start_epoch_ns is not None else None,
        heat_map_zone=(meta.zone or "UTC") if meta.start_epoch_ns is not None else None,
        series=_series(series, bin_ns, span_ns),
        source_ttft=sources["source_ttft_ns"].timing(),
        source_e2e=sources["source_e2e_ns"].timing(),
        source_queue=sources["source_queue_ns"].timing(),
    )
    return Measured(
        profile=profile,
        arrivals=arrivals,
        requests=requests,
        missing_prompt=requests - profile.prompt_tokens.n,
        missing_output=requests - profile.output_tokens.n,
        closed_loop=closed,
        cancel_times=cancel_times,
        timeless=timeless,
        twins=twins,
        retries=retries,
        us_per_output_token=pace.percentile(50.0) if len(pace.values) else None,
        chance_twins=2 * arrivals.ties * tallies["prompt_tokens"].alike() * tallies["output_tokens"].alike(),
        lengths_vary=lengths["prompt_tokens"].min != lengths["prompt_tokens"].max,
        statuses=dict(sorted(labels["status"].items())),
    )


def _twins(frame: pl.DataFrame) -> int:
    """Rows that are equal to one or two others. Larger groups are bursts of one kind of request, not a file twice."""
    at = pl.col("arrival_ns")
    tied = frame.filter(((at == at.shift(1)) | (at == at.shift(-1))).fill_null(value=False))
    columns = ["arrival_ns", "prompt_tokens", "output_tokens", "model", "tenant", "session", "status"]
    groups = tied.group_by(columns).len()
    return int(groups.filter(pl.col("len").is_between(2, 3))["len"].sum())


def _peak(arrivals: Arrivals, name: str, span_ns: int) -> float | None:
    width = _WINDOWS[name]
    return arrivals.peak[name] / (width / NS) if span_ns >= width else None


def _over_length(both: Tally) -> list[OverLength]:
    """Of prompts and outputs together, those longer than each context length of the shipped models."""
    n = int(both.counts.sum())
    limits = sorted({model.max_position for model in shipped_catalogue().models.values()}) if n else []
    over = [(limit, both.above(limit)) for limit in limits]
    return [OverLength(max_model_len=limit, requests=count, share=count / n) for limit, count in over]


def _iso(epoch_ns: int | None) -> str | None:
    return (
        None if epoch_ns is None else datetime.fromtimestamp(epoch_ns / NS, tz=UTC).isoformat(timespec="milliseconds")
    )


def _add_joint(joint: Int64Array, frame: pl.DataFrame) -> None:
    """Counts the requests that state both lengths by the powers of two at or below them."""
    both = frame.filter((pl.col("prompt_tokens") > 0) & (pl.col("output_tokens") > 0))
    # frexp is exact: the exponent of a float64 is the number of bits of a whole number below 2^53.
    bits = [np.frexp(both[name].to_numpy().astype(np.float64))[1] - 1 for name in ("prompt_tokens", "output_tokens")]
    joint += np.bincount(bits[0] * 64 + bits[1], minlength=joint.size).reshape(joint.shape)


def _runs(sorted_values: Int64Array) -> Int64Array:
    """Where each run of equal values starts."""
    return np.flatnonzero(np.diff(sorted_values, prepend=sorted_values[:1] - 1))


def _add_series(series: Int64Array, index: Int64Array, frame: pl.DataFrame) -> None:
    """Adds requests and tokens to their bins; ``index`` is sorted."""
    if len(index) == 0:
        return
    starts = _runs(index)
    bins = index[starts]
    series[0, bins] += np.diff(starts, append=len(index))
    for row, name in ((1, "prompt_tokens"), (2, "output_tokens")):
        series[row, bins] += np.add.reduceat(frame[name].fill_null(0).to_numpy(), starts)


def _series(series: Int64Array, bin_ns: int, span_ns: int) -> Series:
    used = min(SERIES_BINS, span_ns // bin_ns + 1)
    bins = [
        SeriesBin(
            start_s=i * bin_ns / NS,
            requests=int(series[0, i]),
            prompt_tokens=int(series[1, i]),
            output_tokens=int(series[2, i]),
        )
        for i in range(used)
    ]
    return Series(bin_s=bin_ns / NS, bins=bins)


def _heat(frame: pl.DataFrame, meta: Meta) -> Int64Array:
    """Requests by weekday and hour. Zones differ from UTC by whole minutes, so one look a minute does."""
    minutes = (frame["arrival_ns"].to_numpy() + (meta.start_epoch_ns or 0)) // _MINUTE_NS
    if len(minutes) == 0:
        return np.zeros((7, 24), np.int64)
    starts = _runs(minutes)
    local = pl.Series(minutes[starts] * _MINUTE_NS).cast(pl.Datetime("ns", "UTC"))
    local = local.dt.convert_time_zone(meta.zone or "UTC")
    heat = np.zeros((7, 24), np.int64)
    weekday, hour = local.dt.weekday().to_numpy() - 1, local.dt.hour().to_numpy()
    np.add.at(heat, (weekday, hour), np.diff(starts, append=len(minutes)))
    return heat


def _cells(heat: Int64Array) -> list[HeatCell]:
    return [HeatCell(weekday=day, hour=hour, requests=int(heat[day, hour])) for day in range(7) for hour in range(24)]
