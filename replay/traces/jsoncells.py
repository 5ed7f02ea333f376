"""Columns inside JSON text: ``body.usage.input`` where ``body`` holds ``{"usage": {"input": 12}}`` as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replay.traces.jsontext import column_of, pick
from replay.traces.rows import LINE, Batch, Sample, Table

_decoder = json.JSONDecoder(parse_float=str, parse_constant=str)
_NO_JSON = "(no JSON)"
"""In place of a value in text that is no JSON object: no cast takes it."""


@dataclass(frozen=True)
class JsonCells:
    """A table with further columns: name to the column whose text holds them, and the path inside."""

    table: Table
    paths: dict[str, tuple[str, str]]
    sample: Sample

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        inside = {name: self.paths[name] for name in dict.fromkeys(columns) if name in self.paths}
        outer = dict.fromkeys(name for name in columns if name not in inside)
        for batch in self.table.batches([*outer, *(column for column, _ in inside.values())]):
            frame = batch.frame
            for name, (column, path) in inside.items():
                frame = frame.with_columns(column_of(name, [_inside(cell, path) for cell in frame[column].to_list()]))
            kept = [LINE, *(name for name in (*outer, *inside) if name in frame.columns)]
            yield Batch(frame.select(kept), batch.faults, batch.blank)


def json_cells(table: Table, names: Iterable[str]) -> Table:
    """The table itself, or one that also has those of the names that lead into JSON text in its sample."""
    sample = table.sample
    paths = {}
    for name in names:
        found = None if name in sample.columns else _path(sample, name)
        if found is not None:
            paths[name] = found
    if not paths:
        return table
    rows = tuple(
        row | {name: _inside(row.get(column), path) for name, (column, path) in paths.items()} for row in sample.rows
    )
    return JsonCells(table, paths, Sample(sample.container, (*sample.columns, *paths), rows))


def _path(sample: Sample, name: str) -> tuple[str, str] | None:
    """The longest column that the name begins with and whose text holds the rest."""
    for at in sorted((i for i, mark in enumerate(name) if mark == "."), reverse=True):
        column, path = name[:at], name[at + 1 :]
        cells = [row.get(column) for row in sample.rows] if column in sample.columns else []
        if any(isinstance(cell, str) and _inside(cell, path) not in (None, _NO_JSON) for cell in cells):
            return column, path
    return None


def _inside(cell: Any, path: str) -> Any:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return None
    try:
        found = _decoder.decode(cell)
    except (TypeError, ValueError, RecursionError):
        return _NO_JSON
    return pick(found, path) if isinstance(found, dict) else _NO_JSON
