"""Delimited text (comma, tab, semicolon, bar) with a header. Every cell stays text; casts are the formats' work.

Batches without quotes, the bulk of real traces, go through polars as all-text columns after a proof that they are
rectangular. A batch with quotes, or one that is not rectangular, is read line by line.
"""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from replay.traces import lines
from replay.traces.rows import LINE, Batch, Fault, Sample
from replay.traces.source import Source, refusal

SEPARATORS = (",", "\t", ";", "|")
_SAMPLE_ROWS = 200
_MAX_UNCLOSED = 100
_MAX_RECORD_LINES = 10_000
csv.field_size_limit(2**28)  # lines.py already bounds every line; the module's default is 128 kB


def _split(text: str, separator: str) -> list[str]:
    """The cells of one record.

    Raises:
        csv.Error: quotes that do not add up.
    """
    if '"' not in text:
        return text.rstrip("\n").split(separator)
    rows = list(csv.reader([text], delimiter=separator, strict=True))
    if len(rows) != 1:
        raise csv.Error("more than one record")
    return rows[0]


def _open_after(text: str, separator: str, *, opened: bool) -> bool:
    """Whether a quoted cell is open at the end of ``text``, given whether one was open at its start."""
    at = 0
    if not opened and text.startswith('"'):
        opened, at = True, 1
    while True:
        if opened:
            quote = text.find('"', at)
            if quote < 0:
                return True
            escaped = text.startswith('""', quote)
            opened, at = escaped, quote + (2 if escaped else 1)
        else:
            start = text.find(separator + '"', at)
            if start < 0:
                return False
            opened, at = True, start + 2


