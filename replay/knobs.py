"""Reading one engine knob: its type, its range, and errors that name the knob and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from replay.errors import FieldError, SpecError
from replay.specs import Scalar


@dataclass(frozen=True)
class Knob:
    """What a knob accepts."""

    kind: type
    low: float = float("-inf")
    high: float = float("inf")
    choices: tuple[str, ...] = ()
    """Of a knob that takes a word; without any it takes any text, or a number."""


_KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def refuse(knob: str, detail: str, cure: str) -> SpecError:
    """The error about a knob."""
    return SpecError("engine.knob", detail, [FieldError(detail, field=f"engine.overrides.{knob}", cure=cure)])


def read_knob(name: str, value: Scalar, knobs: Mapping[str, Knob], not_replayed: Mapping[str, str]) -> Scalar:
    """The value of a knob, converted and in range.

    Raises:
        SpecError: an unknown knob with the nearest names, one that is not replayed, or a value it does not take.
    """
    if name in not_replayed:
        raise refuse(name, f"{name} cannot be set: {not_replayed[name]}", f"leave {name} out")
    if name not in knobs:
        near = difflib.get_close_matches(name, knobs, n=3, cutoff=0.5)
        cure = f"did you mean {' or '.join(near)}?" if near else f"known knobs: {', '.join(sorted(knobs))}"
        raise refuse(name, f"unknown engine knob {name!r}", cure)
    knob = knobs[name]
    if knob.choices:
        return _read_choice(name, value, knob.choices)
    if knob.kind is str:
        return str(value).strip()
    if isinstance(value, str):
        value = _parse_text(name, value, knob.kind)
    if knob.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not knob.kind:
        kind = _KIND_NAMES[knob.kind]
        raise refuse(name, f"{name} takes {kind}, not {value!r}", f"set {name} to {kind}")
    if isinstance(value, int | float) and not knob.low <= value <= knob.high:
        bounds = f"between {knob.low:g} and {knob.high:g}"
        raise refuse(name, f"{name} is {value}, which is out of range", f"set {name} {bounds}")
    return value


def _read_choice(name: str, value: Scalar, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if str(value).strip().lower() == choice.lower():
            return choice
    words = ", ".join(choices)
    raise refuse(name, f"{name} is {value!r}, which is none of {words}", f"set {name} to one of {words}")


def _parse_text(name: str, text: str, kind: type) -> Scalar:
    lowered = text.strip().lower()
    if kind is bool and lowered in ("true", "false", "on", "off", "1", "0"):
        return lowered in ("true", "on", "1")
    try:
        if kind is int:
            return int(lowered)
        if kind is float:
            return float(lowered)
    except ValueError:
        pass
    raise refuse(name, f"{name} takes {_KIND_NAMES[kind]}, not {text!r}", f"set {name} to {_KIND_NAMES[kind]}")
