"""Typed, bounded reading of fields of a Hugging Face ``config.json``, with errors that name the field and the cure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.errors import FieldError, SpecError

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
_LIMITS = {"layers": 1_000, "width": 1_000_000, "heads": 10_000, "count": 100_000, "tokens": 1_000_000_000}


def config_error(field: str, problem: str, cure: str) -> SpecError:
    """A ``model.config`` error on one field."""
    return SpecError(
        "model.config", f"config.json: {field}: {problem}; {cure}", [FieldError(problem, field, cure=cure)]
    )


def text_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a config: nested sections are merged over the outer fields they inherit."""
    merged = dict(config)
    for name in _TEXT_SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping):
            merged.update(text_section(section))
            break
    return merged


def find_int(config: Mapping[str, Any], names: tuple[str, ...], limit: str, *, least: int = 1) -> int | None:
    """The first of ``names`` that is present and not null, as a whole number within ``least`` and the limit's maximum.

    Raises:
        SpecError: the value is not a whole number or outside the bounds.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise config_error(name, f"is {value!r}", "give a whole number")
        if not least <= value <= _LIMITS[limit]:
            raise config_error(name, f"{value} is not plausible", f"give a number from {least} to {_LIMITS[limit]}")
        return value
    return None


def need_int(config: Mapping[str, Any], names: tuple[str, ...], limit: str) -> int:
    """As ``find_int``, but the field must be there."""
    value = find_int(config, names, limit)
    if value is None:
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise config_error(names[0], "is missing", f"add {names[0]}{others} to the config")
    return value


def find_bool(config: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A flag, or its default where absent or null.

    Raises:
        SpecError: the value is neither true nor false.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise config_error(name, f"is {value!r}", "give true or false")
    return value


def find_number(config: Mapping[str, Any], name: str) -> float | None:
    """A finite positive number, or ``None`` where absent.

    Raises:
        SpecError: anything else.
    """
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise config_error(name, f"is {value!r}", "give a positive number")
    return float(value)


def find_section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object, or an empty one where absent.

    Raises:
        SpecError: the value is not an object.
    """
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise config_error(name, f"is {type(value).__name__}", "give an object")
    return value