def _looks_numeric(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class DelimitedTable:
    """An opened delimited file."""

    source: Source
    separator: str
    header: tuple[str, ...]
    header_line: int
    sample: Sample

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows after the header."""
        splitter = _Splitter(self, [name for name in dict.fromkeys(columns) if name in self.header])
        for batch in lines.batches(self.source):
            yield from splitter.feed(batch)
        yield from splitter.finish()


class _Splitter:
    """Turns batches of lines into batches of cells; carries an open quoted record from one batch to the next."""

    def __init__(self, table: DelimitedTable, wanted: list[str]) -> None:
        self.table = table
        self.wanted = wanted
        self.index = [table.header.index(name) for name in wanted]
        self.width = len(table.header)
        self.queue: deque[tuple[int, str]] = deque()
        self.unclosed = 0
        self.schema = {f"c{i}": pl.String() for i in range(self.width)}

    def feed(self, batch: lines.Lines) -> Iterator[Batch]:
        data, first = batch.data, batch.first
        if first <= self.table.header_line:
            skip = self.table.header_line - first + 1
            rest = data.split(b"\n", skip)
            data = rest[skip] if len(rest) > skip else b""
            first += skip
        if not data:
            return
        if not self.queue and b'"' not in data and not batch.damaged:
            fast = self._rectangular(data, first)
            if fast is not None:
                yield fast
                return
        damaged = set(batch.damaged)
        text = data.decode("utf-8")
        self.queue.extend(enumerate(text.split("\n")[:-1], first))
        yield self._slow(damaged, final=False)

    def finish(self) -> Iterator[Batch]:
        if self.queue:
            yield self._slow(set(), final=True)

    def _rectangular(self, data: bytes, first: int) -> Batch | None:
        """The batch by polars, or ``None`` where any line has too few or too many cells.

        No line has too many cells (polars raises), and the separators add up: so no line has too few.
        """
        n = lines.count_byte(data, b"\n")
        if lines.count_byte(data, self.table.separator.encode()) != n * (self.width - 1):
            return None
        try:
            frame = pl.read_csv(
                data, has_header=False, schema=self.schema, quote_char=None, separator=self.table.separator
            )
        except pl.exceptions.PolarsError:
            return None
        if frame.height != n:
            return None
        frame = frame.select(
            pl.int_range(first, first + n, dtype=pl.Int64).alias(LINE),
            *(pl.col(f"c{i}").alias(name) for i, name in zip(self.index, self.wanted, strict=True)),
        )
        return Batch(frame)

    def _slow(self, damaged: set[int], *, final: bool) -> Batch:
        """Record by record. With ``final`` false an open record at the end stays in the queue for the next batch."""
        numbers: list[int] = []
        cells: list[list[str]] = []
        faults: list[Fault] = []
        blank = 0
        while self.queue:
            line, text = self.queue.popleft()
            if line in damaged:
                faults.append(Fault(line, "not_utf8"))
                continue
            if not text.strip():
                blank += 1
                continue
            extra: list[tuple[int, str]] = []
            if '"' in text and _open_after(text, self.table.separator, opened=False):
                whole = self._close(text, extra)
                if whole is None and not final and len(extra) < _MAX_RECORD_LINES:
                    self.queue.extendleft(reversed([(line, text), *extra]))
                    break
                text = whole if whole is not None else text
            record = self._record(text)
            if record is None:
                self._refuse_hopeless(line)
                self.queue.extendleft(reversed(extra))  # only the line that opened the quote is lost
                faults.append(Fault(line, "unbalanced_quotes"))
            elif len(record) != self.width:
                if extra:
                    self.queue.extendleft(reversed(extra))
                faults.append(Fault(line, "too_few_cells" if len(record) < self.width else "too_many_cells"))
            else:
                numbers.append(line)
                cells.append(record)
        columns: dict[str, pl.Series] = {LINE: pl.Series(LINE, numbers, dtype=pl.Int64)}
        for i, name in zip(self.index, self.wanted, strict=True):
            columns[name] = pl.Series(name, [record[i] or None for record in cells], dtype=pl.String)
        return Batch(pl.DataFrame(columns), faults, blank)

    def _close(self, text: str, extra: list[tuple[int, str]]) -> str | None:
        """Takes lines from the queue until the record closes; ``None`` where it does not within the bounds."""
        parts = [text]
        size = len(text)
        while self.queue and len(extra) < _MAX_RECORD_LINES and size <= self.table.source.limits.max_line_bytes:
            extra.append(self.queue.popleft())
            parts.append(extra[-1][1])
            size += len(parts[-1])
            if not _open_after(parts[-1], self.table.separator, opened=True):
                return "\n".join(parts)
        return None

    def _record(self, text: str) -> list[str] | None:
        try:
            return _split(text, self.table.separator)
        except csv.Error:
            return None

    def _refuse_hopeless(self, line: int) -> None:
        self.unclosed += 1
        if self.unclosed > _MAX_UNCLOSED:
            raise refusal(
                "quotes",
                f"over {_MAX_UNCLOSED:,} lines have quotes that do not add up, the last at line {line:,}",
                "unbalanced_quotes",
                "quote whole cells and double the quotes inside them, or export as JSONL",
                line,
            )


def open_delimited(source: Source) -> DelimitedTable:
    """Finds separator and header, and a sample of rows.

    Raises:
        TraceError: no header, a repeated column, too many columns.
    """
    start, head, header_line, header_text = _head(source)
    if "\r" in header_text:
        raise refusal(
            "line_breaks",
            "the lines end with CR alone, as on old Macs",
            "line_breaks",
            "save the file with LF or CR LF line breaks and upload it again",
            header_line,
        )
    separator = _separator(header_text, head)
    try:
        header = [cell.strip() for cell in _split(header_text, separator)]
    except csv.Error as error:
        raise refusal(
            "quotes",
            f"the header's quotes do not add up: {error}",
            "unbalanced_quotes",
            "repair the header",
            header_line,
        ) from error
    _check_header(header, header_line, source)
    kind = "tsv" if separator == "\t" else "csv"
    sample = Sample(kind, tuple(header), ())
    table = DelimitedTable(source, separator, tuple(header), header_line, sample)
    splitter = _Splitter(table, list(dict.fromkeys(header)))
    rows: list[dict[str, str]] = []
    first = lines.Lines(("\n".join(head[: _SAMPLE_ROWS + header_line - start]) + "\n").encode(), start)
    for batch in splitter.feed(first):
        rows.extend(batch.frame.drop(LINE).head(_SAMPLE_ROWS).to_dicts())
    return DelimitedTable(
        source, separator, tuple(header), header_line, Sample(kind, tuple(header), tuple(rows[:_SAMPLE_ROWS]))
    )


def _head(source: Source) -> tuple[int, list[str], int, str]:
    for batch in lines.batches(source):
        head = batch.data.decode("utf-8").split("\n")
        for number, text in enumerate(head, batch.first):
            if text.strip():
                return batch.first, head, number, text
    raise refusal("empty", "the file holds blank lines only", "empty", "upload a file with a header and rows")


def _separator(header: str, head: list[str]) -> str:
    """The separator that splits the header and, of those, the one whose count is steadiest over the first rows."""
    body = [text for text in head[:50] if text.strip()]

    def score(separator: str) -> tuple[float, int]:
        in_header = header.count(separator)
        same = sum(text.count(separator) == in_header for text in body) / len(body)
        return (same if in_header else 0.0, in_header)

    return max(SEPARATORS, key=score)


def _check_header(header: list[str], line: int, source: Source) -> None:
    if len(header) > source.limits.max_columns:
        raise refusal(
            "too_many_columns",
            f"the header has {len(header):,} columns; at most {source.limits.max_columns:,} are read",
            "max_columns",
            "keep the columns of the mapping only, or raise limits.max_columns",
            line,
        )
    if sum(_looks_numeric(cell) for cell in header) * 2 >= len(header):
        raise refusal(
            "no_header",
            f"the first line holds data, not column names: {', '.join(header[:6])}",
            "header",
            "put a header on the first line, e.g. arrival_s,prompt_tokens,output_tokens",
            line,
        )
    repeated = [name for name, n in Counter(header).items() if n > 1 and name]
    if repeated:
        raise refusal(
            "duplicate_columns",
            f"the header repeats {', '.join(map(repr, repeated))}: which one counts is not known",
            "duplicate_columns",
            "rename or remove the repeated columns",
            line,
        )
