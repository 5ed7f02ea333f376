"""Sessions of a trace: their turns, and the time that users (or tools) take between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.traces import canonical
from replay.traces.report import SessionProfile
from replay.traces.tally import Tally, TimeTally

Int64Array = npt.NDArray[np.int64]

_PART_ROWS = 4_000_000
"""Rows of sessions held at a time: the file is read once for each so many."""
_COLUMNS = ("session", "arrival_ns", "source_e2e_ns", "delay_ns")
_UNKNOWN = -1


def measure_sessions(path: Path, rows: int, tick: Callable[[], None]) -> SessionProfile | None:
    """Profiles the sessions of the canonical file at ``path``, of whose requests ``rows`` have one; ``None``: none.

    ``tick`` is called before each slice and may raise to cancel. Definitions: docs/metrics.md.
    """
    if rows == 0:
        return None
    turns, gaps, thinks = Tally(), TimeTally(), TimeTally()
    overlapping = 0
    parts = -(-rows // _PART_ROWS)
    for part in range(parts):
        key, arrival, e2e, delay = (np.concatenate(one) for one in zip(*_of_part(path, part, parts, tick), strict=True))
        order = np.argsort(key, kind="stable")  # within a session as in the file: by arrival
        key, arrival, e2e, delay = key[order], arrival[order], e2e[order], delay[order]
        starts = np.flatnonzero(np.concatenate([np.ones(min(len(key), 1), np.bool_), key[1:] != key[:-1]]))
        turns.add(np.diff(starts, append=len(key)))
        follows = np.ones(len(key), np.bool_)
        follows[starts] = False
        before = np.maximum(np.arange(len(key)) - 1, 0)
        timed = follows & (arrival >= 0) & (arrival[before] >= 0)
        gap = np.where(timed, arrival - arrival[before], _UNKNOWN)
        gaps.add(gap[timed])
        measured = timed & (e2e[before] >= 0) & (delay < 0)
        think = np.where(measured, gap - e2e[before], delay)
        overlapping += int((think[measured] < 0).sum())
        thinks.add(think[think >= 0])
    counted = turns.profile()
    return SessionProfile(
        sessions=counted.n,
        requests=counted.total,
        single_turn=counted.n - turns.above(1),
        turns=counted,
        between_starts=gaps.timing(),
        think_time=thinks.timing(),
        overlapping=overlapping,
    )


def _of_part(
    path: Path, part: int, parts: int, tick: Callable[[], None]
) -> Iterator[tuple[npt.NDArray[np.uint64], Int64Array, Int64Array, Int64Array]]:
    """Sessions (hashed), arrivals, E2E times and delays (ns, -1: unknown) of one part of the sessions, by slice."""
    for frame in canonical.slices(path, _COLUMNS):
        tick()
        frame = frame.filter(pl.col("session").is_not_null()).with_columns(pl.col("session").hash().alias("key"))
        frame = frame.filter(pl.col("key") % parts == part)
        arrival, e2e, delay = (frame[name].fill_null(_UNKNOWN).to_numpy() for name in _COLUMNS[1:])
        yield frame["key"].to_numpy(), arrival, e2e, delay
