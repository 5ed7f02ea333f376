"""Kept rows between reading and the canonical file: in memory while small, else in sorted parts on disk.

Final order is by arrival, ties by source order, rows without arrival last. Memory is bounded by a bucket of about a
million rows, however long and however disordered the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.traces import canonical
from replay.traces.canonical import Meta
from replay.traces.rows import list_column

_SPILL_BYTES = 96 * 2**20
_BUCKET_ROWS = 1_000_000
_MERGE_IDS = 1_000_000
_SORT = ["arrival_ns", "source_line"]


@dataclass
class Spool:
    """Collects frames of kept rows (``canonical.conform``-ed, ids raw), then writes the sorted table.

    ``_folder`` is empty and the caller's to remove. ``moved`` counts rows that come after one with a later arrival.
    """

    _folder: Path
    rows: int = 0
    moved: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    _held: list[pl.DataFrame] = field(default_factory=list)
    _held_bytes: int = 0
    _parts: list[tuple[Path, int | None, int | None]] = field(default_factory=list)
    _ids: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    _fresh: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    _fresh_count: int = 0
    _latest: int | None = None

    @property
    def has_blocks(self) -> bool:
        """Whether any row brought block ids."""
        return len(self._ids) > 0 or self._fresh_count > 0

    def _merge_ids(self) -> None:
        self._ids = np.unique(np.concatenate([self._ids, *self._fresh]))
        self._fresh, self._fresh_count = [], 0

    def add(self, frame: pl.DataFrame) -> None:
        """Takes the next frame in file order."""
        if frame.height == 0:
            return
        self.rows += frame.height
        self._observe(frame["arrival_ns"].drop_nulls().to_numpy())
        if isinstance(frame.schema["prefix_blocks"], pl.List) and frame["prefix_blocks"].null_count() < frame.height:
            fresh = frame["prefix_blocks"].explode(empty_as_null=False).drop_nulls().cast(pl.UInt64).unique().to_numpy()
            self._fresh.append(fresh)
            self._fresh_count += len(fresh)
            if self._fresh_count > max(_MERGE_IDS, len(self._ids)):
                self._merge_ids()
        ids = pl.col("prefix_blocks").cast(pl.List(pl.UInt64))
        frame = frame.with_columns(pl.when(ids.list.len() > 0).then(ids).alias("prefix_blocks"))
        self._held.append(frame)
        self._held_bytes += int(frame.estimated_size())
        if self._held_bytes >= _SPILL_BYTES:
            self._spill()

    def _observe(self, arrivals: npt.NDArray[np.int64]) -> None:
        if len(arrivals) == 0:
            return
        before = np.maximum.accumulate(arrivals)
        if self._latest is not None:
            before = np.maximum(before, self._latest)
        self.moved += int(np.count_nonzero(arrivals < before))
        self._latest = int(before[-1])
        low, high = int(arrivals.min()), int(arrivals.max())
        self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
        self.last_ns = high if self.last_ns is None else max(self.last_ns, high)

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _spill(self) -> None:
        frame = _sorted(pl.concat(self._held))
        self._held, self._held_bytes = [], 0
        path = self._path(f"part-{len(self._parts):06d}.parquet")
        frame.write_parquet(path, compression="lz4", row_group_size=canonical.ROW_GROUP_ROWS)
        low, high = frame["arrival_ns"].min(), frame["arrival_ns"].max()
        self._parts.append((path, _int(low), _int(high)))

    def write(self, out: Path, meta: Meta) -> Iterator[int]:
        """Writes the canonical file; yields the rows done after each step, so that the caller may report or cancel."""
        self._merge_ids()
        if not self._parts:
            frame = self._final(_sorted(pl.concat(self._held)))
            self._held = []
            canonical.write(frame.lazy(), out, meta)
            yield self.rows
            return
        if self._held:
            self._spill()
        chunks: list[Path] = []
        done = 0
        for frame in self._buckets():
            path = self._path(f"sorted-{len(chunks):06d}.parquet")
            self._final(frame).write_parquet(path, compression="lz4", row_group_size=canonical.ROW_GROUP_ROWS)
            chunks.append(path)
            done += frame.height
            yield done // 2
        canonical.write(pl.scan_parquet(chunks, glob=False), out, meta)
        yield self.rows

    def _buckets(self) -> Iterator[pl.DataFrame]:
        """The rows in final order, about ``_BUCKET_ROWS`` at a time."""
        if self.moved == 0:
            for path, low, _ in self._parts:
                if low is not None:
                    yield pl.read_parquet(path, glob=False).filter(pl.col("arrival_ns").is_not_null())
        else:
            edges = self._edges()
            for low, high in pairwise(edges):
                yield self._between(low, high)
        rest = [
            pl.scan_parquet(path, glob=False).filter(pl.col("arrival_ns").is_null()).collect()
            for path, _, _ in self._parts
        ]
        nulls = pl.concat(rest)
        if nulls.height:
            yield nulls.sort("source_line")

    def _edges(self) -> list[int]:
        """Arrivals that cut the rows into buckets, from a sample of each part; the last edge is past the end."""
        sample = np.sort(
            np.concatenate(
                [
                    pl.scan_parquet(path, glob=False)
                    .select("arrival_ns")
                    .collect()
                    .to_series()
                    .drop_nulls()
                    .gather_every(97)
                    .to_numpy()
                    for path, _, _ in self._parts
                ]
            )
        )
        step = max(1, _BUCKET_ROWS // 97)
        inner = [int(value) for value in sample[step::step]]
        return sorted({self.first_ns or 0, *inner, (self.last_ns or 0) + 1})

    def _between(self, low: int, high: int) -> pl.DataFrame:
        frames = [
            pl.scan_parquet(path, glob=False).filter(pl.col("arrival_ns") >= low, pl.col("arrival_ns") < high).collect()
            for path, first, last in self._parts
            if first is not None and last is not None and first < high and last >= low
        ]
        return _sorted(pl.concat(frames)) if frames else pl.read_parquet(self._parts[0][0], glob=False, n_rows=0)

    def _final(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Arrivals from the earliest; block ids dense by their value, so that they do not depend on the rows' order."""
        first = self.first_ns or 0
        frame = frame.with_columns(pl.col("arrival_ns") - first)
        if not self.has_blocks:
            return frame.with_columns(pl.lit(None, dtype=canonical.SCHEMA["prefix_blocks"]).alias("prefix_blocks"))
        lists = frame["prefix_blocks"]
        flat = lists.explode(empty_as_null=False, keep_nulls=False).to_numpy()
        dense = np.searchsorted(self._ids, flat).astype(np.int64)
        lengths = lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()
        return frame.with_columns(list_column("prefix_blocks", dense, lengths))


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    if frame["arrival_ns"].null_count() == 0 and frame["arrival_ns"].is_sorted():
        return frame
    return frame.sort(_SORT, nulls_last=True)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
