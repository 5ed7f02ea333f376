"""pydantic's findings in plain words: what is wrong with a value, and what to write instead. Never the value itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from replay.errors import FieldError

_BOUNDS = {
    "greater_than_equal": ("ge", "too small", "at least"),
    "greater_than": ("gt", "too small", "a number above"),
    "less_than_equal": ("le", "too large", "at most"),
    "less_than": ("lt", "too large", "a number below"),
    "too_short": ("min_length", "too few items", "at least"),
    "too_long": ("max_length", "too many items", "at most"),
    "string_too_short": ("min_length", "too short", "at least"),
    "string_too_long": ("max_length", "too long", "at most"),
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "datetime": "a date and time such as 2026-11-29T08:00:00Z",
}


def plain_faults(findings: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """The findings of a ``ValidationError``, one a field: the first."""
    findings = list(findings)
    within = {path[:n] for path in (tuple(one.get("loc", ())) for one in findings) for n in range(len(path))}
    faults: dict[str, FieldError] = {}
    for finding in findings:
        where = ".".join(str(part) for part in finding.get("loc", ()))
        kind = str(finding.get("type", "invalid"))
        if kind == "too_short" and tuple(finding.get("loc", ())) in within:
            continue  # only the items without faults were counted
        detail, cure = _words(kind, finding.get("ctx") or {}, str(finding.get("msg", "invalid")))
        faults.setdefault(where, FieldError(detail, field=where or None, rule=kind, cure=cure))
    return list(faults.values())


def _words(kind: str, context: Mapping[str, Any], message: str) -> tuple[str, str | None]:
    if kind in _BOUNDS:
        name, problem, relation = _BOUNDS[kind]
        unit = {"string": " characters", "too": " items"}.get(kind.split("_")[0], "")
        bound = context.get(name)
        cure = f"give {relation} {bound}{unit.removesuffix('s') if bound == 1 else unit}"
    elif kind == "missing":
        problem, cure = "missing", "give it"
    elif kind == "extra_forbidden":
        problem, cure = "not known here", "remove it or correct its name"
    elif kind in ("literal_error", "enum"):
        problem, cure = "none of the known values", f"use {context.get('expected', 'a known value')}"
    elif kind == "string_pattern_mismatch":
        problem, cure = "not of the form expected", _form(str(context.get("pattern", "")))
    elif kind == "int_from_float":
        problem, cure = "no whole number", "give a whole number"
    elif kind.endswith(("_type", "_parsing", "_number")) and kind.split("_")[0] in _KINDS:
        problem, cure = f"not {_KINDS[kind.split('_')[0]]}", f"give {_KINDS[kind.split('_')[0]]}"
    else:
        return message.removeprefix("Value error, "), None
    return f"{problem}; {cure}", cure


def _form(pattern: str) -> str:
    """A pattern in words: ids as what they look like, labels as what they may not hold."""
    if found := re.fullmatch(r"\^([a-z]+)_\[0-9a-f\]\{(\d+)\}\$", pattern):
        return f"give an id: {found[1]}_ and {found[2]} hexadecimal digits"
    if pattern.startswith("^[^\\x00"):
        return "leave out line breaks and other control characters"
    return f"give a text that matches {pattern}"
