"""Any table with a column mapping: the user says which columns are arrival, prompt tokens and output tokens."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import polars as pl

from replay.errors import FieldError, TraceError, curable
from replay.traces.cleaning import Ledger
from replay.traces.formats.base import Match, TableFormat
from replay.traces.formats.leaving import with_cancel_after
from replay.traces.formats.outcomes import Outcomes, kind_of, outcome_columns, with_outcomes
from replay.traces.formats.own import check_blocks
from replay.traces.jsoncells import json_cells
from replay.traces.names import check_names, jumps
from replay.traces.options import MAPPED_FIELDS, REQUIRED_FIELDS, IngestOptions, MappedField, TimeUnit
from replay.traces.rows import Sample, Table
from replay.traces.separate import check_separate
from replay.traces.times import unit_in_name
from replay.traces.tokenshape import check_unmapped

_SYNONYMS: dict[MappedField, tuple[str, ...]] = {
    "arrival": (
        "arrival", "arrival_time", "arrived_at", "arrival_timestamp", "timestamp", "time", "ts", "datetime",
        "start_time", "starttime", "created_at", "request_time", "request_start", "created", "received_at", "start",
        "timestamp_s", "request_created_at", "log_time", "arrival_time_us", "arrival_time_ns",
    ),
    "prompt_tokens": (
        "prompt_tokens", "input_tokens", "input_length", "prompt_length", "prompt_len", "input_len", "context_tokens",
        "contexttokens", "num_prefill_tokens", "prompt_size", "request_tokens", "n_input", "isl", "tokens_in",
        "prompttokens", "input_toks",
    ),
    "output_tokens": (
        "output_tokens", "completion_tokens", "output_length", "output_len", "generated_tokens", "generatedtokens",
        "num_decode_tokens", "token_size", "response_tokens", "n_output", "osl", "tokens_out", "completiontokens",
        "output_toks",
    ),
}  # fmt: skip


def _normal(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


_TOKEN_WORDS = {"tok", "toks", "token", "tokens", "len", "length", "num", "n", "count", "size"}
_WORDS: dict[MappedField, tuple[set[str], set[str]]] = {
    "arrival": (
        {"ts", "time", "timestamp", "datetime", "date", "arrival", "arrived", "created", "received", "start", "when"},
        {"request", "req", "at", "s", "ms", "us", "ns", "utc"},
    ),
    "prompt_tokens": ({"in", "input", "prompt", "prefill", "context", "isl"}, _TOKEN_WORDS),
    "output_tokens": ({"out", "output", "completion", "generated", "decode", "response", "osl"}, _TOKEN_WORDS),
}
"""Words that mean a field, and words that may stand beside them."""


def _means(field: MappedField, column: str) -> bool:
    """Whether every word of the column's name (``request_ts``, ``inTok``) is one of the field's, and one means it."""
    words = {word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()) if word}
    telling, beside = _WORDS[field]
    return bool(words & telling) and words <= telling | beside


def suggestions(columns: tuple[str, ...]) -> dict[MappedField, list[str]]:
    """Columns whose names usually mean a required field. They are shown, never taken without the user's word."""
    found: dict[MappedField, list[str]] = {}
    for field, names in _SYNONYMS.items():
        usual = [column for column in columns if _normal(column) in names or _normal(column.split(".")[-1]) in names]
        found[field] = usual or [column for column in columns if _means(field, column.rsplit(".", 1)[-1])]
    return found


def unknown_columns(sample: Sample) -> TraceError:
    """The refusal of a table that no format recognises: what was found, what is needed, a mapping to try."""
    _check_first_line(sample)
    guess = suggestions(sample.columns)
    guess["arrival"] = [column for column in guess["arrival"] if not jumps(sample, column)]
    pairs = [f"{field}={found[0] if found else 'COLUMN'}" for field, found in guess.items()]
    seen = ", ".join(sample.columns[:40]) + (", ..." if len(sample.columns) > 40 else "")
    cure = (
        f"say which column is which, e.g. {' '.join(f'--map {shlex.quote(pair)}' for pair in pairs)} on the command "
        f"line, or {', '.join(pairs)} on the upload page, or each of these as a map parameter of the query"
    )
    errors = []
    for field in REQUIRED_FIELDS:
        likely = guess[field]
        hint = f"; likely {' or '.join(likely[:3])}" if likely else "; no column's name suggests it"
        errors.append(FieldError(f"{field} is needed{hint}", field=field, rule="unknown_columns", cure=cure))
    return TraceError(
        "trace.unknown_columns",
        f"no known format has these columns. Found ({sample.container}): {seen}. "
        f"Needed: {', '.join(REQUIRED_FIELDS)}. Give a column mapping: {cure}",
        errors,
    )


