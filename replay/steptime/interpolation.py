"""Piecewise-linear interpolation of kernel timings, with ``+ - * /`` and comparisons only.

Every operation is exactly rounded by IEEE 754 and done one at a time by numpy, so the integers made from these values
are the same on every machine. Straight lines fit both ends of a kernel's life: a fixed time where it is small, and a
time proportional to its size where it is large.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


def weights(knots: Float64Array, at: Float64Array) -> tuple[Int64Array, Float64Array]:
    """Left knot and share of the right knot of each point: 0 before the first knot, above 1 beyond the last."""
    left = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    share = (at - knots[left]) / (knots[left + 1] - knots[left])
    return left, np.maximum(share, 0.0)


def along(knots: Float64Array, values: Float64Array, at: Float64Array) -> Float64Array:
    """Values at points of one axis; ``values`` has shape (knots,). The last slope continues, if it does not fall."""
    left, share = weights(knots, at)
    low, high = values[left], values[left + 1]
    return np.asarray(low + np.where(share > 1.0, np.maximum(high - low, 0.0), high - low) * share)


def between(knots: Float64Array, values: Float64Array, at: float) -> Float64Array:
    """The slice at one point of the first axis of ``values``, shape (knots, ...)."""
    if len(knots) == 1:
        return np.asarray(values[0])
    left, share = weights(knots, np.array([at]))
    low, high = values[left[0]], values[left[0] + 1]
    return np.asarray(low + (high - low) * share[0])


def never_falling(values: Float64Array, axis: int = 0) -> Float64Array:
    """The rising values with the smallest largest change: half way between the highest so far and the lowest to come.

    Timed kernels get a little faster at some larger sizes, where another tile or algorithm sets in.
    """
    highest = np.maximum.accumulate(values, axis)
    lowest = np.flip(np.minimum.accumulate(np.flip(values, axis), axis), axis)
    return np.asarray((highest + lowest) / 2.0)


def grid(
    rows: Float64Array, columns: Float64Array, values: Float64Array, x: Float64Array, y: Float64Array
) -> Float64Array:
    """Values of a table of shape (rows, columns) at every pair of ``x`` and ``y``: shape (len(x), len(y))."""
    i, s = weights(rows, x)
    j, t = weights(columns, y)
    at_x = values[i] + (values[i + 1] - values[i]) * s[:, None]
    return np.asarray(at_x[:, j] + (at_x[:, j + 1] - at_x[:, j]) * t[None, :])


def record_table(table: Int64Array, x: float, y: float) -> float:
    """One value of a step-time record's table at log-linear knots; 0 where the table is absent."""
    if table.size == 0:
        return 0.0
    rows, columns = (log_linear_knots(size) for size in table.shape)
    at_x = between(rows.astype(np.float64), table.astype(np.float64), x)
    return float(along(columns.astype(np.float64), at_x, np.array([y]))[0])


@cache
def log_linear_knots(count: int) -> Int64Array:
    """The first knots of a log-linear axis, 8 an octave (``replay.kernels.loglinear``). Read-only: every caller gets
    the same array."""
    found = list(range(min(count, 16)))
    while len(found) < count:
        octave = (len(found) >> 3) - 1
        found.append((8 + (len(found) & 7)) << octave)
    knots = np.array(found, dtype=np.int64)
    knots.flags.writeable = False
    return knots


def points(rows: Int64Array, columns: Int64Array, values: Float64Array, x: Int64Array, y: Int64Array) -> Float64Array:
    """Values of a table of shape (rows, columns) at points ``(x, y)``, as ``kernels.loglinear.interpolate`` does."""
    i, s = weights(rows.astype(np.float64), x.astype(np.float64))
    j, t = weights(columns.astype(np.float64), y.astype(np.float64))
    low = values[i, j] + (values[i + 1, j] - values[i, j]) * s
    high = values[i, j + 1] + (values[i + 1, j + 1] - values[i, j + 1]) * s
    return np.asarray(low + (high - low) * t)
