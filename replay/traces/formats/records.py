"""Formats whose requests are taken out of records one by one: events, sessions with many calls, nested objects.

A format gives ``expand``: a record to its requests, as plain values by canonical name. Casts, times, accounting,
duplicates and links between requests are done here, the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import polars as pl

from replay.traces.cleaning import Ledger
from replay.traces.formats.base import Match, Reading, add_rule, block_lists, cast_batch, check_size, zero_lengths
from replay.traces.jsontext import Records, column_of, is_ids
from replay.traces.options import IngestOptions, MappedField, TimeUnit
from replay.traces.rows import LINE, Batch, Sample, Table
from replay.traces.separate import repeated_ids
from replay.traces.times import TimeParser
from replay.traces.tokenshape import TokenShape

FIELDS: tuple[MappedField, ...] = (
    "arrival",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "model",
    "tenant",
    "session",
    "priority",
    "status",
    "prefix_blocks",
)
MEASURED = ("source_ttft_ns", "source_e2e_ns", "source_queue_ns")
INTEGERS = ("after_back", "after_line", "delay_ns", *MEASURED)
_ROWS = 20_000
_MIN_ROWS = 20

Row = dict[str, Any]
"""One request: canonical names (``FIELDS``, ``INTEGERS``) to raw values, and if wanted ``rule`` and ``column`` (why it
cannot be kept), ``request_id`` (told apart by it), ``label`` (where in the record it stands, for messages)."""


@runtime_checkable
class RecordTable(Protocol):
    """A container that hands out parsed objects."""

    @property
    def sample(self) -> Sample:
        """The beginning of the file."""

    def records(self, columns: tuple[str, ...] = ()) -> Iterator[Records]:
        """All objects with their lines."""


@dataclass
class RecordReading(Reading):
    """One pass over records: ``state`` is the format's own, for what it joins over records."""

    state: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Of each request id the arrival, and the prompt tokens if the output is known."""
    answered_again: int = 0
    """Requests with the id and the prompt tokens of one before that was answered, too."""
    numbered: int = 0
    """Requests booked so far."""
    expanded: int = 0
    """Requests that ``expand`` has returned so far: the number, from 0, of the next one."""
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called when all rows are read, for what only the whole file shows."""
    table: Table | None = None
    """The file, for formats that must look at all of it before the first row."""

    def not_request(self, kind: str) -> None:
        """Books a record that is no request."""
        self.ledger.not_requests[kind] += 1


Expand = Callable[[dict[str, Any], int, RecordReading], list[Row]]
Finish = Callable[[RecordReading], list[Row]]


