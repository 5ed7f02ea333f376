"""JSON lines and JSON arrays of objects, record by record, numbers kept exact."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
import polars as pl

from replay.errors import TraceError
from replay.traces import lines
from replay.traces.jsontemplate import Template, make_template
from replay.traces.rows import LINE, Batch, Fault, Sample, list_column
from replay.traces.source import Source, refusal

_SAMPLE_ROWS = 200
_ARRAY_ROWS = 20_000
_MAX_DEPTH = 4
_ENDING = 64
"""An error so near to the end of the text that is there may be a number, word or escape that goes on."""
_UINT64_MAX = 2**64 - 1
_WHITE = " \t\n\r"

# Fractions stay text, so that no digit of a time is lost; NaN and Infinity become text that no cast accepts.
_decoder = json.JSONDecoder(parse_float=str, parse_constant=str)


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKeyError
    return found


_careful = json.JSONDecoder(parse_float=str, parse_constant=str, object_pairs_hook=_unique)


@dataclass
class Records:
    """Parsed objects with their lines, and what could not be parsed."""

    numbers: list[int]
    objects: list[dict[str, Any]]
    faults: list[Fault]
    blank: int = 0


def flat_names(row: dict[str, Any]) -> Iterator[str]:
    """The row's keys; nested objects as ``a.b``, at most four levels."""

    def walk(value: dict[str, Any], prefix: str, depth: int) -> Iterator[str]:
        for key, inner in value.items():
            yield prefix + key
            if isinstance(inner, dict) and depth < _MAX_DEPTH:
                yield from walk(inner, f"{prefix}{key}.", depth + 1)

    return walk(row, "", 1)


def pick(row: dict[str, Any], name: str) -> Any:
    """The value of ``name``: a key as it stands, else a path through nested objects, whose keys may have dots, too;
    ``None`` where absent."""
    if name in row:
        return row[name]
    at = name.find(".")
    while at > 0:
        inner = row.get(name[:at])
        if isinstance(inner, dict) and (found := pick(inner, name[at + 1 :])) is not None:
            return found
        at = name.find(".", at + 1)
    return None


_ODD_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
"""What makes NUL or half of a surrogate pair in JSON; also in whole pairs, so a hit is a reason to look closely."""
_ODD_CHARACTER = re.compile("[\0\ud800-\udfff]")


def odd_text(row: dict[str, Any]) -> str | None:
    """The key, or the key of the value, that holds NUL or half of a surrogate pair: no text that can be stored."""
    left: list[tuple[str, Any]] = list(row.items())
    for name, value in left:
        if _ODD_CHARACTER.search(name) or (isinstance(value, str) and _ODD_CHARACTER.search(value)):
            return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\u0000")
        if isinstance(value, dict):
            left += [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(name, inner) for inner in value if not isinstance(inner, int)]
    return None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return format(value, "d") if abs(value) < 10**40 else "1e40"
    return "{...}" if isinstance(value, dict) else "[...]"


def is_ids(value: Any) -> bool:
    """Whether the value is a list of unsigned 64-bit integers, or nothing."""
    return value is None or (
        isinstance(value, list) and all(type(item) is int and 0 <= item <= _UINT64_MAX for item in value)
    )


def _values(rows: list[dict[str, Any]], name: str) -> list[Any]:
    if "." in name:
        return [pick(row, name) for row in rows]
    return [row.get(name) for row in rows]


def _ids(name: str, values: list[Any]) -> pl.Series | None:
    """A column of block ids (unsigned 64-bit; none and empty are null), or ``None`` where some value is not ids."""
    if not set(map(type, values)) <= {list, type(None)}:
        return None
    flat = list(chain.from_iterable(value for value in values if value))
    if not set(map(type, flat)) <= {int}:
        return None
    try:
        ids = np.array(flat, dtype=np.uint64)
    except OverflowError:
        return None
    return list_column(name, ids, np.array([len(value) if value else 0 for value in values], dtype=np.int64))


