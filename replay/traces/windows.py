"""Which part of a trace is replayed: by seconds, by clock time, the busiest, or one at a quantile of load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from replay.errors import FieldError, TraceError, curable
from replay.specs_transform import Transform
from replay.workload import MAX_SPAN_S

Int64Array = npt.NDArray[np.int64]

NS = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """When a trace begins, and where: ``replay.traces.canonical.Meta`` of a file."""

    @property
    def start_epoch_ns(self) -> int | None: ...
    @property
    def zone(self) -> str | None: ...


@dataclass(frozen=True)
class Window:
    """``start_ns`` (included) to ``end_ns`` (excluded) from the trace's first request; ``span_s`` is the length that
    the rate is counted over. ``why`` says how it was found, empty where the user gave the seconds."""

    start_ns: int
    end_ns: int
    span_s: float
    why: str = ""
    chosen: bool = True
    """Whether the user asked for a part of the trace."""
    to_last: bool = False
    """Whether it ends with the trace's last arrival and not at a time that was given."""


def find_window(arrival_ns: Int64Array, transform: Transform, meta: Clock) -> Window:
    """The window of ``transform`` over sorted arrivals (ns, shape (n,)).

    Raises:
        TraceError: ``workload.window``: it lies outside the trace, or is asked by clock of a trace without one;
            ``workload.too_long``: longer than picoseconds can count.
    """
    last_ns = int(arrival_ns[-1]) if len(arrival_ns) else 0
    if transform.busiest_window_s is not None:
        window = _by_load(arrival_ns, last_ns, transform.busiest_window_s, transform.window_load_quantile)
    elif transform.window_from is not None or transform.window_until is not None:
        window = _by_clock(last_ns, transform, meta)
    else:
        start_ns = round((transform.window_start_s or 0.0) * NS)
        end_ns = None if transform.window_end_s is None else round(transform.window_end_s * NS)
        chosen = transform.window_start_s is not None or end_ns is not None
        window = _cut(last_ns, start_ns, end_ns, "window_start_s", "", chosen)
    if window.span_s > MAX_SPAN_S:
        cure = f"choose a window of at most {MAX_SPAN_S // 86_400} days by window_start_s and window_end_s"
        raise TraceError(
            "workload.too_long",
            f"the window is {window.span_s / 86_400:,.1f} days; a replay, which counts picoseconds in 64 bits, takes "
            f"{MAX_SPAN_S // 86_400}",
            [FieldError(cure, field="transform.window_end_s", rule="max_span", cure=cure)],
        )
    return window


def _cut(last_ns: int, start_ns: int, end_ns: int | None, field: str, why: str, chosen: bool) -> Window:
    """The window, cut to the trace where it ends later: then it ends with the last arrival."""
    if start_ns > last_ns:
        cure = f"the trace's last request arrives at {last_ns / NS:g} s; start before"
        raise _refusal(f"the window starts at {start_ns / NS:g} s, after the trace's end", field, cure)
    if end_ns is not None and end_ns <= last_ns:
        return Window(start_ns, end_ns, (end_ns - start_ns) / NS, why, chosen)
    return Window(start_ns, last_ns + 1, (last_ns - start_ns) / NS, why, chosen, to_last=True)


def _by_clock(last_ns: int, transform: Transform, meta: Clock) -> Window:
    first = meta.start_epoch_ns
    if first is None:
        cure = "give window_start_s and window_end_s, in seconds from the first request"
        raise _refusal("the trace has no clock times, only times from its first request", "window_from", cure)
    zone = ZoneInfo(meta.zone or "UTC")
    start_ns = 0 if transform.window_from is None else _epoch_ns(transform.window_from, zone) - first
    end_ns = None if transform.window_until is None else _epoch_ns(transform.window_until, zone) - first
    begins = (_EPOCH + timedelta(microseconds=first // 1000)).astimezone(zone).isoformat(timespec="seconds")
    ends = (_EPOCH + timedelta(microseconds=(first + last_ns) // 1000)).astimezone(zone).isoformat(timespec="seconds")
    cure = f"the trace lasts from {begins} to {ends}"
    if end_ns is not None and end_ns <= max(start_ns, 0):
        raise _refusal(
            "the window ends before it starts, or before the trace does", "window_until", f"{cure}; end later"
        )
    if start_ns > last_ns:
        raise _refusal("the window starts after the trace's end", "window_from", f"{cure}; start before its end")
    said = f" ({transform.window_from or begins} to {transform.window_until or ends})"
    return _cut(last_ns, max(start_ns, 0), end_ns, "window_from", said, True)


def _epoch_ns(text: str, zone: ZoneInfo) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _by_load(arrival_ns: Int64Array, last_ns: int, length_s: float, quantile: float) -> Window:
    """The busiest window wherever it begins; or of the whole ones laid end to end, the one at ``quantile`` of load."""
    width = round(length_s * NS)
    if not 0 < width <= last_ns + 1:
        cure = f"the trace lasts {last_ns / NS:g} s; choose a shorter window"
        raise _refusal(f"no window of {length_s:g} s fits into the trace", "busiest_window_s", cure)
    if quantile == 1.0:
        latest = last_ns + 1 - width
        # A window with the most requests can be moved right until it begins with a request, or ends with the trace.
        begins = np.append(arrival_ns[arrival_ns <= latest], latest)
        counts = np.searchsorted(arrival_ns, begins + width) - np.searchsorted(arrival_ns, begins)
        start_ns = int(begins[int(counts.argmax())])
        return Window(start_ns, start_ns + width, width / NS, f", the busiest {length_s:g} s")
    whole = (last_ns + 1) // width
    counts = np.bincount(np.minimum(arrival_ns // width, whole), minlength=whole + 1)[:whole]
    rank = math.ceil(quantile * whole)
    start_ns = int(np.argsort(counts, kind="stable")[rank - 1]) * width
    why = f", number {rank:,} by load of the {whole:,} whole windows of {length_s:g} s"
    return Window(start_ns, start_ns + width, width / NS, why)


def _refusal(detail: str, field: str, cure: str) -> TraceError:
    return curable("workload.window", detail, cure, f"transform.{field}")
