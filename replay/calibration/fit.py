"""Measurement files and a deployment -> a user's calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.calibration.choice import choose
from replay.calibration.run_fit import METRICS, RUNS_FOR_A0, RunFit, fit_runs
from replay.calibration.runs import read_run
from replay.calibration.step_fit import PRIOR_SD, TOLD, CrossValidated, design_of, untold_reason
from replay.calibration.steps import Steps, read_steps
from replay.calibration.user import (
    PARAMETERS,
    PHASES,
    DeploymentKey,
    ErrorFigures,
    Parameter,
    ParameterName,
    Phase,
    Residual,
    UserCalibration,
    deployment_key,
)
from replay.deployment import Deployment
from replay.errors import FieldError, SpecError, TraceError
from replay.steptime.record import StepTime
from replay.traces.options import IngestOptions

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MAX_RESIDUALS = 300
UNEXPLAINED = 0.5
"""Median error of left-out steps from which a table that tells no parameter is refused."""


def _nothing(_: float) -> None:
    return None


def calibrate(
    paths: Sequence[Path],
    deployment: Deployment,
    *,
    today: date,
    options: IngestOptions | None = None,
    progress: Callable[[float], None] = _nothing,
) -> UserCalibration:
    """Fits what the files tell about ``deployment``, whose step times must be the shipped ones.

    Raises:
        TraceError: a file that cannot be read or whose figures cannot be; SpecError: no file, or steps beside runs, or
            a deployment of data-parallel ranks.
    """
    if deployment.step_time.provenance == "measured":
        raise ValueError("calibrations stand on shipped step times")
    if deployment.engine.data_parallel_size > 1:
        detail = "step times of data-parallel ranks are not calibrated: each step waits for the slowest rank"
        cure = "measure one rank, with data_parallel_size 1"
        field = "deployment.engine.overrides.data_parallel_size"
        raise SpecError("calibration.data_parallel", detail, [FieldError(detail, field=field, cure=cure)])
    tables = [(path, read_steps(path)) for path in paths]
    steps = [table for _, table in tables if table is not None]
    others = [path for path, table in tables if table is None]
    if bool(steps) == bool(others):
        detail = "give tables of steps or runs of requests, not both" if steps else "no measurements were given"
        cure = "calibrate with the tables of steps alone: they say more"
        raise SpecError("calibration.mixed", detail, [FieldError(detail, field="measurements", cure=cure)])
    names = tuple(path.name for path in paths)
    if steps:
        return _from_steps(_joined(steps), deployment, names, today)
    runs = [read_run(path, options) for path in others]
    fit = fit_runs(runs, deployment, progress)
    notes = tuple(note for run in runs for note in run.notes)
    count = int(sum(np.isfinite(run.e2e_s).sum() for run in runs))
    return _from_runs(fit, deployment, names, count, notes, today)


def _joined(tables: Sequence[Steps]) -> Steps:
    def whole(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([getattr(table, name) for table in tables])

    return Steps(
        np.concatenate([table.is_ttft for table in tables]),
        whole("prefill_tokens"),
        whole("cached_tokens"),
        whole("decode_requests"),
        whole("decode_context_tokens"),
        np.concatenate([table.time_s for table in tables]),
    )


def _key(deployment: Deployment) -> DeploymentKey:
    spec, memory = deployment.spec, deployment.memory
    return deployment_key(
        deployment.model, deployment.gpu.key, spec.tp, deployment.engine, memory.weight_dtype, memory.kv_dtype
    )


def _from_steps(steps: Steps, deployment: Deployment, names: tuple[str, ...], today: date) -> UserCalibration:
    design = design_of(steps, deployment.step_time, deployment.engine)
    chosen = choose(steps, design, deployment.step_time)
    fit, checked = chosen.fit, chosen.checked
    if checked is not None and chosen.shape is None and not any(fit.told[: len(PARAMETERS)]):
        _check_explained(float(np.median(np.abs(checked.fitted))))
    notes = list(chosen.notes)
    if fit.outliers:
        notes.append(f"{fit.outliers} of {steps.n} measurements agree with no others and counted nothing in the fit.")
    shown = np.unique(np.linspace(0, steps.n - 1, min(steps.n, MAX_RESIDUALS)).round().astype(int))
    phases = steps.phases()
    return _calibration(
        deployment,
        told={
            name: (float(fit.values[index]), float(fit.sd[index]))
            for index, name in enumerate(PARAMETERS)
            if fit.told[index]
        },
        reasons={name: untold_reason(index, design, fewer=chosen.fewer) for index, name in enumerate(PARAMETERS)},
        errors=() if checked is None else _step_errors(checked, phases),
        residuals=tuple(
            Residual(
                label=steps.label(i),
                phase=phases[i],
                measured_s=float(steps.time_s[i]),
                predicted_s=float(chosen.predicted_s[i]),
            )
            for i in shown.tolist()
        ),
        sources=names,
        measurements=steps.n,
        date=today.isoformat(),
        notes=tuple(notes),
        **({} if chosen.shape is None else {"schema_version": 2, "shape": chosen.shape}),
    )


def _check_explained(left_out: float) -> None:
    """Refuses steps of which nothing was learnt and that the shipped times miss by far: they are of something else.

    Raises:
        TraceError: ``calibration.unexplained``.
    """
    if left_out < UNEXPLAINED:
        return
    detail = (
        f"no parameter can be told from these steps, and the shipped step times miss them by {100 * left_out:.0f} % in "
        "the median"
    )
    cure = "name what was measured (model, GPU type, tp, dtypes), and give steps of several sizes on an idle server"
    raise TraceError("calibration.unexplained", detail, [FieldError(detail, field="measurements", cure=cure)])


def _step_errors(checked: CrossValidated, phases: Sequence[Phase]) -> tuple[ErrorFigures, ...]:
    """Of all steps, of each phase where there are several, and of first tokens."""
    of = np.array(phases)
    parts: list[tuple[str, Phase | None, BoolArray]] = [("step time", None, of != "first token")]
    if len(set(phases) - {"first token"}) > 1:
        parts += [(f"step time, {phase}", phase, of == phase) for phase in PHASES]
    parts.append(("time to first token on an idle server", "first token", of == "first token"))
    return tuple(
        _figures(what, np.abs(checked.fitted[part]), np.abs(checked.shipped[part]), phase)
        for what, phase, part in parts
        if part.any()
    )


_SAID = {"ttft_s": "mean TTFT", "itl_s": "mean ITL", "e2e_s": "mean E2E"}


def _from_runs(
    fit: RunFit, deployment: Deployment, names: tuple[str, ...], count: int, notes: tuple[str, ...], today: date
) -> UserCalibration:
    told: dict[ParameterName, tuple[float, float]] = {}
    missed, shipped_missed = fit.errors["e2e_s"], fit.shipped_errors["e2e_s"]
    better = not len(missed) or float(np.median(missed)) < float(np.median(shipped_missed))
    errors = fit.errors if better else fit.shipped_errors
    if better and fit.factor_sd <= TOLD * PRIOR_SD[0]:
        told["kernels_factor"] = (fit.factor, fit.factor_sd)
        if fit.request_s is not None and fit.request_sd is not None:
            told["request_s"] = (fit.request_s, fit.request_sd)
    reasons: dict[ParameterName, str] = {
        "kernels_factor": "parts of the run disagree by more than the shipped figure is unsure"
        if better
        else "what was left out gets no better with it",
        "request_s": f"needs {RUNS_FOR_A0} runs at different rates that agree",
    }
    alike = "latencies of requests do not tell it apart from the kernels; give a table of steps"
    return _calibration(
        deployment,
        told=told,
        reasons={name: reasons.get(name, alike) for name in PARAMETERS},
        errors=tuple(
            _figures(f"{_SAID[metric]} of a left-out {fit.left_out}", errors[metric], fit.shipped_errors[metric])
            for metric in METRICS
            if len(errors[metric])
        ),
        residuals=tuple(
            Residual(label=label, phase="request", measured_s=measured, predicted_s=predicted)
            for label, measured, predicted in fit.points[:MAX_RESIDUALS]
        ),
        sources=names,
        measurements=count,
        date=today.isoformat(),
        notes=notes,
    )


def _calibration(
    deployment: Deployment,
    *,
    told: dict[ParameterName, tuple[float, float]],
    reasons: dict[ParameterName, str],
    **what: Any,
) -> UserCalibration:
    """The calibration of a deployment: ``told`` parameters with their standard deviation, the others as shipped."""
    record = deployment.step_time
    return UserCalibration(
        deployment=_key(deployment),
        base_id=record.calibration_id,
        async_scheduling=deployment.engine.async_scheduling,
        parameters=tuple(
            Parameter(
                name=name,
                value=told[name][0] if name in told else shipped,
                shipped=shipped,
                sd=told[name][1] if name in told else None,
                identified=name in told,
                reason="" if name in told else reasons[name],
            )
            for name, shipped in _shipped(record).items()
        ),
        **what,
    )


def _shipped(record: StepTime) -> dict[ParameterName, float]:
    return {
        "kernels_factor": 1.0,
        "decode_attention_factor": 1.0,
        "decode_row_s": record.decode_request_ps / 1e12,
        "host_s": record.host_ps / 1e12,
        "request_s": record.request_overhead_ps / 1e12,
    }


def _figures(what: str, errors: Float64Array, shipped: Float64Array, phase: Phase | None = None) -> ErrorFigures:
    return ErrorFigures(
        what=what,
        phase=phase,
        n=len(errors),
        median=float(np.median(errors)),
        p95=float(np.percentile(errors, 95)),
        shipped_median=float(np.median(shipped)),
    )
