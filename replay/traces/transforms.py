"""A canonical trace and a transform to the arrays of a workload: seeded, exact, and stated in its notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.closed_loop import ClosedLoop, unroll
from replay.errors import FieldError, TraceError
from replay.specs import Transform
from replay.traces import canonical
from replay.traces.chains import chain_note, check_extent, copies_of, find_chains
from replay.traces.sharing import copies_apart, prefix_blocks, sessions_note, turns_of_sessions
from replay.workload import MAX_SPAN_S, NO_LABEL, Labels, Workload

Int64Array = npt.NDArray[np.int64]

PS_PER_NS = 1_000
PS_PER_S = 10**12
JITTER_S = 0.5
"""Copies are shifted by so much at most, and by a thousandth of the span: bursts grow with the load."""
_SESSION = pl.col("session").rank("dense").cast(pl.Int64).fill_null(0) - 1
"""A number for each session, -1 where there is none."""
_NS = 10**9
_LOST = {
    "predecessor_missing": "start only when another request has ended, which the trace does not hold",
    "no_prompt_tokens": "without prompt tokens",
    "no_output_tokens": "without output tokens",
}
"""Reasons for which a request is real load but cannot be replayed."""


def load_workload(path: Path, transform: Transform, seed: int) -> Workload:
    """The workload of ``transform`` over the canonical file ``path``; the same seed gives the same arrays.

    Window first, then growth. Growth ``g`` takes ``floor(g)`` copies of every request and one more of a seeded share
    ``g - floor(g)`` of them. The first copy keeps its time; further ones are shifted by a uniform time of at most
    half a second and a thousandth of the span either way (reflected at the window's ends), so that rate curve and
    bursts both grow ``g`` times and no exact tie is doubled. Below 1 every request is kept with probability ``g``.

    Requests without an arrival follow another one (closed loop). A chain belongs to the window in which its first
    request arrives, and growth keeps, copies and shifts whole chains. What follows a request that is left out follows
    the one before that.

    Warm-up and cool-down mark the requests of the first and last seconds as not scored; they are replayed. Followers
    count by the earliest time at which they could be sent.

    Raises:
        TraceError: an empty window, nothing with lengths in it, more left out than ``max_excluded_share`` allows,
            nothing left to score, requests that wait for each other, prefixes asked of sessions that there are not, or
            a window beyond what picoseconds can count.
    """
    meta = canonical.read_meta(path)
    scan = pl.scan_parquet(path, glob=False)
    present = scan.collect_schema()
    columns = ["arrival_ns", "prompt_tokens", "output_tokens", "status"]
    columns += [name for name in ("tenant", "priority") if name in present]
    with_blocks = bool(meta.block_size_tokens) and "prefix_blocks" in present
    if with_blocks:
        columns.append("prefix_blocks")
    if "max_tokens" in present:
        columns.append("max_tokens")
    has_sessions = "session" in present
    columns += [name for name in ("after_line", "delay_ns", "source_line") if name in present]
    table = scan.select([*columns, _SESSION] if has_sessions else columns).collect()
    start_ns, end_ns, span_s = _window(table, transform)
    excluded: dict[str, int] = {}
    chains = find_chains(table)
    table = (
        table.with_columns(chains.root_ns.alias("root_ns"))
        if chains
        else table.with_columns(root_ns=pl.col("arrival_ns"))
    )
    table = _count_out(table.with_row_index("row"), pl.col("root_ns").is_not_null(), "predecessor_missing", excluded)
    table = _count_out(table, pl.col("root_ns").is_between(start_ns, end_ns, closed="left"), "outside_window", excluded)
    in_window = table.height
    table = _count_out(table, pl.col("status").ne_missing("cache_hit"), "gateway_cache_hit", excluded)
    table = _count_out(table, pl.col("prompt_tokens").is_not_null(), "no_prompt_tokens", excluded)
    table = _count_out(table, pl.col("output_tokens").is_not_null(), "no_output_tokens", excluded)
    if table.height == 0:
        cure = (
            "choose a window in which requests with known lengths arrive"
            if in_window == 0
            else "see the cleaning report"
        )
        raise TraceError(
            "workload.empty",
            f"no request of the trace can be replayed: {excluded}; {cure}",
            [FieldError(cure, field="transform", rule="empty_workload", cure=cure)],
        )
    _check_complete(excluded, table.height, transform.max_excluded_share)
    loop: ClosedLoop | None = None
    if chains is None:
        arrival_ns = table["arrival_ns"].to_numpy() - start_ns
    else:
        order, arrival_ns, loop = chains.only(table["row"].to_numpy().astype(np.int64))
        table, arrival_ns = table[order], arrival_ns - start_ns
        check_extent(arrival_ns)
    prompt = table["prompt_tokens"].to_numpy()
    output = table["output_tokens"].to_numpy()
    session = table["session"].to_numpy() if has_sessions and (table["session"] >= 0).any() else None
    prefix = None
    if with_blocks:
        nobody = np.full(table.height, -1, np.int64)
        scope = None if meta.prefix_scope == "global" else nobody if session is None else session
        prefix = prefix_blocks(table["prefix_blocks"], meta.block_size_tokens, scope)
    tenant, priority_class = (_labels(table[name]) if name in columns else None for name in ("tenant", "priority"))
    priority = _priorities(table["priority"]) if "priority" in columns else None
    declared = table["max_tokens"].fill_null(0).to_numpy() if "max_tokens" in columns else None
    notes = _notes(transform, excluded, in_window)
    if loop is not None:
        notes.append(chain_note(loop))
    if transform.growth != 1.0:
        arrival_ns, index, copy, note = _grow(arrival_ns, transform.growth, span_s, seed, loop)
        loop = None if loop is None else copies_of(loop, index, copy)
        prompt, output = prompt[index], output[index]
        priority = None if priority is None else priority[index]
        if session is not None:
            session = np.where(session[index] < 0, -1, session[index] + copy * (session.max() + 1))
        declared = None if declared is None else declared[index]
        tenant, priority_class = _take(tenant, index), _take(priority_class, index)
        notes.append(note)
        if prefix is not None:
            prefix = copies_apart(prefix.take(index), copy)
            notes.append(
                "Copies share no prompt prefix with the requests they copy, so prefix reuse is not overstated."
            )
        if len(arrival_ns) == 0:
            cure = "choose a larger growth or a longer window"
            raise TraceError(
                "workload.empty",
                f"growth {transform.growth:g} leaves no request",
                [FieldError(cure, field="growth", cure=cure)],
            )
    # Copies: polars hands out read-only views, and a kernel compiles anew for those.
    arrival_ps = np.array(arrival_ns * PS_PER_NS, dtype=np.int64)
    follows = turns_of_sessions(session, prefix) if transform.prefix_from_sessions else None
    scored = _scored(arrival_ps, transform, span_s)
    if scored is not None:
        notes.append(
            f"Scored are the {scored[1] - scored[0]:,} of {len(arrival_ps):,} requests that are sent after the first "
            f"{transform.warmup_s:g} s and before the last {transform.cooldown_s:g} s; the others are replayed, and "
            "count in the load and in use, not in latencies, objectives, goodput and splits."
        )
    workload = Workload(
        arrival_ps=arrival_ps,
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        span_s=span_s,
        prefix=prefix,
        priority=priority,
        session=None if session is None else np.array(session, dtype=np.int64),
        max_tokens=None if declared is None else np.array(declared, dtype=np.int64),
        seed=seed,
        excluded=excluded,
        notes=tuple(notes),
        tenant=tenant,
        priority_class=priority_class,
        scored=scored,
        closed_loop=loop,
        follows=follows,
    )
    if follows is None:
        return workload
    note = sessions_note(workload.prompt_tokens, follows, workload.shared_tokens)
    return replace(workload, notes=(*workload.notes, note))


def _scored(arrival_ps: Int64Array, transform: Transform, span_s: float) -> tuple[int, int] | None:
    """First and end of the requests sent from ``warmup_s`` on and before the last ``cooldown_s``."""
    if transform.warmup_s == 0 and transform.cooldown_s == 0:
        return None
    first = int(np.searchsorted(arrival_ps, round(transform.warmup_s * PS_PER_S), side="left"))
    end = len(arrival_ps)
    if transform.cooldown_s > 0:
        end = int(np.searchsorted(arrival_ps, round((span_s - transform.cooldown_s) * PS_PER_S), side="left"))
    if end <= first:
        cure = f"shorten warmup_s and cooldown_s: the window is {span_s:g} s long"
        raise TraceError(
            "workload.nothing_scored",
            f"no request is sent between the warm-up of {transform.warmup_s:g} s and the cool-down of "
            f"{transform.cooldown_s:g} s",
            [FieldError(cure, field="warmup_s", rule="nothing_scored", cure=cure)],
        )
    return first, end


def _labels(column: pl.Series) -> Labels | None:
    """A text column as codes; ``None`` where it is empty."""
    if column.null_count() == len(column):
        return None
    filled = column.fill_null(NO_LABEL)
    names = filled.unique().sort()
    code = filled.replace_strict(names, pl.Series(range(len(names)), dtype=pl.Int32), return_dtype=pl.Int32)
    return Labels(np.array(code, dtype=np.int32), tuple(names.to_list()))


def _take(labels: Labels | None, index: Int64Array) -> Labels | None:
    return None if labels is None else Labels(labels.code[index], labels.names)


def _window(table: pl.DataFrame, transform: Transform) -> tuple[int, int, float]:
    """Start (included) and end (excluded) in ns, and the length in s that the rate is counted over."""
    last = table["arrival_ns"].max()
    last_ns = last if isinstance(last, int) else 0
    start_ns = round((transform.window_start_s or 0.0) * _NS)
    if start_ns > last_ns:
        cure = f"the trace's last request arrives at {last_ns / _NS:g} s; start before"
        raise TraceError(
            "workload.window",
            f"the window starts at {start_ns / _NS:g} s, after the trace's end",
            [FieldError(cure, "window_start_s")],
        )
    end_ns = last_ns + 1
    span_s = (last_ns - start_ns) / _NS
    if transform.window_end_s is not None and round(transform.window_end_s * _NS) <= last_ns:
        end_ns = round(transform.window_end_s * _NS)
        span_s = (end_ns - start_ns) / _NS
    if span_s > MAX_SPAN_S:
        cure = f"choose a window of at most {MAX_SPAN_S // 86_400} days by window_start_s and window_end_s"
        raise TraceError(
            "workload.too_long",
            f"the window is {span_s / 86_400:,.1f} days; a replay, which counts picoseconds in 64 bits, takes "
            f"{MAX_SPAN_S // 86_400}",
            [FieldError(cure, field="window_end_s", rule="max_span", cure=cure)],
        )
    return start_ns, end_ns, span_s


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


def _notes(transform: Transform, excluded: dict[str, int], in_window: int) -> list[str]:
    notes = []
    if transform.window_start_s is not None or transform.window_end_s is not None:
        end = "the end" if transform.window_end_s is None else f"{transform.window_end_s:g} s"
        notes.append(f"Window {transform.window_start_s or 0:g} s to {end} of the trace: {in_window:,} requests.")
    left_out = {reason: n for reason, n in excluded.items() if reason != "outside_window"}
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


def _busiest_second(times_ns: Int64Array) -> int:
    return int(np.bincount(times_ns // _NS).max(initial=0))


def _grow(
    arrival_ns: Int64Array, growth: float, span_s: float, seed: int, loop: ClosedLoop | None
) -> tuple[Int64Array, Int64Array, Int64Array, str]:
    """Arrivals of the grown load, the request that each stands for, the number of its copy (0: the first), and a
    note. Followers go with the head of their chain."""
    n = len(arrival_ns)
    rng = np.random.Generator(np.random.PCG64(seed))
    head = np.arange(n, dtype=np.int64) if loop is None else unroll(loop.after, loop.delay_ps).root
    together = "" if loop is None else " Requests that follow others go with the first of their session."
    if growth < 1.0:
        index = np.flatnonzero((rng.random(n) < growth)[head])
        note = (
            f"Load times {growth:g}: every request kept with probability {growth:g} (seed {seed}): "
            f"{len(index):,} of {n:,}.{together}"
        )
        return arrival_ns[index], index, np.zeros(len(index), np.int64), note
    whole = int(growth)
    extra = np.flatnonzero((rng.random(n) < growth - whole)[head])
    index = np.concatenate([np.tile(np.arange(n, dtype=np.int64), whole), extra.astype(np.int64)])
    copy = np.concatenate([np.repeat(np.arange(whole, dtype=np.int64), n), np.full(len(extra), whole, np.int64)])
    leader = np.arange(len(index), dtype=np.int64)
    if loop is not None:
        leader = np.where(copy < whole, copy * n + head[index], whole * n + np.searchsorted(extra, head[index]))
    jitter_s = min(JITTER_S, span_s / 1000)
    shift = np.rint(rng.uniform(-jitter_s, jitter_s, len(index) - n) * _NS).astype(np.int64)
    last = round(span_s * _NS)
    times = arrival_ns[index]
    since_head = times - times[leader]
    heads = times.copy()
    heads[n:] = np.abs(times[n:] + shift)
    heads = np.where(heads > last, 2 * last - heads, heads)
    times = heads[leader] + since_head
    order = np.argsort(times, kind="stable")
    copies = "one copy" if whole == 1 else f"{whole} copies"
    share = f" and a seeded share of {growth - whole:.3g}" if growth > whole else ""
    note = (
        f"Load times {growth:g}: {len(index):,} requests from {n:,} by superposing {copies}{share}; all but the first "
        f"copy are shifted by up to {jitter_s:.3g} s either way (seed {seed}). Bursts grow with the load: the busiest "
        f"second has {_busiest_second(times):,} requests, it had {_busiest_second(arrival_ns):,}.{together}"
    )
    return times[order], index[order], copy[order], note
