"""A canonical trace and a transform to the arrays of a workload: seeded, exact, and stated in its notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.closed_loop import ClosedLoop
from replay.errors import FieldError, TraceError, curable
from replay.specs import Transform
from replay.traces import canonical
from replay.traces.cancels import check_cancel_times, cut_answers, leaves_of
from replay.traces.canonical import Meta
from replay.traces.chains import chain_note, check_extent, find_chains
from replay.traces.changes import change
from replay.traces.checks import nothing_scored
from replay.traces.draft import Draft
from replay.traces.extent import MAX_REQUESTS
from replay.traces.lengths import infer_outputs
from replay.traces.mixing import Part, mixed
from replay.traces.sharing import prefix_blocks, sessions_note, turns_of_sessions
from replay.traces.tenants import check_tenants, wanted_tenants
from replay.traces.windows import Window, find_window
from replay.workload import NO_LABEL, Labels, Workload

Int64Array = npt.NDArray[np.int64]

PS_PER_NS = 1_000
PS_PER_S = 10**12
_SESSION = pl.col("session").rank("dense").cast(pl.Int64).fill_null(0) - 1
"""A number for each session, -1 where there is none."""
_NS = 10**9
_NAMED = 10
_LOST = {
    "predecessor_missing": "start only when another request has ended, which the trace does not hold",
    "no_prompt_tokens": "without prompt tokens",
    "no_output_tokens": "without output tokens",
}
"""Reasons for which a request is real load but cannot be replayed."""


def load_workload(
    path: Path, transform: Transform, seed: int, others: Sequence[Path] = (), *, max_requests: int = MAX_REQUESTS
) -> Workload:
    """The workload of ``transform`` over the canonical file ``path``; the same seed gives the same arrays. ``others``
    are the canonical files of ``transform.mix_with``, in its order; ``max_requests`` is the most that it may have.

    First what is read: the traces that are mixed in, the window, the tenants, what is known of each request. Then
    the changes, in the order in which ``Transform`` names them (``replay.traces.changes``). Each is stated in the
    notes.

    Requests without an arrival follow another one (closed loop). A chain belongs to the window in which its first
    request arrives, and growth keeps, copies and shifts whole chains. What follows a request that is left out follows
    the one before that.

    Warm-up and cool-down mark the requests of the first and last seconds as not scored; they are replayed. Followers
    count by the earliest time at which they could be sent.

    Raises:
        TraceError: an empty window, nothing with lengths in it, more left out than ``max_excluded_share`` allows,
            nothing left to score, requests that wait for each other, prefixes asked of sessions that there are not, or
            a window beyond what picoseconds can count, traces that cannot be mixed, too many requests.
    """
    meta, scan = _read(path, transform, seed, others)
    present = scan.collect_schema()
    columns = ["arrival_ns", "prompt_tokens", "output_tokens", "status"]
    columns += [name for name in ("tenant", "priority", "max_tokens") if name in present]
    columns += ["cancel_after_ns"] if transform.cancels != "as_logged" else []
    with_blocks = bool(meta.block_size_tokens) and "prefix_blocks" in present
    if with_blocks:
        columns.append("prefix_blocks")
    has_sessions = "session" in present
    columns += [name for name in ("after_line", "delay_ns", "source_line") if name in present]
    table = scan.select([*columns, _SESSION] if has_sessions else columns).collect()
    if transform.cancels != "as_logged":
        check_cancel_times(table)
    window = find_window(table["arrival_ns"].drop_nulls().to_numpy(), transform, meta)
    excluded: dict[str, int] = {}
    chains = find_chains(table)
    table = (
        table.with_columns(chains.root_ns.alias("root_ns"))
        if chains
        else table.with_columns(root_ns=pl.col("arrival_ns"))
    )
    table = _count_out(table.with_row_index("row"), pl.col("root_ns").is_not_null(), "predecessor_missing", excluded)
    inside = pl.col("root_ns").is_between(window.start_ns, window.end_ns, closed="left")
    table = _count_out(table, inside, "outside_window", excluded)
    in_window = table.height
    check_tenants(table, transform)
    table = _count_out(table, wanted_tenants(transform), "other_tenants", excluded)
    table = _count_out(table, pl.col("status").ne_missing("cache_hit"), "gateway_cache_hit", excluded)
    table = _count_out(table, pl.col("prompt_tokens").is_not_null(), "no_prompt_tokens", excluded)
    table, cancel_note = cut_answers(table, transform, seed)
    table, output_note = _unknown_outputs(table, transform, seed, excluded)
    table = _count_out(table, pl.col("output_tokens").is_not_null(), "no_output_tokens", excluded)
    if table.height == 0:
        cure = (
            "choose a window in which requests with known lengths arrive"
            if in_window == 0
            else "see the cleaning report"
        )
        what = f"no request of the trace can be replayed: {excluded}"
        raise curable("workload.empty", what, cure, "transform", rule="empty_workload")
    _check_complete(excluded, table.height, transform.max_excluded_share)
    loop: ClosedLoop | None = None
    if chains is None:
        arrival_ns = table["arrival_ns"].to_numpy() - window.start_ns
    else:
        order, arrival_ns, loop = chains.only(table["row"].to_numpy().astype(np.int64))
        table, arrival_ns = table[order], arrival_ns - window.start_ns
        check_extent(arrival_ns)
    session = table["session"].to_numpy() if has_sessions and (table["session"] >= 0).any() else None
    prefix = None
    if with_blocks:
        nobody = np.full(table.height, -1, np.int64)
        scope = None if meta.prefix_scope == "global" else nobody if session is None else session
        prefix = prefix_blocks(table["prefix_blocks"], meta.block_size_tokens, scope)
    draft = Draft(
        arrival_ns=arrival_ns,
        prompt=table["prompt_tokens"].to_numpy(),
        output=table["output_tokens"].to_numpy(),
        span_ns=round(window.span_s * _NS),
        to_last=window.to_last,
        declared=table["max_tokens"].fill_null(0).to_numpy() if "max_tokens" in columns else None,
        prefix=prefix,
        tenant=_labels(table["tenant"]) if "tenant" in columns else None,
        priority_class=_labels(table["priority"]) if "priority" in columns else None,
        priority=_priorities(table["priority"]) if "priority" in columns else None,
        session=session,
        loop=loop,
        leaves=leaves_of(table) if "cancel_after_ns" in columns else None,
    )
    notes = [*([meta.notes] if meta.notes else []), *_notes(window, transform, excluded, in_window), *cancel_note]
    notes += output_note
    if loop is not None:
        notes.append(chain_note(loop))
    draft, said = change(draft, transform, seed, max_requests)
    notes += said
    span_s = window.span_s if draft.span_ns == round(window.span_s * _NS) else draft.span_ns / _NS
    # Copies: polars hands out read-only views, and a kernel compiles anew for those.
    arrival_ps = np.array(draft.arrival_ns * PS_PER_NS, dtype=np.int64)
    follows = turns_of_sessions(draft.session, draft.prefix) if transform.prefix_from_sessions else None
    scored = _scored(arrival_ps, transform, span_s)
    if scored is not None:
        notes.append(
            f"Scored are the {scored[1] - scored[0]:,} of {len(arrival_ps):,} requests that are sent after the first "
            f"{transform.warmup_s:g} s and before the last {transform.cooldown_s:g} s; the others are replayed, and "
            "count in the load and in use, not in latencies, objectives, goodput and splits."
        )
    workload = Workload(
        arrival_ps=arrival_ps,
        prompt_tokens=np.array(draft.prompt, dtype=np.int64),
        output_tokens=np.array(draft.output, dtype=np.int64),
        span_s=span_s,
        prefix=draft.prefix,
        priority=draft.priority,
        session=None if draft.session is None else np.array(draft.session, dtype=np.int64),
        max_tokens=None if draft.declared is None else np.array(draft.declared, dtype=np.int64),
        seed=seed,
        excluded=excluded,
        notes=tuple(notes),
        tenant=draft.tenant,
        priority_class=draft.priority_class,
        scored=scored,
        closed_loop=draft.loop,
        leaves=draft.leaves,
        follows=follows,
    )
    if follows is None:
        return workload
    note = sessions_note(workload.prompt_tokens, follows, workload.shared_tokens)
    return replace(workload, notes=(*workload.notes, note))


def _read(path: Path, transform: Transform, seed: int, others: Sequence[Path]) -> tuple[Meta, pl.LazyFrame]:
    """The trace, with those that are mixed in."""
    if not transform.mix_with:
        return canonical.read_meta(path), canonical.scan(path)
    added = [Part(other, one.name, one.share) for other, one in zip(others, transform.mix_with, strict=True)]
    whole, meta = mixed([Part(path, None), *added], transform.mix_align, seed)
    return meta, whole.lazy()


def _unknown_outputs(
    table: pl.DataFrame, transform: Transform, seed: int, excluded: dict[str, int]
) -> tuple[pl.DataFrame, list[str]]:
    """Applies ``zero_output`` to the requests whose output is 0 or unknown, and says so."""
    unknown = table["output_tokens"].null_count()
    if transform.zero_output == "count_out" or unknown in (0, table.height):
        return table, []
    if transform.zero_output == "drop":
        table = _count_out(table, pl.col("output_tokens").is_not_null(), "zero_output", excluded)
        return table, [f"{unknown:,} requests whose output is 0 or unknown are dropped as no load, as asked."]
    if transform.zero_output == "keep_as_one":
        said = f"{unknown:,} requests whose output is 0 or unknown are replayed with one output token, as asked."
        return table.with_columns(pl.col("output_tokens").fill_null(1)), [said]
    prompt = table["prompt_tokens"].to_numpy()
    output = infer_outputs(prompt, table["output_tokens"].fill_null(0).to_numpy(), seed)
    said = (
        f"{unknown:,} requests whose output is 0 or unknown have the output of a request with a prompt of about the "
        f"same length, drawn (seed {seed}), as asked."
    )
    return table.with_columns(pl.Series("output_tokens", output)), [said]


def _scored(arrival_ps: Int64Array, transform: Transform, span_s: float) -> tuple[int, int] | None:
    """First and end of the requests sent from ``warmup_s`` on and before the last ``cooldown_s``."""
    if transform.warmup_s == 0 and transform.cooldown_s == 0:
        return None
    first = int(np.searchsorted(arrival_ps, round(transform.warmup_s * PS_PER_S), side="left"))
    end = len(arrival_ps)
    if transform.cooldown_s > 0:
        end = int(np.searchsorted(arrival_ps, round((span_s - transform.cooldown_s) * PS_PER_S), side="left"))
    if end <= first:
        raise nothing_scored(transform, span_s)
    return first, end


def _labels(column: pl.Series) -> Labels | None:
    """A text column as codes; ``None`` where it is empty."""
    if column.null_count() == len(column):
        return None
    filled = column.fill_null(NO_LABEL)
    names = filled.unique().sort()
    code = filled.replace_strict(names, pl.Series(range(len(names)), dtype=pl.Int32), return_dtype=pl.Int32)
    return Labels(np.array(code, dtype=np.int32), tuple(names.to_list()))


def _count_out(table: pl.DataFrame, keep: pl.Expr, reason: str, excluded: dict[str, int]) -> pl.DataFrame:
    kept = table.filter(keep)
    if kept.height < table.height:
        excluded[reason] = table.height - kept.height
    return kept


def _check_complete(excluded: dict[str, int], kept: int, limit: float) -> None:
    """Refuses a workload that lacks much of its load: a plan for a part of it would look like one for all."""
    lost = {reason: excluded[reason] for reason in _LOST if reason in excluded}
    share = sum(lost.values()) / (sum(lost.values()) + kept)
    if share <= limit:
        return
    parts = ", ".join(f"{n:,} {_LOST[reason]}" for reason, n in lost.items())
    cure = f"complete the trace, or accept a plan for the rest with max_excluded_share={share:.3f} or more"
    raise TraceError(
        "workload.incomplete",
        f"{share:.1%} of the requests cannot be replayed ({parts}): a plan would be for a part of the load",
        [FieldError(cure, field="transform.max_excluded_share", rule="max_excluded_share", cure=cure)],
    )


def _notes(window: Window, transform: Transform, excluded: dict[str, int], in_window: int) -> list[str]:
    notes = []
    if window.chosen:
        end = "the end" if window.to_last else f"{window.end_ns / _NS:g} s"
        notes.append(f"Window {window.start_ns / _NS:g} s to {end} of the trace{window.why}: {in_window:,} requests.")
    if "other_tenants" in excluded:
        names = transform.tenants or transform.without_tenants
        more = f" and {len(names) - _NAMED:,} more tenants" if len(names) > _NAMED else ""
        which = f"{'Only' if transform.tenants else 'Without'} {', '.join(names[:_NAMED])}{more}"
        notes.append(f"{which}: {excluded['other_tenants']:,} requests are left out, as asked.")
    asked = ("outside_window", "other_tenants", "zero_output")
    left_out = {reason: n for reason, n in excluded.items() if reason not in asked}
    if left_out:
        parts = ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in left_out.items())
        notes.append(f"Left out of the replay: {parts}. The load is understated by so much.")
    return notes


def _priorities(column: pl.Series) -> Int64Array | None:
    """Priorities as numbers, 0 (vLLM's default) where a request has none; ``None`` where any is not a whole number."""
    numbers = column.cast(pl.Int64, strict=False)
    if column.null_count() == len(column) or numbers.null_count() > column.null_count():
        return None
    return np.array(numbers.fill_null(0).to_numpy(), dtype=np.int64)
