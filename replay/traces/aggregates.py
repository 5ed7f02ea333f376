"""Sums over many requests are no requests: a file that looks like them is refused, not replayed as a light load."""

from __future__ import annotations

import re

from replay.errors import FieldError, TraceError
from replay.traces.options import IngestOptions
from replay.traces.profile import Measured
from replay.traces.rows import Sample

NS = 10**9
_COUNTS = re.compile(
    r"^(?:(?:num|n|no|number|count|total)_(?:of_)?(?:model_)?(?:requests?|reqs?|calls|queries|invocations)|"
    r"(?:requests?|reqs?|calls?|query|queries|invocations?)_(?:counts?|total|num)|requests|calls|invocations|queries|"
    r"rps|qps|requests?_per_(?:s|sec|second|min|minute|hour))$"
)
_LONG_STEP_NS = 60 * NS
_SHORT_STEP_NS = 5 * NS
_HUGE_PROMPT_TOKENS = 32_768
_MIN_ROWS = 20
_FILLED_SHARE = 0.8


def check_columns(sample: Sample, options: IngestOptions) -> None:
    """Refuses a table with a column that counts requests, unless every count is 1.

    Raises:
        TraceError: ``trace.aggregate``.
    """
    if options.rows_are_requests:
        return
    for column in sample.columns:
        name = re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()).strip("_")
        if not _COUNTS.match(name):
            continue
        values = [row.get(column) for row in sample.rows]
        numbers = [number for value in values if (number := _number(value)) is not None]
        if numbers and any(number != 1 for number in numbers):
            raise _refusal(
                f"the column {column!r} counts requests (e.g. {numbers[0]:g}): a row is a sum over many requests",
                column,
            )


def check_rows_are_requests(sample: Sample, measured: Measured, options: IngestOptions) -> None:
    """Refuses rows that come one a minute, or one a few seconds with huge prompts: buckets of a metrics store.

    Raises:
        TraceError: ``trace.aggregate``.
    """
    arrivals, step = measured.arrivals, measured.arrivals.smallest_step
    if options.rows_are_requests or step is None or arrivals.ties or arrivals.n < _MIN_ROWS:
        return
    buckets = measured.profile.span_s * NS / step + 1
    if arrivals.n < _FILLED_SHARE * buckets or measured.closed_loop:
        return
    huge = (measured.profile.prompt_tokens.p50 or 0) > _HUGE_PROMPT_TOKENS
    if step >= _LONG_STEP_NS or (step >= _SHORT_STEP_NS and huge):
        raise _refusal(f"the rows come at an even step of {step / NS:g} s, like sums over buckets of time", None)


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _refusal(what: str, column: str | None) -> TraceError:
    cure = "upload a log with one row a request; if every row is one request, give rows_are_requests=true"
    return TraceError(
        "trace.aggregate",
        f"{what}. Sums have no arrivals and no lengths of single requests and cannot be replayed; {cure}",
        [FieldError(cure, field="rows_are_requests", column=column, rule="aggregate", cure=cure)],
    )
