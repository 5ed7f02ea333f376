"""The linear part's own shape from measured steps: the common factor bent at knots.

``time = sum of f_j * hat_j(tokens) + f_p * prefill attention + f_d * decode attention + c_r * decodes + a0``: the knots
(``calibration.shape``) are the smallest and the largest measured size and up to ``MAX_KNEES`` between them, each the
one that leaves least unexplained. A knot's prior is the common factor of the unbent fit. The host's time stays as
shipped: nothing tells it apart from the linear part of the smallest step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.calibration.shape import bent, knot_weights
from replay.calibration.step_fit import BISQUARE, Design, Fit, fit_steps, noise_of, residuals
from replay.calibration.steps import Steps
from replay.calibration.user import FACTORS, PARAMETERS
from replay.steptime.record import StepTime

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_KNEES = 3
KNOT_SD = 0.5
"""Of a knot's factor around the common one, and of prefill attention's: another kind of law may be that far off."""
LEAST_FACTOR = 0.05
"""Of prefill attention: a law that has none."""
_A_KNEE = 2.0
"""Numbers that a knee adds: its place and its factor."""
_SEARCHED = 2_000
"""Steps among which knees are looked for."""
_KERNELS = PARAMETERS.index("kernels_factor")
_HOST = PARAMETERS.index("host_s")


@dataclass(frozen=True)
class Work:
    """The tokens of each measurement's engine steps, shape (n,) each: ``full`` times ``limit``, and once ``rest``."""

    full: Int64Array
    rest: Int64Array
    limit: int

    def of(self, kept: BoolArray | Int64Array) -> Work:
        return Work(self.full[kept], self.rest[kept], self.limit)

    def sizes(self) -> Int64Array:
        """Tokens of the engine steps that were measured, increasing."""
        found = np.unique(self.rest[self.rest > 0])
        return np.unique(np.append(found, self.limit)) if (self.full > 0).any() else found


@dataclass(frozen=True)
class ShapeFit:
    """Knots in tokens and their fit, whose values are those of ``PARAMETERS`` and then a factor for each knot."""

    knots: Int64Array
    fit: Fit
    common: float
    """The prior of each knot's factor."""

    @property
    def factors(self) -> Float64Array:
        return self.fit.values[len(PARAMETERS) :]


