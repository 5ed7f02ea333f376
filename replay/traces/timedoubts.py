"""Numbers in a column of times that are no times in any unit: days of a spreadsheet, numbers that lost their digits."""

from __future__ import annotations

import polars as pl

from replay.errors import TraceError, curable
from replay.traces.casts import has_fractions

_DAYS = (36_526, 73_051)
"""1 January 2000 and 2100 as spreadsheets count days, from 30 December 1899."""
_DAYS_SPAN = 400
_MIN_ROWS = 5
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
