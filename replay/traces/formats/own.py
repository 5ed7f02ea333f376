"""Our own plain format: canonical field names, the arrival's unit in its column's name. Needs no mapping.

``arrival_s`` (or ``_ms``, ``_us``, ``_ns``), ``prompt_tokens``, ``output_tokens``; and, if there, ``cached_tokens``,
``reasoning_tokens``, ``model``, ``tenant``, ``session``, ``priority``,
``status``; in JSON and Parquet ``prefix_blocks``.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from replay.traces.cleaning import Ledger
from replay.traces.formats.base import TEXT_FIELDS, Match, Reading, TableFormat, add_rule, block_lists
from replay.traces.options import TIME_UNITS, IngestOptions, MappedField
from replay.traces.rows import JSON_CONTAINERS, Batch, Sample, Table
from replay.traces.separate import check_separate
from replay.traces.source import refusal
from replay.traces.tokenshape import check_unmapped

_OPTIONAL: tuple[MappedField, ...] = ("cached_tokens", "reasoning_tokens", *TEXT_FIELDS, "status", "prefix_blocks")
_ARRIVALS = tuple(f"arrival_{unit}" for unit in TIME_UNITS)


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
        hook=check_blocks,
    )


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
        if inner is None:
            raise refusal(
                "wrong_format",
                f"the file is not {self.name}: it has the columns {', '.join(table.sample.columns[:20])}",
                "columns",
                f"needed: {', '.join(self.needs)}; give no format to have it detected, or a mapping",
            )
        check_unmapped(table.sample, inner.columns, options)
        check_separate(table.sample, inner.columns, options)
        return inner.read(table, options, ledger)


FORMATS = (
    OwnFormat("capreplay-csv", "capreplay CSV", ("csv", "tsv")),
    OwnFormat("capreplay-json", "capreplay JSON lines or array", JSON_CONTAINERS),
    OwnFormat("capreplay-parquet", "capreplay Parquet", ("parquet",)),
)
