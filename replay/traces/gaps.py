"""Long gaps between arrivals: did the system or its log stop, or was there nothing to do? With the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from zoneinfo import ZoneInfo

from replay.traces.canonical import Meta
from replay.traces.report import Gap

NS = 10**9
_DAY_NS = 86_400 * NS
_WEEK_NS = 7 * _DAY_NS
_MINUTE_NS = 60 * NS
_LONG_NS = 600 * NS
_LEAST_NS = 5 * NS
_MEAN_GAPS = 20
_SOME, _MANY = 10, 50
"""Requests that should have come within a gap: below the first it is no wonder that none did, from the second on it is
(at a steady rate the chance is under e^-50; traffic comes in bursts, so less would not do)."""
_SCALES = (1, 4, 16)
_USUAL_GAPS = 5
_SATURDAY = 5


@dataclass(frozen=True)
class Around:
    """What a classification looks at. ``counts``: requests by second and by minute from the earliest request."""

    seconds: dict[int, int]
    minutes: dict[int, int]
    requests: int
    span_ns: int

    def count(self, start_ns: int, end_ns: int) -> int:
        """Requests that arrive in the bins inside [start, end): seconds for short stretches, else minutes."""
        bins, width = (self.seconds, NS) if end_ns - start_ns < _LONG_NS else (self.minutes, _MINUTE_NS)
        return sum(bins.get(key, 0) for key in range(-(-start_ns // width), end_ns // width))

    def rate(self, edge_ns: int, length_ns: int, side: int) -> float | None:
        """The lowest requests/s just before (``side`` -1) or after (1) an edge, over the gap's length and parts of it:
        traffic that dies away is low at the edge, traffic that is cut off is not. ``None`` at an end of the trace."""
        rates = []
        for scale in _SCALES:
            width = max(length_ns // scale, _LEAST_NS)
            start, end = (edge_ns - width, edge_ns) if side < 0 else (edge_ns, edge_ns + width)
            start, end = max(start, 0), min(end, self.span_ns + NS)
            if end - start >= _LEAST_NS:
                rates.append(self.count(start, end) * NS / (end - start))
        return min(rates, default=None)


def classify(top: Iterable[tuple[int, int]], around: Around, meta: Meta) -> list[Gap]:
    """The gaps (length, start; in ns) that stand out, in the order of time, each with its kind.

    A gap stands out that is at least 5 s, 20 mean gaps and four fifths of the longest one, or in which many requests
    should have come.
    """
    longest = sorted(top, reverse=True)
    if not longest or around.requests < 2:
        return []
    mean_ns = around.span_ns / (around.requests - 1)
    standing = [(length, at) for length, at in longest if length >= max(_LEAST_NS, _MEAN_GAPS * mean_ns)]
    found = [_gap(length, at, longest, around, meta) for length, at in standing]
    kept = [gap for gap in found if gap.kind == "outage" or gap.length_s >= 0.8 * longest[0][0] / NS]
    return sorted(kept, key=lambda gap: gap.start_s)


def _gap(length: int, at: int, longest: list[tuple[int, int]], around: Around, meta: Meta) -> Gap:
    before, after = around.rate(at + NS, length, -1), around.rate(at + length, length, 1)
    rates = [rate for rate in (before, after) if rate is not None]
    expected = (min(rates) if len(rates) == len((before, after)) else 0.0) * length / NS
    kind, evidence = _judged(length, at, longest, around, meta, expected, max(rates, default=0.0) * length / NS)
    sides = f"{_rate(before)} before, {_rate(after)} after"
    return Gap(
        start_s=at / NS, length_s=length / NS, kind=kind, expected_requests=expected, evidence=f"{evidence} ({sides})"
    )


def _judged(
    length: int, at: int, longest: list[tuple[int, int]], around: Around, meta: Meta, low: float, high: float
) -> tuple[str, str]:
    alike = sum(length <= 3 * other <= 9 * length for other, _ in longest) - 1
    if alike >= _USUAL_GAPS:
        return "idle", f"pauses of that length are usual here: {alike} others are a third to three times as long"
    others, when = _same_hours(length, at, around)
    if others:
        usual = median(others)
        weekend = when == "day" and _weekend(length, at, meta)
        if weekend and length >= _DAY_NS:
            return "unclear", "it lies on a weekend, and the trace has no other weekend to compare with"
        if usual >= _MANY and not weekend:
            return "outage", f"at the same hours of {len(others)} other {when}s {usual:,.0f} requests came (median)"
        if usual < _SOME:
            return "idle", f"at the same hours of {len(others)} other {when}s hardly any came (median {usual:,.0f})"
    if low >= _MANY:
        return "outage", f"at the rates around it {low:,.0f} requests were likely: traffic stops and returns at once"
    if high < _SOME:
        return "idle", f"at the rates around it only {high:,.1f} requests were likely"
    return "unclear", f"at the rates around it between {low:,.0f} and {high:,.0f} requests were likely"


def _same_hours(length: int, at: int, around: Around) -> tuple[list[int], str]:
    """Requests at the same hours of other weeks, else of other days, that lie whole in the trace."""
    for step, name in ((_WEEK_NS, "week"), (_DAY_NS, "day")):
        shifts = [k * step for k in range(-14, 15) if abs(k) * step >= length and k]
        whole = [shift for shift in shifts if at + shift >= 0 and at + length + shift <= around.span_ns]
        if whole:
            return [around.count(at + shift, at + length + shift) for shift in whole], name
    return [], ""


def _weekend(length: int, at: int, meta: Meta) -> bool:
    if meta.start_epoch_ns is None:
        return False
    middle = (meta.start_epoch_ns + at + length // 2) / NS
    return datetime.fromtimestamp(middle, ZoneInfo(meta.zone or "UTC")).weekday() >= _SATURDAY


def _rate(rate: float | None) -> str:
    return "the trace's end" if rate is None else f"{rate:.3g} requests/s"


def mean_without(gaps: list[Gap], around: Around) -> float | None:
    """Requests/s over the time that no outage takes; ``None`` without outages."""
    lost = sum(gap.length_s for gap in gaps if gap.kind == "outage")
    return around.requests / (around.span_ns / NS - lost) if lost and around.span_ns / NS > lost else None


def remark(gaps: list[Gap], around: Around) -> str | None:
    """What the report says of gaps that are long against the trace, or that look like outages."""
    longest = max(gaps, key=lambda gap: (gap.kind == "outage", gap.length_s), default=None)
    if longest is None or (longest.kind != "outage" and longest.length_s * NS <= max(around.span_ns // 5, _MINUTE_NS)):
        return None
    said = {"outage": "outage likely", "idle": "idle", "unclear": "an outage, a hole in the log, or idle"}[longest.kind]
    outages = sum(gap.kind == "outage" for gap in gaps)
    more = f"; {outages - 1} more like it are in the report" if outages > 1 else ""
    where = f"{longest.length_s:,.0f} s from {longest.start_s:,.0f} s on"
    text = f"nothing arrives for {where}: {said}: {longest.evidence}{more}"
    without = mean_without(gaps, around)
    if without is None:
        return f"{text}. Peaks and means are over the whole span"
    busiest = max(around.minutes, key=lambda key: around.minutes[key]) * 60
    follows = any(gap.kind == "outage" and 0 <= busiest + 60 - gap.start_s - gap.length_s <= 180 for gap in gaps)
    peak = (
        "; the busiest minute comes right after an outage, as retries do: the peak may be of their making"
        if follows
        else "; the busiest minute does not follow one"
    )
    whole = around.requests / (around.span_ns / NS)
    return f"{text}. The mean is {whole:.4g} requests/s over the whole span and {without:.4g} without outages{peak}"
