"""Requests of a trace that follow others: their chains, and the earliest times at which they could be sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.closed_loop import ClosedLoop, CycleError, unroll
from replay.errors import FieldError, TraceError
from replay.workload import MAX_SPAN_S

Int64Array = npt.NDArray[np.int64]

_PS_PER_NS = 1_000
_NS = 10**9


@dataclass(frozen=True)
class Chains:
    """Of all rows of a canonical table, shape (n,) each."""

    root_ns: pl.Series
    """Arrival of the first request of the row's chain; null where the trace does not hold it."""
    start_ns: Int64Array
    """The earliest start: that arrival and the delays since."""
    after: Int64Array
    """The row before in the chain, or -1."""
    depth: Int64Array

    def only(self, rows: Int64Array) -> tuple[Int64Array, Int64Array, ClosedLoop | None]:
        """The order of the kept ``rows`` (ascending) by earliest start, those starts, and who follows whom among them;
        whoever followed a row that is not kept follows the one before that."""
        keep = np.zeros(len(self.after), np.bool_)
        keep[rows] = True
        before = ClosedLoop(self.after, self.start_ns).ancestors(keep)[rows]
        order = np.lexsort((rows, self.depth[rows], self.start_ns[rows])).astype(np.int64)
        start, before = self.start_ns[rows][order], before[order]
        if (before < 0).all():
            return order, start, None
        place = np.full(len(self.after), -1, np.int64)
        place[rows[order]] = np.arange(len(rows))
        delay_ps = np.where(before >= 0, start - self.start_ns[before], 0) * _PS_PER_NS
        return order, start, ClosedLoop(np.where(before >= 0, place[before], -1), delay_ps)


def find_chains(table: pl.DataFrame) -> Chains | None:
    """The chains of a canonical table; ``None`` where no request follows another.

    A request with ``after_line`` follows that one, also where the source tells its arrival: that was the old system's.
    It keeps its own arrival where the pause is not known, or the trace lacks the request before it.

    Raises:
        TraceError: ``workload.cycle``: requests that wait for each other.
    """
    arrival = table["arrival_ns"]
    if "after_line" not in table.columns or table["after_line"].null_count() == table.height:
        return None
    closed = arrival.is_null().to_numpy()
    if "delay_ns" in table.columns:
        closed = closed | table["delay_ns"].is_not_null().to_numpy()
    line = table["source_line"].to_numpy()
    by_line = np.argsort(line, kind="stable")
    wanted = table["after_line"].fill_null(-1).to_numpy()
    at = np.minimum(np.searchsorted(line[by_line], wanted), len(line) - 1)
    found = closed & (line[by_line[at]] == wanted)
    after = np.where(found, by_line[at], -1).astype(np.int64)
    delay = table["delay_ns"].fill_null(0).to_numpy() if "delay_ns" in table.columns else np.zeros(len(after), np.int64)
    try:
        chain = unroll(after, delay)
    except CycleError as error:
        cure = "correct after_line in the trace: the first request of a session needs an arrival"
        detail = f"the request of line {line[error.member]} waits for requests that wait for it, so none ever starts"
        raise TraceError("workload.cycle", detail, [FieldError(cure, field="after_line", cure=cure)]) from error
    root_ns = arrival.gather(chain.root)
    start_ns = root_ns.fill_null(0).to_numpy() + chain.offset
    return Chains(root_ns, start_ns, after, chain.depth)


def check_extent(start_ns: Int64Array) -> None:
    """Refuses chains whose delays alone reach beyond what picoseconds can count.

    Raises:
        TraceError: ``workload.too_long``.
    """
    last = int(start_ns.max(initial=0))
    if last > MAX_SPAN_S * _NS:
        cure = "check the unit of the delays, or choose a window without these sessions"
        raise TraceError(
            "workload.too_long",
            f"by their delays alone the sessions of the window last {last / _NS / 86_400:,.1f} days; a replay takes "
            f"{MAX_SPAN_S // 86_400}",
            [FieldError(cure, field="transform", rule="max_span", cure=cure)],
        )


def copies_of(loop: ClosedLoop, index: Int64Array, copy: Int64Array) -> ClosedLoop:
    """Who follows whom among copies: entry ``i`` is copy ``copy[i]`` of request ``index[i]``, and follows the same
    copy."""
    n = len(loop.after)
    key = copy * n + index
    by_key = np.argsort(key)
    before = loop.after[index]
    place = by_key[np.minimum(np.searchsorted(key[by_key], copy * n + before), len(key) - 1)]
    return ClosedLoop(np.where(before >= 0, place, -1).astype(np.int64), loop.delay_ps[index])


def chain_note(loop: ClosedLoop) -> str:
    """What a closed loop means, for the report."""
    followers = len(loop.after) - loop.sessions
    return (
        f"Closed loop: {followers:,} of {len(loop.after):,} requests are sent only when the one before has ended; they "
        f"belong to the window with the first of their session, of which there are {loop.sessions:,}. Rates and "
        "burstiness of the workload are of the earliest times at which they could be sent."
    )
