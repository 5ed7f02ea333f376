"""Files that add up and are yet no traces: sums over many requests, rows twice, lost digits. Refused, not replayed."""

from __future__ import annotations

import re
from collections import Counter

import polars as pl

from replay.errors import FieldError, TraceError, curable
from replay.traces.cleaning import Ledger
from replay.traces.options import IngestOptions
from replay.traces.profile import Measured
from replay.traces.report import LengthProfile
from replay.traces.rows import Sample

NS = 10**9
_COUNTS = re.compile(
    r"^(?:(?:num|n|no|number|count|total)_(?:of_)?(?:model_)?(?:requests?|reqs?|calls|queries|invocations)|"
    r"(?:requests?|reqs?|calls?|query|queries|invocations?)_(?:counts?|total|num)|requests|calls|invocations|queries|count|"
    r"(?:api|llm|model|successful|completed)_(?:requests?|reqs?|calls|queries|invocations)|"
    r"(?:observations?|generations?|traces?)_counts?|(?:num|counts?|total)_(?:of_)?(?:observations?|generations?|traces?)|"
    r"rps|qps|requests?_per_(?:s|sec|second|min|minute|hour))$"
)
_BUCKET = re.compile(r"(?:^|_)(?:minutes?|hours?|days?|weeks?|months?|buckets?|windows?|intervals?|periods?)(?:_|$)")
_SAMPLED = re.compile(r"(?:^|_)sampl(?:e|ing)_(?:rate|ratio|fraction|probability|factor|weight)$")
_LONG_STEP_NS = 60 * NS
_SHORT_STEP_NS = 5 * NS
_HUGE_PROMPT_TOKENS = 32_768
_MIN_ROWS = 20
_FILLED_SHARE = 0.8
_RISING_SHARE, _RISE_TOKENS, _MANY_TOKENS = 0.95, 20, 10_000
_MIN_SUM_ROWS = 5
_LIKELY_RPS = 500
"""No published trace has a mean rate above this: where units are often mixed up, more is asked about."""
_POSSIBLE_RPS = 5e6
_LIKELY_PACE_US = (10, 5_000_000)
_SOME_SHARE, _OVERLAP_SHARE = 0.01, 0.05
_CHANCES = 10
"""Twins are no chance where there are so many times more than among requests of one instant drawn at random."""
_LIKELY_PROMPT_TOKENS_PER_S = 500_000
_SHORT_S = 600
_RUSH_S, _RUSH_RPS = 10, 100
"""A file in ms that is over in so few seconds at such a rate is likelier one in seconds."""
_DAY_S = 86_400
_RARE_S, _RARE_A_MINUTE = 30, 3
_MANY_ROWS = 10_000
_DAYS = 3
_FLAT = 1.2
"""The busiest hour of the day over the mean one: of 10,000 even requests it is 1.1 or so by chance."""
UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Subtotals:
    """Looks, in the file's order, for the first row that is the sum of all rows before it: the subtotal of a group.
    Two cumulative sums a batch; lengths that are unknown count 0, and at least five rows before it have both."""

    def __init__(self) -> None:
        self.rows = self.prompt_tokens = self.output_tokens = 0
        self.line: int | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """Takes the next rows: ``prompt_tokens``, ``output_tokens``, ``source_line``. Rows of a batch in which one of
        the lengths is unknown throughout have no such columns, and no sums."""
        if self.line is not None or frame.is_empty() or not {"prompt_tokens", "output_tokens"} <= set(frame.columns):
            return
        prompt, output = frame["prompt_tokens"].fill_null(0), frame["output_tokens"].fill_null(0)
        if prompt.filter(prompt >= self.prompt_tokens).is_empty():  # none is as long as all before it together
            self.rows += int(((prompt > 0) & (output > 0)).sum())
            self.prompt_tokens += int(prompt.sum())
            self.output_tokens += int(output.sum())
            return
        prompts, outputs = prompt.cum_sum() + self.prompt_tokens, output.cum_sum() + self.output_tokens
        known = (prompt > 0) & (output > 0)
        is_sum = (prompts == 2 * prompt) & (outputs == 2 * output) & known
        for at in is_sum.arg_true():
            if self.rows + int(known[:at].sum()) >= _MIN_SUM_ROWS:
                self.line = frame["source_line"][at]
                return
        self.rows += int(known.sum())
        self.prompt_tokens, self.output_tokens = int(prompts[-1]), int(outputs[-1])

    def check(self, options: IngestOptions) -> None:
        """Refuses the file where such a row was found.

        Raises:
            TraceError: ``trace.totals_row``.
        """
        if self.line is not None and not options.rows_are_requests:
            raise _refused(
                "totals_row",
                f"the row of line {self.line:,} has exactly as many prompt and output tokens as all rows before it",
                "remove the rows of totals; if it is a request, give rows_are_requests=true",
                "rows_are_requests",
            )


