"""Language model calls inside language model calls: a gateway's span around the engine's, a wrapper's around the SDK's.

The outer one repeats the inner ones' tokens. It is counted only where its own counts show that it is another call.
A parent may stand before or after its children, anywhere in the file: a reading notes how calls are nested and, where
some repeat others, the file is read once more with that known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from replay.traces.formats.records import RecordReading


class Tokens(NamedTuple):
    """The counts of one model call."""

    given: int | None
    output: int | None
    cached: int = 0
    """Read from or written to a cache: in ``given`` or beside it."""

    @property
    def unknown(self) -> bool:
        """Whether the call states no counts."""
        return self.given is None and self.output is None


@dataclass
class Nesting:
    """Hashes of the keys of calls that only repeat calls inside them. Hashes keep a long file's ids small."""

    repeats: set[int] = field(default_factory=set)
    fuller: set[int] = field(default_factory=set)
    """Calls that are in the file several times, with counts and without."""
    others: int = 0
    """Calls around calls with counts of their own."""


@dataclass
class Lookout:
    """What one reading knows of the nesting, and what it notes for the next."""

    found: Nesting | None
    parent_of: dict[int, int] = field(default_factory=dict)
    calls: dict[int, Tokens] = field(default_factory=dict)
    fuller: set[int] = field(default_factory=set)

    def note(self, key: str, parent: str | None, tokens: Tokens | None) -> None:
        """A span. ``tokens``: input and output of a model's call, ``None`` for other spans."""
        if self.found is not None:
            return
        own = hash(key)
        if parent is not None:
            self.parent_of[own] = hash(parent)
        if tokens is not None:
            before = self.calls.get(own, tokens)
            if before.unknown != tokens.unknown:
                self.fuller.add(own)
            self.calls[own] = before if tokens.unknown else tokens

    def repeats(self, key: str) -> bool:
        """Whether a call only repeats what calls inside it say."""
        return self.found is not None and hash(key) in self.found.repeats

    def has_fuller(self, key: str) -> bool:
        """Whether the call is in the file with counts, too."""
        return self.found is not None and hash(key) in self.found.fuller

    def nesting(self) -> Nesting:
        """What the notes come to."""
        found = Nesting(fuller=self.fuller)
        inside: dict[int, list[int]] = {}
        if self.calls.keys().isdisjoint(self.parent_of.values()):
            return found
        for key in self.calls:
            outer = _call_around(key, self.parent_of, self.calls)
            if outer is not None:
                inside.setdefault(outer, []).append(key)
        for outer, keys in inside.items():
            inner = [self.calls[key] for key in keys]
            if not self.calls[outer].unknown and all(tokens.unknown for tokens in inner):
                found.repeats.update(keys)
            elif _repeats(self.calls[outer], inner):
                found.repeats.add(outer)
            else:
                found.others += 1
        return found


def lookout(reading: RecordReading) -> Lookout:
    """The reading's one lookout, made at first use."""
    found = reading.state.get("nesting")
    if not isinstance(found, Lookout):
        found = reading.state["nesting"] = Lookout(reading.ledger.survey.get("nesting"))
        reading.at_end.append(lambda: _settle(reading, found))
    return found


def _settle(reading: RecordReading, known: Lookout) -> None:
    """Asks for another reading where calls repeat each other, and says what was not clear."""
    found = known.found or known.nesting()
    if known.found is None and (found.repeats or found.fuller):
        reading.ledger.survey["nesting"], reading.ledger.again = found, True
    if found.others:
        reading.ledger.warn(
            "nested",
            f"{found.others:,} model calls hold other model calls with other counts: all were counted; if the "
            "outer ones sum up the inner ones, the load is overstated",
        )


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
    return outer.unknown or any(_same(outer, [one]) for one in inner) or _same(outer, inner)


def _same(outer: Tokens, inner: list[Tokens]) -> bool:
    """Whether the outer counts are the inner ones' sum; either may count cached tokens as a part of the input."""
    given = sum(one.given or 0 for one in inner)
    prompts = {given, given + sum(one.cached for one in inner)}
    own = outer.given or 0
    return (outer.output or 0) == sum(one.output or 0 for one in inner) and not prompts.isdisjoint(
        {own, own + outer.cached}
    )
