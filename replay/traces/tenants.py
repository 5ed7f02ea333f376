"""Tenants in and out of a what-if."""

from __future__ import annotations

import polars as pl

from replay.specs_transform import Transform
from replay.traces.checks import check_tenant_names
from replay.workload import NO_LABEL


def wanted_tenants(transform: Transform) -> pl.Expr:
    """Which rows ``tenants`` or ``without_tenants`` keeps."""
    name = pl.col("tenant").fill_null(NO_LABEL)
    if transform.tenants:
        return name.is_in(list(transform.tenants))
    if transform.without_tenants:
        return ~name.is_in(list(transform.without_tenants))
    return pl.lit(True)


def check_tenants(table: pl.DataFrame, transform: Transform) -> None:
    """Refuses tenants that the window does not have, as ``check_tenant_names``."""
    known: list[str] = []
    if "tenant" in table.columns and table["tenant"].null_count() < table.height:
        counts = table["tenant"].fill_null(NO_LABEL).value_counts()
        known = counts.sort("count", "tenant", descending=[True, False])["tenant"].to_list()
    check_tenant_names(transform, known, "window")
