"""Kept rows between reading and the canonical file: in memory while small, else in sorted parts on disk.

Final order is by arrival, ties by source order, rows without arrival last. Memory is bounded by a bucket of some
hundred thousand rows, however long and however disordered the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.traces import canonical
from replay.traces.canonical import Meta

_SPILL_BYTES = 48 * 2**20
_BUCKET_ROWS = 262_144
_SAMPLE_EVERY = 97
_MERGE_IDS = 1_000_000
_SORT = ["arrival_ns", "source_line"]


@dataclass
class Spool:
    """Collects frames of kept rows (ids raw), then writes the sorted table.

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
    _columns: set[str] = field(default_factory=set)

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
        frame = canonical.typed(frame)
        if "arrival_ns" not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.Int64).alias("arrival_ns"))
        self._columns.update(frame.columns)
        self._observe(frame["arrival_ns"].drop_nulls().to_numpy())
        if "prefix_blocks" in frame.columns:
            fresh = frame["prefix_blocks"].explode(empty_as_null=False, keep_nulls=False).unique().to_numpy()
            self._fresh.append(fresh)
            self._fresh_count += len(fresh)
            if self._fresh_count > max(_MERGE_IDS, len(self._ids)):
                self._merge_ids()
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
        frame = _sorted(_together(self._held))
        self._held, self._held_bytes = [], 0
        path = self._path(f"part-{len(self._parts):06d}.parquet")
        frame.write_parquet(path, compression="lz4", row_group_size=canonical.ROW_GROUP_ROWS)
        low, high = frame["arrival_ns"].min(), frame["arrival_ns"].max()
        self._parts.append((path, _int(low), _int(high)))

    def write(self, out: Path, meta: Meta, tick: Callable[[int], None]) -> None:
        """Writes the canonical file; ``tick`` is told the rows done before each bucket, and may raise to cancel."""
        self._merge_ids()
        columns = [name for name in canonical.COLUMNS if name in self._columns or name in canonical.ALWAYS]
        canonical.write(self._ready(tick, columns), out, meta, columns)

    def _ready(self, tick: Callable[[int], None], columns: list[str]) -> Iterator[pl.DataFrame]:
        if self._parts:
            if self._held:
                self._spill()
            buckets = self._buckets()
        else:
            buckets = iter([_sorted(_together(self._held))])
            self._held = []
        rows = 0
        for frame in buckets:
            tick(rows)
            rows += frame.height
            if frame.height:
                yield canonical.conform(self._final(frame), columns)

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
        nulls = _together(rest)
        if nulls.height:
            yield nulls.sort("source_line")

    def _edges(self) -> list[int]:
        """Arrivals that cut the rows into buckets, from a sample of each part; the last edge is past the end."""
        arrivals = [
            pl.scan_parquet(path, glob=False).select("arrival_ns").collect().to_series() for path, _, _ in self._parts
        ]
        sample = np.sort(
            np.concatenate([part.drop_nulls().gather_every(_SAMPLE_EVERY).to_numpy() for part in arrivals])
        )
        step = max(1, _BUCKET_ROWS // _SAMPLE_EVERY)
        inner = [int(value) for value in sample[step::step]]
        return sorted({self.first_ns or 0, *inner, (self.last_ns or 0) + 1})

    def _between(self, low: int, high: int) -> pl.DataFrame:
        frames = [
            pl.scan_parquet(path, glob=False).filter(pl.col("arrival_ns") >= low, pl.col("arrival_ns") < high).collect()
            for path, first, last in self._parts
            if first is not None and last is not None and first < high and last >= low
        ]
        return _sorted(_together(frames)) if frames else pl.DataFrame()

    def _final(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Arrivals from the earliest; block ids dense by their value, so that they do not depend on the rows' order."""
        first = self.first_ns or 0
        frame = frame.with_columns(pl.col("arrival_ns") - first)
        if "prefix_blocks" not in frame.columns:
            return frame

        def dense(ids: pl.Series) -> pl.Series:
            return pl.Series(np.searchsorted(self._ids, ids.to_numpy()), dtype=pl.Int64)

        # As one column of all ids, which list.eval hands to what is elementwise: the lists are not built anew.
        each = pl.element().map_batches(dense, return_dtype=pl.Int64, is_elementwise=True)
        return frame.with_columns(pl.col("prefix_blocks").list.eval(each))


def _together(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """The rows of frames that may have different columns."""
    return pl.concat(frames, how="diagonal")


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    if frame["arrival_ns"].null_count() == 0 and frame["arrival_ns"].is_sorted():
        return frame
    return frame.sort(_SORT, nulls_last=True)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