@dataclass(frozen=True)
class RecordFormat:
    """A format read by ``expand``; rows that it returns are the rows read.

    ``expand`` may keep things in ``reading.state`` and return them later; ``finish`` returns what is left at the end.
    Each row it returns may name its ``line``; the record's own is the default. ``detector`` looks at the sample.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    detector: Callable[[Sample], Match | None]
    expand: Expand
    finish: Finish | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field to the name of its place in the record, for messages and the report."""
    time_unit: TimeUnit | None = None
    epoch_only: bool = False
    """Arrivals are epoch times; others are asked about."""
    said_unit: str | None = None
    """The unit in the file, where ``expand`` hands on arrivals in ns."""
    computes_times: bool = False
    """``expand`` hands on arrivals that it computed: ``time_unit`` of the options is not about them."""
    naive_zone: tuple[str, str] | None = None
    blocks: int | None = None
    block_rule: str = "ceil"
    """How many ids a prompt has: ``ceil``, ``floor`` or ``either`` of prompt over block size."""
    cached_inside: bool | None = True
    settles_cached: bool = False
    """``expand`` gives whole prompts and heeds ``prompt_includes_cached`` itself."""
    numbered: bool = False
    """A record holds several requests, or requests follow each other: ``source_line`` is then the request's number in
    the file, and ``after_back`` says how many requests before this one its predecessor stands."""
    zero_output_is_failure: bool = False
    arrival_optional: bool = False
    """Closed-loop rows may lack a time of their own."""
    arrivals_only: str | None = None
    """Why a file without any lengths is read all the same."""

    def detect(self, sample: Sample) -> Match | None:
        """See Format."""
        return self.detector(sample)

    def block_size(self, options: IngestOptions) -> int | None:
        """The option's, else the format's own."""
        return options.block_size or self.blocks

    def read(self, table: Table, options: IngestOptions, ledger: Ledger) -> Iterator[pl.DataFrame]:
        """See Format."""
        ledger.arrivals_only = self.arrivals_only
        labels = {name: self.columns.get(name, name) for name in FIELDS}
        ledger.assumed["columns"] = ", ".join(f"{name}={place}" for name, place in self.columns.items())
        reading = RecordReading(options, ledger, self.block_size(options), table=table)
        computed = self.computes_times or self.said_unit is not None
        own = options.model_copy(update={"time_unit": None}) if computed else options
        times = TimeParser(labels["arrival"], own, ledger, self.time_unit, self.naive_zone, self.epoch_only)
        settled = options.model_copy(update={"prompt_includes_cached": None}) if self.settles_cached else options
        shape = TokenShape(settled, ledger, self.columns.get("cached_tokens"), None, self.cached_inside)
        held: list[Row] = []
        for records in records_of(table):
            ledger.account(Batch(pl.DataFrame(), list(records.faults), records.blank), pl.DataFrame())
            for line, record in zip(records.numbers, records.objects, strict=True):
                held.extend(self._expanded(record, line, reading))
                if len(held) >= _ROWS:
                    yield self._frame(held, labels, times, shape, reading)
                    held = []
        if self.finish is not None:
            for row in self.finish(reading):
                row.setdefault("line", 0)
                held.append(row)
        if held:
            yield self._frame(held, labels, times, shape, reading)
        for look in reading.at_end:
            look()
        self._check_ids(reading)
        if computed:
            ledger.whole_times = False  # they are not the file's numbers
        if self.said_unit is not None:
            ledger.time_unit = self.said_unit
            ledger.assumed["time_unit"] = f"{self.said_unit}, fixed by the format"

    def _expanded(self, record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
        try:
            rows = self.expand(record, line, reading)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
            rows = [{"rule": "not_unpacked"}]
        for row in rows:
            row.setdefault("line", line)
        reading.expanded += len(rows)
        return rows

    def _frame(
        self,
        rows: list[Row],
        labels: dict[MappedField, str],
        times: TimeParser,
        shape: TokenShape,
        reading: RecordReading,
    ) -> pl.DataFrame:
        """Casts, checks and books rows; the kept ones."""
        raw: dict[str, pl.Series] = {LINE: pl.Series(LINE, [row["line"] for row in rows], dtype=pl.Int64)}
        present: dict[MappedField, str] = {}
        rules: list[tuple[str | None, str | None]] = [(row.get("rule"), row.get("column")) for row in rows]
        for name in FIELDS:
            values = [row.get(name) for row in rows]
            if name == "prefix_blocks":
                rules = [
                    rule if rule[0] or is_ids(value) else ("not_block_ids", labels[name])
                    for rule, value in zip(rules, values, strict=True)
                ]
                values = [value if is_ids(value) and value else None for value in values]
                if any(value is not None for value in values):
                    raw[name] = pl.Series(name, values, dtype=pl.List(pl.UInt64))
                    present[name] = name
            elif name == "arrival" or any(value is not None for value in values):
                raw[name] = column_of(name, values)
                present[name] = name
        self._mark_duplicates(rows, rules, reading)
        batch = Batch(pl.DataFrame(raw))
        frame = cast_batch(batch, present, times, shape, reading.options, self.arrival_optional)
        frame = frame.with_columns(
            pl.Series(name, [_whole(row.get(name)) for row in rows], dtype=pl.Int64) for name in INTEGERS
        )
        frame = frame.with_columns(pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in MEASURED)
        frame = add_rule(frame, pl.col("delay_ns") < 0, "negative_delay", "delay")
        given = pl.DataFrame(
            {"__rule": [rule for rule, _ in rules], "__column": [column for _, column in rules]},
            schema={"__rule": pl.String, "__column": pl.String},
        )
        frame = pl.concat([frame, given], how="horizontal").with_columns(
            rule=pl.coalesce("__rule", "rule"),
            column=pl.when(pl.col("__rule").is_not_null()).then(pl.col("__column")).otherwise(pl.col("column")),
        )
        frame = self._check_blocks(frame.drop("__rule", "__column"), reading, labels["prefix_blocks"])
        frame = self._link(frame, reading)
        rejected = frame.filter(pl.col("rule").is_not_null())
        places: dict[str, str] = {name: label for name, label in labels.items() if name != label}
        booked = rejected.select(LINE, "rule", "column")
        reading.ledger.account(Batch(batch.frame), booked, places)
        kept = frame.filter(pl.col("rule").is_null()) if rejected.height else frame
        kept = kept.drop("rule", "column", "after_back", LINE)
        return zero_lengths(kept, reading.ledger, failed=self.zero_output_is_failure)

    def _mark_duplicates(
        self, rows: list[Row], rules: list[tuple[str | None, str | None]], reading: RecordReading
    ) -> None:
        """One id at one time is a copy and rejected; at another time it is a retry, real load, and counted."""
        for index, row in enumerate(rows):
            name = row.get("request_id")
            if not isinstance(name, str | int) or name in ("", "None") or rules[index][0]:
                continue
            at = row.get("arrival")
            prompt = row.get("prompt_tokens") if row.get("output_tokens") else None
            before = reading.seen.get(str(name))
            if before is None:
                reading.seen[str(name)] = (at, prompt)
            elif before[0] == at:
                rules[index] = ("duplicate_request", self.columns.get("request_id", "request_id"))
            else:
                reading.ledger.retried += 1
                reading.answered_again += prompt is not None and prompt == before[1]

    def _check_ids(self, reading: RecordReading) -> None:
        """Ids that come again though the call was answered, in most rows: one call is logged more than once.

        Raises:
            TraceError: ``trace.repeated_ids``.
        """
        again, rows = reading.answered_again, reading.ledger.rows_read
        if rows >= _MIN_ROWS and 4 * again >= rows and not reading.options.keep_duplicates:
            label = self.columns.get("request_id", "request_id")
            what = (
                f"{again:,} of {rows:,} rows have the {label} and the prompt tokens of an earlier one that was answered"
            )
            raise repeated_ids(what, label)

    def _check_blocks(self, frame: pl.DataFrame, reading: RecordReading, label: str) -> pl.DataFrame:
        frame = block_lists(frame, reading, label)
        size = reading.ledger.block_size or reading.block_size
        if "prefix_blocks" not in frame.columns or size is None:
            return frame
        if reading.ledger.block_size is None:
            check_size(frame, reading, size, label)
        count = pl.col("prefix_blocks").list.len().cast(pl.Int64)
        full, ceil = pl.col("prompt_tokens") // size, (pl.col("prompt_tokens") + size - 1) // size
        fits = {"ceil": count == ceil, "floor": count == full}.get(self.block_rule, (count == full) | (count == ceil))
        return add_rule(frame, (count > 0) & ~fits, "block_count", label)

    def _link(self, frame: pl.DataFrame, reading: RecordReading) -> pl.DataFrame:
        """``source_line`` and ``after_line``. A request whose predecessor was rejected starts at its own time, if it
        has one; else it is rejected."""
        numbers = list(range(reading.numbered + 1, reading.numbered + 1 + frame.height))
        reading.numbered += frame.height
        lines = frame["source_line"].to_list()
        own = numbers if self.numbered else lines
        after_line = frame["after_line"].to_list()
        lost = reading.state.setdefault("__lost", set())
        rules, columns = frame["rule"].to_list(), frame["column"].to_list()
        delays, arrivals = frame["delay_ns"].to_list(), frame["arrival_ns"].to_list()
        for index, back in enumerate(frame["after_back"].to_list()):
            if back is not None:  # so many requests before this one
                after_line[index] = own[index] - back
            if after_line[index] is not None and after_line[index] in lost:
                after_line[index] = delays[index] = None
                if arrivals[index] is None:
                    rules[index] = rules[index] or "missing_predecessor"
                else:
                    reading.ledger.warn(
                        "unlinked", "some requests followed one that was rejected: they start at their own time instead"
                    )
            if arrivals[index] is None and after_line[index] is None:
                rules[index] = rules[index] or "missing_arrival"
            if rules[index] is not None:
                lost.add(own[index])
        return frame.with_columns(
            pl.Series(LINE, lines, dtype=pl.Int64),
            pl.Series("source_line", own, dtype=pl.Int64),
            pl.Series("after_line", after_line, dtype=pl.Int64),
            pl.Series("delay_ns", delays, dtype=pl.Int64),
            pl.Series("rule", rules, dtype=pl.String),
            pl.Series("column", columns, dtype=pl.String),
        )


def records_of(table: Table) -> Iterator[Records]:
    """The records of any container: JSON objects, or rows of a table as objects of their cells."""
    if isinstance(table, RecordTable):
        yield from table.records()
        return
    for batch in table.batches(table.sample.columns):
        rows = batch.frame.drop(LINE).to_dicts()
        yield Records(batch.frame[LINE].to_list(), rows, batch.faults, batch.blank)


def wants(container: tuple[str, ...], *names: str, title: str = "") -> Callable[[Sample], Match | None]:
    """A detector: the container and all these keys (nested as ``a.b``)."""

    def detect(sample: Sample) -> Match | None:
        if sample.container not in container or not sample.has(*names):
            return None
        return Match(f"{sample.container} with {title or 'the keys'} {', '.join(names)}", len(names))

    return detect


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62 else None
