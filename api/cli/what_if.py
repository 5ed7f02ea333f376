"""Options that change the load of a trace: one each for the common changes, and one for every field of a transform."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

GROWTH_METHODS = ("superpose", "shift", "compress")
SPREADS = ("keep", "even", "uniform")
ZERO_OUTPUTS = ("count_out", "keep_as_one", "drop", "infer")
CANCELS = ("as_logged", "at_their_time", "at_their_time_drawn")
"""Values of ``replay.specs_transform``, which is too slow to import for a help text; a test compares them."""

_FIELDS = {
    "growth_method": "growth_method",
    "busiest": "busiest_window_s",
    "spread": "spread",
    "burstiness": "burstiness",
    "prompt_scale": "prompt_scale",
    "output_scale": "output_scale",
    "zero_output": "zero_output",
    "cancels": "cancels",
    "only_tenants": "tenants",
    "without_tenants": "without_tenants",
    "prefix_from_sessions": "prefix_from_sessions",
}
"""Parameter of a command -> field of a transform."""

_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option(
        "--growth-method",
        type=click.Choice(GROWTH_METHODS),
        help="superpose: bursts grow too; shift: copies at other times; compress: the same in less time.",
    ),
    click.option("--busiest", type=float, metavar="SECONDS", help="Only the busiest window of this length."),
    click.option("--tenant", "only_tenants", multiple=True, metavar="NAME", help="Only this tenant. Repeatable."),
    click.option(
        "--without-tenant", "without_tenants", multiple=True, metavar="NAME", help="Without this tenant. Repeatable."
    ),
    click.option(
        "--tenant-growth",
        "tenant_growths",
        multiple=True,
        metavar="NAME=FACTOR",
        help="This tenant's load factor, on top of --growth. Repeatable.",
    ),
    click.option(
        "--zero-output",
        type=click.Choice(ZERO_OUTPUTS),
        help="Requests whose output is 0 or unknown; default: left out and counted.",
    ),
    click.option(
        "--cancels",
        type=click.Choice(CANCELS),
        help="Aborted requests: as long as their tokens (default), or until their clients left in the trace.",
    ),
    click.option(
        "--spread",
        type=click.Choice(SPREADS),
        help="Requests that share a tick of the trace's clock: over the tick, evenly or drawn; default: as they are.",
    ),
    click.option(
        "--burstiness",
        type=float,
        metavar="POWER",
        help="Gaps to this power at the same mean rate: 0 even, 1 as recorded, 2 burstier.",
    ),
    click.option("--prompt-scale", type=float, metavar="FACTOR", help="Prompt lengths times this."),
    click.option("--output-scale", type=float, metavar="FACTOR", help="Output lengths times this."),
    click.option(
        "--prefix-from-sessions",
        is_flag=True,
        help="Take each turn of a session to begin with the turn before it, for the prefix cache.",
    ),
    click.option(
        "--transform",
        "transform_fields",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Any field of a transform, e.g. prompt_cap_tokens=8000; see docs/traces.md. Repeatable.",
    ),
)


def what_if_options(function: F) -> F:
    """The options, handed to the command as one dictionary ``changes`` of transform fields."""

    @wraps(function)
    def packed(*args: Any, **given: Any) -> Any:
        changes = {field: given.pop(name) for name, field in _FIELDS.items()}
        fields, growths = given.pop("transform_fields"), given.pop("tenant_growths")
        changes = {
            field: value for field, value in changes.items() if value is not None and value is not False and value != ()
        }
        if growths:
            changes["tenant_growth"] = tenant_growth_of(growths)
        for field, value in transform_fields_of(fields).items():
            if field in changes:
                raise click.UsageError(f"{field} is given by its option and by --transform: keep one")
            changes[field] = value
        return function(*args, changes=changes, **given)

    decorated: Any = packed
    for decorator in reversed(_OPTIONS):
        decorated = decorator(decorated)
    out: F = decorated
    return out


def _absent(value: object) -> bool:
    """Whether an option was not given; a 0 was."""
    return value is None or value is False or value == ()


def tenant_growth_of(values: Sequence[str]) -> dict[str, float]:
    """``("search=2",)`` -> ``{"search": 2.0}``."""
    out: dict[str, float] = {}
    for value in values:
        name, equals, text = value.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            equals = ""
        if not equals or not name or name in out:
            raise click.UsageError(
                f"--tenant-growth takes NAME=FACTOR, once a name, e.g. --tenant-growth search=2; got {value!r}"
            )
        out[name] = factor
    return out


def transform_fields_of(values: Sequence[str]) -> dict[str, Any]:
    """``("prompt_cap_tokens=8000",)`` -> ``{"prompt_cap_tokens": 8000}``; values are JSON, or else text."""
    out: dict[str, Any] = {}
    for value in values:
        field, equals, text = value.partition("=")
        field = field.strip()
        if not equals or not field or field in out:
            raise click.UsageError(
                f"--transform takes FIELD=VALUE, once a field, e.g. --transform prompt_cap_tokens=8000; got {value!r}"
            )
        try:
            out[field] = json.loads(text)
        except (ValueError, RecursionError):
            out[field] = text.strip()
    return out
