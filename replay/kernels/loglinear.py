"""Log-linear bins: each octave is cut into equal parts, so an index needs shifts only and no logarithm.

ITL gaps use 256 parts an octave (a bin is at most 0.39 % wide); step-time tables use 8 parts.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from replay.kernels.jit import kernel
from replay.kernels.state import FAR, GAP_BINS, GAP_BITS, Int64

KNOT_BITS = 3


@kernel
def bin_of(value: int, bits: int) -> int:
    """Bin of a value >= 0: exact below ``2 ** (bits + 1)``, then ``2 ** bits`` bins an octave."""
    shift = 0
    top = value >> (bits + 1)
    if top >= 1 << 32:
        shift, top = 32, top >> 32
    if top >= 1 << 16:
        shift, top = shift + 16, top >> 16
    if top >= 1 << 8:
        shift, top = shift + 8, top >> 8
    while top > 0:
        shift, top = shift + 1, top >> 1
    return (shift << bits) + (value >> shift)


@kernel
def floor_of(index: int, bits: int) -> int:
    """Smallest value in a bin: the inverse of ``bin_of``."""
    if index < (2 << bits):
        return index
    shift = (index >> bits) - 1
    return (index - (shift << bits)) << shift


@cache
def gap_bin_edges_ps() -> tuple[Int64, Int64]:
    """Lowest and highest value (both inclusive, ps) of each ITL bin, shape (GAP_BINS,) each."""
    low = np.array([int(floor_of(i, GAP_BITS)) for i in range(GAP_BINS)], dtype=np.int64)
    high = np.append(low[1:] - 1, low[-1])
    low.flags.writeable = high.flags.writeable = False  # cached: every caller gets the same arrays
    return low, high


@kernel
def width_bits(index: int, bits: int) -> int:
    """Bits that the width of a bin has behind its one: a bin is ``1 << width_bits`` wide."""
    return 0 if index < (2 << bits) else (index >> bits) - 1


@kernel
def line_of(table_ps: Int64, x: int, y: int) -> tuple[int, int, int, int, int]:
    """The line along y that ``interpolate`` follows around (x, y): its value at the knot below ``y``, what it rises by
    up to the next one, that knot, the next one (FAR beyond the last), and the bits of their distance."""
    rows, columns = table_ps.shape
    i = min(bin_of(x, KNOT_BITS), rows - 2)
    j = min(bin_of(y, KNOT_BITS), columns - 2)
    ahead, bits = x - floor_of(i, KNOT_BITS), width_bits(i, KNOT_BITS)
    low = table_ps[i, j] + ((table_ps[i + 1, j] - table_ps[i, j]) * ahead >> bits)
    high = table_ps[i, j + 1] + ((table_ps[i + 1, j + 1] - table_ps[i, j + 1]) * ahead >> bits)
    end = floor_of(j + 1, KNOT_BITS) if j < columns - 2 else FAR
    return low, high - low, floor_of(j, KNOT_BITS), end, width_bits(j, KNOT_BITS)


@kernel
def interpolate(table_ps: Int64, x: int, y: int) -> int:
    """Bilinear in integers, rounded down, between the knots around (x, y) of a table laid out by
    ``bin_of(., KNOT_BITS)``; points beyond the last knot continue the last cell's slope."""
    low, rise, knot, _end, bits = line_of(table_ps, x, y)
    return low + (rise * (y - knot) >> bits)
