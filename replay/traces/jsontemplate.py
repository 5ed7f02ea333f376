"""JSON lines that all look like the first: their values by one pattern, without an object a line.

Logs are written by machines: the same keys in the same order with the same white space, only the values differ. Of
such lines a pattern is made, which takes the wanted values as text, so that no digit is lost. It takes only what the
parser of ``jsontext`` would read to the same values; where one line differs, the whole batch is for that parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

_DIGITS_INT64 = 17
"""Digits after the first of an integer that is surely an Int64."""
_NUMBER = rf"(?:(?:0|-?[1-9][0-9]{{0,{_DIGITS_INT64}}})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
_PLAIN_TEXT = r'"[^"\\\x00-\x1f]*"'
_ANY_TEXT = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
"""Without \\u escapes: they may make what cannot be stored."""
_ID = r"(?:0|[1-9][0-9]{0,19})"
_IDS = rf"\[(?:{_ID}(?:, ?{_ID})*)?\]"
_WORDS = "true|false|null"
_MOST_VALUES = 100
_TRIED_LINES = 64
"""Looked at before all: a file of mixed lines shows it soon."""

_TOKEN = re.compile(rf"""[ \t]+|[{{}},:]|(?P<text>{_ANY_TEXT})|(?P<ids>{_IDS})|(?P<word>{_NUMBER}|{_WORDS})""")


@dataclass(frozen=True)
class Template:
    """``pattern`` takes the wanted columns of a line, in the order of ``columns``; ``lists`` of them are block ids."""

    pattern: str
    columns: tuple[str, ...]
    lists: frozenset[str]

    def frame(self, data: bytes, columns: Sequence[str]) -> pl.DataFrame | None:
        """The ``columns`` of whole lines, in the types of ``jsontext.to_batch``; ``None`` where some line differs."""
        lines = pl.Series([data[:-1].decode("utf-8")]).str.split("\n").explode()
        try:
            if not lines.head(_TRIED_LINES).str.contains(self.pattern).all():
                return None
            found = lines.str.extract_groups(self.pattern).struct.unnest()
        except pl.exceptions.PolarsError:  # a pattern that is too large
            return None
        if any(found.null_count().row(0)):
            return None
        made = {}
        for name, raw in zip(self.columns, found.get_columns(), strict=True):
            values = _lists(raw) if name in self.lists else _scalars(raw)
            if values is None:
                return None
            made[name] = values
        absent = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(lines))
        return pl.DataFrame({name: made.get(name, absent) for name in columns})


def _scalars(raw: pl.Series) -> pl.Series:
    """Int64 where all are integers, else text; ``null`` is null."""
    numbers = raw.cast(pl.Int64, strict=False)
    if numbers.null_count() == 0:
        return numbers
    given = raw.set(raw == "null", None)
    if numbers.null_count() == given.null_count():
        return numbers
    # A text has its quotes still: a cell of "null" or "7" is text, null and 7 are not.
    return given.str.strip_prefix('"').str.strip_suffix('"')


def _lists(raw: pl.Series) -> pl.Series | None:
    """Block ids, unsigned 64-bit; no ids are null. ``None`` where one does not fit."""
    if (raw == "null").all():
        return _scalars(raw)
    inner = raw.str.slice(1, raw.str.len_bytes() - 2).str.replace_all(" ", "", literal=True)
    inner = inner.set((raw == "null") | (inner == ""), None)
    try:
        return inner.str.split(",").cast(pl.List(pl.UInt64))
    except pl.exceptions.PolarsError:
        return None


def make_template(line: str, columns: Sequence[str]) -> Template | None:
    """The template of a line; ``None`` where it is no object of plain values, or holds none of ``columns``."""
    parts: list[str] = []
    path: list[str] = []
    taken: list[str] = []
    lists: set[str] = set()
    names: set[str] = set()
    key: str | None = None
    position = 0
    while position < len(line):
        token = _TOKEN.match(line, position)
        if token is None:
            return None
        position = token.end()
        kind, text = token.lastgroup, token.group()
        if kind == "text" and key is None:
            key = json.loads(text)
            parts.append(_literally(text))
            continue
        if kind is None:
            parts.append(_literally(text))
            if text == "{" and key is not None:
                path.append(key)
                key = None
            elif text == "}" and path:
                path.pop()
            continue
        name = ".".join([*path, key or ""])
        if name in names or len(names) >= _MOST_VALUES:
            return None
        names.add(name)
        wanted = name in columns
        value = _value_pattern(kind, wanted=wanted)
        parts.append(f"({value})" if wanted else f"(?:{value})")
        if wanted:
            taken.append(name)
        if wanted and kind == "ids":
            lists.add(name)
        key = None
    objects = {name[: name.rindex(".")] for name in names if "." in name}
    if not taken or any(f"{one}.".startswith(f"{name}.") for one in objects for name in columns):
        return None
    if not _is_plain(line, names):
        return None
    return Template("^" + "".join(parts) + r"[ \t\r]*$", tuple(taken), frozenset(lists))


def _value_pattern(kind: str, *, wanted: bool) -> str:
    """What may stand in place of a value of this kind."""
    if kind == "ids":
        return rf"{_IDS}|null"
    return "|".join((_PLAIN_TEXT if wanted else _ANY_TEXT, _NUMBER, _WORDS))


def _literally(text: str) -> str:
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text)


def _is_plain(line: str, names: set[str]) -> bool:
    """Whether the line is an object whose values have these names, each of them one thing by every way to read it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    found: list[str] = []

    def walk(value: dict[str, Any], prefix: str) -> bool:
        for key, inner in value.items():
            if "." in key or (isinstance(inner, dict) and not inner):
                return False
            if isinstance(inner, dict):
                if not walk(inner, f"{prefix}{key}."):
                    return False
            else:
                found.append(prefix + key)
        return True

    return isinstance(row, dict) and walk(row, "") and len(found) == len(names) and set(found) == names
