"""Numbers in a column of times that are no times in any unit: days, ticks, dates as digits, lost digits."""

from __future__ import annotations

import polars as pl

from replay.errors import TraceError, curable
from replay.traces.casts import has_fractions

_DAYS = (36_526, 73_051)
"""1 January 2000 and 2100 as spreadsheets count days, from 30 December 1899."""
_DAYS_SPAN = 400
_MIN_ROWS = 5
_CLOCKS = (
    ("100-ns ticks since the year 1 (.NET)", 630_822_816_000_000_000, 662_380_416_000_000_000),
    ("100-ns ticks since 1601 (Windows)", 125_911_584_000_000_000, 157_469_184_000_000_000),
    ("us since 1601 (Chrome)", 12_591_158_400_000_000, 15_746_918_400_000_000),
)
"""Counts that no unit of ours fits, from 2000 to 2100."""
_DATE_DIGITS = (
    r"^(?:20\d\d)(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d(?:\d{3})?)?)?$"
)
"""``20261103``, ``20261103090005``, with or without seconds and milliseconds."""
_SCIENTIFIC = r"^[+-]?\d(?:\.(\d*))?[eE]\+?(\d{1,2})$"
_MOST_SHARE = 0.5


def check_days(column: str, numbers: pl.Series) -> None:
    """Refuses days of a spreadsheet, such as 45000.51, unless the user has said a unit. ``numbers`` times 10^9.

    Raises:
        TraceError: ``trace.spreadsheet_days``.
    """
    low, high = numbers.min(), numbers.max()
    if numbers.count() < _MIN_ROWS or not isinstance(low, int) or not isinstance(high, int):
        return
    scale = 10**9
    if (
        not has_fractions(numbers)
        or low < _DAYS[0] * scale
        or high >= _DAYS[1] * scale
        or high - low > _DAYS_SPAN * scale
    ):
        return
    raise _refusal(
        "spreadsheet_days",
        column,
        f"column {column!r} holds numbers such as {low / scale:.8g}, as spreadsheets store days",
        "give the column the format YYYY-MM-DD HH:MM:SS.000 in the spreadsheet and export it again; if the numbers are "
        "no days, give time_unit",
    )


def check_clock(column: str, numbers: pl.Series, *, unit_stated: bool) -> None:
    """Refuses counts of other systems' clocks and, unless the user has said a unit, dates as digits (20261103090005).
    ``numbers`` times 10^9.

    Raises:
        TraceError: ``trace.date_digits``, ``trace.other_clock``.
    """
    low, high = numbers.min(), numbers.max()
    if not isinstance(low, int) or not isinstance(high, int) or has_fractions(numbers):
        return
    scale = 10**9
    for clock, begin, end in _CLOCKS:
        if begin * scale <= low and high < end * scale:
            what = f"column {column!r} holds numbers such as {low // scale}, which look like {clock}"
            raise _refusal("other_clock", column, what, "convert them to seconds since 1970")
    if unit_stated or numbers.count() < _MIN_ROWS:
        return
    whole = pl.select((pl.lit(numbers) // scale).cast(pl.String)).to_series().drop_nulls()
    if bool(whole.str.contains(_DATE_DIGITS).all()):
        what = f"column {column!r} holds numbers such as {whole[0]}, which look like the digits of a date"
        raise _refusal(
            "date_digits", column, what, "write dates as YYYY-MM-DD HH:MM:SS; if they are none, give time_unit"
        )


def check_digits(column: str, text: pl.Series, unit_ns: int) -> None:
    """Refuses times such as 1.77E+12, of which a spreadsheet has left too few digits to tell seconds apart.

    Raises:
        TraceError: ``trace.lost_digits``.
    """
    if not bool(text.str.contains(r"[eE]").any()):
        return
    parts = text.str.strip_chars().str.extract_groups(_SCIENTIFIC).struct.unnest()
    kept = parts["1"].fill_null("").str.len_chars().cast(pl.Int64)
    lost = parts["2"].cast(pl.Int64, strict=False) - kept
    coarse = (lost > 0) & (pl.Series([unit_ns], dtype=pl.Float64) * (10.0 ** lost.cast(pl.Float64)) > 1e9)
    if int(coarse.sum()) <= _MOST_SHARE * text.count():
        return
    first = text.filter(coarse.fill_null(value=False))[0]
    raise _refusal(
        "lost_digits",
        column,
        f"column {column!r}: times such as {first} have lost their digits: many requests would share one time",
        "export the times again as text or as whole numbers",
    )


def _refusal(code: str, column: str, what: str, cure: str) -> TraceError:
    return curable(f"trace.{code}", what, cure, "arrival", column=column)
