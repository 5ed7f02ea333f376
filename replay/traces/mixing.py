"""Two or more traces as one: the load of services that will share a cluster, or of a region that fails over to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces import canonical
from replay.traces.canonical import Meta

NS = 10**9
_KEPT = ("prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "model", "priority", "status")


@dataclass(frozen=True)
class Part:
    """A canonical file, and the name that its tenants and sessions get."""

    path: Path
    name: str


def mix(parts: Sequence[Part], align: Literal["start", "clock"], out: Path) -> str:
    """Writes all requests of ``parts`` to the Parquet file ``out``, in our own format, and says in a sentence what was
    done; the sentence is in the file too and comes along in every report.

    ``align``: ``start`` lets all begin at 0; ``clock`` keeps the times of their clocks. A tenant becomes
    ``name/tenant`` (``name`` where there is none), a session ``name/session``; prefix blocks of different traces are
    never the same.

    Raises:
        TraceError: ``trace.mix``: a trace without clock times, with requests that follow others, or with blocks of
            another size; two parts of one name.
    """
    if len({part.name for part in parts}) < len(parts):
        raise _refusal("two of the traces have the same name", "give each a name of its own")
    metas = [canonical.read_meta(part.path) for part in parts]
    sizes = {meta.block_size_tokens for meta in metas} - {None}
    if len(sizes) > 1:
        raise _refusal(
            f"the traces have prefix blocks of {' and '.join(map(str, sorted(filter(None, sizes))))} tokens",
            "mix traces with blocks of one size, or leave the block ids out of all but one",
        )
    frames, last_id = [], 0
    for part, meta in zip(parts, metas, strict=True):
        frame, last_id = _part(part, meta, align, last_id)
        frames.append(frame)
    mixed = pl.concat(frames, how="diagonal_relaxed").sort("arrival_ns", maintain_order=True)
    counts = " and ".join(f"{frame.height:,} of {part.name}" for part, frame in zip(parts, frames, strict=True))
    aligned = "each from its first request on" if align == "start" else "at the times of their clocks"
    note = f"Mixed from {len(parts)} traces, not recorded together: {counts}, {aligned}."
    write_own(mixed, out, note, next(iter(sizes), None))
    return note


def write_own(frame: pl.DataFrame, out: Path, note: str, block_size_tokens: int | None) -> None:
    """A frame of our own format as Parquet, with a note that every report of it shows."""
    metadata = Meta(block_size_tokens=block_size_tokens, notes=note).to_parquet()
    frame.write_parquet(out, compression="zstd", row_group_size=canonical.ROW_GROUP_ROWS, metadata=metadata)


def _part(part: Part, meta: Meta, align: str, last_id: int) -> tuple[pl.DataFrame, int]:
    frame = pl.read_parquet(part.path)
    if frame["arrival_ns"].null_count() or frame["after_line"].null_count() < frame.height:
        raise _refusal(
            f"{part.name} has requests that are sent only when another has ended",
            "mix traces in which each request has an arrival of its own",
        )
    shift = 0
    if align == "clock":
        if meta.start_epoch_ns is None:
            raise _refusal(f"{part.name} has no clock times", "align the traces by their start")
        shift = meta.start_epoch_ns
    label = pl.lit(part.name)
    columns = [
        (pl.col("arrival_ns") + shift),
        *(pl.col(name) for name in _KEPT if frame[name].null_count() < frame.height),
        pl.when(pl.col("tenant").is_null()).then(label).otherwise(label + "/" + pl.col("tenant")).alias("tenant"),
    ]
    if frame["session"].null_count() < frame.height:
        columns.append((label + "/" + pl.col("session")).alias("session"))
    if meta.block_size_tokens is not None and meta.prefix_scope == "global":
        columns.append(pl.col("prefix_blocks").list.eval(pl.element() + last_id))
        top = frame["prefix_blocks"].explode().max()
        last_id += int(top) + 1 if isinstance(top, int) else 0
    return frame.select(columns), last_id


def _refusal(detail: str, cure: str) -> TraceError:
    return TraceError("trace.mix", f"{detail}; {cure}", [FieldError(cure, field="traces", rule="mix", cure=cure)])
