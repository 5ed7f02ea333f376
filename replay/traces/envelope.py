"""JSON documents that wrap their rows: ``{"data": [...], "meta": ...}`` as web APIs answer, ``{"records": [...]}``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from replay.traces.jsontext import JsonArray, JsonLines, JsonObjects, Records, flat_names, pick, to_batch
from replay.traces.rows import Batch, Fault, Sample

_KEYS = ("data", "records", "Records", "observations")
_SAMPLE_ROWS = 200


@dataclass(frozen=True)
class Wrapped:
    """The rows inside the objects of another table; a row's line is that of its document."""

    outer: JsonLines | JsonArray | JsonObjects
    key: str
    sample: Sample
    last: dict[str, Any] = field(default_factory=dict, compare=False)
    """What the document read last says beside its rows."""

    def records(self, columns: Sequence[str] = ()) -> Iterator[Records]:
        """The rows of one batch of documents at a time."""
        for records in self.outer.records():
            if records.objects:
                self.last.clear()
                self.last.update((name, said) for name, said in records.objects[-1].items() if name != self.key)
            yield _inside(records, self.key)

    def more_pages(self) -> str | None:
        """Once all is read: how the last document says that it is not the last page of its list."""
        meta = self.last.get("meta")
        meta = meta if isinstance(meta, dict) else {}
        for where in (self.last, meta):
            if where.get("has_more") is True or where.get("hasMore") is True:
                return "has_more is true"
        page, pages = meta.get("page"), meta.get("totalPages")
        if isinstance(page, int) and isinstance(pages, int) and page < pages:
            return f"page {page:,} of {pages:,}"
        return None

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        wanted = list(dict.fromkeys(columns))
        return (to_batch(records, wanted) for records in self.records())


def _inside(records: Records, key: str) -> Records:
    found = Records([], [], list(records.faults), records.blank)
    for line, document in zip(records.numbers, records.objects, strict=True):
        rows = document.get(key)
        for row in rows if isinstance(rows, list) else [None]:
            if isinstance(row, dict):
                found.numbers.append(line)
                found.objects.append(row)
            else:
                found.faults.append(Fault(line, "not_an_object", key))
    return found


def _key(sample: Sample) -> str | None:
    """The key under which every document of the sample has a list of objects."""
    for key in _KEYS:
        lists = [row.get(key) for row in sample.rows]
        if lists and all(isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in lists):
            return key if any(lists) else None
    return None


def unwrapped(table: JsonLines | JsonArray | JsonObjects) -> JsonLines | JsonArray | JsonObjects | Wrapped:
    """The table itself, or the rows that its documents wrap."""
    key = _key(table.sample)
    if key is None:
        return table
    rows: list[dict[str, Any]] = list(chain.from_iterable(row[key] for row in table.sample.rows))[:_SAMPLE_ROWS]
    columns = tuple(dict.fromkeys(chain.from_iterable(map(flat_names, rows))))
    flat = tuple({name: pick(row, name) for name in columns} for row in rows)
    return Wrapped(table, key, Sample(table.sample.container, columns, flat))