def _check_first_line(sample: Sample) -> None:
    """A comment or a spreadsheet's ``sep=;`` above the header is taken for it; no mapping cures that."""
    first = sample.columns[0].strip() if sample.columns else ""
    if first.startswith("#") or first.lower().startswith("sep="):
        cure = "remove the lines above the header"
        raise curable("trace.no_header", f"line 1 is not a header: {first[:40]!r}", cure, "file", line=1)
    if len(sample.columns) == 1 and sample.container == "csv" and len(first.split()) >= len(REQUIRED_FIELDS):
        cure = "separate the columns by commas, tabs, semicolons or bars"
        raise curable("trace.separator", f"the header is one cell: {first[:80]!r}", cure, "file", line=1)


def _cancel_column(column: str | None, ledger: Ledger) -> dict[str, TimeUnit]:
    """The column of the times after which clients left, with its unit.

    Raises:
        TraceError: ``trace.cancel_unit``: its name does not say in which unit.
    """
    if column is None:
        return {}
    unit = unit_in_name(column)
    if unit is None:
        cure = f"rename the column so that it ends in its unit, e.g. {column}_s or {column}_ms"
        what = f"cancel_after is mapped to {column!r}, whose name does not say in which unit it is"
        raise curable("trace.cancel_unit", what, cure, "mapping", column=column)
    ledger.assumed["cancel_after"] = f"{column}, in {unit} since the request was sent"
    return {column: unit}


class GenericFormat:
    """A table read by the user's mapping."""

    name = "generic"
    title = "Table with a column mapping"
    needs = ("a mapping of arrival, prompt_tokens, output_tokens",)

    def detect(self, sample: Sample) -> Match | None:
        """Never by itself: a mapping asks for it."""
        return None

    def block_size(self, options: IngestOptions) -> int | None:
        """The option's."""
        return options.block_size

    def read(self, table: Table, options: IngestOptions, ledger: Ledger) -> Iterator[pl.DataFrame]:
        """See Format.

        Raises:
            TraceError: a required field not mapped, or a column that is not there.
        """
        table = json_cells(table, options.mapping.values())
        sample = table.sample
        if any(field not in options.mapping for field in REQUIRED_FIELDS):
            raise unknown_columns(sample)
        absent = [f"{field}={column}" for field, column in options.mapping.items() if column not in sample.columns]
        if absent:
            seen = ", ".join(sample.columns[:40])
            cure = f"map to a column that is there: {seen}"
            raise TraceError(
                "trace.unknown_columns",
                f"the mapping names columns that the file does not have: {', '.join(absent)}. Found: {seen}",
                [
                    FieldError(cure, field="mapping", column=item.split("=", 1)[1], rule="unknown_columns", cure=cure)
                    for item in absent
                ],
            )
        twice = sorted(
            {column for column in options.mapping.values() if list(options.mapping.values()).count(column) > 1}
        )
        if twice:
            cure = "map each field to a column of its own"
            raise TraceError(
                "trace.mapping",
                f"one column is mapped to two fields: {', '.join(twice)}",
                [FieldError(cure, field="mapping", column=twice[0], rule="mapping", cure=cure)],
            )
        check_names(sample, options, ledger)
        check_unmapped(sample, options.mapping, options)
        check_separate(sample, options.mapping, options)
        columns = {field: options.mapping[field] for field in MAPPED_FIELDS if field in options.mapping}
        outcomes = _outcomes(sample, options)
        outcomes.say(sample, ledger)
        cancels = _cancel_column(columns.pop("cancel_after", None), ledger)
        inner = TableFormat(
            name=self.name,
            title=self.title,
            columns=columns,
            required=tuple(columns.values()),
            containers=(sample.container,),
            cached_inside=None,
            checks_total=True,
            extra=(*outcomes.columns, *cancels),
            hook=with_outcomes(
                lambda frame, batch, reading: with_cancel_after(check_blocks(frame, batch, reading), batch, cancels),
                outcomes,
            ),
        )
        return inner.read(table, options, ledger)


def _outcomes(sample: Sample, options: IngestOptions) -> Outcomes:
    """What says how requests ended: the column that is mapped to status, else those whose names say so."""
    mapped = options.mapping.get("status")
    if mapped is not None:
        return Outcomes({mapped: kind_of(mapped) or "word"}, asks=False)
    taken = set(options.mapping.values())
    return Outcomes({} if options.ignore_status else outcome_columns(sample, taken), asks=True)


FORMATS = (GenericFormat(),)