def check_columns(sample: Sample, options: IngestOptions) -> None:
    """Refuses a table with a column that counts requests, unless every count is 1.

    Raises:
        TraceError: ``trace.aggregate``.
    """
    if options.rows_are_requests:
        return
    for column in sample.columns:
        if not _COUNTS.match(_words(column)):
            continue
        values = [row.get(column) for row in sample.rows]
        numbers = [number for value in values if (number := _number(value)) is not None]
        if numbers and any(number != 1 for number in numbers):
            raise _refusal(
                f"the column {column!r} counts requests (e.g. {numbers[0]:g}): a row is a sum over many requests",
                column,
            )


def remark_sampled(sample: Sample, ledger: Ledger) -> None:
    """Says where a column tells that the rows are a sample of the calls."""
    for column in sample.columns:
        if not _SAMPLED.search(_words(column)):
            continue
        rates = {number for row in sample.rows if (number := _number(row.get(column))) is not None and number > 0}
        if rates and rates != {1.0}:
            ledger.warn(
                "sampled",
                f"the column {column!r} (e.g. {min(rates):g}) says that the rows are a sample of the calls: the load "
                "was larger by that factor (a workload's growth makes up for it)",
            )


class Counters:
    """Looks, in the file's order, whether both lengths rise from row to row: counters of a server since its start."""

    def __init__(self) -> None:
        self.rows = self.risen = 0
        self.least_at_end = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Takes the next rows; batches are looked at apart. Where rows do not rise, those after are not looked at."""
        if 2 * self.risen < self.rows or not {"prompt_tokens", "output_tokens"} <= set(frame.columns):
            return
        known = frame.select("prompt_tokens", "output_tokens").drop_nulls()
        if known.is_empty():
            return
        self.rows += known.height - 1
        both = (pl.col("prompt_tokens").diff() > 0) & (pl.col("output_tokens").diff() > 0)
        self.risen += int(known.select(both.sum()).item())
        self.least_at_end = min(known.row(-1))

    def check(self, options: IngestOptions) -> None:
        """Refuses the file where nearly all rows have more of both than the row before, up to many of both.

        Raises:
            TraceError: ``trace.aggregate``.
        """
        rising = self.rows >= _MIN_ROWS - 1 and self.risen >= _RISING_SHARE * self.rows
        if (
            rising
            and self.least_at_end >= max(_MANY_TOKENS, _RISE_TOKENS * self.rows)
            and not options.rows_are_requests
        ):
            raise _refusal(
                "nearly every row has more prompt and more output tokens than the row before, as counters of a server "
                "have that add up all requests since its start",
                None,
            )


def check_rows_are_requests(sample: Sample, measured: Measured, options: IngestOptions) -> None:
    """Refuses rows that come one a minute, or one a few seconds with huge prompts: buckets of a metrics store; and
    rows of whole minutes whose mapped column of times is named after a bucket of time.

    Raises:
        TraceError: ``trace.aggregate``.
    """
    arrivals, step = measured.arrivals, measured.arrivals.smallest_step
    if options.rows_are_requests or step is None or arrivals.n < _MIN_ROWS:
        return
    column = options.mapping.get("arrival", "")
    if step >= _LONG_STEP_NS and step % _LONG_STEP_NS == 0 and _BUCKET.search(_words(column)):
        raise _refusal(f"the times of {column!r} are whole minutes at most, like sums over buckets of time", column)
    if arrivals.ties:
        return
    buckets = measured.profile.span_s * NS / step + 1
    if arrivals.n < _FILLED_SHARE * buckets or measured.closed_loop:
        return
    huge = (measured.profile.prompt_tokens.p50 or 0) > _HUGE_PROMPT_TOKENS
    if step >= _LONG_STEP_NS or (step >= _SHORT_STEP_NS and huge):
        raise _refusal(f"the rows come at an even step of {step / NS:g} s, like sums over buckets of time", None)


def check_plausible(ledger: Ledger, measured: Measured, moved: int, options: IngestOptions) -> None:
    """Refuses what adds up and is yet no trace: a row of totals, a file that holds its rows twice, times that lost
    their digits, or ms that must be seconds. ``moved``: rows that came after one with a later arrival.

    Raises:
        TraceError: ``trace.totals_row``, ``trace.duplicates``, ``trace.one_instant``, ``trace.ambiguous_unit``.
    """
    prompt, output, n = measured.profile.prompt_tokens, measured.profile.output_tokens, measured.requests
    if n >= _MIN_SUM_ROWS and not options.rows_are_requests and _is_total(prompt) and _is_total(output):
        raise _refused(
            "totals_row",
            f"one row has {prompt.max:,} prompt and {output.max:,} output tokens, exactly the sum of all other rows",
            "remove the row of totals; if it is a request, give rows_are_requests=true",
            "rows_are_requests",
        )
    told_apart = measured.lengths_vary or 3 * moved >= n  # a burst of equal requests is no copy of the file
    if n >= _MIN_ROWS and 2 * measured.twins >= n and told_apart and not options.keep_duplicates:
        raise _twice(measured, "the file seems to hold its rows twice")
    if n >= _MIN_ROWS and measured.twins > _CHANCES * measured.chance_twins and not options.keep_duplicates:
        if measured.twins >= _OVERLAP_SHARE * n:
            raise _twice(measured, "two exports that overlap seem to have been joined")
        if measured.twins >= max(_MIN_ROWS, _SOME_SHARE * n):
            ledger.warn("twins", f"{_seen_twice(measured)}: if they were logged twice, the load is overstated")
    if measured.profile.start_utc is not None and measured.arrivals.smallest_step is None and n >= _MIN_ROWS:
        raise _refused(
            "one_instant",
            f"all {n:,} requests carry the same calendar time: the times have lost their digits",
            "export the times again, as text or as whole numbers",
            "arrival",
        )
    _check_rate(ledger, measured, options)
    pace = measured.us_per_output_token
    if n >= _MIN_ROWS and pace is not None and not _LIKELY_PACE_US[0] <= pace <= _LIKELY_PACE_US[1]:
        ledger.warn(
            "pace",
            f"the source's latencies would mean {pace / 1e6:,.3g} s an output token (median): they seem to be in "
            "another unit than their format has; do not compare with them",
        )


def _seen_twice(measured: Measured) -> str:
    return f"{measured.twins:,} of {measured.requests:,} rows have a twin that is equal in time, lengths and labels"


def _twice(measured: Measured, what: str) -> TraceError:
    return _refused(
        "duplicates",
        f"{_seen_twice(measured)}: {what}",
        "export the rows once; if they are different requests, give keep_duplicates=true",
        "keep_duplicates",
    )


def _check_rate(ledger: Ledger, measured: Measured, options: IngestOptions) -> None:
    span_s, n, read = measured.profile.span_s, measured.arrivals.n, ledger.time_unit
    if read not in UNITS_S or options.time_unit is not None or n < _MIN_ROWS or not span_s > 0:
        return
    relative = measured.profile.start_utc is None and not measured.closed_loop and not options.rows_are_requests
    slow = _too_slow(measured) if relative and ledger.whole_times and read != "ns" else None
    prompts = (measured.profile.prompt_tokens.mean or 0) * n / span_s
    most = _LIKELY_RPS if ledger.doubtful_unit is not None else _POSSIBLE_RPS
    rush = relative and read == "ms" and span_s < _RUSH_S and n > _RUSH_RPS * span_s
    flood = ledger.doubtful_unit is not None and span_s < _SHORT_S and prompts > _LIKELY_PROMPT_TOKENS_PER_S
    if slow is None and not flood and not rush and span_s >= n / most:
        return
    what = slow or f"{n / span_s:,.0f} requests/s with {prompts:,.0f} prompt tokens/s, more than is likely"
    errors = []
    for unit in UNITS_S:
        factor = UNITS_S[unit] / UNITS_S[read]
        if factor == 1 or (factor < 1) == (slow is not None):
            rate, cure = n / span_s / factor, f"time_unit={unit}"
            detail = (
                f"read as {unit}, the file spans {span_s * factor:,.6g} s, {rate:,.4g} requests/s: then give {cure}"
            )
            errors.append(
                FieldError(detail, field="time_unit", column=ledger.time_column, rule="ambiguous_time_unit", cure=cure)
            )
    raise TraceError(
        "trace.ambiguous_unit",
        f"times read in {read} give {what}: they may be in another unit. Say which by the parameter time_unit",
        errors,
    )


def _too_slow(measured: Measured) -> str | None:
    """Why whole relative times may be in a finer unit than they were read in; ``None`` where nothing tells.

    Nobody plans a cluster for a request every half a minute, and real traffic of some days follows the day.
    """
    span_s, n, minutes = measured.profile.span_s, measured.arrivals.n, measured.arrivals.bins["1min"]
    if span_s >= _RARE_S * (n - 1) and n <= _RARE_A_MINUTE * len(minutes):
        return f"one request every {span_s / (n - 1):,.0f} s, for {span_s / _DAY_S:,.2g} days"
    if n < _MANY_ROWS or span_s < _DAYS * _DAY_S or span_s < 1000 * n / _LIKELY_RPS:
        return None  # too short, or more in a unit a thousand times finer than is likely
    hours = Counter[int]()
    for minute, count in minutes.items():
        if minute < span_s // _DAY_S * _DAY_S // 60:  # whole days, so that all hours are seen alike
            hours[minute // 60 % 24] += count
    if max(hours.values()) > _FLAT * hours.total() / 24:
        return None
    return f"{span_s / _DAY_S:,.1f} days whose hours are all alike, which real traffic's are not"


def _refused(code: str, what: str, cure: str, field: str) -> TraceError:
    return curable(f"trace.{code}", what, cure, field)


def _is_total(lengths: LengthProfile) -> bool:
    return lengths.max is not None and lengths.max > 0 and 2 * lengths.max == lengths.total


def _words(column: str) -> str:
    """A column's name in lower case with underscores."""
    return re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()).strip("_")


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _refusal(what: str, column: str | None) -> TraceError:
    cure = "upload a log with one row a request; if every row is one request, give rows_are_requests=true"
    what += ". Sums have no arrivals and no lengths of single requests and cannot be replayed"
    return curable("trace.aggregate", what, cure, "rows_are_requests", column=column)
