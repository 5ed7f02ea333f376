"""Language model calls inside language model calls: a gateway's span around the engine's, a wrapper's around the SDK's.

The outer one repeats the inner ones' tokens. It is counted only where its own counts show that it is another call.
Nesting is found by a first look at the whole file: a parent may stand before or after its children, in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from replay.traces.formats.records import RecordReading, records_of

Tokens = tuple[int | None, int | None]
_UNKNOWN: Tokens = (None, None)


@dataclass(frozen=True)
class Span:
    """What nesting needs of a span. ``tokens``: input and output of a model's call, ``None`` for other spans."""

    key: str
    parent: str | None
    tokens: Tokens | None


@dataclass
class Nesting:
    """Hashes of the keys of calls that only repeat calls inside them. Hashes keep a long file's ids small."""

    repeats: set[int] = field(default_factory=set)
    fuller: set[int] = field(default_factory=set)
    """Calls that are in the file several times, with counts and without."""
    others: int = 0
    """Calls around calls with counts of their own."""


def nesting(reading: RecordReading, spans: Callable[[dict[str, Any]], Iterable[Span]]) -> Nesting:
    """The file's nesting, found at first use."""
    found = reading.state.get("nesting")
    if not isinstance(found, Nesting):
        found = reading.state["nesting"] = _survey(reading, spans)
        if found.others:
            reading.ledger.warn(
                "nested",
                f"{found.others:,} model calls hold other model calls with other counts: all were counted; if the "
                "outer ones sum up the inner ones, the load is overstated",
            )
    return found


def _survey(reading: RecordReading, spans: Callable[[dict[str, Any]], Iterable[Span]]) -> Nesting:
    found = Nesting()
    parent_of: dict[int, int] = {}
    calls: dict[int, Tokens] = {}
    for records in records_of(reading.table) if reading.table is not None else ():
        for record in records.objects:
            for span in spans(record):
                key = hash(span.key)
                if span.parent is not None:
                    parent_of[key] = hash(span.parent)
                if span.tokens is not None:
                    before = calls.get(key, span.tokens)
                    if (before == _UNKNOWN) != (span.tokens == _UNKNOWN):
                        found.fuller.add(key)
                    calls[key] = before if span.tokens == _UNKNOWN else span.tokens
    inside: dict[int, list[int]] = {}
    for key in calls:
        outer = _call_around(key, parent_of, calls)
        if outer is not None:
            inside.setdefault(outer, []).append(key)
    for outer, keys in inside.items():
        inner = [calls[key] for key in keys]
        if calls[outer] != _UNKNOWN and all(tokens == _UNKNOWN for tokens in inner):
            found.repeats.update(keys)
        elif _repeats(calls[outer], inner):
            found.repeats.add(outer)
        else:
            found.others += 1
    return found


def _call_around(key: int, parent_of: dict[int, int], calls: dict[int, Tokens]) -> int | None:
    """The nearest model call around this one. A chain that runs in a circle ends."""
    passed = {key}
    at = parent_of.get(key)
    while at is not None and at not in passed:
        if at in calls:
            return at
        passed.add(at)
        at = parent_of.get(at)
    return None


def _repeats(outer: Tokens, inner: list[Tokens]) -> bool:
    """Whether the outer counts are unknown, one of the inner ones', or their sum."""
    sums = (sum(prompt or 0 for prompt, _ in inner), sum(output or 0 for _, output in inner))
    return outer == _UNKNOWN or outer in inner or (outer[0] or 0, outer[1] or 0) == sums
