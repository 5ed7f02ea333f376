"""Where a run lies between idle and overloaded, from measured figures only; and what may be scored of it.

The rules are those of docs/accuracy.md; they were fixed before any constant was fitted.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from replay.accuracy.runs import MeasuredRun
from replay.accuracy.table import RequestRows

Region = Literal["below", "near", "above"]
BoolArray = npt.NDArray[np.bool_]

TRIM_S = 60.0
SHORTEST_TRIMMED_S = 300.0
MEAN_NEEDS, P99_NEEDS = 100, 500
GROWTH_ABOVE = 3.0
SPREAD_NEAR = 4.0
SEATS_SHARE = 0.01
"""Share of requests that met all seats taken from which a run counts as running at ``max_num_seqs``."""


def scored_rows(rows: RequestRows) -> BoolArray:
    """Successful requests, less those sent in the first minute of a run of five minutes or more."""
    if rows.n and rows.arrival_s.max() >= SHORTEST_TRIMMED_S:
        return rows.ok & (rows.arrival_s >= TRIM_S)
    return rows.ok


def region_of(run: MeasuredRun, seats: int) -> Region:
    """``above``: TTFT grows threefold from the first third to the last (by stages where the rate steps); ``near``: TTFT
    p99 over p50 above 4, or all ``seats`` taken; else ``below``."""
    if run.server.quality == "overload":
        return "above"
    return _by_aggregates(run, seats) if run.rows is None else _by_rows(run.rows, seats)


def _by_rows(rows: RequestRows, seats: int) -> Region:
    scored = scored_rows(rows)
    ttft = rows.ttft_s
    stages = np.unique(rows.stage[scored])
    if len(stages) > 1:
        first, last = (float(ttft[scored & (rows.stage == stage)].mean()) for stage in (stages[0], stages[-1]))
    else:
        thirds = np.array_split(ttft[rows.ok], 3)
        first, last = (float(part.mean()) if len(part) else 0.0 for part in (thirds[0], thirds[-1]))
    if last > GROWTH_ABOVE * first:
        return "above"
    middle, high = np.percentile(ttft[scored], (50, 99))
    if high > SPREAD_NEAR * middle or _meets_full(rows, scored, seats):
        return "near"
    return "below"


def _meets_full(rows: RequestRows, scored: BoolArray, seats: int) -> bool:
    """Whether requests arrived while ``seats`` others were under way."""
    ends = np.sort((rows.arrival_s + rows.e2e_s)[rows.ok])
    starts = np.sort(rows.arrival_s)
    under_way = np.searchsorted(starts, rows.arrival_s, side="left") - np.searchsorted(ends, rows.arrival_s)
    return float((under_way[scored] >= seats).mean()) > SEATS_SHARE


def _by_aggregates(run: MeasuredRun, seats: int) -> Region:
    if run.aggregates is None:
        raise ValueError("a run has rows or aggregates")
    if run.throughput_only:
        return "above"
    stages = run.aggregates.by_stage_s
    if not stages:
        return "below"
    first, last = (stage["ttft_s"]["mean"] for stage in (stages[0], stages[-1]))
    if last > GROWTH_ABOVE * first:
        return "above"
    rate = run.aggregates.stages[-1][0]
    spread = stages[-1]["ttft_s"].get("p99", 0.0) / last
    full = rate * stages[-1]["e2e_s"]["mean"] >= seats
    return "near" if spread > SPREAD_NEAR or full else "below"
