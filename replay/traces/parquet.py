"""Parquet uploads: only the wanted columns, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from replay.errors import TraceError
from replay.traces.rows import LINE, Batch, Sample
from replay.traces.source import Source, refusal

_ROWS = 262_144
_SAMPLE_ROWS = 200
_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True)
class ParquetTable:
    """An opened Parquet file; a row's line is its number, from 1."""

    source: Source
    rows: int
    sample: Sample

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """All rows, only the wanted columns."""
        wanted = [name for name in dict.fromkeys(columns) if name in self.sample.columns]
        scan = pl.scan_parquet(self.source.path, glob=False).select(wanted)
        for offset in range(0, self.rows, _ROWS):
            try:
                frame = scan.slice(offset, _ROWS).collect()
            except _FAULTS as error:
                raise _damaged(error) from error
            numbers = pl.int_range(offset + 1, offset + frame.height + 1, dtype=pl.Int64, eager=True).alias(LINE)
            yield Batch(frame.select(numbers, *wanted))
            self.source.progress(self.source.size * (offset + frame.height) // max(self.rows, 1), self.source.size)


def _damaged(error: BaseException) -> TraceError:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return refusal(
        "parquet", f"the Parquet file cannot be read ({first})", "corrupt", "write the file again and upload it"
    )


def open_parquet(source: Source) -> ParquetTable:
    """Opens the footer and a sample of rows.

    Raises:
        TraceError: a damaged file, no rows, a limit passed.
    """
    limits = source.limits
    try:
        scan = pl.scan_parquet(source.path, glob=False)
        schema = scan.collect_schema()
        rows = int(scan.select(pl.len()).collect().item())
    except _FAULTS as error:
        raise _damaged(error) from error
    if len(schema) > limits.max_columns:
        raise refusal(
            "too_many_columns",
            f"the file has {len(schema):,} columns; at most {limits.max_columns:,} are read",
            "max_columns",
            "keep the columns of the mapping only, or raise limits.max_columns",
        )
    if rows > limits.max_rows:
        raise refusal(
            "too_many_rows",
            f"the file has {rows:,} rows; at most {limits.max_rows:,} are read",
            "max_rows",
            "split the file by time, or raise limits.max_rows",
        )
    flat = [name for name, kind in schema.items() if not isinstance(kind, (pl.Struct, pl.Object))]
    try:
        head = scan.select(flat).head(_SAMPLE_ROWS).collect().to_dicts()
    except _FAULTS as error:
        raise _damaged(error) from error
    return ParquetTable(source, rows, Sample("parquet", tuple(flat), tuple(head)))
