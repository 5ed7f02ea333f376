"""A user's calibration put on the shipped step times of its deployment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from replay.calibration.shape import bent
from replay.calibration.user import Shape, UserCalibration
from replay.engines import EngineConfig
from replay.steptime.record import StepTime

Int64Array = npt.NDArray[np.int64]


def own_step_time(record: StepTime, calibration: UserCalibration, engine: EngineConfig) -> StepTime:
    """The step times of a deployment that ``calibration`` is of; data-parallel ranks keep the shipped ones, which is
    said."""
    if engine.data_parallel_size > 1:
        note = f"Your calibration {calibration.id} is of one rank: data-parallel ranks take the shipped step times."
        return replace(record, notes=(*record.notes, note))
    return apply_calibration(record, calibration, async_scheduling=engine.async_scheduling)


def apply_calibration(record: StepTime, calibration: UserCalibration, *, async_scheduling: bool) -> StepTime:
    """The record with the calibration's parameters. Host time fitted under the other kind of scheduling stays out."""
    notes = [
        f"Step times are the shipped ones with what {calibration.measurements} measurements of this deployment said "
        f"({calibration.date})."
    ]
    if calibration.base_id != record.calibration_id:
        notes.append(
            f"The calibration stands on {calibration.base_id}, but the shipped step times here are "
            f"{record.calibration_id}: calibrate again."
        )
    own_host = calibration.async_scheduling == async_scheduling
    changed = with_parameters(
        record,
        kernels_factor=calibration.value("kernels_factor"),
        decode_attention_factor=calibration.value("decode_attention_factor"),
        decode_row_s=calibration.value("decode_row_s"),
        host_s=calibration.value("host_s") if own_host else record.host_ps / 1e12,
        request_s=calibration.value("request_s"),
    )
    if calibration.shape is not None:
        changed = replace(changed, rest_ps=_bent(record.rest_ps, calibration.shape))
    return replace(
        changed,
        provenance="measured",
        calibration_id=calibration.id,
        stated_error=calibration.stated_error,
        notes=(*notes, *calibration.notes),
    )


def with_parameters(
    record: StepTime,
    *,
    kernels_factor: float,
    decode_attention_factor: float,
    decode_row_s: float,
    host_s: float,
    request_s: float,
) -> StepTime:
    """The record with kernels and decode attention scaled and the constants replaced."""
    return replace(
        record,
        rest_ps=_scaled(record.rest_ps, kernels_factor),
        shared_ps=_scaled(record.shared_ps, kernels_factor),
        prefill_table_ps=_scaled(record.prefill_table_ps, kernels_factor),
        prefill_linear_ps=round(record.prefill_linear_ps * kernels_factor),
        prefill_step_ps=round(record.prefill_step_ps * kernels_factor),
        decode_table_ps=_scaled(record.decode_table_ps, decode_attention_factor),
        decode_linear_ps=round(record.decode_linear_ps * decode_attention_factor),
        decode_request_ps=round(decode_row_s * 1e12),
        host_ps=round(host_s * 1e12),
        request_overhead_ps=round(request_s * 1e12),
    )


def _bent(rest_ps: Int64Array, shape: Shape) -> Int64Array:
    tokens = np.array([knot.tokens for knot in shape.knots], dtype=np.int64)
    shipped_ps = np.array([round(knot.shipped_s * 1e12) for knot in shape.knots], dtype=np.int64)
    factors = np.array([knot.factor for knot in shape.knots])
    return np.asarray(np.rint(bent(rest_ps, tokens, shipped_ps, factors)), dtype=np.int64)


def _scaled(values: Int64Array, factor: float) -> Int64Array:
    return np.asarray(np.rint(values * factor), dtype=np.int64)