def column_of(name: str, values: list[Any]) -> pl.Series:
    """Parsed values as a column: Int64 where all are integers that fit, else text."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {int}:
        try:
            return pl.Series(name, values, dtype=pl.Int64)
        except (OverflowError, TypeError, pl.exceptions.PolarsError):
            pass
    if kinds <= {str}:
        return pl.Series(name, values, dtype=pl.String)
    return pl.Series(name, [_text(value) for value in values], dtype=pl.String)


def to_batch(records: Records, columns: Sequence[str]) -> Batch:
    """The wanted columns of parsed objects: Int64 where all are integers, ids as List(UInt64), else text."""
    faults = list(records.faults)
    numbers, rows = records.numbers, records.objects
    made: dict[str, pl.Series] = {}
    for name in columns:
        values = _values(rows, name)
        if list not in set(map(type, values)):
            made[name] = column_of(name, values)
            continue
        ids = _ids(name, values)
        if ids is None:  # some rows are at fault: without them, from the start
            good = [is_ids(value) for value in values]
            faults.extend(Fault(line, "not_block_ids", name) for line, ok in zip(numbers, good, strict=True) if not ok)
            left = Records(list(compress(numbers, good)), list(compress(rows, good)), faults, records.blank)
            return to_batch(left, columns)
        made[name] = ids
    return Batch(pl.DataFrame({LINE: pl.Series(LINE, numbers, dtype=pl.Int64), **made}), faults, records.blank)


def parse_lines(batch: lines.Lines, columns: Sequence[str] = ()) -> Records:
    """The objects of a batch of JSON lines. All at once where that works, else line by line to find the fault."""
    texts = batch.data.decode("utf-8").split("\n")[:-1]
    numbers = list(range(batch.first, batch.first + len(texts)))
    blank = 0
    if not all(texts):
        kept = [(number, text) for number, text in zip(numbers, texts, strict=True) if text.strip()]
        blank = len(texts) - len(kept) - len(batch.damaged)
        numbers, texts = [number for number, _ in kept], [text for _, text in kept]
    faults = [Fault(line, "not_utf8") for line in batch.damaged]
    if not _may_repeat_keys(batch.data, len(texts), columns):
        try:
            objects = _decoder.decode("[" + ",".join(texts) + "]")
        except (ValueError, RecursionError):
            objects = None
        if objects is not None and len(objects) == len(texts) and set(map(type, objects)) <= {dict}:
            return _without_odd_text(Records(numbers, objects, faults, blank), texts)
    return _one_by_one(numbers, texts, faults, blank)


def _without_odd_text(records: Records, texts: list[str]) -> Records:
    """The records whose texts can be stored; ``texts`` are their lines."""
    odd = {
        index: name
        for index, text in enumerate(texts)
        if _ODD_ESCAPE.search(text) and (name := odd_text(records.objects[index])) is not None
    }
    if not odd:
        return records
    kept = [index not in odd for index in range(len(texts))]
    faults = [Fault(records.numbers[index], "not_text", name) for index, name in odd.items()]
    numbers, objects = list(compress(records.numbers, kept)), list(compress(records.objects, kept))
    return Records(numbers, objects, records.faults + faults, records.blank)


def _may_repeat_keys(data: bytes, rows: int, columns: Sequence[str]) -> bool:
    """Whether a wanted key's name occurs more often than once a line: then each object is looked at closely."""
    return any(data.count(json.dumps(name.rsplit(".")[-1]).encode()) > rows for name in columns)


def _one_by_one(numbers: list[int], texts: list[str], faults: list[Fault], blank: int) -> Records:
    records = Records([], [], faults, blank)
    whole = []
    for number, text in zip(numbers, texts, strict=True):
        row = parse_one(text)
        if isinstance(row, str):
            records.faults.append(Fault(number, row))
        else:
            records.numbers.append(number)
            records.objects.append(row)
            whole.append(text)
    return _without_odd_text(records, whole)


def parse_one(text: str) -> dict[str, Any] | str:
    """One object, or the rule that the text breaks."""
    try:
        row = _careful.decode(text.strip())
    except _DuplicateKeyError:
        return "duplicate_key"
    except RecursionError:
        return "nested_too_deep"
    except ValueError:
        return "malformed_json"
    return row if isinstance(row, dict) else "not_an_object"


