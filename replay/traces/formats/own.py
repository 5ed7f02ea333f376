"""Our own plain format: canonical field names, the arrival's unit in its column's name. Needs no mapping.

``arrival_s`` (or ``_ms``, ``_us``, ``_ns``), ``prompt_tokens``, ``output_tokens``; and, if there, ``cached_tokens``,
``reasoning_tokens``, ``model``, ``tenant``, ``session``, ``priority``,
``status``, ``cancel_after_s``; ``source_ttft_s``, ``source_e2e_s``, ``source_queue_s`` (or the other units);
``after_line`` with ``delay_s``; in JSON and Parquet ``prefix_blocks``. A trace that was kept (``capreplay ingest
--out``) is such a file too, and is read back as it was: its metadata say when it began and in which zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from replay.traces import casts
from replay.traces.canonical import Meta
from replay.traces.cleaning import Ledger
from replay.traces.formats.base import (
    TEXT_FIELDS,
    Match,
    Reading,
    TableFormat,
    add_rule,
    block_lists,
    duration_column,
)
from replay.traces.formats.leaving import with_cancel_after
from replay.traces.formats.outcomes import Outcomes, outcome_columns, with_outcomes
from replay.traces.formats.records import MEASURED
from replay.traces.kept import kept_in
from replay.traces.options import TIME_UNITS, IngestOptions, MappedField, TimeUnit
from replay.traces.parquet import ParquetTable
from replay.traces.rows import JSON_CONTAINERS, Batch, Sample, Table
from replay.traces.separate import check_separate
from replay.traces.source import refusal
from replay.traces.tokenshape import check_unmapped

_OPTIONAL: tuple[MappedField, ...] = ("cached_tokens", "reasoning_tokens", *TEXT_FIELDS, "status", "prefix_blocks")
_ARRIVALS = tuple(f"arrival_{unit}" for unit in TIME_UNITS)
_LINES = ("source_line", "after_line")
_DELAYS = {f"delay_{unit}": ("delay_ns", unit) for unit in TIME_UNITS}
_LATENCIES = {f"{name[:-2]}{unit}": (name, unit) for name in MEASURED for unit in TIME_UNITS}
"""Column to the canonical column of that time, and its unit."""
_CANCELS: dict[str, TimeUnit] = {f"cancel_after_{unit}": unit for unit in TIME_UNITS}


def check_blocks(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    """The bound on block ids, and their number: ceil(prompt / block size), or the full blocks alone (floor)."""
    frame = block_lists(frame, reading, "prefix_blocks")
    if "prefix_blocks" not in frame.columns:
        return frame
    size = reading.block_size
    count = pl.col("prefix_blocks").list.len().cast(pl.Int64)
    if size is None and not frame.select((count > 0).any()).item():  # a column of nulls, as canonical files have
        return frame.drop("prefix_blocks")
    if size is None:
        raise refusal(
            "block_size",
            "the file has prefix block ids, but not how many tokens a block holds",
            "block_size",
            "give the parameter block_size (tokens of a block), e.g. block_size=512",
        )
    full = pl.col("prompt_tokens") // size
    fits = (count == full) | (count == full + (pl.col("prompt_tokens") % size > 0).cast(pl.Int64))
    return add_rule(frame, (count > 0) & ~fits, "block_count", "prefix_blocks")


def _linked(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    """Block ids, when clients left, what the source measured, and which request must end before another starts.
    ``source_line``, where the file has it, is put aside as ``kept_line``: until rows are booked, their own lines
    tell them apart."""
    frame = with_cancel_after(check_blocks(frame, batch, reading), batch, _CANCELS)
    raw = batch.frame.select(cells.name for cells in batch.frame if cells.null_count() < len(cells))
    for column, (name, unit) in {**_DELAYS, **_LATENCIES}.items():
        if column in raw.columns and (found := duration_column(batch, column, unit)) is not None:
            frame = frame.with_columns(found.alias(name))
            if name == "delay_ns":
                frame = add_rule(frame, pl.lit(found.is_null() & known(raw[column])), "negative_delay", column)
    for name in _LINES:
        if name not in raw.columns:
            continue
        lines = raw[name].cast(pl.Int64, strict=False)
        frame = frame.with_columns(lines.alias("kept_line" if name == "source_line" else name))
        if lines.null_count():
            frame = add_rule(frame, pl.lit(lines.is_null() & known(raw[name])), "not_an_integer", name)
    if frame["arrival_ns"].null_count():
        follows = pl.col("after_line").is_not_null() if "after_line" in frame.columns else pl.lit(value=False)
        column = next(name for name in _ARRIVALS if name in batch.frame.columns)
        frame = add_rule(frame, pl.col("arrival_ns").is_null() & ~follows, "missing_arrival", column)
    return frame


def known(cells: pl.Series) -> pl.Series:
    """Where a cell says anything."""
    return casts.clean_text(cells).is_not_null() if isinstance(cells.dtype, pl.String) else cells.is_not_null()


def _table(sample: Sample) -> TableFormat | None:
    arrivals = [name for name in _ARRIVALS if name in sample.columns]
    if len(arrivals) != 1 or not sample.has("prompt_tokens", "output_tokens"):
        return None
    columns: dict[MappedField, str] = {
        "arrival": arrivals[0],
        "prompt_tokens": "prompt_tokens",
        "output_tokens": "output_tokens",
    }
    columns.update({name: name for name in _OPTIONAL if sample.may_have(name)})
    unit = next(unit for unit in TIME_UNITS if arrivals[0].endswith(f"_{unit}"))
    return TableFormat(
        name="capreplay",
        title="capreplay",
        columns=columns,
        required=(arrivals[0], "prompt_tokens", "output_tokens"),
        containers=(sample.container,),
        optional=_OPTIONAL,
        time_unit=unit,
        checks_total=True,
        arrival_optional=True,
        extra=(
            *(name for name in (*_LINES, *_DELAYS, *_CANCELS) if sample.may_have(name)),
            *(name for name in _LATENCIES if name in sample.columns),
        ),
        hook=_linked,
    )


def _with_outcomes(inner: TableFormat, sample: Sample, options: IngestOptions, ledger: Ledger) -> TableFormat:
    """The column ``status``, or without it others whose names say so, tell how requests ended."""
    if options.ignore_status or "status" in sample.columns:
        outcomes = Outcomes({"status": "word"} if "status" in inner.columns else {}, asks=False)
    else:
        found = outcome_columns(sample, {*inner.columns.values(), *inner.extra} - {"status"})
        outcomes = Outcomes(found, asks=True, mappable=False)
        outcomes.say(sample, ledger)
    return replace(inner, extra=(*inner.extra, *outcomes.columns), hook=with_outcomes(_linked, outcomes))


class OwnFormat:
    """One container of our own format."""

    def __init__(self, name: str, title: str, containers: tuple[str, ...]) -> None:
        self.name = name
        self.title = title
        self.needs = ("arrival_s (or _ms, _us, _ns)", "prompt_tokens", "output_tokens")
        self._containers = containers

    def detect(self, sample: Sample) -> Match | None:
        """The three columns, with exactly one arrival."""
        table = _table(sample) if sample.container in self._containers else None
        return table.detect(sample) if table is not None else None

    def block_size(self, options: IngestOptions) -> int | None:
        """The option's; the format has no default."""
        return options.block_size

    def read(self, table: Table, options: IngestOptions, ledger: Ledger) -> Iterator[pl.DataFrame]:
        """See Format."""
        inner = _table(table.sample)
        if inner is not None:
            inner = _with_outcomes(inner, table.sample, options, ledger)
        if inner is None:
            raise refusal(
                "wrong_format",
                f"the file is not {self.name}: it has the columns {', '.join(table.sample.columns[:20])}",
                "columns",
                f"needed: {', '.join(self.needs)}; give no format to have it detected, or a mapping",
            )
        kept = kept_in(table.source.path) if isinstance(table, ParquetTable) else None
        if kept is None:  # else they were asked about when it was first read
            check_unmapped(table.sample, inner.columns, options)
            check_separate(table.sample, inner.columns, options)
        frames = map(_numbered, inner.read(table, options, ledger))
        return frames if kept is None else _as_kept(frames, kept, ledger)


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows under the lines that the file gives them, where it does: by those other rows name them."""
    if "kept_line" not in frame.columns:
        return frame
    return frame.with_columns(pl.coalesce("kept_line", "source_line").alias("source_line")).drop("kept_line")


def _as_kept(frames: Iterator[pl.DataFrame], kept: Meta, ledger: Ledger) -> Iterator[pl.DataFrame]:
    """The rows of a file that this program wrote, with the start and the zone of its metadata."""
    ledger.arrivals_only = "neither could the log from which the trace was kept"
    ledger.time_zone = kept.zone
    for frame in frames:
        yield frame.with_columns(pl.col("arrival_ns") + (kept.start_epoch_ns or 0))
    ledger.assumed["time_unit"] = "ns, as kept"
    if kept.start_epoch_ns is not None:
        ledger.assumed["time_zone"] = f"{kept.zone or 'UTC'}, as kept with the start of the trace"


FORMATS = (
    OwnFormat("capreplay-csv", "capreplay CSV", ("csv", "tsv")),
    OwnFormat("capreplay-json", "capreplay JSON lines or array", JSON_CONTAINERS),
    OwnFormat("capreplay-parquet", "capreplay Parquet", ("parquet",)),
)
