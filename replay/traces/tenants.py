"""Tenants in and out of a what-if."""

from __future__ import annotations

from difflib import get_close_matches

import polars as pl

from replay.errors import FieldError, TraceError
from replay.specs_transform import Transform
from replay.workload import NO_LABEL

_NAMED = 10


def wanted_tenants(transform: Transform) -> pl.Expr:
    """Which rows ``tenants`` or ``without_tenants`` keeps."""
    name = pl.col("tenant").fill_null(NO_LABEL)
    if transform.tenants:
        return name.is_in(list(transform.tenants))
    if transform.without_tenants:
        return ~name.is_in(list(transform.without_tenants))
    return pl.lit(True)


def check_tenants(table: pl.DataFrame, transform: Transform) -> None:
    """Refuses tenants that the window does not have: a misspelt name would change nothing and look like an answer.

    Raises:
        TraceError: ``workload.tenants``.
    """
    named = {
        "tenants": transform.tenants,
        "without_tenants": transform.without_tenants,
        "tenant_growth": tuple(transform.tenant_growth),
    }
    asked = [(field, name) for field, names in named.items() for name in names]
    if not asked:
        return
    known: list[str] = []
    if "tenant" in table.columns and table["tenant"].null_count() < table.height:
        counts = table["tenant"].fill_null(NO_LABEL).value_counts()
        known = counts.sort("count", "tenant", descending=[True, False])["tenant"].to_list()
    if not known:
        cure = f"map a column to tenant when the trace is ingested, or leave {asked[0][0]} out"
        raise _refusal("no request of the window says which tenant it is of", asked[0][0], cure)
    for field, name in asked:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            listed = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED:,} more" if len(known) > _NAMED else "")
            raise _refusal(f"no request of the window is of tenant {name!r}", field, f"{hint}the window has {listed}")


def _refusal(detail: str, field: str, cure: str) -> TraceError:
    return TraceError(
        "workload.tenants", f"{detail}; {cure}", [FieldError(cure, field=field, rule="tenants", cure=cure)]
    )
