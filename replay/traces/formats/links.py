"""Closed loops from a log: which request a request waited for, by the clock of the system that was logged."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

NS = 10**9
_KEPT = 64


def iso_ns(text: object) -> int | None:
    """An ISO time with its zone as epoch ns; ``None`` where it is none. Links need no more than its microseconds."""
    if not isinstance(text, str):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        return None
    spent = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (spent.days * 86_400 + spent.seconds) * NS + spent.microseconds * 1000


def scaled_ns(value: object, unit_ns: int) -> int | None:
    """A parsed JSON number (fractions are text) in units of ``unit_ns`` as whole ns; ``None`` where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value * unit_ns if abs(value) < 2**62 // unit_ns else None
    try:
        number = float(value)
    except ValueError:
        return None
    ns = number * unit_ns
    return round(ns) if -(2.0**62) < ns < 2.0**62 else None


@dataclass
class Ends:
    """When the requests of one session ended: the predecessor of a request is the last one to end before it starts."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    """End in ns and the request's number, of the latest few."""

    def add(self, end_ns: int | None, number: int) -> None:
        """A request that has ended, in any order."""
        if end_ns is not None:
            self.ends.append((end_ns, number))
            if len(self.ends) > 2 * _KEPT:
                self.ends = sorted(self.ends)[-_KEPT:]

    def before(self, start_ns: int | None) -> tuple[int, int] | None:
        """End and number of the last request that ended at or before ``start_ns``; ``None``: there is none."""
        if start_ns is None:
            return None
        return max((end for end in self.ends if end[0] <= start_ns), default=None)
