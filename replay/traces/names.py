"""What the name of a column says against the field it is mapped to: other counts, limits, sums so far, durations."""

from __future__ import annotations

import re
from itertools import pairwise

from replay.errors import curable
from replay.traces.cleaning import Ledger
from replay.traces.formats.base import TOKEN_FIELDS
from replay.traces.formats.values import number
from replay.traces.options import IngestOptions, MappedField
from replay.traces.rows import Sample
from replay.traces.tokenshape import total_column
from replay.traces.words import leaf, snake

_NOT_TOKENS = re.compile(
    r"(?:^|_)(chars?|characters?|bytes?|kb|words?|cost|price|usd|spend|messages?|chunks?|seconds?|latency)(?:_|$)"
)
_OF_MANY = re.compile(
    r"(?:^|_)(avg|average|mean|median|p\d\d|percentile|std|stddev|tps|per_s|per_sec|per_second|rate|throughput|"
    r"buckets?|bins?|binned|rounded|deltas?|diffs?)(?:_|$)"
)
_SO_FAR = re.compile(r"(?:^|_)(cumulative|cum|accumulated|lifetime|running_total|so_far|total_token_usage)(?:_|$)")
_THOUSANDS = re.compile(r"(?:^|_)(ktok(?:en)?s?|thousands?)(?:_|$)")
_LIMITS = re.compile(r"(?:^|_)max(?:imum)?_(?:\w+_)?(?:tokens?|length|len|toks)$")
_ESTIMATES = re.compile(r"(?:^|_)(?:est|estimated?|approx|approximate|billed|billable)(?:_|$)")
_PARTS = re.compile(r"(?:^|_)(text|audio|image|video|system|user|history|query|question|tool|retrieved|rag)(?:_|$)")
_UNIT = r"(?:_(?:time|s|sec|secs|seconds|ms|msec|millis|milliseconds|us|ns))*$"
_ENDS = re.compile(
    r"(?:^|_)(?:end(?:ed)?|finish(?:ed)?|complet(?:ed|ion)|done|stop(?:ped)?|response)(?:_(?:at|time|ts|s|ms))*$"
)
_DURATIONS = re.compile(
    r"(?:^|_)(inter_?arrivals?|iat|gap|delta|latency|duration|elapsed|ttft|took|processing_time|delay)" + _UNIT
)
_MAYBE_DURATIONS = re.compile(r"^(?:request|response|process)_time" + _UNIT + r"|^time_taken" + _UNIT)
"""Times in some logs, durations in others (nginx)."""
_LONG_S = 1e6


def check_names(sample: Sample, options: IngestOptions, ledger: Ledger) -> None:
    """Refuses lengths and times from columns whose names say that they hold something else; says where arrivals are
    ends, or lengths estimates.

    Raises:
        TraceError: ``trace.not_tokens``, ``trace.not_times``.
    """
    for field in TOKEN_FIELDS:
        column = options.mapping.get(field)
        if column is not None:
            _check_tokens(field, column, sample, ledger)
    arrival = options.mapping["arrival"]
    found = _DURATIONS.search(leaf(arrival))
    if found is None and jumps(sample, arrival):
        found = _MAYBE_DURATIONS.search(leaf(arrival))
    if found is not None:
        cure = (
            f"map arrival to the time when a request was sent; if {arrival!r} counts from the first request, rename it"
        )
        what = f"arrival is mapped to {arrival!r}, whose name says that it holds a duration"
        raise curable("trace.not_times", what, cure, "mapping", column=arrival)
    if _ENDS.search(leaf(arrival)):
        ledger.warn(
            "ends",
            f"the name of {arrival!r} says when requests ended: if so, they arrived earlier, long ones more than short "
            "ones, and bursts look flatter than they were",
        )


def jumps(sample: Sample, column: str) -> bool:
    """Whether the first rows have small numbers of which over an eighth are less than the one before."""
    numbers = [float(found) for row in sample.rows if (found := number(row.get(column))) is not None]
    back = sum(after < before for before, after in pairwise(numbers))
    return bool(numbers) and max(numbers) < _LONG_S and 8 * back > len(numbers)


def _check_tokens(field: MappedField, column: str, sample: Sample, ledger: Ledger) -> None:
    held = _held(column)
    cure = f"map {field} to a column that counts its tokens; if {column!r} does, rename it"
    if held is None:
        native = [name for name in sample.columns if snake(name) == f"native_{snake(column)}"]
        if native:  # OpenRouter counts all models with one tokenizer beside each model's own
            held, cure = "tokens of a tokenizer that is not the model's", f"map {field} to {native[0]!r}"
    others = _other_parts(sample, column)
    if held is None and others:
        held, cure = "a part of it", f"map {field} to a column of the whole, or add up {', '.join([column, *others])}"
    if held is not None:
        what = f"{field} is mapped to {column!r}, whose name says that it holds {held}"
        raise curable("trace.not_tokens", what, cure, "mapping", column=column)
    if _ESTIMATES.search(snake(column)):
        ledger.warn("estimates", f"the name of {column!r} says that its tokens are estimated or billed, not counted")


def _other_parts(sample: Sample, column: str) -> list[str]:
    """Columns beside one that names a part (``text_tokens``) which name others and hold numbers."""
    own = set(_PARTS.findall(leaf(column)))
    beside = [name for name in sample.columns if name.rpartition(".")[0] == column.rpartition(".")[0]]
    return [
        name
        for name in beside
        if own
        and _PARTS.search(leaf(name))
        and not own & set(_PARTS.findall(leaf(name)))
        and "tok" in leaf(name)
        and any((number(row.get(name)) or 0) > 0 for row in sample.rows)
    ]


def _held(column: str) -> str | None:
    """What a column's name says that it counts instead of one request's tokens."""
    name = leaf(column)
    other = _THOUSANDS.search(name) or _OF_MANY.search(name)
    other = other or (None if "tok" in name else _NOT_TOKENS.search(name))
    if other is not None:
        return other.group(1)
    if total_column((column,), column) is not None:
        return "input and output together"
    if _LIMITS.search(name):
        return "a limit, not what was generated"
    return "a sum of all calls so far" if _SO_FAR.search(snake(column)) else None
