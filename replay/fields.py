"""Where a refused value stands in the request that gave it: the path of its field, as its author wrote it.

The domain knows a deployment. A replay has it under ``deployment``, a plan spreads it over its own fields, and of two
pools each may have a value of its own or share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from replay.errors import SpecError
from replay.specs import DeploymentSpec, DisaggregationSpec

_KNOBS = "engine.overrides."


def pool_refusal(pool: str, apart: DisaggregationSpec, error: SpecError, *, says: bool = True) -> SpecError:
    """The refusal of one pool, ``prefill`` or ``decode``, at the fields of ``apart`` where it gave the value. ``says``:
    its sentence names the pool, unless both share what is refused."""
    moved = _moved(error, lambda field: _of_pool(field, pool, apart))
    fields = [one.field or "" for one in moved.errors]
    is_shared = bool(fields) and all(
        field.split(".")[0] in DeploymentSpec.model_fields and not field.startswith("disaggregation")
        for field in fields
    )
    return moved if is_shared or not says else SpecError(error.code, f"{pool} replicas: {error.detail}", moved.errors)


def _of_pool(field: str, pool: str, apart: DisaggregationSpec) -> str:
    own = f"disaggregation.{pool}"
    if field == "tp" and getattr(apart, f"{pool}_tp") is not None:
        return f"{own}_tp"
    if field == "router" and pool == "decode":
        return f"{own}_router"
    if field.startswith(_KNOBS) and field.removeprefix(_KNOBS) in getattr(apart, f"{pool}_overrides"):
        return f"{own}_overrides.{field.removeprefix(_KNOBS)}"
    return field


@contextmanager
def fields_of_a_replay() -> Iterator[None]:
    """Refusals of a deployment inside name its fields as a ``ReplaySpec`` has them."""
    try:
        yield
    except SpecError as error:
        raise _moved(error, lambda field: f"deployment.{field}") from error


@contextmanager
def fields_of_a_plan() -> Iterator[None]:
    """Refusals of a deployment inside name its fields as a ``PlanSpec`` has them."""
    try:
        yield
    except SpecError as error:
        raise _moved(error, lambda field: "gpus" if field == "gpu" else field) from error


def _moved(error: SpecError, place: Callable[[str], str]) -> SpecError:
    """The error with every field of a deployment where ``place`` puts it."""

    def moved(field: str | None) -> str | None:
        path = (field or "").removeprefix("deployment.")
        return place(path) if path.split(".")[0] in DeploymentSpec.model_fields else field

    return SpecError(error.code, error.detail, [replace(one, field=moved(one.field)) for one in error.errors])
