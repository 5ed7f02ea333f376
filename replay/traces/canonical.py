"""The canonical table: one row a request, one schema for every source format, kept as Parquet.

Rows are sorted by ``arrival_ns``; ties keep the source's order; requests without an arrival (closed loop) come last.
A file has only the columns that hold anything: null columns took a third of the time of writing. ``scan`` gives all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from replay.errors import TraceError

VERSION = 1
ROW_GROUP_ROWS = 262_144
STATUSES = ("ok", "failed", "aborted", "cache_hit", "unknown")

SCHEMA: dict[str, pl.DataType] = {
    "arrival_ns": pl.Int64(),  # from the earliest kept request; null: starts after another (closed loop)
    "prompt_tokens": pl.Int64(),  # all input tokens, cached ones included; null: unknown
    "output_tokens": pl.Int64(),  # all generated tokens, reasoning included; null: unknown
    "cached_tokens": pl.Int64(),  # part of the prompt that the source served from its cache
    "reasoning_tokens": pl.Int64(),  # part of the output
    "model": pl.String(),
    "tenant": pl.String(),
    "session": pl.String(),
    "priority": pl.String(),
    "status": pl.String(),  # one of STATUSES
    "prefix_blocks": pl.List(pl.Int64()),  # dense ids in 0..k-1; equal leading ids = shared prefix
    "after_line": pl.Int64(),  # source_line of what must end first; an arrival beside it is the source's
    "delay_ns": pl.Int64(),  # wait after that end
    "cancel_after_ns": pl.Int64(),  # from sending until the client left, or would have; null: it stays, or unknown
    "source_ttft_ns": pl.Int64(),
    "source_e2e_ns": pl.Int64(),
    "source_queue_ns": pl.Int64(),
    "source_line": pl.Int64(),  # line in the uploaded file, from 1; in formats of sessions the request's number in it
}

COLUMNS = tuple(SCHEMA)
ALWAYS = ("arrival_ns", "prompt_tokens", "output_tokens", "source_line")
"""Columns that a file has even where they hold nothing: by them it is known again."""
RAW_IDS = pl.List(pl.UInt64())
"""Block ids as the source gave them, before they become dense."""
PREFIX = "capreplay."
"""Of our keys in the metadata of a Parquet file."""


@dataclass(frozen=True)
class Meta:
    """What the table cannot say in its columns."""

    block_size_tokens: int | None = None
    prefix_scope: str = "global"
    start_epoch_ns: int | None = None
    """Epoch time of ``arrival_ns == 0``; ``None``: the source has relative times only."""
    zone: str | None = None
    notes: str = ""
    """What a report of this trace must say: that it was drawn or mixed, and not recorded."""
    version: int = VERSION

    def to_parquet(self) -> dict[str, str]:
        """Key-value metadata of the file."""
        values = {
            "format_version": str(self.version),
            "block_size_tokens": "" if self.block_size_tokens is None else str(self.block_size_tokens),
            "prefix_scope": self.prefix_scope,
            "start_epoch_ns": "" if self.start_epoch_ns is None else str(self.start_epoch_ns),
            "zone": self.zone or "",
            "notes": self.notes,
        }
        return {PREFIX + key: value for key, value in values.items()}


def read_meta(path: Path) -> Meta:
    """The metadata of a canonical file.

    Raises:
        TraceError: ``trace.not_canonical`` where the file is something else, or of another version.
    """
    try:
        found = pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TraceError("trace.not_canonical", "the stored trace cannot be read; ingest the file again") from error
    values = {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}
    if values.get("format_version") != str(VERSION):
        raise TraceError(
            "trace.not_canonical", f"the stored trace is not canonical version {VERSION}; ingest the file again"
        )
    return Meta(
        block_size_tokens=int(values["block_size_tokens"]) if values.get("block_size_tokens") else None,
        prefix_scope=values.get("prefix_scope") or "global",
        start_epoch_ns=int(values["start_epoch_ns"]) if values.get("start_epoch_ns") else None,
        zone=values.get("zone") or None,
        notes=values.get("notes") or "",
    )


def typed(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame's canonical columns that hold anything, in canonical types; ``prefix_blocks`` keeps raw 64-bit ids."""
    kept = [name for name in SCHEMA if name in frame.columns and frame[name].null_count() < frame.height]
    return frame.select(pl.col(name).cast(RAW_IDS if name == "prefix_blocks" else SCHEMA[name]) for name in kept)


def conform(frame: pl.DataFrame, columns: Sequence[str] = COLUMNS) -> pl.DataFrame:
    """The frame with these canonical columns; absent ones null."""
    return frame.select(_column(name, frame.columns) for name in columns)


def _column(name: str, present: Sequence[str]) -> pl.Expr:
    return (pl.col(name) if name in present else pl.lit(None)).cast(SCHEMA[name]).alias(name)


def write(frames: Iterator[pl.DataFrame], out: Path, meta: Meta, columns: Sequence[str] = COLUMNS) -> None:
    """Writes sorted rows of these canonical columns as they come: zstd, row groups of at most 262,144 rows, statistics,
    metadata.

    What ``frames`` raises comes through, and leaves a file to be thrown away.
    """

    def source(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        yield from frames

    register_io_source(source, schema={name: SCHEMA[name] for name in columns}).sink_parquet(
        out,
        compression="zstd",
        compression_level=1,
        row_group_size=ROW_GROUP_ROWS,
        statistics=True,
        maintain_order=True,
        metadata=meta.to_parquet(),
    )


def scan(path: Path) -> pl.LazyFrame:
    """The canonical file with all columns, in their order; others that it has follow."""
    frame = pl.scan_parquet(path, glob=False)
    present = frame.collect_schema().names()
    others = [name for name in present if name not in SCHEMA]
    return frame.select(*(_column(name, present) for name in COLUMNS), *others)


def slices(path: Path, columns: tuple[str, ...] = COLUMNS, rows: int = ROW_GROUP_ROWS) -> Iterator[pl.DataFrame]:
    """The table in order, a bounded number of rows at a time."""
    table = scan(path).select(columns)
    total = int(table.select(pl.len()).collect().item())
    for offset in range(0, total, rows):
        yield table.slice(offset, rows).collect()
