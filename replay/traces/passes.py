"""Readings of a whole file: one, and another where its rows together show that some times cannot stand as they are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from replay.traces.aggregates import Counters, Subtotals
from replay.traces.cancels import with_cancel_times
from replay.traces.cleaning import Ledger
from replay.traces.clock import Clock, Shift, shifted
from replay.traces.formats.base import Format
from replay.traces.options import IngestOptions
from replay.traces.pseudonyms import Pseudonyms
from replay.traces.rows import Table
from replay.traces.spool import Spool


@dataclass
class Pass:
    """One reading of all rows into a folder of its own."""

    form: Format
    table: Table
    options: IngestOptions
    pseudonyms: Pseudonyms | None
    folder: Path
    bounds_ns: tuple[int, int] | None = None
    survey: dict[str, Any] = field(default_factory=dict)
    shifts: list[Shift] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.options, bounds_ns=self.bounds_ns, survey=self.survey)
        self.subtotals, self.counters, self.clock = Subtotals(), Counters(), Clock()
        self.spool = Spool(Path(mkdtemp(dir=self.folder)))

    def read(self) -> Self:
        """All rows, into the spool; read again where the format asks for it."""
        with _no_cycles():
            for frame in self.form.read(self.table, self.options, self.ledger):
                self.subtotals.add(frame)
                self.counters.add(frame)
                self.clock.add(frame)
                kept = frame if self.pseudonyms is None else self.pseudonyms.replace(frame)
                self.spool.add(shifted(with_cancel_times(kept), self.shifts))
        return self.again(survey=self.ledger.survey) if self.ledger.again else self

    def again(self, **changes: Any) -> Self:
        """Another reading, with what this one has shown."""
        self.spool = Spool(self.folder)  # the rows held so far are let go
        return replace(self, **changes).read()


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Without Python's search for circular garbage, which a reading does not make: parsed JSON is millions of objects,
    and looking through them takes longer than parsing. They are freed as soon as they are let go."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_whole(first: Pass) -> Pass:
    """Reads the file, and once more where its rows together show that some times are not to be taken as they are."""
    found = first.read()
    found.ledger.check()
    bounds = None if found.options.keep_far_off else found.clock.far_off()
    if bounds is not None:
        found = found.again(bounds_ns=bounds)
        found.ledger.check()
    asked = found.options.clock_restarts
    shifts = found.clock.shifts() if asked == "follow" else []
    if shifts:
        found = found.again(bounds_ns=bounds, shifts=shifts)
    if asked != "refuse":
        parts = (
            f": {len(shifts):,} parts begin where the one before ends" if asked == "follow" else ": times as they are"
        )
        found.ledger.assumed["clock_restarts"] = f"{asked}, as asked (clock_restarts){parts}"
    return found
