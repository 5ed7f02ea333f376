"""What a format is, and the one that covers most: a table whose columns mean canonical fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces import casts
from replay.traces.cleaning import Ledger
from replay.traces.headers import check_headers, check_twins
from replay.traces.options import IngestOptions, MappedField, TimeUnit
from replay.traces.rows import LINE, Batch, Sample, Table
from replay.traces.times import UNIT_NS, TimeParser
from replay.traces.tokenshape import TokenShape, total_column

TOKEN_FIELDS: tuple[MappedField, ...] = (
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
TEXT_FIELDS: tuple[MappedField, ...] = ("model", "tenant", "session", "priority")


@dataclass(frozen=True)
class Match:
    """A format recognises a sample. ``strength``: how many of the file's columns it accounts for; the most wins."""

    why: str
    strength: int


class Format(Protocol):
    """One source format. A module in this package that defines ``FORMATS`` adds its formats by being there."""

    @property
    def name(self) -> str:
        """Stable key, e.g. ``azure-llm-2023``."""

    @property
    def title(self) -> str:
        """For people."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns by which it is recognised, for error messages."""

    def detect(self, sample: Sample) -> Match | None:
        """Whether the content is of this format."""

    def block_size(self, options: IngestOptions) -> int | None:
        """Tokens of a prefix block, where the format has block ids."""

    def read(self, table: Table, options: IngestOptions, ledger: Ledger) -> Iterator[pl.DataFrame]:
        """Kept rows in file order: ``source_line``, ``arrival_ns`` (absolute or from the source's zero) and any other
        canonical columns; ``prefix_blocks`` as raw List(UInt64). Every row is booked in ``ledger``."""


Hook = Callable[[pl.DataFrame, Batch, "Reading"], pl.DataFrame]


@dataclass
class Reading:
    """One pass over a table: what hooks may look at and keep between batches."""

    options: IngestOptions
    ledger: Ledger
    block_size: int | None
    block_size_checked: bool = False
    last_line: dict[str, int] = field(default_factory=dict)
    """Line of the last kept turn of each session."""
    root_of_chat: dict[str, str] = field(default_factory=dict)
    """First chat of each chat's chain."""


