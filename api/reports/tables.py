"""A table is written once and shown twice: formatted in HTML, with full precision in CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from api.reports import formats

Cell = str | int | float | bool | None
Kind = Literal["text", "name", "number", "seconds", "duration", "usd", "percent", "share", "gib", "yes_no"]

_FORMATS = {
    "number": formats.number,
    "seconds": formats.seconds,
    "duration": formats.duration,
    "usd": formats.usd,
    "percent": formats.percent,
    "share": formats.share,
    "gib": formats.gib,
}
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Column:
    """``title`` for people, ``key`` (with its unit) for the CSV header; a ``name`` is a text that is not broken."""

    title: str
    key: str
    kind: Kind = "number"


@dataclass(frozen=True)
class Table:
    """Raw values; each row has one cell a column."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of the table {self.caption!r} does not fit its columns")

    @property
    def csv_href(self) -> str:
        """The table as a ``data:`` address, so that its link works offline and without script."""
        return "data:text/csv;charset=utf-8," + quote(to_csv(self))


def show(value: Cell, kind: Kind) -> str:
    """A cell as people read it."""
    if value is None:
        return formats.NONE
    if isinstance(value, bool):
        return formats.yes_no(value)
    if isinstance(value, str):
        return value
    return _FORMATS[kind](value) if kind in _FORMATS else str(value)


def safe_cell(value: Cell) -> str:
    """A CSV cell. Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers stay numbers."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    return repr(value)


def to_csv(table: Table) -> str:
    """The table as RFC 4180 text, header first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([safe_cell(column.key) for column in table.columns])
    writer.writerows([[safe_cell(cell) for cell in row] for row in table.rows])
    return out.getvalue()
