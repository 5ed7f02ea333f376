"""The formats that are read. A module here that defines ``FORMATS`` is found by being here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from replay.traces.formats.base import Format


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format of every module of this package, by module name, then in the module's order."""
    found: list[Format] = []
    for module in sorted(iter_modules(__path__), key=lambda info: info.name):
        found.extend(getattr(import_module(f"{__name__}.{module.name}"), "FORMATS", ()))
    return tuple(found)
