"""Which fit of a table of steps counts: as shipped, fewer or all parameters, or a shape of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.calibration.shape_fit import ShapeFit, fit_shape, predicted, work_of
from replay.calibration.step_fit import CrossValidated, Design, Fit, cross_validate, fit_steps
from replay.calibration.steps import Steps
from replay.calibration.user import PARAMETERS, Knot, Shape
from replay.steptime.record import StepTime

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_CLEARLY = 0.75
"""A shape of its own counts where left-out steps are off by less than this share of what the shipped shape is off"""
_WORTH = 0.005
"""and by so much less."""

_FIRST_TOKENS_ALONE = (
    "Step times keep the shipped shape: prompts were timed by first tokens alone, which hardly tell request_s apart "
    "from the time of a short prompt's step. A table with prefill or mixed steps tells it."
)
"""A curve through such times fits what it was given and is far off elsewhere, which left-out steps do not show."""


@dataclass(frozen=True)
class Chosen:
    """The fit that counts. ``fit`` begins with ``PARAMETERS``; with a shape, factors of its knots follow."""

    fit: Fit
    checked: CrossValidated | None
    predicted_s: Float64Array
    """Of each measurement, shape (n,)."""
    fewer: bool
    """Fewer parameters missed left-out steps less than all."""
    shape: Shape | None = None
    notes: tuple[str, ...] = ()
    """Which shape counts and how far both are off; empty where only one was tried."""


def choose(steps: Steps, design: Design, record: StepTime) -> Chosen:
    """The fit that misses left-out steps least, the shipped shape unless another is clearly better."""
    unbent = _simplest(steps, design)
    if unbent.checked is None:
        return unbent
    if steps.is_ttft.any() and not (~steps.is_ttft & (steps.prefill_tokens > 0)).any():
        return replace(unbent, notes=(_FIRST_TOKENS_ALONE,))
    work, time_s, shapes = work_of(steps, record), steps.time_s, steps.shapes()
    found = fit_shape(design, work, time_s, record)
    if found is None:
        return unbent

    def without(kept: BoolArray) -> Float64Array:
        own = fit_shape(design.of(kept), work.of(kept), time_s[kept], record)
        if own is None:
            return design.predict(fit_steps(design.of(kept), time_s[kept]).values)
        return predicted(design, work, record, own)

    checked = cross_validate(design, time_s, shapes, without)
    if checked is None:
        return unbent
    error, unbent_error = _by_shape(checked.fitted, shapes), _by_shape(unbent.checked.fitted, shapes)
    figures = (
        f"left-out steps are {100 * error:.1f} % off with a shape of their own through {len(found.knots)} knots, "
        f"{100 * unbent_error:.1f} % with the shipped one (mean over shapes)"
    )
    if error >= min(_CLEARLY * unbent_error, unbent_error - _WORTH):
        return replace(unbent, notes=(f"Step times keep the shipped shape: {figures}.",))
    note = (
        f"The linear part of a step has a shape of its own: {figures}. As the steps are not a multiple of the shipped "
        "ones, check model, GPU type, tp, dtypes and the engine's settings."
    )
    shape = Shape(knots=_knots(found, record), error=error, unbent_error=unbent_error)
    return Chosen(found.fit, checked, predicted(design, work, record, found), False, shape=shape, notes=(note,))


def _simplest(steps: Steps, design: Design) -> Chosen:
    """The fit of all parameters, of the kernels alone, or none: whichever misses left-out steps least."""
    found: list[Chosen] = []
    for only in (len(PARAMETERS), 1, 0):

        def without(kept: BoolArray, only: int = only) -> Float64Array:
            return design.predict(fit_steps(design.of(kept), steps.time_s[kept], only=only).values)

        checked = cross_validate(design, steps.time_s, steps.shapes(), without)
        fit = fit_steps(design, steps.time_s, only=only)
        found.append(Chosen(fit, checked, design.predict(fit.values), fewer=only < len(PARAMETERS)))
        if checked is None:
            return found[0]
    misses = [float(np.median(np.abs(one.checked.fitted))) for one in found if one.checked is not None]
    return found[int(np.argmin(misses))]


def _by_shape(errors: Float64Array, shapes: Int64Array) -> float:
    """The mean over shapes of |mean error|: the noise of repeats averages out, a wrong law does not. Errors count 100 %
    at most, so that an absurd measurement does not decide."""
    sums, counts = np.bincount(shapes, weights=np.clip(errors, -1.0, 1.0)), np.bincount(shapes)
    return float(np.abs(sums / counts).mean())


def _knots(found: ShapeFit, record: StepTime) -> tuple[Knot, ...]:
    told, sd = found.fit.told[len(PARAMETERS) :], found.fit.sd[len(PARAMETERS) :]
    reason = "kept at the factor of all sizes: the measurements do not tell it apart from the others"
    return tuple(
        Knot(
            tokens=int(tokens),
            shipped_s=int(record.rest_ps[tokens]) / 1e12,
            factor=float(factor),
            prior=found.common,
            sd=float(spread) if is_told else None,
            identified=bool(is_told),
            reason="" if is_told else reason,
        )
        for tokens, factor, spread, is_told in zip(found.knots, found.factors, sd, told, strict=True)
    )
