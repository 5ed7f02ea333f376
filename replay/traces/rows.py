"""What a container (delimited text, JSON lines, JSON array, Parquet) hands to a format: batches of named columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

JSON_CONTAINERS = ("jsonl", "json-array", "json")
LINE = "__line__"
"""Column of source line numbers in every batch; Int64, from 1."""


def list_column(name: str, flat: npt.NDArray[np.generic], lengths: npt.NDArray[np.int64]) -> pl.Series:
    """A list column from the items of all rows in order and each row's number of items; no items is null."""
    row = np.arange(len(lengths), dtype=np.int64)
    items = pl.DataFrame({"row": np.repeat(row, lengths), name: flat})
    grouped = items.group_by("row", maintain_order=True).agg(name)
    return pl.DataFrame({"row": row}).join(grouped, on="row", how="left", maintain_order="left")[name]


@dataclass(frozen=True)
class Fault:
    """A row that could not even be taken apart."""

    line: int
    rule: str
    column: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class Batch:
    """``frame``: ``LINE`` plus one column for each wanted name that is in the file, as text or as typed values.

    ``faults`` are rows that are not in the frame. Rows read = frame.height + len(faults). ``blank`` lines are no rows.
    """

    frame: pl.DataFrame
    faults: list[Fault] = field(default_factory=list)
    blank: int = 0


@dataclass(frozen=True)
class Sample:
    """The beginning of a file, taken apart: what formats look at to recognise their own."""

    container: str
    """``csv``, ``tsv``, ``jsonl``, ``json-array``, ``json`` (objects over many lines), ``text`` or ``parquet``."""
    columns: tuple[str, ...]
    """Columns of a table; keys seen in JSON objects, nested ones as ``a.b``."""
    rows: tuple[dict[str, Any], ...]
    """The first rows: text from CSV, parsed values from JSON and Parquet (flat names)."""

    def has(self, *names: str) -> bool:
        """Whether all these columns are there."""
        return all(name in self.columns for name in names)

    def may_have(self, name: str) -> bool:
        """Whether rows may have this column: in JSON a key may first come after the sample."""
        return name in self.columns or self.container in JSON_CONTAINERS

    def first(self, name: str) -> Any:
        """The first value of a column that is there and not null."""
        return next((row[name] for row in self.rows if row.get(name) not in (None, "")), None)


class Table(Protocol):
    """An opened container."""

    @property
    def sample(self) -> Sample:
        """The beginning of the file."""

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
