"""Error of the shipped calibrations on a table of timed steps: the work of ``capreplay score-steps``.

The table has the columns of aiconfigurator's step times, one row a step: prefill, decode or mixed. A step is predicted
as a replay would price it, from the tables of the step-time record, without what a served step adds to its kernels.
Rows that rest on measured kernels are scored; the others are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from replay.errors import FieldError, SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import ModelSpec
from replay.steptime.analytic import VERSION, table_knots
from replay.steptime.calibrated import decode_table_s, prefill_table_s
from replay.steptime.calibrations import calibration_by_name
from replay.steptime.components import KernelModel
from replay.steptime.interpolation import Float64Array, points
from replay.steptime.roofline import Roofline

COLUMNS = (
    "phase", "prefill_batch", "isl_new", "cached_ctx", "decode_batch", "decode_ctx", "step_ms", "source", "gpu",
    "model", "tp", "moe_ep", "weight_dtype", "gemm_quant", "moe_quant", "kv_dtype", "backend",
)  # fmt: skip
PHASES = ("prefill", "decode", "mixed")
_FORMATS = {"bfloat16": "bf16", "w4a16_mxfp4": "mxfp4"}
_COMBINATION = ["gpu", "backend", "model", "tp", "moe_ep", "weight_dtype", "gemm_quant", "moe_quant", "kv_dtype"]
_MODELS = {"Mixtral-8x7B": "mistralai/Mixtral-8x7B-v0.1"}
"""Names of the table that the catalogue does not know by itself."""
LARGEST_BATCH = 1024
UNIT_FACTOR = 100.0
"""Where the median of predicted over given is beyond this or its inverse, the table is in another unit."""


@dataclass(frozen=True)
class Scores:
    """What ``score_steps`` finds; errors are |predicted / given - 1|, as shares."""

    overall: dict[str, float]
    by: list[dict[str, object]]
    """Per GPU type, model and phase."""
    by_calibration: list[dict[str, object]]
    rows: dict[str, int]
    """Rows read, scored, and left out by reason."""
    analytic: list[dict[str, object]]
    """Combinations that no calibration serves, scored with the roofline, and why."""

    def document(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "overall": self.overall,
            "by": self.by,
            "by_calibration": self.by_calibration,
            "rows": self.rows,
            "analytic": self.analytic,
        }


def score_steps(path: Path) -> Scores:
    """Scores a Parquet table of steps.

    Raises:
        SpecError: ``steps.unreadable``, ``steps.columns``, ``steps.values`` or ``steps.empty`` with the cure.
    """
    scored, rows, analytic = score_rows(path)
    overall = scored.select(*_figures()).row(0, named=True)
    return Scores(overall, _by(scored, "gpu", "model", "phase"), _by(scored, "calibration_id", "phase"), rows, analytic)


def score_rows(path: Path) -> tuple[pl.DataFrame, dict[str, int], list[dict[str, object]]]:
    """Each scored step with its ``error`` and ``calibration_id``, rows by what became of them, and what was
    ``analytic``; raises as ``score_steps``."""
    frame, rows = _read(path)
    parts, analytic = [], []
    for key, steps in frame.group_by(_COMBINATION, maintain_order=True):
        combination = dict(zip(_COMBINATION, key, strict=True))
        predictor, calibration, reason = _predictor(combination)
        if reason:
            analytic.append({**combination, "reason": reason, "n": len(steps)})
        ratio = pl.Series("ratio", _predict(predictor, steps) * 1e3) / steps["step_ms"]
        parts.append(steps.with_columns(ratio, pl.lit(calibration).alias("calibration_id")))
    scored = pl.concat(parts)
    _check_unit(scored)
    rows["scored"] = len(scored)
    return scored.with_columns((pl.col("ratio") - 1).abs().alias("error")), rows, analytic


def _predictor(combination: dict[str, Any]) -> tuple[KernelModel | Roofline, str, str | None]:
    """What prices the steps of a combination, its calibration's id, and why it is not a calibration."""
    model = _model(str(combination["model"]))
    quant = str(combination["gemm_quant"] if combination["moe_quant"] == "-" else combination["moe_quant"])
    weights, kv, tp = _FORMATS.get(quant, quant), str(combination["kv_dtype"]), int(combination["tp"])
    calibration = calibration_by_name(str(combination["gpu"]), str(combination["backend"]))
    reason = f"no calibration of {combination['gpu']} under {combination['backend']} is shipped"
    if calibration is not None:
        kernels = KernelModel(model, calibration.tables, tp, weights, kv, max(1, int(combination["moe_ep"])))
        missing = kernels.missing()
        if missing is None:
            return kernels, calibration.id, None
        reason = missing
    gpu = shipped_catalogue().gpu(calibration.gpu if calibration else str(combination["gpu"]))
    return Roofline(model, gpu, tp, weights, kv, LARGEST_BATCH), f"analytic/{gpu.key}/{VERSION}", reason


