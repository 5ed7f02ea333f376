"""The lines inside the envelopes of a log system as a table: of JSON records where they are JSON, else of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from replay.errors import TraceError, curable
from replay.traces.formats.logline import strip
from replay.traces.formats.records import records_of
from replay.traces.jsontext import Records, flat_names, odd_text, parse_one, pick, to_batch
from replay.traces.logtext import TEXT, LogText
from replay.traces.rows import LINE, Batch, Fault, Sample, Table
from replay.traces.wrappers import Entry, Wrapper, stamp

AT = "log_time"
"""Under this name a record has the log system's time, where it has no such key of its own."""
_SAMPLE_ROWS = 200
_MOST = 0.5
_LONGEST = 2**24


@dataclass
class Missing:
    """What the envelopes say of lines that are not in the file."""

    entries: int = 0
    total: int = 0
    more: bool = False

    def forget(self) -> None:
        """Begins a reading."""
        self.entries, self.total, self.more = 0, 0, False

    def note(self, record: dict[str, Any], entries: int) -> None:
        """Takes the next envelope."""
        self.entries += entries
        total = pick(record, "hits.total.value")
        self.total = max(self.total, total if isinstance(total, int) else 0)
        self.more = bool(record.get("nextToken") or record.get("NextToken"))

    def said(self) -> str | None:
        """How the file says that lines are missing."""
        if self.total > self.entries:
            return f"{self.entries:,} of {self.total:,} hits"
        return "the last answer has a nextToken" if self.more else None


@dataclass
class Lines:
    """One reading of the messages. ``joins``: a message without a line break at its end goes on in the next."""

    wrapper: Wrapper
    missing: Missing
    joins: bool
    partial: str = ""

    def of(self, record: dict[str, Any]) -> list[tuple[str | dict[str, Any], str | None]] | None:
        """The messages of one envelope, each with the log system's time as ISO text; ``None`` where it is not as its
        log system writes it."""
        try:
            entries = list(self.wrapper.entries(record))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        self.missing.note(record, len(entries))
        return list(self._whole(entries))

    def _whole(self, entries: list[Entry]) -> Iterator[tuple[str | dict[str, Any], str | None]]:
        for message, at in entries:
            if not isinstance(message, str):
                if message is not None:
                    yield message, stamp(at)
                continue
            if self.joins and not message.endswith("\n") and len(self.partial) < _LONGEST:
                self.partial += message
                continue
            whole, self.partial = (self.partial + message).strip(), ""
            if whole:
                yield whole, stamp(at)


@dataclass(frozen=True)
class Unwrapped:
    """JSON records that stood in the messages of another table; the line is that of the envelope."""

    outer: Table
    wrapper: Wrapper
    sample: Sample
    joins: bool
    missing: Missing = field(default_factory=Missing, compare=False)
    others: list[int] = field(default_factory=lambda: [0], compare=False)
    """How many messages of the last reading were no JSON."""

    def records(self, columns: Sequence[str] = ()) -> Iterator[Records]:
        """All records with their lines."""
        self.others[0] = 0
        self.missing.forget()
        lines = Lines(self.wrapper, self.missing, self.joins)
        for records in records_of(self.outer):
            yield self._inside(records, lines)

    def _inside(self, records: Records, lines: Lines) -> Records:
        found = Records([], [], list(records.faults), records.blank)
        for number, envelope in zip(records.numbers, records.objects, strict=True):
            messages = lines.of(envelope)
            if messages is None:
                found.faults.append(Fault(number, "not_unpacked"))
            for message, at in messages or ():
                row = parse_one(message) if isinstance(message, str) else message
                if isinstance(row, str) and not message_is_object(message):
                    self.others[0] += 1
                elif isinstance(row, str):
                    found.faults.append(Fault(number, row))
                elif (name := odd_text(row)) is not None:
                    found.faults.append(Fault(number, "not_text", name))
                else:
                    found.numbers.append(number)
                    found.objects.append({AT: at, **row} if at is not None else row)
        return found

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        wanted = list(dict.fromkeys(columns))
        return (to_batch(records, wanted) for records in self.records())


def message_is_object(message: str | dict[str, Any]) -> bool:
    """Whether a message is, or was meant to be, a JSON object."""
    return isinstance(message, dict) or message.lstrip().startswith("{")


