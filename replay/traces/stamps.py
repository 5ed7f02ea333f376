"""Calendar times of one shape, which is how programs write them: read as columns of bytes, not cell by cell."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_SHAPE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}\.(\d{1,9})(Z|\+00:?00|)")
_NS = 10**9
_FRACTION = 20
"""Where the digits of the second's fraction begin."""


def stamps_ns(text: pl.Series) -> tuple[Int64Array, bool] | None:
    """Epoch times in ns, shape (n,), and whether the cells say that they are in UTC.

    ``None`` unless each cell is as long as the first, has its separators and zone, digits where it has digits, and is a
    time that exists, of 1700 to 2199.
    """
    first = text[0] if len(text) else None
    if text.null_count() or not isinstance(first, str) or (shape := _SHAPE.fullmatch(first)) is None:
        return None
    if not bool((text.str.len_bytes() == len(first)).all()):
        return None
    # One row a place in the cell.
    cells = np.frombuffer(text.str.join("").item().encode(), np.uint8).reshape(-1, len(first)).T.copy()
    digits = cells - np.uint8(ord("0"))
    end = _FRACTION + len(shape[1])
    for place, char in enumerate(first):
        if char.isdigit() and place < end:
            if digits[place].max() > 9:
                return None
        elif bool((cells[place] != ord(char)).any()):
            return None
    days = _days(digits)
    hour, minute, second = (_pair(digits, place) for place in (11, 14, 17))
    if days is None or hour.max() > 23 or minute.max() > 59 or second.max() > 59:
        return None
    seconds = (hour.astype(np.int32) * 60 + minute) * 60 + second
    fraction = np.zeros(len(text), np.int32)
    for place in range(_FRACTION, end):
        fraction = fraction * 10 + digits[place]
    times = (days * 86_400 + seconds) * _NS + fraction * np.int64(10 ** (_FRACTION + 9 - end))
    return times, bool(shape[2])


def _pair(digits: Bytes, place: int) -> Bytes:
    pair: Bytes = digits[place] * np.uint8(10) + digits[place + 1]
    return pair


def _days(digits: Bytes) -> Int64Array | None:
    """Days since 1970; ``None`` where one does not exist. Days repeat, so each run of one is looked at once."""
    century, years, month, day = (_pair(digits, place).astype(np.int32) for place in (0, 2, 5, 8))
    key = ((century * 100 + years) * 100 + month) * 100 + day
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    century, years, month, day = (part[starts] for part in (century, years, month, day))
    if century.min() < 17 or century.max() > 21:  # of others 64 bits of ns would be too few
        return None
    months = ((century * 100 + years - 1970) * 12 + month - 1).astype("datetime64[M]")
    dates = months.astype("datetime64[D]") + (day - 1)
    if month.min() < 1 or month.max() > 12 or day.min() < 1 or bool((dates.astype("datetime64[M]") != months).any()):
        return None
    return np.repeat(dates.astype(np.int64), np.diff(starts, append=len(key)))
