"""Columns that may be mistaken for each other: a second header that differs, two columns of one name."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from replay.errors import curable
from replay.traces.rows import LINE, Sample

_COPY = re.compile(r"(?:\.\d+|_\d+| \(\d+\)|_duplicated_\d+)$")
"""What programs put behind the name of a column that is there twice."""
_LOOKED_AT = 1_000


def check_headers(raw: pl.DataFrame, rejected: pl.Series) -> None:
    """Refuses a file in which another header follows, whose columns stand in another order or have other names or
    units. ``raw``: the cells of the wanted columns; ``rejected``: the lines of rows that could not be kept.

    Raises:
        TraceError: ``trace.columns_change``.
    """
    names = {_plain(name): name for name, kind in raw.schema.items() if kind == pl.String()}
    for row in raw.filter(pl.col(LINE).is_in(rejected.implode())).head(_LOOKED_AT).to_dicts():
        cells = {name: _plain(row[name] or "").lstrip("\ufeff") for name in names.values()}
        if not any(cell in names for cell in cells.values()):
            continue
        for name, found in cells.items():
            if found != _plain(name):
                cure = "upload the parts one by one"
                what = f"at line {row[LINE]:,} another header follows, with {found!r} where {name!r} stood before"
                raise curable("trace.columns_change", what, cure, "file", line=row[LINE], column=name)


def check_twins(sample: Sample, wanted: Iterable[str]) -> None:
    """Refuses a table with two columns of nearly one name and different values, of which one would be taken.

    Raises:
        TraceError: ``trace.duplicate_columns``.
    """
    for column in wanted:
        for other in sample.columns:
            if other == column or not (_is_copy(other, column) or _is_copy(column, other)):
                continue
            if any(str(row.get(column)) != str(row.get(other)) for row in sample.rows if row.get(other) is not None):
                cure = "rename or remove one of them"
                raise curable(
                    "trace.duplicate_columns",
                    f"the columns {column!r} and {other!r} have nearly one name and different values: which one counts "
                    "is not known",
                    cure,
                    "file",
                    column=other,
                )


def _is_copy(name: str, original: str) -> bool:
    return _plain(original) in (_plain(name), _plain(_COPY.sub("", name)))


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
