"""Clients that left before their answers were complete: when they did, and how long the answers would have been.

What a log says of an aborted stream are the tokens that its client was given by the old system. How long the answer
would have been is not known, nor whether the client left because it had waited or because it had read enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.specs_transform import Transform
from replay.traces.checks import no_cancel_times, nothing_to_draw_from
from replay.workload import MAX_SPAN_S, STAYS, Leaves

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PS_PER_NS = 1_000
_LONGEST_NS = MAX_SPAN_S * 10**9
_WIDTHS = (16, 256, 4096)
"""A cut answer's length is drawn from so many requests with shorter prompts and so many with longer ones: the fewest
that hold an answer of its tokens or more."""
_CHUNK = 2048
_TIME, _ABORTED = pl.col("cancel_after_ns"), pl.col("status").eq_missing("aborted")


def with_cancel_times(frame: pl.DataFrame) -> pl.DataFrame:
    """Kept rows of any format with ``cancel_after_ns`` where the source tells it: in a column of its own, or as the
    time that an aborted stream took. 0 says "unknown", as in clocks of whole seconds.

    A request that has such a time and no status of its own is an aborted one.
    """
    has_times, has_status = "cancel_after_ns" in frame.columns, "status" in frame.columns
    if has_times:
        frame = frame.with_columns(_TIME.replace(0, None))
        if frame["cancel_after_ns"].null_count() < frame.height:
            said = pl.col("status").replace("unknown", None) if has_status else pl.lit(None, dtype=pl.String)
            status = pl.when(_TIME.is_not_null() & said.is_null()).then(pl.lit("aborted"))
            frame = frame.with_columns(status.otherwise(pl.col("status") if has_status else said).alias("status"))
    elif has_status and "source_e2e_ns" in frame.columns:
        took = pl.when(_ABORTED & (pl.col("source_e2e_ns") > 0)).then(pl.col("source_e2e_ns"))
        frame = frame.with_columns(took.cast(pl.Int64).alias("cancel_after_ns"))
    return frame


def check_cancel_times(table: pl.DataFrame) -> None:
    """Refuses a trace of which no request says when its client left.

    Raises:
        TraceError: ``workload.cancels``.
    """
    if table["cancel_after_ns"].null_count() == table.height:
        raise no_cancel_times()


def cut_answers(table: pl.DataFrame, transform: Transform, seed: int) -> tuple[pl.DataFrame, list[str]]:
    """The requests of a workload with the outputs that ``transform.cancels`` gives to aborted ones, and what it says of
    them. ``at_their_time_drawn``: of a request that did not fail and was not aborted, with a prompt of about the same
    length and at least as many output tokens as the log has of the aborted one.

    Raises:
        TraceError: ``workload.cancels``: there is none to draw from.
    """
    aborted = int(table.select(_ABORTED.sum()).item())
    if transform.cancels == "as_logged":
        said = (
            f"{aborted:,} requests whose clients left early are replayed as long as the tokens that the trace counts."
        )
        return table, [said] if aborted else []
    timed = int(table.select((_ABORTED & _TIME.is_not_null()).sum()).item())
    others = int(table["cancel_after_ns"].count()) - timed
    said = f"The clients of {timed:,} of {aborted:,} aborted requests leave as long after sending as the trace says"
    if timed < aborted:
        said += "; of the others it does not say when: they are as long as the tokens that it counts"
    if others:
        said += f". {others:,} other requests have such a time too: their clients give up then"
    if transform.cancels == "at_their_time":
        return table, [
            f"{said}. No aborted answer is longer than its tokens in the trace: what a faster deployment would have "
            "given until the client left is not counted."
        ]
    cut = table.select(_ABORTED & _TIME.is_not_null()).to_series().to_numpy()
    whole = table.select(
        ~pl.col("status").is_in(["aborted", "failed"]).fill_null(value=False) & (pl.col("output_tokens") > 0)
    ).to_series()
    known = whole.fill_null(value=False).to_numpy()
    if cut.any() and not known.any():
        raise nothing_to_draw_from()
    logged = table["output_tokens"].fill_null(0).to_numpy()
    output, drawn = draw_longer(table["prompt_tokens"].to_numpy(), logged, cut, known, seed)
    said += (
        f". Their answers would have been as long as those of requests that were not cut, with prompts of about the "
        f"same length and no fewer tokens, drawn (seed {seed})"
    )
    if drawn < timed:
        said += f"; {timed - drawn:,} are longer than any of these and keep their tokens"
    values = pl.Series("output_tokens", output).replace(0, None)
    return table.with_columns(pl.when(pl.Series(cut)).then(values).otherwise(pl.col("output_tokens"))), [f"{said}."]


def draw_longer(
    prompt: Int64Array, output: Int64Array, cut: BoolArray, known: BoolArray, seed: int
) -> tuple[Int64Array, int]:
    """Outputs with those of ``cut`` requests drawn from ``known`` ones that have at least as many tokens, evenly among
    those with the nearest prompts (by rank); and how many were drawn. The others keep theirs."""
    order = np.argsort(prompt[known], kind="stable")
    prompts, outputs = prompt[known][order], output[known][order]
    rows = np.flatnonzero(cut)
    chance = np.random.Generator(np.random.PCG64([seed, 4])).random(len(rows))
    out, drawn = output.copy(), 0
    for width in _WIDTHS:
        around, left = np.arange(-width, width), []
        for start in range(0, len(rows), _CHUNK):
            some, luck = rows[start : start + _CHUNK], chance[start : start + _CHUNK]
            at = np.searchsorted(prompts, prompt[some])[:, None] + around
            there = (at >= 0) & (at < len(prompts))
            fits = there & (outputs[np.clip(at, 0, len(prompts) - 1)] >= output[some][:, None])
            count = fits.sum(axis=1)
            place = (np.cumsum(fits, axis=1) > np.floor(luck * count)[:, None]).argmax(axis=1)
            found = count > 0
            out[some[found]] = outputs[at[found, place[found]]]
            drawn += int(found.sum())
            left.append(start + np.flatnonzero(~found))
        again = np.concatenate(left) if left else np.zeros(0, np.int64)
        rows, chance = rows[again], chance[again]
    return out, drawn


def leaves_of(table: pl.DataFrame) -> Leaves:
    """When clients leave, of the requests of a workload in its order."""
    times = table["cancel_after_ns"]
    after_ns = times.fill_null(_LONGEST_NS).to_numpy()
    after_ps = np.where(after_ns < _LONGEST_NS, np.minimum(after_ns, _LONGEST_NS) * _PS_PER_NS, STAYS)
    return Leaves(after_ps.astype(np.int64), np.array(table.select(_ABORTED).to_series().to_numpy(), dtype=np.bool_))
