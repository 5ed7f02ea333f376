"""Values as logs really write them: numbers as text, "None" as a word, JSON inside a cell, times in any unit.

Helpers of the readers of gateways, observability exports and server logs. None of them raises on odd input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from replay.traces.casts import NULL_WORDS
from replay.traces.cleaning import Ledger
from replay.traces.times import EPOCH_2100_NS, UNIT_NS

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST_EPOCH_S = 10**9
_ISO = re.compile(
    r"^\s*(\d{4}-\d{2}-\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9})\d*)?\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?\s*$",
    re.IGNORECASE,
)
_COUNTS_ONLY = re.compile(r"(?:^|[/:])(?:count_?tokens|(?:de)?tokenize|input_tokens)/?$", re.IGNORECASE)
_MAX_DIGITS = 40
_LONGEST_NULL_WORD = max(map(len, NULL_WORDS)) + 8
"""A longer text is no word for "unknown", not even with some white space around it."""
_NULL_BEGINS = frozenset({"", *(word[:1] for word in NULL_WORDS), *(word[:1].upper() for word in NULL_WORDS)})
_NULL_BEGINS |= frozenset(character for character in map(chr, range(0x3001)) if character.isspace())
"""How a word for "unknown" may begin, or white space before it: most values are told from them by that."""
_decoder = json.JSONDecoder(parse_float=str, parse_constant=str)


class BadCountError(ValueError):
    """A token count that is no whole number; ``value`` is what the source says."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value


def known(value: object) -> bool:
    """Whether the source says anything: not null, not one of the words for "unknown"."""
    if type(value) is not str:
        return value is not None
    if value[:1] not in _NULL_BEGINS:
        return True
    return (len(value) > _LONGEST_NULL_WORD and not value.isspace()) or value.strip().lower() not in NULL_WORDS


def text(value: object) -> str | None:
    """A label; ``None`` where unknown or no single value."""
    if not known(value) or isinstance(value, (dict, list)):
        return None
    return value.strip() if isinstance(value, str) else str(value)


def first(*values: object) -> Any:
    """The first value that is known."""
    for value in values:
        if value is not None and known(value):
            return value
    return None


def obj(value: object) -> dict[str, Any]:
    """An object: as such, or as JSON text in a cell; else empty."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            parsed = _decoder.decode(value)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}
    return {}


def number(value: object) -> Decimal | None:
    """A finite number, exact; ``None`` where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, str, float)) or not known(value):
        return None
    raw = str(value).strip()
    if len(raw) > _MAX_DIGITS:
        return None
    try:
        found = Decimal(raw)
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found.adjusted()) < _MAX_DIGITS else None


def count(value: object) -> int | None:
    """A whole number of tokens from 0 up; ``None`` where unknown.

    Raises:
        BadCountError: something else, e.g. ``12.5``, ``-1`` or ``true``.
    """
    if type(value) is int and value >= 0:
        return value
    if type(value) is str and value.isdigit() and value.isascii() and len(value) < _MAX_DIGITS:
        return int(value)
    if not known(value):
        return None
    found = number(value)
    if found is None or found < 0 or found != found.to_integral_value():
        raise BadCountError(value)
    return int(found)


def duration_ns(value: object, unit: str) -> int | None:
    """A duration in whole ns; ``None`` where unknown, negative or absurdly long."""
    if type(value) is int:
        ns = value * UNIT_NS[unit]
        return ns if 0 <= ns < EPOCH_2100_NS else None
    found = number(value)
    if found is None or found < 0:
        return None
    ns = int(found * UNIT_NS[unit])
    return ns if ns < EPOCH_2100_NS else None


def epoch_ns(value: object) -> int | None:
    """A number as epoch time in the one unit in which it lies between 2001 and 2100; ``None`` where none fits."""
    if type(value) is str and value.isdigit() and value.isascii() and len(value) < _MAX_DIGITS:
        value = int(value)
    found = value if type(value) is int else number(value)
    if found is None:
        return None
    for scale in UNIT_NS.values():
        if _FIRST_EPOCH_S * 10**9 <= found * scale < EPOCH_2100_NS:
            return int(found * scale)
    return None


@lru_cache(maxsize=4096)
def _midnight_s(day: str) -> int | None:
    """Seconds from 1970 to the beginning of a day, as if in UTC; ``None`` where there is no such day."""
    try:
        return (date.fromisoformat(day).toordinal() - _EPOCH_DAY) * 86_400
    except ValueError:
        return None


def naive_ns(value: object) -> tuple[int, bool] | None:
    """A calendar time in ns as if its clock were UTC (or truly, with an offset), and whether it has an offset."""
    match = _ISO.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    day, hour, minute, second, fraction, zone = match.groups()
    day_s = _midnight_s(day)
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if day_s is None or hours > 23 or minutes > 59 or seconds > 60:
        return None
    ns = (day_s + (hours * 60 + minutes) * 60 + seconds) * 10**9 + (int(fraction.ljust(9, "0")) if fraction else 0)
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        ns -= (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * 10**9
    return ns, zone is not None


def moment_ns(value: object) -> int | None:
    """A time in ns for differences within one row: calendar or epoch, in the unit that fits."""
    calendar = naive_ns(value) if type(value) is str and not value.isdigit() else None
    return calendar[0] if calendar is not None else epoch_ns(value)


def elapsed_ns(start: object, end: object) -> int | None:
    """From start to end; ``None`` where either is unknown or time would run backwards."""
    begin, finish = moment_ns(start), moment_ns(end)
    return finish - begin if begin is not None and finish is not None and finish >= begin else None


def spent_ns(ledger: Ledger, start: object, end: object) -> int | None:
    """``elapsed_ns``; the report says it where a row ends before it starts."""
    begin, finish = moment_ns(start), moment_ns(end)
    if begin is None or finish is None:
        return None
    if finish < begin:
        ledger.warn("reversed", "some rows end before they start: their durations are unknown, their starts are kept")
        return None
    return finish - begin


def http_status(code: object) -> str:
    """``ok``, ``failed``, ``aborted`` or ``unknown`` from an HTTP code; 499 and 0 are clients that left."""
    found = code if type(code) is int else number(code)
    if found is None:
        return "unknown"
    if found in (0, 499):
        return "aborted"
    if 200 <= found < 300:
        return "ok"
    return "failed" if 400 <= found < 600 else "unknown"


def counts_only(path: str) -> bool:
    """Whether a path of an API asks for nothing but a count of tokens, or tokens themselves."""
    return _COUNTS_ONLY.search(path.split("?", 1)[0]) is not None


def pick_key(record: Mapping[str, Any], *names: str) -> Any:
    """The value of the first of these keys that is known."""
    for name in names:
        value = record.get(name)
        if value is not None and known(value):
            return value
    return None


def iso(ns: int) -> str:
    """Epoch ns as ISO text in UTC, every digit kept."""
    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{ns % 10**9:09d}Z"