def _sample(container: str, rows: list[dict[str, Any]], source: Source) -> Sample:
    columns = tuple(dict.fromkeys(chain.from_iterable(map(flat_names, rows))))
    if len(columns) > 20 * source.limits.max_columns:
        raise refusal(
            "too_many_columns",
            f"the objects have over {20 * source.limits.max_columns:,} different keys",
            "max_columns",
            "one object a request with the same keys in each, or raise limits.max_columns",
        )
    flat = tuple({name: pick(row, name) for name in columns} for row in rows)
    return Sample(container, columns, flat)


@dataclass(frozen=True)
class JsonLines:
    """An opened JSON lines file."""

    source: Source
    sample: Sample

    def records(self, columns: Sequence[str] = ()) -> Iterator[Records]:
        """All objects with their lines; ``columns`` are looked at for repeated keys."""
        return (parse_lines(batch, columns) for batch in lines.batches(self.source))

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        wanted = list(dict.fromkeys(columns))
        template: Template | None = None
        for batch in lines.batches(self.source):
            if template is None:
                template = make_template(batch.data[: batch.data.index(b"\n")].decode("utf-8"), wanted)
            found = None if template is None else template.frame(batch.data, wanted)
            if found is None:
                template = None
                yield to_batch(parse_lines(batch, wanted), wanted)
            else:
                numbers = pl.int_range(batch.first, batch.first + found.height, dtype=pl.Int64, eager=True)
                yield Batch(found.insert_column(0, numbers.alias(LINE)))


@dataclass(frozen=True)
class JsonArray:
    """An opened JSON array of objects; the line of an element is where it begins."""

    source: Source
    sample: Sample

    def records(self, columns: Sequence[str] = ()) -> Iterator[Records]:
        """All objects with their lines, some thousands at a time."""
        return _array_records(self.source)

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        wanted = list(dict.fromkeys(columns))
        return (to_batch(records, wanted) for records in self.records())


@dataclass(frozen=True)
class JsonObjects:
    """One JSON object over many lines, or several with nothing or white space between them."""

    source: Source
    sample: Sample

    def records(self, columns: Sequence[str] = ()) -> Iterator[Records]:
        """All objects with the lines where they begin, some thousands at a time."""
        return _object_records(self.source)

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        wanted = list(dict.fromkeys(columns))
        return (to_batch(records, wanted) for records in self.records())


def _object_records(source: Source, *, first: bool = False) -> Iterator[Records]:
    """Streams objects that follow each other without commas; with ``first`` no more than the first few."""
    state = _ArrayText(source, source.limits.max_document_bytes, "JSON text")
    records = Records([], [], [])
    while not state.ended():
        line, element = state.element()
        _take_element(records, line, element)
        if len(records.numbers) + len(records.faults) >= (_SAMPLE_ROWS if first else _ARRAY_ROWS):
            yield records
            records = Records([], [], [])
    yield records


def _take_element(records: Records, line: int, element: Any) -> None:
    if isinstance(element, dict) and (name := odd_text(element)) is not None:
        records.faults.append(Fault(line, "not_text", name))
    elif isinstance(element, dict):
        records.numbers.append(line)
        records.objects.append(element)
    else:
        records.faults.append(Fault(line, "duplicate_key" if element is _DUPLICATE else "not_an_object"))


def _bad_array(line: int, detail: str, what: str = "JSON array") -> TraceError:
    return refusal(
        "json",
        f"the {what} is broken at line {line:,}: {detail}",
        "malformed_json",
        f"export the {what} again, or write one object a line (JSONL)",
        line,
    )


def _array_records(source: Source) -> Iterator[Records]:
    """Streams the elements of the outermost array; memory is bounded by one element and one batch."""
    state = _ArrayText(source, source.limits.max_line_bytes, "JSON array")
    records = Records([], [], [])
    state.expect("[")
    if not state.take("]"):
        while True:
            line, element = state.element()
            _take_element(records, line, element)
            if len(records.numbers) + len(records.faults) >= _ARRAY_ROWS:
                yield records
                records = Records([], [], [])
            if state.take("]"):
                break
            state.expect(",")
    state.expect_end()
    yield records


_DUPLICATE = object()
_ODD_MARKS = {
    "]": "a comma before the closing bracket",
    ",": "a comma between lines, which JSON lines do not have",
    "/": "a comment, which JSON does not have",
    "#": "a comment, which JSON does not have",
}


