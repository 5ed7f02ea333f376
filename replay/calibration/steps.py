"""A table of measured engine steps, read from CSV, JSON, JSON lines or Parquet and refused where its figures cannot be.

Columns: ``kind`` (``step``, or ``ttft`` for the time to first token of one prompt on an idle server),
``prefill_tokens``, ``cached_tokens`` (before the prompt chunk), ``decode_requests``, ``decode_context_tokens`` (of all
decodes together) and ``time_s``. Absent counts are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.calibration.files import content, head, json_documents, naming, refusal
from replay.calibration.user import Phase

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MAX_STEPS = 50_000
_KINDS = {
    "step": False,
    "mixed_step": False,
    "decode_step": False,
    "prefill_step": False,
    "ttft": True,
    "prefill_ttft": True,
}
_ALIASES = {"cached": "cached_tokens", "prefill_cached_tokens": "cached_tokens"}
_COUNTS = ("prefill_tokens", "cached_tokens", "decode_requests", "decode_context_tokens")
_MARKS = ("prefill_tokens", "decode_requests")
"""A table of steps has one of these columns."""
_COLUMNS = ("kind", *_COUNTS, *_ALIASES, "time_s")
_LARGEST = 2**31


@dataclass(frozen=True)
class Steps:
    """Measured steps, shape (n,) each."""

    is_ttft: BoolArray
    prefill_tokens: Int64Array
    cached_tokens: Int64Array
    decode_requests: Int64Array
    decode_context_tokens: Int64Array
    time_s: Float64Array

    @property
    def n(self) -> int:
        return len(self.time_s)

    def shapes(self) -> Int64Array:
        """A number for each step: equal ones have equal counts."""
        counts = np.stack([self.is_ttft.astype(np.int64), *(getattr(self, name) for name in _COUNTS)], axis=1)
        return np.unique(counts, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def phases(self) -> tuple[Phase, ...]:
        """What each step does."""
        prompt, decodes = self.prefill_tokens > 0, self.decode_requests > 0
        found = np.select([self.is_ttft, prompt & decodes, decodes], ["first token", "mixed", "decode"], "prefill")
        return tuple(found.tolist())

    def label(self, index: int) -> str:
        """One step in words."""
        cached = f" behind {self.cached_tokens[index]}" if self.cached_tokens[index] else ""
        if self.is_ttft[index]:
            return f"first token of {self.prefill_tokens[index]} prompt tokens{cached}"
        parts = []
        if self.prefill_tokens[index]:
            parts.append(f"{self.prefill_tokens[index]} prompt tokens{cached}")
        if self.decode_requests[index]:
            parts.append(f"{self.decode_requests[index]} decodes over {self.decode_context_tokens[index]} tokens")
        return " and ".join(parts)


def read_steps(path: Path) -> Steps | None:
    """The steps of a file; ``None`` where it is no table of steps.

    Raises:
        TraceError: ``calibration.*`` for a table whose figures cannot be; names file, row, column and cure.
    """
    with naming(path):
        return _read(path)


def _read(path: Path) -> Steps | None:
    frame = _frame(path)
    if frame is None:
        return None
    frame = frame.rename({old: new for old, new in _ALIASES.items() if old in frame.columns})
    if not set(_MARKS) & set(frame.columns):
        return None
    if "time_s" not in frame.columns:
        raise refusal("column", "the table of steps has no column time_s", "give the time of each step in seconds")
    if frame.height > MAX_STEPS:
        raise refusal("too_many", f"the table has more than {MAX_STEPS:,} steps", "give a sample of them")
    if frame.height == 0:
        raise refusal("empty", "the table of steps is empty", "give at least one step")
    counts = {name: _whole(frame, name) for name in _COUNTS}
    time_s = _times(frame)
    kinds = frame["kind"].cast(pl.String).to_list() if "kind" in frame.columns else ["step"] * frame.height
    for row, kind in enumerate(kinds):
        if kind not in _KINDS:
            raise refusal(
                "kind", f"row {row + 1}: unknown kind {str(kind)[:40]!r}", "write step or ttft", row=row, column="kind"
            )
    steps = Steps(np.array([_KINDS[str(kind)] for kind in kinds]), time_s=time_s, **counts)
    _check_work(steps)
    return steps


def _frame(path: Path) -> pl.DataFrame | None:
    """The table of a file; ``None`` where none of its names is one of a table of steps."""
    first = head(path)
    try:
        if first.startswith(b"PAR1"):
            scan = pl.scan_parquet(path, glob=False)
            names = [name for name in scan.collect_schema() if name in _COLUMNS]
            return scan.select(names).head(MAX_STEPS + 1).collect() if names else None
        if not any(f'{name}"'.encode() in first for name in _MARKS) and first[:1] in (b"{", b"["):
            return None
        if first[:1] in (b"{", b"["):
            rows = _json_rows(content(path))
            return None if rows is None else pl.DataFrame(rows, infer_schema_length=None, strict=False)
        if not any(name.encode() in first.split(b"\n", 1)[0] for name in _MARKS):
            return None
        return pl.read_csv(BytesIO(content(path)), infer_schema_length=None, n_rows=MAX_STEPS + 1)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise refusal("table", f"the table of steps cannot be read ({said})", "write the file again") from error


def _json_rows(data: bytes) -> list[dict[str, Any]] | None:
    """Rows of ``{"steps": [...]}``, of an array, or of JSON lines."""
    documents = list(islice(json_documents(data), MAX_STEPS + 2))
    rows: Any = documents[0] if len(documents) == 1 else [one for one in documents if one is not None]
    if isinstance(rows, dict):
        rows = rows.get("steps", [rows] if rows.keys() & set(_MARKS) else None)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    return rows


def _whole(frame: pl.DataFrame, name: str) -> Int64Array:
    if name not in frame.columns:
        return np.zeros(frame.height, dtype=np.int64)
    values = frame[name].fill_null(0).cast(pl.Float64, strict=False).to_numpy()
    bad = ~(np.isfinite(values) & (values >= 0) & (values < _LARGEST) & (values == np.floor(values)))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        said = str(frame[name][row])[:40]
        raise refusal(
            "count", f"row {row + 1}: {name} is {said}", "counts are whole numbers from 0 on", row=row, column=name
        )
    return values.astype(np.int64)


def _times(frame: pl.DataFrame) -> Float64Array:
    values: Float64Array = frame["time_s"].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        said = str(frame["time_s"][row])[:40]
        cure = "leave out steps that were not timed, and look for the fault in the tool that wrote the table"
        raise refusal("time", f"row {row + 1}: time_s is {said}, which no step takes", cure, row=row, column="time_s")
    return values


def _check_work(steps: Steps) -> None:
    empty = steps.prefill_tokens + steps.decode_requests == 0
    short = steps.decode_context_tokens < steps.decode_requests
    mixed = steps.is_ttft & (steps.decode_requests > 0)
    for bad, what, cure in (
        (empty, "no tokens at all", "give prefill_tokens or decode_requests"),
        (short, "fewer context tokens than decodes", "decode_context_tokens is the sum over all decodes of the step"),
        (mixed, "a ttft row with decodes", "ttft is of one prompt on an idle server; write kind step"),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise refusal("row", f"row {row + 1}: {what}", cure, row=row)
