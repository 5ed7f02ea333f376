"""Two or more traces as one: the load of services that will share a cluster, or of a region that fails over to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from replay.specs_transform import MixAlign
from replay.traces import canonical
from replay.traces.canonical import Meta
from replay.traces.checks import MixFacts, check_mix, mix_refusal

NS = 10**9
_KEPT = (
    "prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "model", "priority", "status",
    "cancel_after_ns", "source_ttft_ns", "source_e2e_ns", "source_queue_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A canonical file, and the name that its tenants and sessions get; ``None``: they stay as they are.

    ``share``: of its requests, drawn: whole sessions where it has them.
    """

    path: Path
    name: str | None
    share: float = 1.0


def mixed(parts: Sequence[Part], align: MixAlign, seed: int = 0) -> tuple[pl.DataFrame, Meta]:
    """All requests of ``parts`` as one sorted canonical table; the notes of its metadata say what was done.

    ``align``: ``start`` lets all begin at 0; ``clock`` keeps the times of their clocks. A tenant becomes
    ``name/tenant`` (``name`` where there is none), a session ``name/session``; prefix blocks of different traces are
    never the same. The same seed draws the same share.

    Raises:
        TraceError: ``trace.mix``: ``replay.traces.checks.check_mix``, or a tenant that has the name of a part already.
    """
    tables = [canonical.scan(part.path).collect() for part in parts]
    metas = [canonical.read_meta(part.path) for part in parts]
    names = [part.name or "the trace" for part in parts]
    facts = [_facts(table, meta) for table, meta in zip(tables, metas, strict=True)]
    check_mix(list(zip(names, facts, strict=True)), align)
    _check_names(parts, tables)
    starts = [(meta.start_epoch_ns or 0) if align == "clock" else 0 for meta in metas]
    frames, last_id = [], 0
    for number, (part, meta, table) in enumerate(zip(parts, metas, tables, strict=True)):
        shift_ns = starts[number] - min(starts)
        frame, last_id = _labelled(_drawn(table, part.share, seed + number), part.name, meta, shift_ns, last_id)
        frames.append(frame)
    whole = canonical.conform(pl.concat(frames, how="diagonal_relaxed")).sort("arrival_ns", maintain_order=True)
    whole = whole.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("source_line"))
    first = min(starts) if align == "clock" else metas[0].start_epoch_ns
    notes = [meta.notes for meta in metas if meta.notes]
    notes.append(_note(parts, names, tables, frames, facts, starts, align, seed))
    sizes = [meta.block_size_tokens for meta in metas if meta.block_size_tokens]
    return whole, Meta(
        block_size_tokens=sizes[0] if sizes else None,
        start_epoch_ns=first,
        zone=(metas[0].zone or "UTC") if first is not None else None,
        notes=" ".join(notes),
    )


def mix(parts: Sequence[Part], align: MixAlign, out: Path) -> str:
    """Writes ``mixed`` to the Parquet file ``out``, in our own format, and says in a sentence what was done; the
    sentence is in the file too and comes along in every report. Raises as ``mixed``."""
    whole, meta = mixed(parts, align)
    used = [name for name in whole.columns if name != "source_line" and whole[name].null_count() < whole.height]
    write_own(whole.select(used), out, meta)
    return meta.notes


def write_own(frame: pl.DataFrame, out: Path, meta: Meta) -> None:
    """A frame of our own format as Parquet; every report of it shows the notes of ``meta``."""
    frame.write_parquet(out, compression="zstd", row_group_size=canonical.ROW_GROUP_ROWS, metadata=meta.to_parquet())


def _facts(table: pl.DataFrame, meta: Meta) -> MixFacts:
    last = table["arrival_ns"].max()
    follows = table["arrival_ns"].null_count() > 0 or table["after_line"].null_count() < table.height
    return MixFacts(
        last_ns=last if isinstance(last, int) else 0,
        start_epoch_ns=meta.start_epoch_ns,
        closed_loop=follows,
        block_size=meta.block_size_tokens,
        sessions=table["session"].null_count() < table.height,
    )


def _check_names(parts: Sequence[Part], tables: Sequence[pl.DataFrame]) -> None:
    """A tenant of a trace whose labels stay must not look like one of a part."""
    for part, table in zip(parts, tables, strict=True):
        if part.name is not None:
            continue
        for name in (one.name for one in parts if one.name is not None):
            if table.filter((pl.col("tenant") == name) | pl.col("tenant").str.starts_with(f"{name}/")).height:
                raise mix_refusal(f"the trace has a tenant {name!r} already", "give the other trace another name")


def _drawn(table: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """A share of the requests: each session, and each request without one, is kept with this probability."""
    if share == 1.0:
        return table
    rng = np.random.Generator(np.random.PCG64(seed))
    alone = rng.random(table.height) < share
    names = table["session"].drop_nulls().unique(maintain_order=True)
    kept = names.filter(pl.Series(rng.random(len(names)) < share))
    by_session = table["session"].is_in(kept.implode())
    return table.filter(pl.when(pl.col("session").is_null()).then(pl.Series(alone)).otherwise(by_session))


def _labelled(
    frame: pl.DataFrame, name: str | None, meta: Meta, shift_ns: int, last_id: int
) -> tuple[pl.DataFrame, int]:
    """The part's columns under its name, with block ids from ``last_id`` on; and the first id that is free then."""
    columns = [pl.col("arrival_ns") + shift_ns, *(pl.col(column) for column in _KEPT)]
    if name is None:
        columns += [pl.col("tenant"), pl.col("session")]
    else:
        label = pl.lit(name)
        tenant = pl.when(pl.col("tenant").is_null()).then(label).otherwise(label + "/" + pl.col("tenant"))
        columns += [tenant.alias("tenant"), (label + "/" + pl.col("session")).alias("session")]
    if meta.block_size_tokens is not None:
        columns.append(pl.col("prefix_blocks").list.eval(pl.element() + last_id))
        top = frame["prefix_blocks"].explode(empty_as_null=False, keep_nulls=False).max()
        last_id += int(top) + 1 if isinstance(top, int) else 0
    return frame.select(columns), last_id


def _note(
    parts: Sequence[Part],
    names: Sequence[str],
    tables: Sequence[pl.DataFrame],
    frames: Sequence[pl.DataFrame],
    facts: Sequence[MixFacts],
    starts: Sequence[int],
    align: MixAlign,
    seed: int,
) -> str:
    """What was mixed, what was drawn, and from when to when all are there."""
    counts = []
    for number, part in enumerate(parts):
        count = f"{frames[number].height:,} of {names[number]}"
        if part.share < 1.0:
            what = "whole sessions" if facts[number].sessions else "requests"
            count += f" ({what} drawn with a share of {part.share:g} of {tables[number].height:,}, seed {seed})"
        counts.append(count)
    aligned = "each from its first request on" if align == "start" else "at the times of their clocks"
    begin = (max(starts) - min(starts)) / NS
    end = min(start - min(starts) + one.last_ns for start, one in zip(starts, facts, strict=True)) / NS
    return (
        f"Mixed from {len(parts)} traces, not recorded together: {' and '.join(counts)}, {aligned}. All of them are "
        f"there from {begin:,.6g} s to {end:,.6g} s."
    )
