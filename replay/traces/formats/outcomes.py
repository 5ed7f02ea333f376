"""How requests ended, from columns of well-known names in tables that nobody defined: a failed call that is taken for a
good one is silently wrong, so what such a column says is read, and what it says unclearly is asked about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces.casts import NULL_WORDS, STATUS_OF, clean_text
from replay.traces.cleaning import Ledger
from replay.traces.formats.base import Hook, Reading
from replay.traces.formats.values import http_status
from replay.traces.rows import JSON_CONTAINERS, Batch, Sample
from replay.traces.words import leaf, snake

Kind = Literal["word", "good", "bad", "cut"]

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        (
            "status", "status_code", "http_status", "http_status_code", "http_code", "response_status",
            "response_status_code", "response_code", "request_status", "call_status", "finish_reason",
            "finished_reason", "stop_reason", "done_reason", "finish_status",
        ),
        "word",
    ),
    **dict.fromkeys(("success", "succeeded", "successful", "is_success", "ok", "is_ok"), "good"),
    **dict.fromkeys(
        (
            "error", "errors", "err", "error_code", "error_type", "error_message", "error_msg", "error_str", "is_error",
            "has_error", "failed", "is_failed", "failure", "exception", "timed_out", "is_timeout",
        ),
        "bad",
    ),
    **dict.fromkeys(("cancelled", "canceled", "aborted", "is_cancelled", "is_canceled", "is_aborted"), "cut"),
}  # fmt: skip
_WEAK = ("outcome", "result", "state", "code")
"""Names of other things as often: read where all values of the sample are understood."""
_ENDS = {
    **dict.fromkeys(
        (
            "successful", "done", "eos", "eos_token", "end_turn", "max_tokens", "max_output_tokens", "max_length",
            "stop_sequence", "stop_token", "tool_calls", "tool_use", "function_call", "content_filter", "refusal",
            "safety", "recitation", "model_length", "pause_turn", "incomplete",
        ),
        "ok",
    ),
    **dict.fromkeys(
        (
            "errored", "errors", "timed_out", "timedout", "time_out", "exception", "rejected", "rate_limited",
            "rate_limit", "throttled", "overloaded", "internal_error", "server_error", "bad_request",
            "invalid_request", "unavailable", "service_unavailable", "denied", "unauthorized", "forbidden",
        ),
        "failed",
    ),
    **dict.fromkeys(
        (
            "user_cancelled", "user_canceled", "client_disconnected", "client_closed", "client_closed_request",
            "interrupted",
        ),
        "aborted",
    ),
    **dict.fromkeys(("pending", "in_progress", "running", "queued"), "unknown"),
    **STATUS_OF,
}  # fmt: skip
_LATE = ("error", "status", "status_code")
_TRUE, _FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n", "[]", "{}")
_NOTHING = (*NULL_WORDS, "nan", "nil", "undefined", "<na>", "nat", "<null>")
"""Also what programs write into a column of text where there is nothing."""
_NO_ERROR = re.compile(r"0\.0|0+|(?:0+[_:]+)?(?:no_?errors?|none|ok|success)(?:_found|_occurred)?")
_RANK = ("", "unknown", "ok", "cache_hit", "failed", "aborted")
"""Of what several columns say of a request, the worst counts."""
_CODE = re.compile(r"(\d{3})(?:\.0|[ _].*)?")
_MAX_TEXT = 100
_TELLING_ROWS = 10


def kind_of(column: str) -> Kind | None:
    """What a column of this name (``a.b``: nested) says, if its name is one of those known."""
    parts = [snake(part).strip("_") for part in column.split(".")]
    return _KINDS.get(parts[-1]) or _KINDS.get("_".join(parts[-2:]))


def outcome_columns(sample: Sample, taken: set[str]) -> dict[str, Kind]:
    """The columns of a sample that say how requests ended, but for those that are read as something else."""
    found: dict[str, Kind] = {}
    for column in sample.columns:
        kind = kind_of(column)
        cells = [row.get(column) for row in sample.rows]
        if column in taken or any(isinstance(cell, list) for cell in cells):
            continue
        if kind is None and leaf(column).strip("_") in _WEAK:
            said = [outcome("word", str(cell)) for cell in cells if cell is not None]
            kind = "word" if said and None not in said and any(said) else None
        inside = any(column.startswith(f"{outer}.") for outer in found)
        if kind is not None and not inside and (kind == "bad" or not any(isinstance(cell, dict) for cell in cells)):
            found[column] = kind
    if sample.container in JSON_CONTAINERS:  # keys that only failed calls have may come after the sample
        found |= {name: _KINDS[name] for name in _LATE if name not in sample.columns and name not in taken}
    return found


def outcome(kind: Kind, cell: str) -> str | None:
    """The status that a cell says; empty: nothing; ``None``: it is not understood."""
    word = re.sub(r"[\s-]+", "_", cell.strip().lower())
    if word in _NOTHING or cell.strip().lower() in _NOTHING:
        return ""
    code = _CODE.fullmatch(cell.strip().lower())
    by_code = http_status(int(code.group(1))) if code else "unknown"
    if kind == "word":
        return _ENDS.get(word) or (by_code if by_code != "unknown" else None)
    if kind == "cut":
        return "aborted" if word in _TRUE else "" if word in _FALSE else None
    if kind == "good":
        return "ok" if word in _TRUE else "failed" if word in _FALSE else _ENDS.get(word)
    if word in _FALSE or _NO_ERROR.fullmatch(word):
        return "ok"
    said = _ENDS.get(word, by_code)
    return said if said in ("ok", "aborted") and word not in _TRUE else "failed"


def _is_plain(cell: object) -> bool:
    """Whether a cell of a column of errors says in so many words how a call ended."""
    text = str(cell).strip().lower()
    return re.sub(r"[\s-]+", "_", text) in {*_ENDS, *_TRUE} or _CODE.fullmatch(text) is not None


@dataclass(frozen=True)
class Outcomes:
    """Reads the status of each row from ``columns``. ``asks``: a value that is not understood refuses the file; else it
    is an unknown status, and the report says so. ``mappable``: a mapping of one column may answer."""

    columns: Mapping[str, Kind]
    asks: bool
    mappable: bool = True

    def say(self, sample: Sample, ledger: Ledger) -> None:
        """Which columns of the sample are read, for the report.

        Raises:
            TraceError: ``trace.ambiguous_status``: a column of errors says something in most rows, as one does that
                says "fine" in words of its own.
        """
        for column, kind in self.columns.items() if self.asks else ():
            cells = [row.get(column) for row in sample.rows]
            said = [cell for cell in cells if isinstance(cell, str) and outcome(kind, cell) == "failed"]
            odd = Counter(cell for cell in said if not _is_plain(cell))
            if kind == "bad" and 2 * odd.total() > len(cells) >= _TELLING_ROWS:
                raise self._unclear(column, odd.most_common(1)[0][0], ledger)
        seen = [column for column in self.columns if column in sample.columns]
        if seen:
            ledger.assumed["status"] = f"read from {', '.join(seen)}"

    def read(self, frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
        """The frame with ``status``: null where nothing is said.

        Raises:
            TraceError: ``trace.ambiguous_status``.
        """
        ranks: list[pl.Series] = []
        for column, kind in self.columns.items():
            if column in batch.frame.columns:
                ranks.append(self._ranks(batch.frame[column], column, kind, reading.ledger).alias(f"rank {len(ranks)}"))
        if not ranks:
            return frame
        worst = pl.DataFrame(ranks).select(pl.max_horizontal(pl.all())).to_series()
        names = pl.Series(_RANK).gather(worst.fill_null(0))
        return frame.with_columns(names.set(names == "", None).alias("status"))

    def _ranks(self, cells: pl.Series, column: str, kind: Kind, ledger: Ledger) -> pl.Series:
        if isinstance(cells.dtype, (pl.List, pl.Struct)):
            return _nothing(len(cells))
        texts = clean_text(cells.cast(pl.String)).str.slice(0, _MAX_TEXT)
        said = {text: outcome(kind, text) for text in texts.drop_nulls().unique().to_list()}
        odd = sorted(text for text, status in said.items() if status is None)
        if odd and self.asks:
            raise self._unclear(column, odd[0], ledger)
        if odd:
            shown = ", ".join(ledger.shown(text) for text in odd[:3])
            ledger.warn("status", f"some values of {column!r}, such as {shown}, are no status that is known: unknown")
        rank = {text: _RANK.index("unknown" if status is None else status) for text, status in said.items()}
        return texts.replace_strict(rank, default=0, return_dtype=pl.Int64) if rank else _nothing(len(cells))

    def _unclear(self, column: str, text: str, ledger: Ledger) -> TraceError:
        named = ("map", f"map=status={column}", "it is the status, and what is not understood is unknown")
        if not self.mappable:
            named = ("file", "a column status in the file (ok, failed, aborted)", "it tells which calls failed")
        choices = (named, ("ignore_status", "ignore_status=true", "it says nothing about failed calls"))
        return TraceError(
            "trace.ambiguous_status",
            f"the name of the column {column!r} says that it tells failed calls from good ones, and a value such as "
            f"{ledger.shown(text[:_MAX_TEXT])} is not understood. Write ok, failed or aborted"
            + (", or say what it is by mapping a column to status" if self.mappable else " in a column named status")
            + ", or give the parameter ignore_status",
            [
                FieldError(f"{what}: then give {cure}", field=field, column=column, rule="ambiguous_status", cure=cure)
                for field, cure, what in choices
            ],
        )


def _nothing(rows: int) -> pl.Series:
    return pl.repeat(0, rows, dtype=pl.Int64, eager=True)


def with_outcomes(hook: Hook, outcomes: Outcomes) -> Hook:
    """``hook``, with the status of each row read before it."""
    return lambda frame, batch, reading: hook(outcomes.read(frame, batch, reading), batch, reading)