@dataclass(frozen=True)
class TableFormat:
    """A format where one row is one request and a column is a field.

    ``columns`` maps fields to column names; ``extra`` names further columns a hook wants. ``hook`` sees the cast frame
    (canonical names, ``source_line``, ``rule``, ``column``) and may add columns or rules before rows are kept.
    """

    name: str
    title: str
    columns: Mapping[MappedField, str]
    required: tuple[str, ...]
    containers: tuple[str, ...] = ("csv", "tsv")
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """Columns whose presence shows that it is another format."""
    time_unit: TimeUnit | None = None
    naive_zone: tuple[str, str] | None = None
    """Zone of times without one, and who says so; ``None``: the user must say."""
    epoch_only: bool = False
    """Arrivals are epoch times; others are asked about."""
    cached_inside: bool | None = True
    """Whether the prompt count includes cached tokens; ``None``: names, numbers or the user must say."""
    checks_total: bool = False
    """A column of total tokens must be prompt plus output."""
    extra: tuple[str, ...] = ()
    blocks: int | None = None
    """Default block size; ``None``: no block ids, or no default."""
    zero_output_is_failure: bool = False
    arrival_optional: bool = False
    """Closed loop: rows without an arrival are kept for the hook to judge."""
    accept: Callable[[Sample], bool] | None = None
    """A further test on the sample."""
    hook: Hook | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns by which it is recognised."""
        return self.required

    def detect(self, sample: Sample) -> Match | None:
        """All required columns, none that shows another format."""
        if sample.container not in self.containers or not sample.has(*self.required):
            return None
        if any(name in sample.columns for name in self.absent) or (self.accept is not None and not self.accept(sample)):
            return None
        known = [name for name in (*self.required, *self.optional) if name in sample.columns]
        return Match(f"{sample.container} with the columns {', '.join(known)}", len(known))

    def block_size(self, options: IngestOptions) -> int | None:
        """The option's, else the format's own."""
        return options.block_size or self.blocks

    def read(self, table: Table, options: IngestOptions, ledger: Ledger) -> Iterator[pl.DataFrame]:
        """See Format."""
        present = {name: column for name, column in self.columns.items() if table.sample.may_have(column)}
        seen = {name: column for name, column in present.items() if column in table.sample.columns}
        ledger.assumed["columns"] = ", ".join(f"{name}={column}" for name, column in seen.items())
        check_twins(table.sample, seen.values())
        ignored = [name for name in table.sample.columns if name not in {*present.values(), *self.extra}]
        if ignored:
            ledger.assumed["ignored_columns"] = ", ".join(ignored[:50])
        times = TimeParser(
            present.get("arrival", "arrival"), options, ledger, self.time_unit, self.naive_zone, self.epoch_only
        )
        reading = Reading(options, ledger, self.block_size(options))
        total = total_column(table.sample.columns, present.get("prompt_tokens"))
        cached = present.get("cached_tokens") or present.get("cache_write_tokens")
        shape = TokenShape(
            options,
            ledger,
            cached,
            total,
            self.cached_inside,
            prompt_column=present.get("prompt_tokens"),
            reasoning_column=present.get("reasoning_tokens"),
            asks=self.cached_inside is None,
            checks_total=self.checks_total,
        )
        wants_total = self.checks_total or cached or "reasoning_tokens" in present
        totals = [total] if total is not None and wants_total else []
        for batch in table.batches([*present.values(), *totals, *self.extra]):
            yield self._keep(batch, present, times, shape, reading)

    def _keep(
        self, batch: Batch, present: Mapping[MappedField, str], times: TimeParser, shape: TokenShape, reading: Reading
    ) -> pl.DataFrame:
        frame = cast_batch(batch, present, times, shape, reading.options, self.arrival_optional)
        if self.hook is not None:
            frame = self.hook(frame, batch, reading)
        rejected = frame.filter(pl.col("rule").is_not_null())
        if rejected.height:
            check_headers(batch.frame, rejected["source_line"])
        reading.ledger.account(batch, rejected.select(pl.col("source_line").alias(LINE), "rule", "column"))
        kept = frame.filter(pl.col("rule").is_null()) if rejected.height else frame
        return zero_lengths(kept.drop("rule", "column"), reading.ledger, failed=self.zero_output_is_failure)


def cast_batch(
    batch: Batch,
    present: Mapping[MappedField, str],
    times: TimeParser,
    shape: TokenShape,
    options: IngestOptions,
    arrival_optional: bool,
) -> pl.DataFrame:
    """All fields cast; ``rule`` and ``column`` say why a row cannot be kept (the first rule it breaks, else null)."""
    raw = batch.frame
    made: dict[str, pl.Series] = {"source_line": raw[LINE]}
    broken: list[tuple[str, pl.Series]] = []

    def book(name: str, values: pl.Series, rules: pl.Series | None, column: str) -> None:
        made[name] = values.alias(name)
        if rules is not None:
            broken.append((column, rules))

    if "arrival" in present:
        column = present["arrival"]
        series = raw[column] if column in raw.columns else pl.Series(column, [None] * raw.height, dtype=pl.String)
        values, rules = times.parse(series)
        if rules is not None and arrival_optional:
            rules = rules.set((rules == "missing_arrival").fill_null(value=False), None)
        book("arrival_ns", values, rules, column)
    most = min(options.limits.max_tokens_per_request, options.limits.max_output_tokens_per_request)
    outputs = options.limits.model_copy(update={"max_tokens_per_request": most})
    for name in TOKEN_FIELDS:
        if name in present and present[name] in raw.columns:
            limits = outputs if name in ("output_tokens", "reasoning_tokens") else options.limits
            book(name, *casts.tokens(raw[present[name]], limits), present[name])
    shape.apply(made, raw)
    for name in TEXT_FIELDS:
        if name in present and present[name] in raw.columns:
            book(name, *casts.text(raw[present[name]], options.limits), present[name])
    if "status" in present and present["status"] in raw.columns:
        made["status"] = casts.status(raw[present["status"]]).alias("status")
    if "prefix_blocks" in present and present["prefix_blocks"] in raw.columns:
        made["prefix_blocks"] = raw[present["prefix_blocks"]].alias("prefix_blocks")
    return with_rules(pl.DataFrame(made), broken, present)


def with_rules(
    frame: pl.DataFrame, broken: list[tuple[str, pl.Series]], present: Mapping[MappedField, str]
) -> pl.DataFrame:
    """Adds ``rule`` and ``column``, and the rules that compare two fields."""
    rule = pl.lit(None, dtype=pl.String)
    column = pl.lit(None, dtype=pl.String)
    for part, whole, name in (
        ("cached_tokens", "prompt_tokens", "cached_above_prompt"),
        ("reasoning_tokens", "output_tokens", "reasoning_above_output"),
    ):
        if part in frame.columns and whole in frame.columns:
            where = pl.col(part) > pl.col(whole)
            rule = pl.when(where).then(pl.lit(name)).otherwise(rule)
            label = next((text for field_name, text in present.items() if field_name == part), part)
            column = pl.when(where).then(pl.lit(label)).otherwise(column)
    for label, rules in reversed(broken):
        is_broken = rules.is_not_null()
        rule = pl.when(is_broken).then(rules).otherwise(rule)
        column = pl.when(is_broken).then(pl.lit(label)).otherwise(column)
    return frame.with_columns(rule.alias("rule"), column.alias("column"))


def add_rule(frame: pl.DataFrame, where: pl.Expr, rule: str, column: str) -> pl.DataFrame:
    """Marks rows that break ``rule``, where they do not break an earlier one."""
    fresh = where.fill_null(value=False) & pl.col("rule").is_null()
    return frame.with_columns(
        rule=pl.when(fresh).then(pl.lit(rule)).otherwise(pl.col("rule")),
        column=pl.when(fresh).then(pl.lit(column)).otherwise(pl.col("column")),
    )


def block_lists(frame: pl.DataFrame, reading: Reading, column: str) -> pl.DataFrame:
    """``prefix_blocks`` as List(UInt64), bounded; dropped where no row has any. Other values break a rule."""
    kind = frame.schema.get("prefix_blocks")
    if kind is None:
        return frame
    if not isinstance(kind, pl.List):
        return add_rule(frame, pl.col("prefix_blocks").is_not_null(), "not_block_ids", column).drop("prefix_blocks")
    if not kind.inner.is_integer():
        return add_rule(frame, pl.col("prefix_blocks").is_not_null(), "not_block_ids", column).drop("prefix_blocks")
    ids = pl.col("prefix_blocks")
    if kind.inner != pl.UInt64():
        cast_ids = frame["prefix_blocks"].cast(pl.List(pl.UInt64), strict=False)
        lost = cast_ids.list.eval(pl.element().is_null()).list.any().fill_null(value=False)
        frame = add_rule(frame.with_columns(cast_ids), pl.lit(lost), "not_block_ids", column)
    count = ids.list.len().cast(pl.Int64)
    return add_rule(frame, count > reading.options.limits.max_blocks_per_request, "too_many_blocks", column)


_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


def _fits(frame: pl.DataFrame, size: int) -> float:
    """Share of the rows with ids whose number is ceil(prompt / size)."""
    count = pl.col("prefix_blocks").list.len().cast(pl.Int64)
    rows = frame.filter(count > 0, pl.col("rule").is_null())
    if rows.height == 0:
        return 1.0
    fitting = rows.select((count == (pl.col("prompt_tokens") + size - 1) // size).mean()).item()
    return float(fitting or 0.0)


def check_size(frame: pl.DataFrame, reading: Reading, size: int, column: str) -> None:
    """Refuses a file whose ids were made with another block size than ``size``; once a file.

    Raises:
        TraceError: ``trace.block_size``, naming the size that fits.
    """
    if reading.block_size_checked:
        return
    reading.block_size_checked = True
    reading.ledger.assumed["block_size"] = f"{size} tokens, " + (
        "as asked (block_size)" if reading.options.block_size else "the format's own; checked against the prompts"
    )
    if _fits(frame, size) < 0.5:
        fitting = [other for other in _USUAL_BLOCKS if other != size and _fits(frame, other) > 0.95]
        hint = f"block_size={fitting[0]} fits" if len(fitting) == 1 else "none of the usual sizes fits"
        cure = f"give the parameter block_size; {hint}"
        raise TraceError(
            "trace.block_size",
            f"the number of {column} does not match prompts in blocks of {size} tokens: {hint}",
            [FieldError(cure, field="block_size", column=column, rule="block_count", cure=cure)],
        )


def zero_lengths(frame: pl.DataFrame, ledger: Ledger, *, failed: bool) -> pl.DataFrame:
    """A length of 0 says "unknown" in logs: the row stays as an arrival, the length becomes null, the zero is counted.

    With ``failed`` a zero output also marks the request as failed, where no status says otherwise.
    """
    counts = {
        name: int((frame[name] == 0).sum()) for name in ("prompt_tokens", "output_tokens") if name in frame.columns
    }
    ledger.zero_prompt += counts.get("prompt_tokens", 0)
    ledger.zero_output += counts.get("output_tokens", 0)
    if not any(counts.values()):
        return frame
    if failed and counts.get("output_tokens"):
        before = pl.col("status") if "status" in frame.columns else pl.lit(None, dtype=pl.String)
        frame = frame.with_columns(
            status=pl.when(pl.col("output_tokens") == 0).then(pl.lit("failed")).otherwise(before)
        )
    return frame.with_columns(
        pl.when(pl.col(name) == 0).then(None).otherwise(pl.col(name)).alias(name) for name, n in counts.items() if n
    )


def duration_column(batch: Batch, name: str, unit: TimeUnit) -> pl.Series | None:
    """A latency that the source measured, in ns; ``None`` where the file has no such column."""
    if name not in batch.frame.columns:
        return None
    series = batch.frame[name]
    return casts.duration_ns(casts.clean_text(series) if isinstance(series.dtype, pl.String) else series, UNIT_NS[unit])
