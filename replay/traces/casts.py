"""Cells to canonical values. Nothing is clipped, rounded or guessed: a cell that does not fit names the rule it breaks.

Each cast returns the values and, where any cell broke a rule, a text series with the rule (null where all is well).
"""

from __future__ import annotations

import polars as pl

from replay.traces.options import Limits

Cast = tuple[pl.Series, pl.Series | None]

NULL_WORDS = ("", "null", "none", "-", "n/a", "na", "\\n")
"""Spellings of "unknown", after lower-casing; ``NaN`` is not one: it is what a broken computation leaves."""

_STATUS_WORDS = {
    "ok": ("ok", "success", "succeeded", "completed", "complete", "finished", "stop", "length", "true"),
    "failed": ("failed", "failure", "fail", "error", "timeout", "false"),
    "aborted": ("aborted", "abort", "cancelled", "canceled", "cancel", "usercancel", "disconnected", "499"),
    "cache_hit": ("cache_hit", "cachehit", "cached"),
    "unknown": ("unknown",),
}
STATUS_OF = {word: status for status, words in _STATUS_WORDS.items() for word in words}

_DECIMAL = pl.Decimal(38, 9)
_THOUSANDS = r"^[+-]?\d{1,3}(?:[.,'\x{2019}_ \x{a0}\x{2009}\x{202f}]\d{3})+(?:[.,]0+)?$"
"""``1.000``: a thousand in half of the world, one in the other. It is not read as either, nor is ``1,000``."""
_ROUNDED = r"^[+-]?\d(?:\.(\d*))?[eE]\+?(\d{1,2})$"


def clean_text(series: pl.Series) -> pl.Series:
    """Text without outer white space; the spellings of "unknown" become null."""
    stripped = series.cast(pl.String, strict=False).str.strip_chars()
    return stripped.set(stripped.str.to_lowercase().is_in(NULL_WORDS), None)


def _rules(n: int, *checks: tuple[pl.Series, str]) -> pl.Series | None:
    """The first rule of ``checks`` (mask, rule) that each row breaks; ``None`` where no row breaks any."""
    found = [(mask.fill_null(value=False), rule) for mask, rule in checks]
    if not any(mask.any() for mask, _ in found):
        return None
    rules = pl.Series("rule", [None], dtype=pl.String).new_from_index(0, n)
    for mask, rule in reversed(found):
        rules = rules.set(mask, rule)
    return rules


def tokens(series: pl.Series, limits: Limits) -> Cast:
    """Whole numbers from 0 to the limit; empty is null. ``12.0`` is 12, ``12.5`` breaks a rule, so does ``1e30``."""
    kind = series.dtype
    if isinstance(kind, pl.Boolean) or not (kind.is_numeric() or isinstance(kind, (pl.String, pl.Null))):
        return pl.Series(series.name, [None] * len(series), dtype=pl.Int64), _rules(
            len(series), (series.is_not_null(), "not_a_number")
        )
    if isinstance(kind, (pl.String, pl.Null)):
        series = series.cast(pl.String)
        values = series.cast(pl.Int64, strict=False)
        if values.null_count() > series.null_count():
            return _odd_tokens(series, values, limits)
    elif kind.is_integer():
        values = series.cast(pl.Int64, strict=False)
        if values.null_count() > series.null_count():
            return values, _rules(len(series), (values.is_null() & series.is_not_null(), "tokens_above_limit"))
    else:
        return _odd_tokens(series.cast(pl.String), pl.Series(series.name, [None] * len(series), dtype=pl.Int64), limits)
    return values, _range(values, limits)


def _range(values: pl.Series, limits: Limits) -> pl.Series | None:
    low, high = values.min(), values.max()
    if low is None or (
        isinstance(low, int) and isinstance(high, int) and low >= 0 and high <= limits.max_tokens_per_request
    ):
        return None
    return _rules(len(values), (values < 0, "negative"), (values > limits.max_tokens_per_request, "tokens_above_limit"))


