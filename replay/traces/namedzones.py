"""Calendar times that name their zone by letters: ``2026-03-02 09:00:00 EST``. Letters mean different zones in
different places (``CST``, ``IST``), so the user says the zone, and each name is then proved against it."""

from __future__ import annotations

import re

import polars as pl

from replay.errors import TraceError, curable

_NAME = r"(?i)(?:\d|[ap]m)\s*\(?\b([a-z]{2,5}|[a-z]+(?:/[a-z_]+)+|(?:utc|gmt)[+-]\d[\d:]*)\)?\s*$"
_CUT = r"(?i)\s*\(?\b(?:[a-z]{2,5}|[a-z]+(?:/[a-z_]+)+)\)?\s*$"
_PLAIN = ("utc", "gmt", "am", "pm")
"""Words at the end that are read as they are."""
_OFFSET = re.compile(r"(?i)(?:utc|gmt)[+-]\d")
_LIKELY = {
    **dict.fromkeys(("EST", "EDT"), "America/New_York"),
    **dict.fromkeys(("CST", "CDT"), "America/Chicago"),
    **dict.fromkeys(("MST", "MDT"), "America/Denver"),
    **dict.fromkeys(("PST", "PDT"), "America/Los_Angeles"),
    **dict.fromkeys(("CET", "CEST"), "Europe/Berlin"),
    **dict.fromkeys(("EET", "EEST"), "Europe/Helsinki"),
    **dict.fromkeys(("WET", "WEST"), "Europe/Lisbon"),
    **dict.fromkeys(("AEST", "AEDT"), "Australia/Sydney"),
    "BST": "Europe/London",
    "MSK": "Europe/Moscow",
    "IST": "Asia/Kolkata",
    "SGT": "Asia/Singapore",
    "HKT": "Asia/Hong_Kong",
    "JST": "Asia/Tokyo",
    "KST": "Asia/Seoul",
}
"""An example for each, never taken without the user's word."""


def named_zones(text: pl.Series) -> pl.Series | None:
    """The letters at the end of each time; ``None`` where no time has any."""
    names = text.str.extract(_NAME, 1)
    names = names.set(names.str.to_lowercase().is_in(_PLAIN), None)
    return names if names.null_count() < len(names) else None


def without_names(text: pl.Series) -> pl.Series:
    """The times without these letters."""
    return text.str.replace(_CUT, "")


def zone_needed(column: str, name: str) -> TraceError:
    """The refusal of such times while the user has said no zone."""
    what = f"column {column!r}: the times name their zone by letters ({name}), which is no offset"
    if _OFFSET.match(name):
        cure = "write the offset alone, such as +02:00"
        return curable("trace.named_zone", what, cure, "file", column=column)
    likely = name if "/" in name else _LIKELY.get(name.upper())
    example = f"zone={likely}" if likely else "zone=Europe/Berlin"
    meant = "" if "/" in name else f" if {name} is that clock's" if likely else f", whichever {name} is"
    cure = f"give the parameter zone, an IANA name, e.g. {example}{meant}"
    return curable("trace.named_zone", what, cure, "zone", column=column)


def by_name(column: str, local: pl.Series, names: pl.Series, zone: str) -> pl.Series:
    """Local times of ``zone`` as moments. The name tells the two hours apart that daylight saving repeats; times that
    it skips are null.

    Raises:
        TraceError: ``trace.named_zone``: the zone has another name at that time.
    """
    first, second = (
        local.dt.replace_time_zone(zone, ambiguous=which, non_existent="null") for which in ("earliest", "latest")
    )
    wanted = names.str.to_uppercase()
    fits = [(wanted == one.dt.strftime("%Z").str.to_uppercase()) | (names == zone) for one in (first, second)]
    odd = first.is_not_null() & names.is_not_null() & ~fits[0] & ~fits[1]
    if bool(odd.any()):
        at = int(odd.arg_true()[0])
        real = first.dt.strftime("%Z")[at]
        what = f"column {column!r}: {local[at]} is said to be {names[at]}, but is {real} in {zone}"
        cure = f"give the zone of the log's clock, or write offsets; if it has {names[at]} all year, give one without "
        cure += "summer time, such as zone=Etc/GMT+5 (5 hours behind UTC)"
        raise curable("trace.named_zone", what, cure, "zone", column=column)
    return first.zip_with(fits[0].fill_null(value=True), second)
