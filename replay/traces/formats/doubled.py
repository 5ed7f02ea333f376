"""Calls that two instruments recorded side by side: a gateway's span and an SDK's, in one trace, without a link.

Such a pair has the same counts, and the one's time lies within the other's. Calls drawn side by side with one prompt
and a full answer look alike too, so nothing is left out: where most calls have such a twin, it is asked.
"""

from __future__ import annotations

from typing import Any

from replay.errors import curable
from replay.traces.formats.records import RecordReading
from replay.traces.formats.values import moment_ns

_MIN_CALLS = 20
_MOST_SHARE, _SOME_SHARE = 0.5, 0.05


class Doubled:
    """Counts, of the calls in one reading, those that lie within another of their trace with the same counts."""

    def __init__(self) -> None:
        self.calls = self.twins = 0
        self.last: dict[int, tuple[int, int]] = {}

    def note(self, trace: str | None, given: int | None, output: int | None, start: Any, end: Any) -> None:
        """A call that is counted as a request."""
        self.calls += 1
        begin_ns, end_ns = moment_ns(start), moment_ns(end)
        if trace is None or not given or not output or begin_ns is None or end_ns is None or end_ns <= begin_ns:
            return
        key = hash((trace, given, output))
        before = self.last.get(key)
        self.last[key] = begin_ns, end_ns
        if before is not None and (
            before[0] <= begin_ns <= end_ns <= before[1] or begin_ns <= before[0] <= before[1] <= end_ns
        ):
            self.twins += 1
            del self.last[key]  # a third one is another call

    def check(self, reading: RecordReading) -> None:
        """Refuses the file where most calls come in such pairs, and says it where some do.

        Raises:
            TraceError: ``trace.duplicates``.
        """
        if reading.ledger.again or reading.options.keep_duplicates or self.calls < _MIN_CALLS:
            return
        share = 2 * self.twins / self.calls
        what = (
            f"{2 * self.twins:,} of {self.calls:,} model calls come in pairs of one trace with the same counts, one "
            "within the time of the other"
        )
        if share >= _MOST_SHARE:
            cure = (
                "export the spans of one of the two instruments only; if they are different requests, give "
                "keep_duplicates=true"
            )
            what += ": two instruments seem to have recorded each call"
            raise curable("trace.duplicates", what, cure, "keep_duplicates")
        if share >= _SOME_SHARE:
            reading.ledger.warn("doubled", f"{what}: if two instruments recorded them, the load is overstated")


def doubled(reading: RecordReading) -> Doubled:
    """The reading's one count, made at first use and after ``lookout``, which may ask for another reading."""
    found = reading.state.get("doubled")
    if not isinstance(found, Doubled):
        made = found = reading.state["doubled"] = Doubled()
        reading.at_end.append(lambda: made.check(reading))
    return found
