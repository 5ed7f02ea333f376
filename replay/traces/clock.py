"""The clock of a whole file, in the order of its rows: times far off all others, and a clock that starts again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces.options import IngestOptions
from replay.traces.times import EPOCH_2000_NS

Int64Array = npt.NDArray[np.int64]
Shift = tuple[int, int]
"""Rows from this line on are moved by so many ns."""

NS = 10**9
DAY_NS = 86_400 * NS
_MIN_ROWS = 10
_TAIL = 0.1
_REACH = 10
_FAR_SHARE = 0.05
_SAMPLE_ROWS = 2**20
_MAX_DROPS = 1_000
_FOLLOWING = 5
_UNORDERED_SHARE = 0.05
_RESTARTS_SHARE = 0.1
"""More restarts than that are rows that are grouped by something else."""
_LEAST_SHARE = 0.05
"""A clock that goes back by less of the whole span is a file in the order of its ends."""
_HOUR_NS = 3_600 * NS
_MOST_HOURS, _LOOKED_AT = 14, 20
_PAUSE_NS = (300 * NS, 120 * NS)
"""A clock is set back by an hour, as daylight saving does it, or by several, as a change of zones, give or take the
pause between two requests."""


@dataclass
class _Drop:
    """A row before which the clock goes back by much, and how many of the rows after it stay that low."""

    line: int
    before_ns: int
    at_ns: int
    seen: int = 0
    low: int = 0

    def follow(self, arrivals: Int64Array) -> None:
        some = arrivals[: _FOLLOWING - self.seen]
        self.seen += len(some)
        self.low += int((some < (self.before_ns + self.at_ns) // 2).sum())

    @property
    def stays(self) -> bool:
        """Whether the clock goes on from there; one late row does not make a restart."""
        return self.low >= max(self.seen - 1, 3)


@dataclass
class Clock:
    """Looks at the arrivals of kept rows in file order. Memory is bounded: a sample, and at most 1,000 drops."""

    rows: int = 0
    closed_loop: bool = False
    _low: int | None = None
    _high: int | None = None
    _last: int | None = None
    _back: int = 0
    _stride: int = 1
    _sample: list[Int64Array] = field(default_factory=list)
    _sampled: int = 0
    _drops: list[_Drop] = field(default_factory=list)
    _hours: list[_Drop] = field(default_factory=list)

    def add(self, frame: pl.DataFrame) -> None:
        """Takes the next rows: ``arrival_ns``, ``source_line``, and ``after_line`` where a format has it."""
        if frame.is_empty() or "arrival_ns" not in frame.columns:
            return
        if "after_line" in frame.columns and frame["after_line"].null_count() < frame.height:
            self.closed_loop = True
        timed = frame.select("arrival_ns", "source_line").drop_nulls("arrival_ns")
        if timed.is_empty():
            return
        arrivals = timed["arrival_ns"].to_numpy()
        for drop in (*self._drops, *self._hours):
            if drop.seen < _FOLLOWING:
                drop.follow(arrivals)
        self._find(arrivals, timed["source_line"].to_numpy())
        self._keep(arrivals)

    def _find(self, arrivals: Int64Array, lines: Int64Array) -> None:
        before = np.concatenate([[arrivals[0] if self._last is None else self._last], arrivals[:-1]])
        back = before - arrivals
        if (back > 0).any():
            low, high = np.minimum.accumulate(before), np.maximum.accumulate(before)
            if self._low is not None and self._high is not None:
                low, high = np.minimum(low, self._low), np.maximum(high, self._high)
            self._back += int((back > 0).sum())
            # Far back, to about where it began: rows of newer pages before older ones do not overlap.
            again = (2 * back > high - low) & (4 * np.abs(low - arrivals) < high - low)
            self._note(self._drops, np.flatnonzero(again), before, arrivals, lines)
            hours = np.rint(back / _HOUR_NS)
            near = np.abs(back - hours * _HOUR_NS) <= np.where(hours == 1, *_PAUSE_NS)
            several = near & (hours > 1) & (hours <= _MOST_HOURS) & (2 * back < high - low)
            found = [at for at in np.flatnonzero(several)[:_LOOKED_AT] if self._was_there(arrivals, at)]
            found += np.flatnonzero(near & (hours == 1)).tolist()
            self._note(self._hours, np.sort(np.array(found, np.int64)), before, arrivals, lines)
        self._low = min(int(arrivals.min()), arrivals[0] if self._low is None else self._low)
        self._high = max(int(arrivals.max()), arrivals[0] if self._high is None else self._high)
        self._last = int(arrivals[-1])

    def _was_there(self, arrivals: Int64Array, at: int) -> bool:
        """Whether earlier rows have times like those after a step back, as after a change of zones: pages of a log in
        another order come to times of which there were none."""
        low = arrivals[at]
        return any(((part >= low) & (part < low + _HOUR_NS // 2)).any() for part in (*self._sample, arrivals[:at]))

    def _note(
        self, drops: list[_Drop], found: Int64Array, before: Int64Array, arrivals: Int64Array, lines: Int64Array
    ) -> None:
        for at in found[: _MAX_DROPS + 1 - len(drops)]:
            drop = _Drop(int(lines[at]), int(before[at]), int(arrivals[at]))
            drop.follow(arrivals[at : at + _FOLLOWING])
            drops.append(drop)

    def _keep(self, arrivals: Int64Array) -> None:
        kept = arrivals[-self.rows % self._stride :: self._stride]
        self.rows += len(arrivals)
        self._sample.append(kept)
        self._sampled += len(kept)
        while self._sampled > _SAMPLE_ROWS:
            whole = np.concatenate(self._sample)[::2]
            self._sample, self._sampled, self._stride = [whole], len(whole), 2 * self._stride

    def far_off(self) -> tuple[int, int] | None:
        """The bounds in ns outside of which a few rows lie; ``None`` where none do.

        The middle 80 % of the arrivals span a width, at least a day. What lies more than ten widths before or after
        them is far off, where that is at most 5 % of the rows (or one row): more are another part of the log.
        """
        if self.rows < _MIN_ROWS or self._low is None or self._high is None or self._high - self._low < DAY_NS:
            return None
        sample = np.sort(np.concatenate(self._sample))
        edge = int(_TAIL * len(sample))
        begin, end = int(sample[edge]), int(sample[-1 - edge])
        reach = _REACH * max(end - begin, DAY_NS)
        if self._low >= begin - reach and self._high <= end + reach:
            return None
        outside = int(((sample < begin - reach) | (sample > end + reach)).sum())
        if outside > max(1, _FAR_SHARE * len(sample)):
            return None
        return begin - reach, end + reach

    def check(self, options: IngestOptions) -> None:
        """Refuses a file whose clock starts again, or is set back by whole hours.

        Raises:
            TraceError: ``trace.clock_restarts``, ``trace.clock_set_back``, until the parameter clock_restarts says how
                the parts belong together.
        """
        found = self._restarts()
        if found and options.clock_restarts == "refuse":
            raise _restarts(found) if found[0].at_ns < EPOCH_2000_NS else _set_back(found)

    def shifts(self) -> list[Shift]:
        """What is added to the times of each part, so that it begins where the part before it ends."""
        shifts, moved = [], 0
        for drop in self._restarts():
            moved += drop.before_ns - drop.at_ns
            shifts.append((drop.line, moved))
        return shifts

    def _restarts(self) -> list[_Drop]:
        if self.closed_loop or self._low is None:
            return []
        relative = self._low < EPOCH_2000_NS
        drops = self._drops if relative else self._hours
        least = _LEAST_SHARE * ((self._high or 0) - self._low) if relative else 0
        found = [drop for drop in drops if drop.stays and drop.before_ns - drop.at_ns > least]
        unordered = self._back - len(found) > _UNORDERED_SHARE * self.rows
        return [] if unordered or len(found) > max(3, _RESTARTS_SHARE * self.rows) else found


def shifted(frame: pl.DataFrame, shifts: list[Shift]) -> pl.DataFrame:
    """The rows with the times of their part."""
    if not shifts or "arrival_ns" not in frame.columns:
        return frame
    line, moved = pl.col("source_line"), pl.lit(0)
    for first, by in shifts:
        moved = pl.when(line >= first).then(pl.lit(by)).otherwise(moved)
    return frame.with_columns(pl.col("arrival_ns") + moved)


def _restarts(found: list[_Drop]) -> TraceError:
    first = found[0]
    times = "once" if len(found) == 1 else f"{len(found):,} times"
    return _refusal(
        "clock_restarts",
        f"the clock starts again {times}: at line {first.line:,} it goes back from {first.before_ns / NS:,.6g} s to "
        f"{first.at_ns / NS:,.6g} s, and goes on from there. Files seem to have been joined",
        first.line,
    )


def _set_back(found: list[_Drop]) -> TraceError:
    first = found[0]
    minutes = (first.before_ns - first.at_ns) / NS / 60
    saving = "daylight saving ended (then give the log's zone and repeated_hour=order)"
    why = (
        saving
        if minutes * 60 * NS < 1.5 * _HOUR_NS
        else "the log's zone changed, or times have 12 hours without AM or PM"
    )
    what = f"at line {first.line:,} the clock goes back by {minutes:.0f} minutes and goes on from there"
    return _refusal("clock_set_back", f"{what}: {why}, or the logs of two servers were joined", first.line)


def _refusal(code: str, what: str, line: int) -> TraceError:
    choices = (
        ("follow", "each part begins where the part before it ends"),
        ("overlap", "all times are of one clock: the parts ran side by side, or the rows are grouped"),
    )
    return TraceError(
        f"trace.{code}",
        f"{what}. Say how the parts belong together by the parameter clock_restarts (follow or overlap), or upload "
        "them one by one",
        [
            FieldError(
                f"{meaning}: then give clock_restarts={name}",
                field="clock_restarts",
                line=line,
                rule=code,
                cure=f"clock_restarts={name}",
            )
            for name, meaning in choices
        ],
    )