def work_of(steps: Steps, record: StepTime) -> Work:
    """How each measurement was cut into engine steps."""
    limit = len(record.rest_ps) - 1
    tokens = steps.prefill_tokens + steps.decode_requests
    full = np.where(steps.is_ttft, tokens // limit, 0)
    return Work(full, tokens - full * limit, limit)


def fit_shape(design: Design, work: Work, time_s: Float64Array, record: StepTime) -> ShapeFit | None:
    """The knots and factors that the measurements tell; ``None`` where sizes are alike, or no shape grows with
    tokens."""
    sizes = work.sizes()
    if len(sizes) < 3:
        return None
    common = float(fit_steps(design, time_s).values[_KERNELS])
    some = np.unique(np.linspace(0, len(time_s) - 1, min(len(time_s), _SEARCHED)).round().astype(np.int64))
    few, few_work, few_s = design.of(some), work.of(some), time_s[some]

    def errors(knots: Int64Array) -> Float64Array | None:
        found = _fitted(few, few_work, few_s, record, knots, common)
        return residuals(predicted(few, few_work, record, found), few_s) if _grows(record, found) else None

    knots = _knots(sizes, errors)
    if knots is None:
        return None
    found = _fitted(design, work, time_s, record, knots, common)
    return found if _grows(record, found) else None


def predicted(design: Design, work: Work, record: StepTime, found: ShapeFit) -> Float64Array:
    """What each measurement takes by the fit, s, shape (n,)."""
    times = bent(record.rest_ps, found.knots, record.rest_ps[found.knots], found.factors) / 1e12
    linear = work.full * times[work.limit] + np.where(work.rest > 0, times[work.rest], 0.0)
    own = found.fit.values[: len(PARAMETERS)]
    return np.asarray(_without_linear(design, work, record).predict(own) + linear)


def _knots(sizes: Int64Array, errors: Callable[[Int64Array], Float64Array | None]) -> Int64Array | None:
    """The ends and the knees that are worth it (Bayesian information criterion), each moved to where it fits best.
    ``errors``: relative errors of the fit with some knots; ``None``: that fit is no step law."""
    knots = sizes[[0, -1]]
    least = errors(knots)
    for _ in range(MAX_KNEES):
        tried = _tried([_with(knots, knee) for knee in _knees(sizes) if knee not in knots], errors)
        for octaves in (0.25, 0.125, 0.0625, 0.03125):
            if tried is None:
                break
            moved = [_moved(tried[0], place, octaves * way) for place in range(1, len(tried[0]) - 1) for way in (-1, 1)]
            tried = _tried([tried[0], *(one for one in moved if (np.diff(one) > 0).all())], errors)
        if tried is None:
            break
        noise = noise_of(tried[1])
        if least is not None and _cost(least, noise) - _cost(tried[1], noise) < _A_KNEE * np.log(len(least)):
            break
        knots, least = tried
    return None if least is None else knots


def _tried(
    ways: list[Int64Array], errors: Callable[[Int64Array], Float64Array | None]
) -> tuple[Int64Array, Float64Array] | None:
    """The knots that leave least, and their errors."""
    found = [(knots, missed) for knots in ways if (missed := errors(knots)) is not None]
    if not found:
        return None
    noise = min(noise_of(missed) for _, missed in found)
    return min(found, key=lambda one: _cost(one[1], noise))


def _cost(missed: Float64Array, noise: float) -> float:
    """Squares in units of the noise; an outlier counts no more than the first that counts nothing in a fit."""
    return float((np.minimum(np.abs(missed) / noise, BISQUARE) ** 2).sum())


def _with(knots: Int64Array, knee: int) -> Int64Array:
    return np.sort(np.append(knots, knee))


def _moved(knots: Int64Array, place: int, octaves: float) -> Int64Array:
    changed = knots.copy()
    changed[place] = round(float(knots[place]) * 2.0**octaves)
    return changed


def _knees(sizes: Int64Array) -> list[int]:
    """Sizes between the ends, half an octave apart."""
    count = 1 + round(2 * float(np.log2(sizes[-1] / sizes[0])))
    found: list[int] = np.unique(np.geomspace(sizes[0], sizes[-1], max(count, 3)).round().astype(np.int64)).tolist()
    return found[1:-1]


def _grows(record: StepTime, found: ShapeFit) -> bool:
    """Whether more tokens take no less time, from knot to knot, and all factors are possible ones."""
    times = record.rest_ps[found.knots] * found.factors
    low, high = FACTORS
    return bool((np.diff(times) >= 0).all() and found.factors.min() >= low and found.factors.max() <= high)


def _without_linear(design: Design, work: Work, record: StepTime) -> Design:
    """The design with prefill attention alone in place of all kernels."""
    linear = work.full * record.rest_ps[work.limit] + np.where(work.rest > 0, record.rest_ps[work.rest], 0)
    columns = design.columns.copy()
    columns[:, _KERNELS] = np.maximum(columns[:, _KERNELS] - linear / 1e12, 0.0)
    return replace(design, columns=columns)


def _fitted(
    design: Design, work: Work, time_s: Float64Array, record: StepTime, knots: Int64Array, common: float
) -> ShapeFit:
    own = _without_linear(design, work, record)
    shipped_ps = record.rest_ps[knots]
    full = work.full[:, None] * knot_weights(np.array([work.limit]), record.rest_ps, knots, shipped_ps)
    hats = full + (work.rest > 0)[:, None] * knot_weights(work.rest, record.rest_ps, knots, shipped_ps)
    columns, sd = np.concatenate([own.columns, hats / 1e12], axis=1), np.append(own.prior_sd, [KNOT_SD] * len(knots))
    offset = own.offset_s + columns[:, _HOST] * own.prior[_HOST]
    columns[:, _HOST] = 0.0
    sd[_KERNELS] = KNOT_SD
    whole = Design(columns, offset, np.append(own.prior, [common] * len(knots)), sd)
    found = fit_steps(whole, time_s, least={_KERNELS: LEAST_FACTOR})
    return ShapeFit(knots, found, common)