def _odd_tokens(series: pl.Series, values: pl.Series, limits: Limits) -> Cast:
    """The slow way, for a batch where some cell is no plain integer."""
    text = clean_text(series)
    number = text.cast(pl.Float64, strict=False)
    grouped = text.str.contains(_THOUSANDS).fill_null(value=False)
    number = number.set(grouped, None)
    parts = text.str.extract_groups(_ROUNDED).struct.unnest()
    rounded = parts["1"].fill_null("").str.len_chars() < parts["2"].cast(pl.UInt32, strict=False)
    if 2 * parts["2"].count() < text.count():  # R writes 100000 as 1e+05, a spreadsheet all numbers of a column
        rounded &= parts["1"].is_not_null()
    whole = number.is_finite() & (number == number.round())
    in_range = number.is_between(0, limits.max_tokens_per_request)
    fitting = number.set(~(whole & in_range).fill_null(value=False), None)
    values = values.zip_with(values.is_not_null(), fitting.cast(pl.Int64, strict=False))
    rules = _rules(
        len(series),
        (grouped, "grouped_digits"),
        (rounded, "rounded"),
        (text.is_not_null() & (number.is_null() | ~number.is_finite()), "not_a_number"),
        (number < 0, "negative"),
        (number > limits.max_tokens_per_request, "tokens_above_limit"),
        (~whole, "not_an_integer"),
    )
    return values, rules


def text(series: pl.Series, limits: Limits) -> Cast:
    """A label: trimmed, empty is null, bounded in length."""
    cleaned = clean_text(series)
    return cleaned, _rules(len(series), (cleaned.str.len_chars() > limits.max_text_length, "text_too_long"))


def status(series: pl.Series) -> pl.Series:
    """One of the canonical statuses; HTTP codes are understood, words that are not become ``unknown``."""
    words = clean_text(series).str.to_lowercase()
    code = words.cast(pl.Int64, strict=False)
    known = words.replace_strict(STATUS_OF, default=None, return_dtype=pl.String)
    by_code = (
        pl.DataFrame({"code": code})
        .select(
            pl.when(pl.col("code").is_between(200, 299))
            .then(pl.lit("ok"))
            .when(pl.col("code").is_between(400, 599))
            .then(pl.lit("failed"))
        )
        .to_series()
    )
    return known.fill_null(by_code).fill_null("unknown")


def decimal(series: pl.Series) -> pl.Series:
    """Numbers times 10^9, exact, as Int128; null where the cell is no finite number of at most 29 digits."""
    if isinstance(series.dtype, (pl.Float32, pl.Float64)):
        series = series.cast(pl.Float64)
        series = series.set(~series.is_finite(), None)
    elif isinstance(series.dtype, pl.String):
        series = series.str.strip_chars()
    return series.cast(_DECIMAL, strict=False).to_physical()


def scaled(numbers: pl.Series, unit_ns: int) -> pl.Series:
    """``decimal`` numbers in units of ``unit_ns`` nanoseconds, as whole ns (Int128)."""
    factor, divisor = pl.lit(unit_ns, dtype=pl.Int128), pl.lit(10**9, dtype=pl.Int128)
    return pl.select((pl.lit(numbers) * factor) // divisor).to_series()


def has_fractions(numbers: pl.Series) -> bool:
    """Whether any of ``decimal`` numbers is not whole."""
    scale = pl.lit(10**9, dtype=pl.Int128)
    return bool(pl.select((pl.lit(numbers) // scale * scale != pl.lit(numbers)).any()).item())


def duration_ns(series: pl.Series, unit_ns: int) -> pl.Series:
    """A duration in units of ``unit_ns`` nanoseconds; null where missing, negative or no number."""
    values = scaled(decimal(series), unit_ns).cast(pl.Int64, strict=False)
    return values.set((values < 0).fill_null(value=False), None)