class _ArrayText:
    """A sliding window of text over the file, with the line of its position."""

    def __init__(self, source: Source, limit: int, what: str) -> None:
        self.limit = limit
        self.what = what
        self.feed = lines.batches(source)
        self.text = ""
        self.at = 0
        self.line = 1
        self.done = False

    def broken(self, line: int, detail: str) -> TraceError:
        return _bad_array(line, detail, self.what)

    def ended(self) -> bool:
        self.skip()
        return self.at >= len(self.text)

    def more(self) -> bool:
        batch = next(self.feed, None)
        if batch is None:
            self.done = True
            return False
        if batch.damaged:
            raise self.broken(batch.damaged[0], "the line is not UTF-8")
        self.text = self.text[self.at :] + batch.data.decode("utf-8")
        self.at = 0
        return True

    def skip(self) -> None:
        while True:
            start = self.at
            while self.at < len(self.text) and self.text[self.at] in _WHITE:
                self.at += 1
            self.line += self.text.count("\n", start, self.at)
            if self.at < len(self.text) or not self.more():
                return

    def take(self, mark: str) -> bool:
        self.skip()
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            found = repr(self.text[self.at]) if self.at < len(self.text) else "the end of the file"
            raise self.broken(self.line, f"{mark!r} expected, {found} found")

    def expect_end(self) -> None:
        self.skip()
        if self.at < len(self.text):
            raise self.broken(self.line, "text after the closing bracket")

    def element(self) -> tuple[int, Any]:
        self.skip()
        limit = self.limit
        while True:
            try:
                value, end = _decode_at(self.text, self.at)
            except RecursionError as error:
                raise self.broken(self.line, "nested too deep") from error
            except ValueError as error:
                size = len(self.text) - self.at
                if size > limit:
                    raise self.broken(self.line, f"an element that is malformed or over {limit:,} bytes") from error
                if not _may_go_on(error, self.text) or not self.more():
                    mark = self.text[self.at : self.at + 1]
                    raise self.broken(
                        self.line, _ODD_MARKS.get(mark, "the element is malformed or the file ends in it")
                    ) from error
                while len(self.text) < 2 * size and self.more():
                    pass  # a long element is tried a few times only
                continue
            if end >= len(self.text) and not isinstance(value, dict) and self.more():
                continue  # a number may go on in the next batch
            line = self.line
            self.line += self.text.count("\n", self.at, end)
            self.at = end
            return line, value


def _decode_at(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at ``at`` and where it ends; a mark where an object repeats a key.

    Raises:
        ValueError: no whole value is there.
    """
    try:
        return _careful.raw_decode(text, at)
    except _DuplicateKeyError:
        return _DUPLICATE, _decoder.raw_decode(text, at)[1]


def _may_go_on(error: ValueError, text: str) -> bool:
    """Whether more text may mend the error: it is where the text ends, or a string is open."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - _ENDING


def open_json(source: Source) -> JsonLines | JsonArray | JsonObjects:
    """Opens text that begins with ``{`` or ``[``.

    Raises:
        TraceError: the beginning holds no JSON object.
    """
    first = next(lines.batches(source))  # a source is never empty
    if first.data.lstrip().startswith(b"["):
        records = next(_array_records(source))
        return JsonArray(source, _sample("json-array", records.objects[:_SAMPLE_ROWS], source))
    texts = first.data.split(b"\n")[: _SAMPLE_ROWS + 1]
    sample = parse_lines(lines.Lines(b"\n".join(texts) + b"\n", first.first))
    odd = next((fault for fault in sample.faults if fault.rule == "not_text"), None)
    if not sample.objects and odd is not None:
        raise refusal(
            "json",
            f"line {odd.line:,}, column {odd.column}: a text holds NUL or half of a surrogate pair",
            "not_text",
            "write text without \\u0000 and without halves of surrogate pairs (\\ud800 to \\udfff)",
            odd.line,
        )
    if not sample.objects:
        return JsonObjects(source, _sample("json", next(_object_records(source, first=True)).objects, source))
    return JsonLines(source, _sample("jsonl", sample.objects[:_SAMPLE_ROWS], source))