@dataclass(frozen=True)
class UnwrappedText:
    """Lines of text that stood in the messages of another table, each after its time, as Kubernetes writes them."""

    outer: Table
    wrapper: Wrapper
    sample: Sample
    joins: bool
    missing: Missing = field(default_factory=Missing, compare=False)

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All lines as text."""
        self.missing.forget()
        lines = Lines(self.wrapper, self.missing, self.joins)
        for records in records_of(self.outer):
            numbers: list[int] = []
            texts: list[str] = []
            faults = list(records.faults)
            for number, envelope in zip(records.numbers, records.objects, strict=True):
                messages = lines.of(envelope)
                if messages is None:
                    faults.append(Fault(number, "not_unpacked"))
                    continue
                found = [_stamped(text, at) for text, at in messages if isinstance(text, str)]
                numbers += [number] * len(found)
                texts += found
            frame = pl.DataFrame({LINE: numbers, TEXT: texts}, schema={LINE: pl.Int64(), TEXT: pl.String()})
            yield Batch(frame, faults, records.blank)


def _stamped(text: str, at: str | None) -> str:
    return text if at is None else f"{at} stdout F {text}"


def unwrap(table: Table, wrapper: Wrapper) -> Unwrapped | UnwrappedText:
    """The table of what is inside, by the messages of the beginning.

    Raises:
        TraceError: ``trace.no_messages``.
    """
    envelopes = next(records_of(table)).objects[:_SAMPLE_ROWS]
    joins = _keeps_breaks(wrapper, envelopes)
    lines = Lines(wrapper, Missing(), joins)
    found = [entry for envelope in envelopes for entry in lines.of(envelope) or ()][:_SAMPLE_ROWS]
    if not found:
        cure = f"write the messages alone, one a line: {wrapper.alone}"
        raise curable("trace.no_messages", f"this is {wrapper.name}, and no message is in it", cure, "file")
    rows: list[dict[str, Any]] = []
    for message, at in found:
        row = parse_one(message) if isinstance(message, str) else message
        if isinstance(row, dict):
            rows.append({AT: at, **row} if at is not None else row)
    if len(rows) > _MOST * len(found):
        columns = tuple(dict.fromkeys(name for row in rows for name in flat_names(row)))
        flat = tuple({name: pick(row, name) for name in columns} for row in rows)
        return Unwrapped(table, wrapper, Sample("jsonl", columns, flat), joins)
    shown = tuple({TEXT: _stamped(text, at)} for text, at in found if isinstance(text, str))
    return UnwrappedText(table, wrapper, Sample("text", (TEXT,), shown), joins)


def _keeps_breaks(wrapper: Wrapper, envelopes: list[dict[str, Any]]) -> bool:
    """Whether messages end with the line breaks of their lines: one without is then a part of a line."""
    ends = []
    for envelope in envelopes:
        with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
            ends += [text.endswith("\n") for text, _ in wrapper.entries(envelope) if isinstance(text, str)]
    return 2 * sum(ends) > len(ends)


def check_order(table: UnwrappedText) -> None:
    """Refuses lines of a text log that come newest first: a request would end before it begins.

    Raises:
        TraceError: ``trace.newest_first``.
    """
    first, last = table.sample.rows[0][TEXT], table.sample.rows[-1][TEXT]
    if first[:1].isdigit() and last[:1].isdigit() and first.split(" ", 1)[0] > last.split(" ", 1)[0]:
        cure = "export the lines oldest first (direction=forward in Loki, sort ascending elsewhere)"
        raise curable("trace.newest_first", f"this is {table.wrapper.name} with the newest lines first", cure, "file")


def no_known_lines(table: UnwrappedText, shown: str) -> TraceError:
    """The refusal of messages that are lines of no known log."""
    cure = f"give the messages alone, one a line, and with columns: {table.wrapper.alone}"
    what = f"this is {table.wrapper.name}, and its messages are lines of no log that is read, such as {shown}"
    return curable("trace.wrapped", what, cure, "file")


def prefixed(log: LogText) -> Unwrapped | None:
    """JSON records behind what a container runtime, syslog, Docker Compose, Fluentd or a log export puts before each
    line; ``None`` where most lines are something else."""
    texts = [row[TEXT] for row in log.sample.rows]
    behind = [text for text in texts if not text.lstrip().startswith("{") and _bare(text).startswith("{")]
    if len(behind) <= _MOST * len(texts):
        return None
    table = unwrap(log, Wrapper("a log with JSON behind a prefix", lambda _: False, _behind, "sed 's/^[^{]*//'"))
    return table if isinstance(table, Unwrapped) else None


def _bare(text: str) -> str:
    return next((str(message).strip() for message, _ in _behind({TEXT: text})), "")


def _behind(record: dict[str, Any]) -> Iterator[Entry]:
    """What stands behind the prefix of a line of text, and the time in it."""
    bare, at, unfinished = strip(record[TEXT])
    head, tab, rest = bare.rpartition("\t")
    if tab and rest.startswith("{") and "{" not in head:  # Fluentd's file: time, tag, record
        bare, at = rest, at or head.split("\t", 1)[0]
    yield bare if unfinished else bare + "\n", at
