"""Rows of a table that are no requests of their own: parts of one call, rows around calls, several calls in one row.

Looked for in the first rows of the file, as formats are: an export is of one kind throughout.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from replay.errors import TraceError, curable
from replay.traces.formats.values import known, number
from replay.traces.options import IngestOptions, MappedField
from replay.traces.rows import Sample
from replay.traces.words import leaf

_REQUEST_ID = re.compile(r"^(?:x_)?(?:(?:api|llm|litellm)_)?(?:request|req|call|completion|response|generation)_?id$")
_ANY_ID = re.compile(r"^(?:\w+_)?u?u?id$")
_PARENT_ID = re.compile(r"^parent_?(?:\w+_)?id$")
_PARENT_SPAN = re.compile(r"^parent_?(?:span|run|observation)_?id$")
_KIND = re.compile(r"(?:^|_)(?:type|kind|event|phase|stage)$")
_AROUND = {"chain", "agent", "workflow", "tool", "trace", "span", "root", "graph", "pipeline", "retriever", "session"}
_CALLS = {"llm", "generation", "chat", "completion", "chat_completion", "model", "chat_model", "text_completion"}
_BEGINS = {"start", "started", "begin", "begun", "received", "request", "request_start", "request_started", "sent"}
_ENDS = {"end", "ended", "finish", "finished", "complete", "completed", "done", "response", "request_end", "success"}
_SEVERAL = re.compile(
    r"^(?:n|best_of|batch_size|turns|steps|(?:num|n|number|total)_(?:of_)?(?:choices|completions|samples|sequences|"
    r"return_sequences|turns|steps|rounds|generations|iterations)|(?:turn|step|choice|completion|sample)s?_count)$"
)
_SESSION = re.compile(r"^(?:session|conversation|thread|chat)_?(?:id|key|uuid)?$")
_RISING_SHARE = 0.95
_MIN_ROWS = 20
_MOST_SHARE = 0.5
_MIN_WRAPPERS = 3


def check_separate(sample: Sample, columns: Mapping[MappedField, str], options: IngestOptions) -> None:
    """Refuses a table whose first rows are no requests of their own. ``columns``: what is read as which field.

    Raises:
        TraceError: ``trace.repeated_ids``, ``trace.two_rows_a_call``, ``trace.wrappers``, ``trace.aggregate``.
    """
    beside = [column for column in sample.columns if column not in columns.values()]
    if not options.keep_duplicates:
        _check_ids(sample, beside)
    if not options.rows_are_requests:
        _check_kinds(sample, beside, columns)
        _check_parents(sample, beside, columns)
        _check_several(sample, beside)
        _check_sums(sample, columns)


def _check_ids(sample: Sample, columns: list[str]) -> None:
    for column in columns:
        if not _REQUEST_ID.match(leaf(column)) and leaf(column) not in ("id", "uuid"):
            continue
        names = Counter(str(row[column]) for row in sample.rows if known(row.get(column)))
        rows = names.total()
        shared = sum(n for n in names.values() if n > 1)
        few = len(names) < 2 or (leaf(column) in ("id", "uuid") and 10 * len(names) < rows)
        if rows >= _MIN_ROWS and shared >= _MOST_SHARE * rows and not few:
            raise repeated_ids(f"{shared} of the first {rows} rows share their {column!r} with another row", column)


def repeated_ids(what: str, column: str) -> TraceError:
    """The refusal of rows of which several are of one call."""
    cure = (
        "keep one row a call, with the time of its first and the counts of its last; if they are different requests, "
        "give keep_duplicates=true"
    )
    return curable("trace.repeated_ids", what, cure, "keep_duplicates", column=column)


def _check_kinds(sample: Sample, beside: list[str], columns: Mapping[MappedField, str]) -> None:
    for column in beside:
        if not _KIND.search(leaf(column)):
            continue
        kinds = {
            re.sub(r"[^a-z]+", "_", str(row[column]).lower()).strip("_")
            for row in sample.rows
            if known(row.get(column)) and _count(row, columns["prompt_tokens"])
        }
        if kinds & _AROUND and kinds & _CALLS:
            raise _around(f"rows whose {column!r} is {_some(kinds & _AROUND)} have token counts, as", column, kinds)
        if kinds & _BEGINS and kinds & _ENDS:
            what = f"the column {column!r} says {_some(kinds & _BEGINS)} and {_some(kinds & _ENDS)}: two rows a call"
            cure = "keep the rows of one kind, which have both counts; or give rows_are_requests=true"
            raise curable("trace.two_rows_a_call", what, cure, "rows_are_requests", column=column)


def _around(what: str, column: str, kinds: set[str]) -> TraceError:
    detail = f"{what} the calls inside them do: they would count twice"
    cure = (
        f"keep only the rows of model calls (where {column!r} is {_some(kinds & _CALLS)}); if every row is one "
        "request, give rows_are_requests=true"
    )
    return curable("trace.wrappers", detail, cure, "rows_are_requests", column=column)


def _check_parents(sample: Sample, beside: list[str], columns: Mapping[MappedField, str]) -> None:
    """Rows with counts that others with counts name as their parent: spans around them, whatever their counts. Where
    the parent may be the turn before, only those that have the tokens of all their children, or of one."""
    parent = next((column for column in beside if _PARENT_ID.match(leaf(column))), None)
    if parent is None:
        return
    parents = {str(row[parent]) for row in sample.rows if known(row.get(parent))}
    named = {
        column: parents & {str(row[column]) for row in sample.rows if known(row.get(column))}
        for column in beside
        if column != parent and _ANY_ID.match(leaf(column))
    }
    own = max(named, key=lambda column: len(named[column]), default=None)
    if own is None:
        return
    inner: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in sample.rows:
        inner[str(row.get(parent))].append(_lengths(row, columns))
    outer = [(_lengths(row, columns), inner[str(row[own])]) for row in sample.rows if str(row.get(own)) in inner]
    outer = [(whole, parts) for whole, parts in outer if whole[0] and any(prompt for prompt, _ in parts)]
    again = [whole for whole, parts in outer if whole in parts or whole == tuple(map(sum, zip(*parts, strict=True)))]
    around = outer if _PARENT_SPAN.match(leaf(parent)) else again if len(set(again)) > 1 else []
    if len(around) >= _MIN_WRAPPERS and len(around) >= _MOST_SHARE * len(outer):
        what = f"{len(around)} of the first rows have token counts, and so have the rows that name them in {parent!r}"
        cure = "keep only the rows of model calls; if every row is one request, give rows_are_requests=true"
        raise curable("trace.wrappers", f"{what}: they would count twice", cure, "rows_are_requests", column=parent)


def _check_several(sample: Sample, beside: list[str]) -> None:
    for column in beside:
        if not _SEVERAL.match(leaf(column)):
            continue
        counts = [int(found) for row in sample.rows if (found := number(row.get(column))) is not None]
        if any(count > 1 for count in counts) and len(set(counts)) < max(2, len(counts) // 2):
            what = f"the column {column!r} says that rows hold several calls or answers (up to {max(counts)})"
            cure = "write one row for each; if every row is one request, give rows_are_requests=true"
            raise curable("trace.aggregate", what, cure, "rows_are_requests", column=column)


def _check_sums(sample: Sample, columns: Mapping[MappedField, str]) -> None:
    """Both lengths rise from row to row of a session: sums of its calls so far."""
    for column in sample.columns:
        if column != columns.get("session") and not _SESSION.match(leaf(column)):
            continue
        before: dict[str, tuple[int, int]] = {}
        steps = risen = 0
        for row in sample.rows:
            name, (prompt, output) = str(row.get(column)), _lengths(row, columns)
            if name in before:
                steps += 1
                risen += prompt > before[name][0] and output > before[name][1]
            before[name] = prompt, output
        if steps >= _MIN_ROWS and risen >= _RISING_SHARE * steps and len(before) > 1:
            what = f"nearly every row has more of both tokens than the row before of its {column!r}: sums so far"
            cure = "write what each call has; if every row is one request, give rows_are_requests=true"
            raise curable("trace.aggregate", what, cure, "rows_are_requests", column=column)


def _count(row: Mapping[str, object], column: str) -> int:
    return int(number(row.get(column)) or 0)


def _lengths(row: Mapping[str, object], columns: Mapping[MappedField, str]) -> tuple[int, int]:
    return _count(row, columns["prompt_tokens"]), _count(row, columns["output_tokens"])


def _some(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))
