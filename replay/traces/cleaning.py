"""The accounting of an ingest: every row read is kept, or rejected under one rule with its line and cure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces.options import IngestOptions
from replay.traces.pseudonyms import shown
from replay.traces.report import Rejection
from replay.traces.rows import LINE, Batch, Fault

FIRST_REJECTIONS = 100

CURES = {
    "not_utf8": "write the line as UTF-8",
    "unbalanced_quotes": "quote whole cells and double the quotes inside them",
    "too_few_cells": "give the row as many cells as the header",
    "too_many_cells": "give the row as many cells as the header; quote a cell that holds the separator",
    "malformed_json": "write one whole JSON object on the line",
    "nested_too_deep": "flatten the object",
    "not_text": "write text without \\u0000 and without halves of surrogate pairs (\\ud800 to \\udfff)",
    "not_an_object": "write a JSON object, not another value",
    "duplicate_key": "give each key once in an object",
    "not_block_ids": "give a list of integers from 0 to 2^64 - 1",
    "missing_arrival": "give every request the time it arrived",
    "not_a_time": "write a number, or YYYY-MM-DD HH:MM:SS with optional fraction and zone, such as Z or +01:00",
    "time_out_of_range": "times must lie between 2000 and 2100, or be a number of units from 0 up; check the unit",
    "other_time_unit": "write all times in one unit",
    "far_off": "correct the time, which lies far from all others; if it is real, give keep_far_off=true",
    "time_does_not_exist": "this local time was skipped by daylight saving; write times with their offset",
    "grouped_digits": "write whole numbers without separators: 1200",
    "rounded": "write all digits: 1.55e+03 may be any number from 1,545 to 1,555",
    "not_a_number": "write a whole number of tokens, or leave the cell empty where it is unknown",
    "not_an_integer": "tokens and lines are whole numbers",
    "negative": "tokens cannot be negative",
    "not_a_duration": "write a number from 0 up, or leave the cell empty where the client stayed",
    "tokens_above_limit": "check the column; limits.max_tokens_per_request, or for outputs "
    "limits.max_output_tokens_per_request, lets a real request through",
    "cached_above_prompt": "prompt tokens must include the cached ones; add them up before the upload",
    "reasoning_above_output": "output tokens must include the reasoning ones; add them up before the upload",
    "text_too_long": "shorten the text or leave the column out of the mapping",
    "block_count": "the number of block ids must be the prompt's tokens over the block size, rounded up",
    "too_many_blocks": "check the block ids; limits.max_blocks_per_request lets more through",
    "other_block_size": "one file has one block size; split the file",
    "duplicate_request": "the same request is in the file twice; remove the copy",
    "contradicts": "two fields of the row contradict each other; check the export",
    "not_unpacked": "the record's layout is not as documented; check the export",
    "missing_predecessor": "a turn with a delay needs an earlier turn of its session in the file",
    "negative_delay": "a delay is a number from 0 up",
}


@dataclass
class Ledger:
    """Counts of one ingest. ``account`` is called once a batch, in file order."""

    options: IngestOptions
    rows_read: int = 0
    bounds_ns: tuple[int, int] | None = None
    """Arrivals outside are far off all others, as a first reading of the file has shown."""
    survey: dict[str, Any] = field(default_factory=dict)
    """What a format has learned from a first reading of the file, by its own names."""
    again: bool = False
    """Whether the format wants the file read again, with ``survey`` known."""
    blank: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    by_place: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """Rejected rows by rule and column."""
    first: list[Rejection] = field(default_factory=list)
    zero_prompt: int = 0
    zero_output: int = 0
    warnings: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    not_requests: Counter[str] = field(default_factory=Counter)
    """Records of the file that are no requests (tool calls, spans around calls), by kind: neither kept nor rejected."""
    block_size: int | None = None
    """Tokens of a prefix block, where the file itself says."""
    doubtful_unit: str | None = None
    """The column of a format whose numbers are often written in another unit than its publisher's."""
    retried: int = 0
    """Requests whose id an earlier one had, at another time."""
    arrivals_only: str | None = None
    """Why a file without any lengths is read all the same: its arrivals are sure."""
    time_column: str | None = None
    """What the file calls its numeric times."""
    whole_times: bool = False
    """Whether the numeric times of the first batch are whole numbers of their unit."""
    time_unit: str = ""
    time_zone: str | None = None

    @property
    def rows_rejected(self) -> int:
        return sum(self.by_rule.values())

    def account(self, batch: Batch, rejected: pl.DataFrame, places: Mapping[str, str] | None = None) -> None:
        """Books a batch: its faults, and ``rejected`` (columns ``LINE``, ``rule``, ``column``), a part of its frame.
        ``places`` says what the frame's columns are called in the file, where that differs.

        Raises:
            TraceError: more rows than the limit allows.
        """
        self.rows_read += batch.frame.height + len(batch.faults)
        self.blank += batch.blank
        if self.rows_read > self.options.limits.max_rows:
            limit = f"{self.options.limits.max_rows:,}"
            cure = "split the file by time, or raise limits.max_rows"
            raise TraceError(
                "trace.too_many_rows",
                f"the file has more than {limit} rows",
                [FieldError(f"at most {limit} rows are read", field="file", rule="max_rows", cure=cure)],
            )
        self.reject(batch.faults)
        if rejected.height:
            for (rule, column), group in rejected.group_by("rule", "column"):
                self.by_rule[str(rule)] += group.height
                place = None if column is None else str(column)
                self.by_place[str(rule), (places or {}).get(place, place) if place else None] += group.height
            first = rejected.sort(LINE).head(FIRST_REJECTIONS).select(LINE, "rule", "column")
            self._keep(
                [
                    Fault(line, rule, (places or {}).get(column, column), _cell(batch.frame, line, column))
                    for line, rule, column in first.rows()
                ]
            )

    def reject(self, faults: list[Fault]) -> None:
        """Books rows that a container or a format took out."""
        self.by_rule.update(fault.rule for fault in faults)
        self.by_place.update((fault.rule, fault.column) for fault in faults)
        self._keep(faults)

    def _keep(self, faults: list[Fault]) -> None:
        new = [
            Rejection(
                line=f.line,
                column=f.column,
                rule=f.rule,
                cure=CURES.get(f.rule, ""),
                value=None if f.value is None else self.shown(f.value),
            )
            for f in faults
        ]
        self.first = sorted(self.first + new, key=lambda rejection: rejection.line)[:FIRST_REJECTIONS]

    def shown(self, cell: str) -> str:
        """What a message may say of a cell."""
        return shown(cell, hidden=self.options.ids == "hash")

    def warn(self, key: str, text: str) -> None:
        """A sentence for the report; one a key."""
        self.warnings.setdefault(key, text)

    def check(self) -> None:
        """Fails an ingest that kept nothing, or that lost too much.

        Raises:
            TraceError: ``trace.no_rows``, ``trace.too_many_rejected``, with the first row of each rule and column.
        """
        firsts = {(r.rule, r.column): r for r in reversed(self.first)}
        errors = [
            FieldError(
                f"{r.rule} in {n:,} row{'s' if n > 1 else ''}" + ("" if r.value is None else f", first {r.value}"),
                line=r.line,
                column=r.column,
                rule=r.rule,
                cure=r.cure,
            )
            for place, n in self.by_place.most_common()
            if (r := firsts.get(place)) is not None
        ]
        if self.rows_read == 0:
            cure = "upload a file with at least one request"
            others = ", ".join(f"{n:,} {kind}" for kind, n in self.not_requests.most_common(10))
            raise TraceError(
                "trace.no_rows",
                f"the file holds no requests, only {others}" if others else "the file holds no rows, at most a header",
                [FieldError(cure, field="file", rule="no_rows", cure=cure)],
            )
        grouped = self.by_rule["grouped_digits"]
        if grouped:
            cure = CURES["grouped_digits"]
            raise TraceError(
                "trace.grouped_digits",
                f"{grouped:,} of {self.rows_read:,} rows have token counts with separators of thousands: without those "
                f"rows the largest requests would be missing; {cure}",
                [error for error in errors if error.rule == "grouped_digits"]
                or [FieldError(cure, field="prompt_tokens", rule="grouped_digits", cure=cure)],
            )
        share = self.rows_rejected / self.rows_read
        if self.rows_rejected == self.rows_read or share > self.options.max_rejected_share:
            counts = ", ".join(f"{rule} {n:,}" for rule, n in self.by_rule.most_common())
            raise TraceError(
                "trace.too_many_rejected",
                f"{self.rows_rejected:,} of {self.rows_read:,} rows ({share:.1%}) cannot be read: {counts}. "
                f"At most {self.options.max_rejected_share:.1%} may be lost (max_rejected_share)",
                errors,
            )


def _cell(frame: pl.DataFrame, line: int, column: str | None) -> str | None:
    """What the file has in a rejected cell; ``None`` where it is empty or not one cell."""
    if column is None or column not in frame.columns:
        return None
    cells = frame.filter(pl.col(LINE) == line)[column]
    value = cells[0] if len(cells) else None
    if value is None or isinstance(value, pl.Series):
        return None
    return str(value)
