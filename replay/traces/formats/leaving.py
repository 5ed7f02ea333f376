"""Columns that say how long after sending a request its client left."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from replay.traces.casts import clean_text
from replay.traces.formats.base import add_rule, duration_column
from replay.traces.options import TimeUnit
from replay.traces.rows import Batch


def with_cancel_after(frame: pl.DataFrame, batch: Batch, columns: Mapping[str, TimeUnit]) -> pl.DataFrame:
    """The frame with ``cancel_after_ns`` from the batch's ``columns``, each in its unit; the first that has a value
    counts. What is no duration breaks the rule ``not_a_duration``."""
    found: pl.Series | None = None
    for name, unit in columns.items():
        times = duration_column(batch, name, unit)
        if times is None:
            continue
        cells = batch.frame[name]
        cells = clean_text(cells) if isinstance(cells.dtype, pl.String) else cells
        frame = add_rule(frame, pl.lit(cells.is_not_null() & times.is_null()), "not_a_duration", name)
        found = times if found is None else found.fill_null(times)
    return frame if found is None else frame.with_columns(found.alias("cancel_after_ns"))
