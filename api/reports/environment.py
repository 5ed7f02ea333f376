"""The one Jinja environment of pages and reports: autoescape always on, undefined names are faults."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from api import labels
from api.reports import formats, tables

API_FOLDER = Path(__file__).resolve().parents[1]
STATIC_FOLDER = API_FOLDER / "static"


@cache
def environment() -> Environment:
    """Loads ``api/templates``; filters format numbers as every other surface does."""
    env = Environment(
        loader=FileSystemLoader(API_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        seconds=formats.seconds,
        duration=formats.duration,
        usd=formats.usd,
        number=formats.number,
        percent=formats.percent,
        gib=formats.gib,
        words=_words,
        about=labels.about,
    )
    env.globals.update(show=tables.show)
    return env


def _words(value: Any) -> str:
    """``too_long_for_model`` -> ``too long for model``."""
    return str(value).replace("_", " ")
