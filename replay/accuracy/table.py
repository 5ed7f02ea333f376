"""``requests.csv.gz`` of a measured run: one row a request, checked before anything is compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.accuracy.server import unusable
from replay.errors import FieldError, SpecError

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

FILE = "requests.csv.gz"
_TIMES = ("arrival_s", "ttft_s", "e2e_s")
_COUNTS = ("prompt_tokens", "output_tokens")
_ITL = ("itl_mean_s", "itl_mean_s_derived")
_AGREES = 0.02
"""How far the table's mean may be from the summary's: they are the same requests."""
_SAME_TOKENS = 0.25
"""How far the stated time between tokens may be from the one that lengths and times give."""


@dataclass(frozen=True)
class RequestRows:
    """Measured requests in order of sending, shape (n,) each. Times in seconds; NaN where a request failed."""

    arrival_s: Float64Array
    planned_s: Float64Array | None
    """When the client's plan wanted them sent."""
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    """What the server generated: ``max_tokens`` where the server was told to ignore the end of text."""
    ttft_s: Float64Array
    e2e_s: Float64Array
    ok: BoolArray
    stage: Int64Array
    """Index of the load stage; 0 throughout where the load has no stages."""

    @property
    def n(self) -> int:
        return len(self.arrival_s)

    @property
    def itl_s(self) -> Float64Array:
        """(E2E - TTFT) / (N - 1) of each request; NaN for a single token."""
        tokens = self.output_tokens.astype(np.float64)
        return np.where(tokens > 1, (self.e2e_s - self.ttft_s) / np.maximum(tokens - 1, 1), np.nan)


def read_rows(folder: Path, *, ignore_eos: bool, means_s: dict[str, float]) -> RequestRows:
    """The requests of an experiment. ``means_s``: the summary's means of ``ttft_s`` and ``e2e_s``, to check units by.

    ``ignore_eos``: every successful request generated ``max_tokens``; its ``output_tokens`` is then a recount by the
    client and is not read. Failed requests keep their place, since they were load; their prompt may be unknown (0).

    Raises:
        SpecError: naming the column that is missing, negative, not finite, out of order or in other units.
    """
    frame = _read(folder / FILE)
    length = "max_tokens" if ignore_eos else "output_tokens"
    for column in (*_TIMES, "prompt_tokens", length, "status"):
        if column not in frame.columns:
            raise unusable(column, "the column is missing", FILE)
    frame = frame.sort("arrival_s", maintain_order=True)
    ok = (frame["status"] == "ok").to_numpy()
    if not ok.any():
        raise unusable("status", "no request is ok", FILE)
    arrival, ttft, e2e = (_numbers(frame, name) for name in _TIMES)
    _check(arrival, "arrival_s", np.ones(len(ok), np.bool_))
    _check(ttft, "ttft_s", ok)
    _check(e2e, "e2e_s", ok)
    if (e2e[ok] < ttft[ok] * (1 - 1e-9)).any():
        raise unusable("e2e_s", "a request ends before its first token", FILE)
    prompt, output = _numbers(frame, "prompt_tokens"), _numbers(frame, length)
    for name, values in (("prompt_tokens", prompt), (length, output)):
        if not (np.isfinite(values[ok]) & (values[ok] >= 1) & (values[ok] % 1 == 0)).all():
            raise unusable(name, "a successful request has no whole number of tokens above 0", FILE)
    for name, values in (("ttft_s", ttft), ("e2e_s", e2e)):
        _check_units(name, float(values[ok].mean()), means_s.get(name))
    rows = RequestRows(
        arrival_s=arrival - arrival[0],
        planned_s=_numbers(frame, "planned_arrival_s") if "planned_arrival_s" in frame.columns else None,
        prompt_tokens=np.where(np.isfinite(prompt), prompt, 0).astype(np.int64),
        output_tokens=np.where(np.isfinite(output), output, 0).astype(np.int64),
        ttft_s=np.where(ok, ttft, np.nan),
        e2e_s=np.where(ok, e2e, np.nan),
        ok=ok,
        stage=np.nan_to_num(_numbers(frame, "stage")).astype(np.int64) if "stage" in frame.columns else _zeros(ok),
    )
    for name in _ITL:
        if name in frame.columns:
            _check_tokens(name, _numbers(frame, name), rows)
    return rows


def _zeros(like: BoolArray) -> Int64Array:
    return np.zeros(len(like), np.int64)


def _read(path: Path) -> pl.DataFrame:
    try:
        frame = pl.read_csv(path, infer_schema_length=None, null_values=[""])
    except FileNotFoundError:
        cure = f"add {FILE}, or leave the folder out"
        raise SpecError("accuracy.file", f"{FILE} is missing", [FieldError(cure, cure=cure)]) from None
    except pl.exceptions.PolarsError as error:
        detail = f"{FILE} cannot be read as a table: {str(error).splitlines()[0]}"
        raise SpecError("accuracy.file", detail, [FieldError(detail)]) from error
    if frame.height == 0:
        raise SpecError("accuracy.file", f"{FILE} holds no request", [FieldError("add rows, or leave the folder out")])
    return frame


def _numbers(frame: pl.DataFrame, column: str) -> Float64Array:
    try:
        return frame[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
    except pl.exceptions.PolarsError:
        raise unusable(column, "not a column of numbers", FILE) from None


def _check(values: Float64Array, column: str, ok: BoolArray) -> None:
    bad = ok & ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        line = int(np.flatnonzero(bad)[0])
        raise unusable(column, f"{values[line]} is no time (request {line} in order of sending)", FILE)


def _check_units(column: str, mean_s: float, summary_s: float | None) -> None:
    if summary_s is None or summary_s <= 0:
        return
    if abs(mean_s / summary_s - 1) > _AGREES:
        detail = (
            f"the mean of its successful requests is {mean_s:.6g}, and summary.json says {summary_s:.6g} s: one of "
            "them is in other units or of other requests"
        )
        raise unusable(column, detail, FILE)


def _check_tokens(column: str, stated_s: Float64Array, rows: RequestRows) -> None:
    several = rows.ok & (rows.output_tokens > 1) & (stated_s > 0)
    if not several.any():
        return
    ratio = float(np.median(stated_s[several] / rows.itl_s[several]))
    if abs(ratio - 1) > _SAME_TOKENS:
        detail = (
            f"it is {ratio:.2g} times what times and lengths give: the lengths count something else than tokens "
            "(chunks of several tokens, or text counted anew), or a unit differs"
        )
        raise unusable(column, detail, FILE)
