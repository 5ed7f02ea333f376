"""Another shape of step law: the time of a step's linear part by its tokens, through a few knots.

Between knots the time is linear in tokens, as under an affine or a roofline law. Beyond the first and the last knot,
which are the smallest and the largest measured size, the shipped times count with the factor of that end: no bend goes
further than measurements.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


def knot_weights(sizes: Int64Array, rest_ps: Int64Array, knots: Int64Array, shipped_ps: Int64Array) -> Float64Array:
    """What each knot's factor weighs in the time (ps) of steps of ``sizes`` tokens, shape (n, k); times are
    ``weights @ factors``. ``knots``: tokens, shape (k,), increasing, at least two; ``shipped_ps``: ``rest_ps`` at them,
    which may lie beyond this deployment's largest step."""
    at = np.clip(np.searchsorted(knots, sizes, side="right") - 1, 0, len(knots) - 2)
    share = (sizes - knots[at]) / (knots[at + 1] - knots[at])
    rows = np.arange(len(sizes))
    weights = np.zeros((len(sizes), len(knots)))
    weights[rows, at] = (1.0 - share) * shipped_ps[at]
    weights[rows, at + 1] = share * shipped_ps[at + 1]
    for outside, end in ((sizes < knots[0], 0), (sizes > knots[-1], len(knots) - 1)):
        weights[outside] = 0.0
        weights[outside, end] = rest_ps[sizes[outside]]
    return weights


def bent(rest_ps: Int64Array, knots: Int64Array, shipped_ps: Int64Array, factors: Float64Array) -> Float64Array:
    """``StepTime.rest_ps`` with its own shape, in ps, shape (T_max + 1,). More tokens never take less time."""
    times = knot_weights(np.arange(len(rest_ps)), rest_ps, knots, shipped_ps) @ factors
    return np.asarray(np.maximum.accumulate(times))