def _predict(predictor: KernelModel | Roofline, steps: pl.DataFrame) -> Float64Array:
    """Seconds of each step."""
    column = {name: steps[name].to_numpy() for name in steps.columns if name not in _COMBINATION}
    prompts, new, cached = column["prefill_batch"], column["isl_new"], column["cached_ctx"]
    batch, context = column["decode_batch"], column["decode_ctx"]
    distinct, inverse = np.unique(prompts * new + batch, return_inverse=True)
    seconds = predictor.rest_s(distinct.astype(np.float64))[inverse]
    if isinstance(predictor, Roofline):
        window = np.minimum(context, predictor.model.sliding_window or 0)
        pairs = prompts * (new * cached + new * (new + 1) / 2)
        seconds = seconds + predictor.decode_s_per_token() * batch * context
        seconds = seconds + predictor.window_s_per_token() * batch * window
        return np.asarray(seconds + predictor.prefill_s_per_pair() * pairs)
    contexts = table_knots(int(max(cached.max(), context.max(), 1)))
    if batch.any():
        batches = table_knots(int(batch.max()))
        at = decode_table_s(predictor, batches, contexts)
        seconds = seconds + np.where(batch > 0, points(batches, contexts, at, batch, context), 0.0)
    if prompts.any():
        chunks = table_knots(int(new.max()))
        at = prefill_table_s(predictor, chunks, contexts)
        prefill = predictor.prefill_step_s() + prompts * points(chunks, contexts, at, new, cached)
        seconds = seconds + np.where(prompts > 0, prefill, 0.0)
    return np.asarray(seconds)


def _model(name: str) -> ModelSpec:
    return shipped_catalogue().model(_MODELS.get(name, name))


def _figures() -> tuple[pl.Expr, ...]:
    error = pl.col("error")
    return error.median().alias("median"), error.quantile(0.95, "linear").alias("p95"), pl.len().alias("n")


def _by(scored: pl.DataFrame, *columns: str) -> list[dict[str, object]]:
    return scored.group_by(columns).agg(*_figures()).sort(columns).to_dicts()


def _read(path: Path) -> tuple[pl.DataFrame, dict[str, int]]:
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _refusal(
            "steps.unreadable", "file", f"{path.name} cannot be read as Parquet", "give a Parquet file"
        ) from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise _refusal(
            "steps.columns",
            missing[0],
            f"columns are missing: {', '.join(missing)}",
            "give the columns of step_times.parquet",
        )
    frame = frame.select(COLUMNS).with_columns(pl.col(pl.Categorical).cast(pl.String))
    rows = {"read": len(frame)}
    frame = frame.filter(pl.col("source") == "silicon")
    rows["not from measured kernels"] = rows["read"] - len(frame)
    _check_values(frame)
    latent = [name for name in frame["model"].unique() if _model(str(name)).attention_kind == "MLA"]
    fused = (pl.col("phase") == "mixed") & pl.col("model").is_in(latent)
    kept = frame.filter(~fused)
    rows["mixed steps of latent attention, which the source prices wrongly"] = len(frame) - len(kept)
    if kept.is_empty():
        raise _refusal("steps.empty", "source", "no row has source silicon", "give steps that rest on measured kernels")
    return kept, rows


def _check_values(frame: pl.DataFrame) -> None:
    times = frame["step_ms"]
    bad = frame.filter(~pl.col("step_ms").is_finite().fill_null(False) | (pl.col("step_ms") <= 0).fill_null(True))
    if len(bad):
        shown = bad["step_ms"][0]
        detail = f"{len(bad)} of {len(times)} step times are not above 0: the first is {shown}"
        raise _refusal("steps.values", "step_ms", detail, "leave those steps out, or measure them again")
    unknown = sorted(set(frame["phase"].unique()) - set(PHASES))
    if unknown:
        detail = f"unknown phase {unknown[0]!r}"
        raise _refusal("steps.values", "phase", detail, f"use {', '.join(PHASES)}")
    for name in ("prefill_batch", "isl_new", "cached_ctx", "decode_batch", "decode_ctx", "tp"):
        if frame[name].null_count() or (frame[name] < 0).any():
            raise _refusal("steps.values", name, f"{name} is missing or below 0", "give counts of 0 or more")


def _check_unit(scored: pl.DataFrame) -> None:
    ratio = float(np.median(scored["ratio"].to_numpy()))
    if not 1 / UNIT_FACTOR < ratio < UNIT_FACTOR:
        unit = "seconds" if ratio > 1 else "microseconds"
        detail = (
            f"step_ms is about {ratio:.3g} times off: it looks like {unit}"
            if ratio > 1
            else (f"step_ms is about {1 / ratio:.3g} times too long: it looks like {unit}")
        )
        raise _refusal("steps.values", "step_ms", detail, "give milliseconds")


def _refusal(code: str, field: str, detail: str, cure: str) -> SpecError:
    return SpecError(code, detail, [FieldError(detail, field=field, cure=cure)])
