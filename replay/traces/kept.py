"""A Parquet upload that this program wrote itself: a kept trace, a mixed one or a drawn one, and what it says beside
its rows. Whatever it says is checked like any other upload's."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl

from replay.traces import canonical
from replay.traces.canonical import PREFIX, Meta
from replay.traces.options import IngestOptions
from replay.traces.times import EPOCH_2000_NS, EPOCH_2100_NS

_MAX_NOTE = 2000
_MAX_BLOCK = 65_536


def kept_in(path: Path) -> Meta | None:
    """What the file's metadata say; ``None`` where this program did not write it. What makes no sense is left out."""
    try:
        found = pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError):
        return None
    values = {key.removeprefix(PREFIX): text for key, text in found.items() if key.startswith(PREFIX)}
    if values.get("format_version") != str(canonical.VERSION):
        return None
    start = _number(values.get("start_epoch_ns", ""), EPOCH_2000_NS, EPOCH_2100_NS)
    note = values.get("notes", "")[:_MAX_NOTE]
    return Meta(
        block_size_tokens=_number(values.get("block_size_tokens", ""), 1, _MAX_BLOCK),
        start_epoch_ns=start,
        zone=_zone(values.get("zone", "")) if start is not None else None,
        notes="".join(one if one.isprintable() else " " for one in note),
    )


def settled(options: IngestOptions, kept: Meta) -> IngestOptions:
    """The options for such a file: what is asked about doubtful files was asked when its rows were first read."""
    known = {"keep_far_off": True, "keep_duplicates": True, "rows_are_requests": True}
    unit = options.time_unit if options.mapping else "ns"
    size = options.block_size or kept.block_size_tokens
    return options.model_copy(update={**known, "time_unit": unit, "block_size": size})


def _number(text: str, low: int, high: int) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        return None
    return int(text) if low <= int(text) <= high else None


def _zone(name: str) -> str | None:
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, KeyError):
        return None
