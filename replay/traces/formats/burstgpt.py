"""BurstGPT v1, v2 (one schema) and v3 (session and elapsed time inserted). Read by column name.

Source: HPMLL/BurstGPT README. Times are whole seconds from midnight of the first day, local.
A response of 0 tokens is a failed call: the arrival stays, the length is unknown.
"""

from __future__ import annotations

import polars as pl

from replay.traces import casts
from replay.traces.formats.base import Reading, TableFormat, duration_column
from replay.traces.options import MappedField
from replay.traces.rows import Batch

_COLUMNS: dict[MappedField, str] = {
    "arrival": "Timestamp",
    "prompt_tokens": "Request tokens",
    "output_tokens": "Response tokens",
    "model": "Model",
    "session": "Session ID",
}
_REQUIRED = ("Timestamp", "Model", "Request tokens", "Response tokens")


def _hook(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    elapsed = duration_column(batch, "Elapsed time", "s")
    if elapsed is not None:
        frame = frame.with_columns(elapsed.alias("source_e2e_ns"))
    if "Total tokens" in batch.frame.columns:
        total, _ = casts.tokens(batch.frame["Total tokens"], reading.options.limits)
        differs = int((total != frame["prompt_tokens"] + frame["output_tokens"]).sum())
        if differs:
            reading.ledger.warn(
                "total", "in some rows 'Total tokens' is not the sum of request and response; it was not used"
            )
    return frame


FORMATS = (
    TableFormat(
        name="burstgpt-v1",
        title="BurstGPT v1 or v2",
        columns=_COLUMNS,
        required=_REQUIRED,
        optional=("Total tokens", "Log Type"),
        absent=("Session ID", "Elapsed time"),
        time_unit="s",
        extra=("Total tokens",),
        zero_output_is_failure=True,
        hook=_hook,
    ),
    TableFormat(
        name="burstgpt-v3",
        title="BurstGPT v3",
        columns=_COLUMNS,
        required=(*_REQUIRED, "Session ID", "Elapsed time"),
        optional=("Total tokens", "Log Type"),
        time_unit="s",
        extra=("Total tokens", "Elapsed time"),
        zero_output_is_failure=True,
        hook=_hook,
    ),
)
