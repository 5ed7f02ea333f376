"""Clocks of server logs, which write local time without a zone, and some without a year.

With the parameter ``time_zone`` (and ``year``, where the log has none) times are put on the calendar. Without, they
count from the log's beginning: rates and gaps are right, hours of the day are unknown. The one thing that would make
them wrong, a clock set back by daylight saving, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from replay.errors import FieldError, TraceError
from replay.traces.formats.records import RecordReading

_DAY_NS = 24 * 3600 * 10**9
_MINUTE_NS = 60 * 10**9
_SET_BACK_NS = (50 * _MINUTE_NS, 70 * _MINUTE_NS)


@dataclass
class ServerClock:
    """One log's clock; lines are handed in as they stand in the file."""

    reading: RecordReading
    has_year: bool
    start_ns: int | None = None
    latest_ns: int = 0
    line: int = 0

    @property
    def on_calendar(self) -> bool:
        """Whether naive times can be put on the calendar."""
        options = self.reading.options
        return options.time_zone is not None and (self.has_year or options.year is not None)

    def in_year(self, month: int, day: int, rest_ns: int) -> int | None:
        """A date without a year as naive ns: in the year nearest to the line before; ``None`` where there is none.

        The first line's year is the parameter's, else one without and, for 29 February, one with a leap day.
        """
        given = self.reading.options.year
        first = given if given is not None else 2004 if (month, day) == (2, 29) else 2002
        if self.start_ns is not None:
            first = datetime.fromtimestamp(self.latest_ns // 10**9, UTC).year
        found = [ns for year in (first - 1, first, first + 1) if (ns := _midnight(year, month, day)) is not None]
        if not found:
            return None
        if self.start_ns is None:
            whole = _midnight(first, month, day)
            return None if whole is None else whole + rest_ns
        return min((ns + rest_ns for ns in found), key=lambda ns: abs(ns - self.latest_ns))

    def arrival(self, naive_ns: int, line: int) -> str:
        """The time for ``arrival``: naive ISO text with a zone given, else seconds from a day before the log began.

        Raises:
            TraceError: ``trace.clock_set_back``.
        """
        if self.on_calendar:
            self.start_ns = naive_ns if self.start_ns is None else self.start_ns
            self.latest_ns = max(self.latest_ns, naive_ns)
            return f"{datetime.fromtimestamp(naive_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{naive_ns % 10**9:09d}"
        if self.start_ns is None:
            self.start_ns = self.latest_ns = naive_ns
            needs = "the parameter zone" if self.has_year else "the parameters zone and year"
            self.reading.ledger.warn(
                "clock_unplaced",
                f"the log's times have no zone{'' if self.has_year else ' and no year'}: they count from its "
                f"beginning. To have hours of the day, give {needs}",
            )
            self.reading.ledger.assumed["time_zone"] = "none: times count from the log's beginning"
        back = self.latest_ns - naive_ns
        if _SET_BACK_NS[0] <= back <= _SET_BACK_NS[1]:
            raise self._set_back(line, back)
        self.latest_ns = max(self.latest_ns, naive_ns)
        since = naive_ns - self.start_ns + _DAY_NS
        return f"{since // 10**9}.{since % 10**9:09d}" if since >= 0 else "before the log"

    def _set_back(self, line: int, back_ns: int) -> TraceError:
        needs = "zone" if self.has_year else "zone and year"
        cure = (
            f"give {needs} and repeated_hour=order if it was daylight saving; upload one server's log by itself if not"
        )
        return TraceError(
            "trace.clock_set_back",
            f"at line {line:,} the clock goes back by {back_ns // _MINUTE_NS} minutes: daylight saving ended, or logs "
            f"of several servers were joined. {cure[0].upper()}{cure[1:]}",
            [FieldError(cure, field="zone", line=line, rule="clock_set_back", cure=cure)],
        )


def _midnight(year: int, month: int, day: int) -> int | None:
    try:
        return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 10**9
    except ValueError:
        return None


def clock_of(reading: RecordReading, *, has_year: bool) -> ServerClock:
    """The file's one clock."""
    clock = reading.state.get("clock")
    if not isinstance(clock, ServerClock):
        clock = reading.state["clock"] = ServerClock(reading, has_year)
    return clock
