"""Arrival times to integer nanoseconds: the unit and the zone are known, given, or the file is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces.casts import Cast, clean_text, decimal, has_fractions, scaled
from replay.traces.cleaning import Ledger
from replay.traces.namedzones import by_name, named_zones, without_names, zone_needed
from replay.traces.options import TIME_UNITS, IngestOptions, TimeUnit
from replay.traces.stamps import stamps_ns
from replay.traces.timedoubts import check_clock, check_days, check_digits

UNIT_NS: dict[str, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
EPOCH_2000_NS = 946_684_800 * 10**9
EPOCH_2100_NS = 4_102_444_800 * 10**9

_EPOCH_2001_S = 10**9  # numbers below are no epoch times of our days, whatever their unit
_LIKELY_EPOCH_S = (1_200_000_000, 2_500_000_000)
"""2008 to 2049: numbers of that size are taken for epoch times even where a column's name says another unit."""
_TELLING_ROWS = 5
_LONG_AFTER_ZERO_NS = 10 * 86_400 * 10**9
"""A trace with relative times does not begin ten days after its own zero."""
_CLEAR_SHARE = 0.9
_BACK_NS = 30 * 60 * 10**9
"""A clock that goes back by more than this, in the hour that is repeated, has come to the second of the two."""
_ISO = r"^\s*(?:\d{4}[-/]\d{2}[-/]\d{2}[T ]|\d{2}/[A-Z][a-z]{2}/\d{4}[: ])"
_ACCESS_LOG = r"^\s*\d{2}/[A-Z][a-z]{2}/\d{4}[: ]"
_REGION = r"\[[A-Za-z0-9_+/-]+\]\s*$"
"""Java's name of the zone behind the offset, which says it already."""
_HALF_DAY = r"(?i)\d\s*[ap]m\b"
_DAY_MONTH = re.compile(r"\s*\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b")
_ZONED = r"(?i)(?:z|utc|gmt|[+-]\d{2}(?::?\d{2})?)\s*$"
_FAR = r"^\s*(?:\d{2}/[A-Z][a-z]{2}/)?(?:0\d|1[0-6]|2[2-9]|[3-9]\d)\d{2}[-/: ]"
_DECIMAL_COMMA = re.compile(r"\d+,\d+")
_SUFFIX = re.compile(
    r"(?:^|[_\s(\[])(s|sec|secs|seconds|ms|msec|millis|milliseconds|us|usec|micros|ns|nanos)[)\]]?$", re.I
)
_SUFFIX_UNIT: dict[str, TimeUnit] = {
    **dict.fromkeys(("s", "sec", "secs", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "micros"), "us"),
    **dict.fromkeys(("ns", "nanos"), "ns"),
}


def unit_in_name(column: str) -> TimeUnit | None:
    """The unit that a column's name ends with (``arrival_ms``, ``Time (s)``), if any."""
    match = _SUFFIX.search(column)
    return _SUFFIX_UNIT[match.group(1).lower()] if match else None


