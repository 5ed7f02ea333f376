"""Calibration parameters from measured steps: least squares around the shipped values.

``time = f_k * kernels + f_d * decode attention + c_r * decodes + host * steps + a0 (first tokens)`` is linear in the
parameters. Each has a prior, the shipped value with the spread that shipped values were seen to have; errors are
relative. A parameter whose uncertainty the data do not halve is not told by them: it stays as shipped (Gaussian
posterior against prior; the worst leaves first).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replay.calibration.steps import Steps
from replay.calibration.user import PARAMETERS
from replay.engines import EngineConfig
from replay.errors import FieldError, TraceError
from replay.kernels.loglinear import interpolate
from replay.steptime.record import StepTime

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PRIOR_SD = np.array([0.2, 0.1, 20e-6, 1.5e-3, 4e-3])
"""Of the parameters in order. Kernels: up to 15 % between sources; decode attention: 4 % over deployments.
The time before the engine: 6.5 to 11 ms."""
TOLD = 0.5
"""Posterior over prior standard deviation up to which the data tell a parameter."""
IMPLAUSIBLE = 5.0
"""Times so many times off in the median are of another deployment, or in another unit."""
_LEAST_NOISE = 0.01
BISQUARE = 4.685
"""Residuals beyond so many sigma count nothing (Tukey's constant for 95 % efficiency on normal errors)."""
_ROUNDS = 8
_FOLDS = 5


@dataclass(frozen=True)
class Design:
    """``times = offset + columns @ parameters``, shapes (n,) and (n, p); ``prior`` and ``prior_sd`` have shape (p,)."""

    columns: Float64Array
    offset_s: Float64Array
    prior: Float64Array
    prior_sd: Float64Array

    def of(self, kept: BoolArray | Int64Array) -> Design:
        """The same for some of the measurements."""
        return replace(self, columns=self.columns[kept], offset_s=self.offset_s[kept])

    def predict(self, values: Float64Array) -> Float64Array:
        return np.asarray(self.offset_s + self.columns @ values)


@dataclass(frozen=True)
class Fit:
    """Values and standard deviations in the order of the design; ``told`` marks those that the data tell."""

    values: Float64Array
    sd: Float64Array
    told: BoolArray
    outliers: int
    """Measurements that agree with no others and counted nothing."""


@dataclass(frozen=True)
class CrossValidated:
    """Relative errors of left-out steps, shape (n,), with their sign: of fits that did not see them, and of the shipped
    values."""

    fitted: Float64Array
    shipped: Float64Array


def design_of(steps: Steps, record: StepTime, engine: EngineConfig) -> Design:
    """What each step would take by the shipped record, in parts.

    Raises:
        TraceError: ``calibration.beyond`` for a step with more tokens than the deployment allows;
            ``calibration.implausible`` where times are of another order than predicted.
    """
    design = _laid_out(steps, record, engine)
    check_plausible(float(np.median(steps.time_s / design.predict(design.prior))), "steps")
    return design


def predicted_s(steps: Steps, record: StepTime, engine: EngineConfig) -> Float64Array:
    """What each step takes by the record, shape (n,); its ``time_s`` is not read. Raises ``calibration.beyond``."""
    design = _laid_out(steps, record, engine)
    return design.predict(design.prior)


def _laid_out(steps: Steps, record: StepTime, engine: EngineConfig) -> Design:
    tokens = np.where(steps.is_ttft, 0, steps.prefill_tokens + steps.decode_requests)
    if (tokens >= len(record.rest_ps)).any():
        row = int(np.argmax(tokens))
        detail = f"row {row + 1}: a step of {tokens[row]} tokens; the deployment takes {len(record.rest_ps) - 1}"
        cure = "set max_num_batched_tokens to what the server had"
        raise TraceError("calibration.beyond", detail, [FieldError(detail, field="measurements", cure=cure)])
    rows = [_parts(steps, index, record) for index in range(steps.n)]
    kernels, attention, count = (np.array(part, dtype=np.float64) for part in zip(*rows, strict=True))
    decodes = steps.decode_requests.astype(np.float64)
    requests = decodes + (steps.prefill_tokens > 0)
    host = np.zeros(steps.n) if engine.async_scheduling else count
    offset = host * requests * record.host_per_request_ps / 1e12
    columns = np.stack([kernels / 1e12, attention / 1e12, decodes, host, steps.is_ttft.astype(np.float64)], axis=1)
    prior = np.array(
        [1.0, 1.0, record.decode_request_ps / 1e12, record.host_ps / 1e12, record.request_overhead_ps / 1e12]
    )
    return Design(columns, offset, prior, PRIOR_SD)


def check_plausible(ratio: float, what: str) -> None:
    """Refuses measurements that are ``ratio`` times the predicted ones, where that is too far off to calibrate.

    Raises:
        TraceError: ``calibration.implausible``.
    """
    if 1 / IMPLAUSIBLE <= ratio <= IMPLAUSIBLE:
        return
    unit = "; they look like milliseconds" if 300 <= ratio <= 3000 else ""
    detail = f"the {what} take {ratio:,.3g} times what this deployment would take{unit}"
    cure = "give times in seconds, and name the model, GPU type, tp and dtypes that were measured"
    raise TraceError("calibration.implausible", detail, [FieldError(detail, field="measurements", cure=cure)])


def _parts(steps: Steps, index: int, record: StepTime) -> tuple[int, int, int]:
    """Kernels and decode attention (ps), and the number of engine steps."""
    prefill, cached = int(steps.prefill_tokens[index]), int(steps.cached_tokens[index])
    decodes, context = int(steps.decode_requests[index]), int(steps.decode_context_tokens[index])
    if not steps.is_ttft[index]:
        kernels = int(record.rest_ps[prefill + decodes]) + _chunk_ps(record, prefill, cached)
        return kernels, _decode_ps(record, decodes, context), 1
    limit, kernels, count = len(record.rest_ps) - 1, 0, 0
    while prefill > 0:
        chunk = min(prefill, limit)
        kernels += int(record.rest_ps[chunk]) + _chunk_ps(record, chunk, cached)
        prefill, cached, count = prefill - chunk, cached + chunk, count + 1
    return kernels, 0, count


def _chunk_ps(record: StepTime, tokens: int, cached: int) -> int:
    if tokens == 0:
        return 0
    ps = record.prefill_linear_ps * tokens * (2 * cached + tokens + 1)
    if record.prefill_table_ps.size:
        ps += int(interpolate(record.prefill_table_ps, tokens, cached))
    return ps + (record.prefill_step_ps if ps > 0 else 0)


def _decode_ps(record: StepTime, decodes: int, context: int) -> int:
    ps = record.decode_linear_ps * context
    if decodes and record.decode_table_ps.size:
        ps += int(interpolate(record.decode_table_ps, decodes, context // decodes))
    return ps


def fit_steps(
    design: Design,
    time_s: Float64Array,
    *,
    only: int | None = None,
    least: Mapping[int, float] = MappingProxyType({}),
) -> Fit:
    """The parameters that the data tell among the first ``only`` (``None``: all), the others as shipped. Outliers count
    nothing. A parameter that has a ``least`` value takes it where the data want less, and 0 is the limit of the others:
    below, they stay as shipped."""
    count = len(design.prior)
    told = (np.abs(design.columns).max(axis=0) > 0) & (np.arange(count) < (count if only is None else only))
    held = np.zeros(count, dtype=np.bool_)
    prior = design.prior
    while True:
        values, sd, outliers = _solve(replace(design, prior=prior), time_s, told & ~held)
        low = [index for index, floor in least.items() if told[index] and not held[index] and values[index] < floor]
        if low:
            held, prior = held.copy(), prior.copy()
            held[low], prior[low] = True, [least[index] for index in low]
            continue
        ratio = np.where(told & ~held, sd / design.prior_sd, 0.0)
        impossible = told & (values <= 0)
        worst = int(np.argmax(np.where(impossible, np.inf, ratio)))
        if not told.any() or (ratio[worst] <= TOLD and not impossible.any()):
            return Fit(values, np.where(told, sd, np.nan), told, outliers)
        told = told.copy()
        told[worst] = False


def _solve(design: Design, time_s: Float64Array, free: BoolArray) -> tuple[Float64Array, Float64Array, int]:
    values, sd = design.prior.copy(), design.prior_sd.copy()
    if not free.any():
        return values, sd, 0
    rows = design.columns[:, free] / time_s[:, None]
    fixed = (design.offset_s + design.columns[:, ~free] @ design.prior[~free]) / time_s
    prior, precision = design.prior[free], 1.0 / design.prior_sd[free] ** 2
    weight, noise = _weights(rows @ prior + fixed - 1.0)
    at: Float64Array = prior
    inverse: Float64Array = np.diag(1.0 / precision)
    for _ in range(_ROUNDS):
        scaled = rows * (weight / noise**2)[:, None]
        inverse = np.asarray(np.linalg.inv(rows.T @ scaled + np.diag(precision)), dtype=np.float64)
        at = inverse @ (scaled.T @ (1.0 - fixed) + precision * prior)
        weight, noise = _weights(rows @ at + fixed - 1.0)
    values[free], sd[free] = at, np.sqrt(np.diag(inverse))
    return values, sd, int((weight == 0).sum())


def noise_of(residual: Float64Array) -> float:
    """The standard deviation of relative errors, by their median."""
    return max(_LEAST_NOISE, 1.4826 * float(np.median(np.abs(residual))))


def _weights(residual: Float64Array) -> tuple[Float64Array, float]:
    noise = noise_of(residual)
    inside = np.minimum(np.abs(residual) / (BISQUARE * noise), 1.0)
    return np.asarray((1.0 - inside**2) ** 2), noise


def residuals(predicted_s: Float64Array, time_s: Float64Array) -> Float64Array:
    """Relative errors."""
    return np.asarray(predicted_s / time_s - 1.0)


def cross_validate(
    design: Design, time_s: Float64Array, shapes: Int64Array, predicted: Callable[[BoolArray], Float64Array]
) -> CrossValidated | None:
    """Errors in five folds by shape: repeats of one step are never on both sides. ``None`` with fewer than two shapes.
    ``predicted``: what a fit of the marked steps says of all, s."""
    folds = min(_FOLDS, int(shapes.max()) + 1)
    if folds < 2:
        return None
    fitted = np.zeros(len(time_s))
    for fold in range(folds):
        held = shapes % folds == fold
        fitted[held] = residuals(predicted(~held), time_s)[held]
    return CrossValidated(fitted, residuals(design.predict(design.prior), time_s))


def untold_reason(index: int, design: Design, *, fewer: bool) -> str:
    """Why a parameter stayed as shipped; ``fewer``: a fit of fewer parameters missed left-out steps less."""
    if np.abs(design.columns[:, index]).max() == 0:
        nothing = {
            "decode_attention_factor": "no step with decodes was measured",
            "decode_row_s": "no step with decodes was measured",
            "host_s": "asynchronous scheduling hides it under the GPU",
            "request_s": "no time to first token was measured",
        }
        return nothing.get(PARAMETERS[index], "no step was measured that depends on it")
    return "left-out steps get no better with it" if fewer else "the measurements do not tell it apart from the others"