@dataclass
class TimeParser:
    """Reads one arrival column, batch by batch. The first batch decides what the column is; later ones must agree.

    ``unit`` fixed by the format, or ``None``: taken from the options, the column's name, or the epoch's magnitude.
    """

    column: str
    options: IngestOptions
    ledger: Ledger
    unit: TimeUnit | None = None
    naive_zone: tuple[str, str] | None = None
    """Zone of times that carry none, and who says so, where the format's publisher defines it."""
    epoch_only: bool = False
    """The format's times are epoch times: relative ones are of another unit."""
    kind: str | None = None
    epoch: bool = False
    """Whether the numbers are epoch times, by the most of the first batch; the others then are of another kind."""
    zoned: bool | None = None
    fold: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """For each day with a repeated hour: the latest local time seen in it, and whether its second run has begun."""

    def parse(self, series: pl.Series) -> Cast:
        """Nanoseconds (since 1970 for calendar and epoch times, else from the source's zero) and broken rules."""
        values, rules = self._parsed(series)
        if self.ledger.bounds_ns is None:
            return values, rules
        low, high = self.ledger.bounds_ns
        far = ((values < low) | (values > high)).fill_null(value=False)
        rules = pl.Series("rule", [None], dtype=pl.String).new_from_index(0, len(values)) if rules is None else rules
        return values, rules.set(far & rules.is_null(), "far_off")

    def _parsed(self, series: pl.Series) -> Cast:
        if isinstance(series.dtype, (pl.Categorical, pl.Enum)):
            series = series.cast(pl.String)
        if isinstance(series.dtype, pl.Datetime):
            return self._typed(series)
        if isinstance(series.dtype, (pl.String, pl.Null)):
            series = series.cast(pl.String)
        elif not series.dtype.is_numeric() or isinstance(series.dtype, pl.Boolean):
            raise self._unreadable(series)
        if self.kind is None:
            series = clean_text(series) if isinstance(series.dtype, pl.String) else series
            if series.null_count() < len(series):
                self._decide(series)
        if self.kind == "calendar":
            return self._calendar(series.cast(pl.String))
        return self._number(series)

    def _decide(self, series: pl.Series) -> None:
        if isinstance(series.dtype, pl.String) and int(series.str.contains(_ISO).sum()) * 2 > series.count():
            self.kind = "calendar"
            return
        numbers = decimal(series)
        if numbers.count() * 2 <= series.count():
            raise self._unreadable(series)
        self.kind = "number"
        self.ledger.time_column = self.column
        self.ledger.whole_times = not has_fractions(numbers)
        check_clock(self.column, numbers, unit_stated=self.options.time_unit is not None)
        if self.options.time_unit is None:
            check_days(self.column, numbers)
        if self.options.time_unit is not None:
            self.unit, why = self.options.time_unit, "as asked (time_unit)"
        elif self.unit is not None:
            why = "fixed by the format"
            if self.unit != "ns":
                self._check_name(numbers, self.unit)
        elif (named := unit_in_name(self.column)) is not None:
            self.unit, why = named, f"by the column's name {self.column!r}"
            self._check_name(numbers, named)
        else:
            self.unit = self._by_magnitude(numbers)
            why = "by magnitude: every time lies between 2001 and 2100 in this unit only"
        if isinstance(series.dtype, pl.String):
            check_digits(self.column, series, UNIT_NS[self.unit])
        self.epoch = 2 * int(self._in_band(numbers, self.unit).sum()) > numbers.count()
        if self.epoch_only and not self.epoch:
            raise self._ambiguous(
                numbers.drop_nulls(), f"they are no epoch times in {self.unit}, as the format has them"
            )
        self.ledger.time_unit = self.unit
        self.ledger.assumed["time_unit"] = f"{self.unit}, {why}"

    def _check_name(self, numbers: pl.Series, named: TimeUnit) -> None:
        """A column named ``..._ms`` that holds epoch seconds is asked about, not believed."""
        low, high = (cast(int, numbers.min()), cast(int, numbers.max()))
        if numbers.count() < _TELLING_ROWS or low * UNIT_NS[named] < _LONG_AFTER_ZERO_NS * 10**9:
            return
        for unit in TIME_UNITS:
            scale = 10**9 * (10**9 // UNIT_NS[unit])
            if unit != named and _LIKELY_EPOCH_S[0] * scale <= low and high < _LIKELY_EPOCH_S[1] * scale:
                raise self._ambiguous(
                    numbers.drop_nulls(), f"its name or format says {named}, its numbers look like epoch {unit}"
                )

    def _by_magnitude(self, numbers: pl.Series) -> TimeUnit:
        positive = numbers.drop_nulls()
        share = {unit: int(self._in_band(positive, unit).sum()) / len(positive) for unit in TIME_UNITS}
        best = max(TIME_UNITS, key=lambda unit: share[unit])
        if share[best] > _CLEAR_SHARE:  # the odd ones out become rejected rows
            return best
        mixed = [unit for unit in TIME_UNITS if share[unit] > 0]
        if len(mixed) > 1:
            raise self._ambiguous(positive, f"the times mix units: some are epoch {' and some '.join(mixed)}")
        raise self._ambiguous(positive, "the unit of the times is not stated")

    def _in_band(self, numbers: pl.Series, unit: TimeUnit) -> pl.Series:
        scale = 10**9 * (10**9 // UNIT_NS[unit])
        low, high = _EPOCH_2001_S * scale, (EPOCH_2100_NS // 10**9) * scale
        return ((numbers >= low) & (numbers < high)).fill_null(value=False)

    def _ambiguous(self, numbers: pl.Series, what: str) -> TraceError:
        span = float(cast(int, numbers.max()) - cast(int, numbers.min())) / 1e9
        errors = []
        for unit in TIME_UNITS:
            seconds = span * UNIT_NS[unit] / 1e9
            rate = f", {len(numbers) / seconds:,.4g} requests/s" if seconds > 0 else ""
            cure = f"time_unit={unit}"
            detail = f"read as {unit}, the first {len(numbers):,} rows span {seconds:,.6g} s{rate}: then give {cure}"
            errors.append(
                FieldError(detail, field="time_unit", column=self.column, rule="ambiguous_time_unit", cure=cure)
            )
        return TraceError(
            "trace.ambiguous_unit",
            f"column {self.column!r}: {what}. Say which it is by the parameter time_unit (s, ms, us or ns)",
            errors,
        )

    def _unreadable(self, series: pl.Series) -> TraceError:
        first = [str(value) for value in series.drop_nulls().head(3).to_list()]
        seen = ", ".join(map(self.ledger.shown, first))
        cure = "write numbers, or YYYY-MM-DD HH:MM:SS with optional fraction and zone; or map another column to arrival"
        if any(_DECIMAL_COMMA.fullmatch(value.strip()) for value in first):
            cure = "write the fraction of a number with a point, not a comma: 12.5"
        elif any(_DAY_MONTH.match(value) for value in first):
            cure = "write dates as YYYY-MM-DD: in 05/06/2026 it is not known which is the day and which the month"
        return TraceError(
            "trace.time_unreadable",
            f"column {self.column!r} does not hold times that can be read: {seen}",
            [FieldError(cure, column=self.column, rule="not_a_time", cure=cure)],
        )

    def _number(self, series: pl.Series) -> Cast:
        numbers = decimal(series)
        if isinstance(series.dtype, pl.String) and numbers.null_count() > series.null_count():
            series = clean_text(series)  # only where some cell is odd: it costs as much as the parsing
            numbers = decimal(series)
        if self.unit is None:  # no row of this batch or before has a time
            return numbers.cast(pl.Int64, strict=False), _missing(series)
        wide = scaled(numbers, UNIT_NS[self.unit])
        wide = wide.set(((wide < 0) | (wide >= EPOCH_2100_NS)).fill_null(value=False), None)
        values = wide.cast(pl.Int64, strict=False)
        rules = pl.DataFrame({"text": series, "number": numbers, "value": values}).select(
            pl.when(pl.col("text").is_null())
            .then(pl.lit("missing_arrival"))
            .when(pl.col("number").is_null())
            .then(pl.lit("not_a_time"))
            .when(pl.col("value").is_null())
            .then(pl.lit("time_out_of_range"))
            .otherwise(pl.lit(None, dtype=pl.String))
        )
        result = rules.to_series()
        if self._some_other_kind(values, missing=numbers.null_count()):
            inside = self._in_band(numbers, self.unit)
            other = (~inside if self.epoch else inside) & numbers.is_not_null()
            keeps = result.is_null() | (result == "time_out_of_range")
            result = result.set(other & keeps.fill_null(value=True), "other_time_unit")
        return values, result if result.null_count() < len(result) else None

    def _second(self, local: pl.Series, repeated: pl.Series) -> pl.Series:
        """Which of the local times, in an hour that daylight saving repeats, are of its second run.

        Raises:
            TraceError: ``trace.ambiguous_hour``, until the parameter repeated_hour says how to tell.
        """
        chosen = self.options.repeated_hour
        if chosen == "refuse":
            at = local.filter(repeated)[0]
            choices = (
                ("order", "the file is in the order of time: the second hour begins where the clock goes back"),
                ("first", "all are of the first hour"),
                ("second", "all are of the second hour"),
            )
            raise TraceError(
                "trace.ambiguous_hour",
                f"column {self.column!r}: local times such as {at} occur twice, as daylight saving ends. Say which "
                "hour is meant by the parameter repeated_hour (order, first or second), or write offsets",
                [
                    FieldError(
                        f"{what}: then give repeated_hour={name}",
                        field="repeated_hour",
                        column=self.column,
                        rule="ambiguous_hour",
                        cure=f"repeated_hour={name}",
                    )
                    for name, what in choices
                ],
            )
        self.ledger.assumed["repeated_hour"] = f"{chosen}, as asked (repeated_hour)"
        if chosen != "order":
            return repeated & (chosen == "second")
        second = []
        for is_repeated, when, day in zip(
            repeated.to_list(), local.dt.epoch("ns").to_list(), local.dt.date().cast(pl.String).to_list(), strict=True
        ):
            if not is_repeated:
                second.append(False)
                continue
            latest, turned = self.fold.get(day, (when, False))
            turned = turned or when < latest - _BACK_NS
            self.fold[day] = (max(latest, when), turned)
            second.append(turned)
        return pl.Series("second", second, dtype=pl.Boolean)

    def _some_other_kind(self, values: pl.Series, *, missing: int) -> bool:
        """Whether any time may be relative among epoch times, or the other way round; looks at the extremes only."""
        low, high = values.min(), values.max()
        if values.null_count() > missing or not isinstance(low, int) or not isinstance(high, int):
            return True
        return low < _EPOCH_2001_S * 10**9 if self.epoch else high >= _EPOCH_2001_S * 10**9

    def _typed(self, series: pl.Series) -> Cast:
        kind = cast(pl.Datetime, series.dtype)
        self._agree(zoned=kind.time_zone is not None)
        fine = series.cast(pl.Datetime("ns", kind.time_zone), strict=False)
        return self._to_ns(fine, series)

    def _calendar(self, text: pl.Series) -> Cast:
        if (stamps := stamps_ns(text)) is not None:
            values, in_utc = stamps
            self._agree(zoned=in_utc)
            times = pl.Series(values).cast(pl.Datetime("ns"))
            return self._to_ns(times.dt.replace_time_zone("UTC") if in_utc else times, text)
        text = clean_text(text)
        if bool(text.str.contains(_REGION).any()):
            text = text.str.replace(_REGION, "")
        if (names := named_zones(text)) is not None:
            return self._named(text, names)
        zoned = text.str.contains(_ZONED)
        if self.zoned is not None and not bool(text.str.contains(_ISO).any()):
            return self._to_ns(_to_datetime(text, zoned=self.zoned), text)  # no time at all says nothing about zones
        if bool(zoned.any()) and bool((~zoned).any()):
            # A row that is no time at all says nothing about zones.
            real = text.str.contains(_ISO).fill_null(value=False)
            if bool((zoned & real).any()) and bool((~zoned & real).any()):
                raise self._mixed()
            zoned = zoned & real
        self._agree(zoned=bool(zoned.any()))
        return self._to_ns(_to_datetime(text, zoned=bool(zoned.any())), text)

    def _named(self, text: pl.Series, names: pl.Series) -> Cast:
        """Times that name their zone by letters, once the user has said which zone that is."""
        first = int(names.is_not_null().arg_true()[0])
        if not self.options.time_zone:
            raise zone_needed(self.column, names[first])
        real = text.str.contains(_ISO).fill_null(value=False)
        if bool((real & names.is_null()).any()):
            raise self._mixed()
        self._agree(zoned=False)
        local = _to_datetime(without_names(text), zoned=False)
        return self._checked(by_name(self.column, local, names, self._zone()), text, local.is_not_null())

    def _agree(self, *, zoned: bool) -> None:
        if self.zoned is not None and self.zoned != zoned:
            raise self._mixed()
        if self.zoned is None:
            self.zoned = zoned
            self.kind = "calendar"
            self.ledger.time_unit = "calendar"
            zone = None if zoned else self._zone()
            if zoned:
                said = "UTC: the times carry their offset"
            elif self.options.time_zone:
                said = f"{zone}, as asked (time_zone)"
            else:
                said = f"{zone}: {self.naive_zone[1]}" if self.naive_zone else ""
            self.ledger.time_zone = zone or "UTC"
            self.ledger.assumed["time_zone"] = said

    def _zone(self) -> str:
        """The zone of times that carry none.

        Raises:
            TraceError: neither the user nor the format says it.
        """
        if self.options.time_zone:
            return self.options.time_zone
        if self.naive_zone is not None:
            return self.naive_zone[0]
        errors = [
            FieldError(
                f"{what}: then give zone={name}", field="zone", column=self.column, rule=rule, cure=f"zone={name}"
            )
            for rule, name, what in (
                ("ambiguous_zone", "UTC", "the log's clock is UTC"),
                (
                    "ambiguous_zone",
                    "Europe/Berlin",
                    "the log's clock is local time, e.g. Germany's with its summer time",
                ),
            )
        ]
        raise TraceError(
            "trace.ambiguous_zone",
            f"column {self.column!r}: the times carry no zone. Say which one it is by the parameter zone (an "
            "IANA name such as UTC or Europe/Berlin): hours of the day, and gaps where summer time begins or ends, "
            "depend on it",
            errors,
        )

    def _mixed(self) -> TraceError:
        cure = "write all times with an offset, or all without one"
        return TraceError(
            "trace.mixed_zones",
            f"column {self.column!r} mixes times with a zone and times without one",
            [FieldError(cure, column=self.column, rule="mixed_zones", cure=cure)],
        )

    def _to_ns(self, times: pl.Series, source: pl.Series) -> Cast:
        skipped = None
        if not self.zoned and (zone := self._zone()) != "UTC":
            local = times
            times = local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
            skipped = times.is_null() & local.is_not_null()
            late = local.dt.replace_time_zone(zone, ambiguous="latest", non_existent="null")
            repeated = (late != times).fill_null(value=False)
            if bool(repeated.any()):
                times = times.zip_with(~self._second(local, repeated), late)
        return self._checked(times, source, skipped)

    def _checked(self, times: pl.Series, source: pl.Series, skipped: pl.Series | None) -> Cast:
        """Moments in ns, and the rules that are broken; a null of ``skipped`` is a local time that there is not."""
        values = times.dt.epoch("ns")
        out = ((values < EPOCH_2000_NS) | (values >= EPOCH_2100_NS)).fill_null(value=False)
        values = values.set(out, None)
        if values.null_count() == 0:
            return values, None
        rules = pl.Series("rule", [None], dtype=pl.String).new_from_index(0, len(values))
        rules = (
            rules.set(values.is_null(), "not_a_time")
            .set(source.is_null(), "missing_arrival")
            .set(out, "time_out_of_range")
        )
        if skipped is not None:
            rules = rules.set(skipped & times.is_null(), "time_does_not_exist")
        return values, rules


def _missing(series: pl.Series) -> pl.Series | None:
    if series.null_count() == 0:
        return None
    return (
        pl.Series("rule", [None], dtype=pl.String)
        .new_from_index(0, len(series))
        .set(series.is_null(), "missing_arrival")
    )


def _access_log(text: pl.Series, tail: str) -> pl.Series:
    """``29/Nov/2026:10:00:00 +0000``, as web servers write it: the month's name leaves no doubt."""
    plain = text.str.replace(r"^(\d{2}/[A-Z][a-z]{2}/\d{4})[: ]", "$1 ").str.replace(r"\s+(Z|[+-]\d{2}:?\d{2})$", "$1")
    return plain.str.to_datetime(f"%d/%b/%Y %H:%M:%S%.f{tail}", time_unit="ns", strict=False)


def _half_days(text: pl.Series, tail: str) -> pl.Series:
    """``2026-03-02 09:05:07.25 PM``; cells without AM or PM are null, as they may mean either half of the day."""
    plain = text.str.replace("T", " ").str.replace(r"(?i)\s*([ap]m)\s*", " $1")
    parsed = plain.str.to_datetime(f"%Y-%m-%d %I:%M:%S%.f %p{tail}", time_unit="ns", strict=False)
    return parsed.fill_null(plain.str.to_datetime(f"%Y-%m-%d %I:%M %p{tail}", time_unit="ns", strict=False))


def _to_datetime(text: pl.Series, *, zoned: bool) -> pl.Series:
    """ISO-like text to datetimes (UTC where zoned); null where a cell does not fit. Separator ``T`` or blank. A year
    that 64 bits of ns do not reach, which polars wraps around, becomes one that is out of range here."""
    parsed = _text_to_datetime(text, zoned=zoned)
    far = text.str.contains(_FAR).fill_null(value=False) & parsed.is_not_null()
    return parsed.set(far, datetime(2200, 1, 1, tzinfo=UTC if zoned else None)) if bool(far.any()) else parsed


def _text_to_datetime(text: pl.Series, *, zoned: bool) -> pl.Series:
    tail = "%#z" if zoned else ""
    if bool(text.str.contains(_ACCESS_LOG).any()):
        return _access_log(text, tail)
    if bool(text.str.contains(r"^\d{4}/|\d,\d").any()):  # 2024/05/06, and the comma of Python's logging
        text = text.str.replace(r"^(\d{4})/(\d{2})/", "$1-$2-").str.replace(r"(:\d{2}),(\d)", "$1.$2")
    if bool(text.str.contains(_HALF_DAY).any()):
        return _half_days(text, tail)
    first = next((value for value in text.head(50) if value is not None), "")
    marks = ("T", " ") if "T" in first[:11] else (" ", "T")
    parsed = text.str.to_datetime(f"%Y-%m-%d{marks[0]}%H:%M:%S%.f{tail}", time_unit="ns", strict=False)
    if parsed.null_count() > text.null_count():
        for form in (f"%Y-%m-%d{marks[1]}%H:%M:%S%.f{tail}", f"%Y-%m-%d{marks[0]}%H:%M{tail}"):
            parsed = parsed.fill_null(text.str.to_datetime(form, time_unit="ns", strict=False))
        if zoned:  # "... UTC", "... GMT" and blanks before the zone
            plain = text.str.replace(r"(?i)\s*(?:utc|gmt)$", "Z")
            plain = plain.str.replace(r"(:\d{2}(?:\.\d+)?\s*[+-]\d{2})$", "$1:00")
            plain = plain.str.replace(r"\s+(Z|[+-]\d{2}:?\d{2})$", "$1")
            for mark in marks:
                form = f"%Y-%m-%d{mark}%H:%M:%S%.f%#z"
                parsed = parsed.fill_null(plain.str.to_datetime(form, time_unit="ns", strict=False))
    return parsed
