"""Expert layers that were not timed: the nearest timed one, scaled by what both have to read and compute.

Nearness is the product of the ratios of their sizes. The scale is a roofline with the speeds that the timed layer
shows: its compute rate at many tokens, and memory bandwidth for the experts that tokens touch, ``E (1 - (1-k/E)^T)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.hardware.dtypes import matrix_bytes
from replay.steptime.interpolation import Float64Array
from replay.steptime.kernel_tables import ExpertKey, ExpertTables

STAND_INS = {"fp8": ("fp8_block",), "fp8_block": ("fp8",), "mxfp4": (), "nvfp4": (), "bf16": ()}
"""Weight formats whose kernels may stand in, beside the format's own."""
MEMORY_SHARE = 0.6
"""Of memory bandwidth, streaming experts."""
UNTUNED = 1.25
"""A layer of narrower weights that is slower than at 16 bit by more than this ran a kernel without settings for it."""
FARTHEST = 64.0
"""Beyond this product of ratios no timed layer says anything of another."""


@dataclass(frozen=True)
class ExpertCurve:
    """Times of one layer of experts at the knots of the tables."""

    us: Float64Array
    reference: ExpertKey
    """The timed layer behind it."""
    timed: bool
    """Whether that is the layer itself."""


def expert_curve(tables: ExpertTables, key: ExpertKey, memory_bytes_per_s: float) -> ExpertCurve | None:
    """The curve of a layer, timed or scaled; ``None`` where nothing near enough was timed."""
    if key in tables.us:
        return ExpertCurve(tables.us[key], key, timed=True)
    formats = (key.fmt, *STAND_INS.get(key.fmt, ()))
    found = [
        (_distance(key, other), str(other), other)
        for other in tables.us
        if other.fmt in formats and not _untuned(tables, other)
    ]
    if not found or min(found)[0] > FARTHEST:
        return None
    reference = min(found)[2]
    rate = _flops(reference, tables.tokens[-1:])[0] / tables.us[reference][-1]
    ours, theirs = (_roof(of, tables.tokens, rate, memory_bytes_per_s) for of in (key, reference))
    return ExpertCurve(np.asarray(tables.us[reference] * ours / theirs), reference, timed=False)


def _untuned(tables: ExpertTables, key: ExpertKey) -> bool:
    """Whether a layer of narrower weights was timed slower than the same layer at 16 bit: a kernel without settings for
    that shape, which says nothing of another shape. Llama-4-Scout-FP8 is served three times faster than such timings,
    scaled, would have it."""
    wide = tables.us.get(replace(key, fmt="bf16"))
    return wide is not None and key.fmt != "bf16" and float(np.median(tables.us[key] / wide)) > UNTUNED


def _distance(one: ExpertKey, other: ExpertKey) -> float:
    product = 1.0 if one.fmt == other.fmt else 1.5
    for a, b in (
        (one.hidden, other.hidden),
        (one.intermediate / one.tp, other.intermediate / other.tp),
        (one.top_k, other.top_k),
        (one.experts, other.experts),
        (one.tp, other.tp),
        (one.ep, other.ep),
    ):
        product *= max(a / b, b / a)
    return product


def _flops(key: ExpertKey, tokens: Float64Array) -> Float64Array:
    """Of one rank: two GEMMs of up (with gate) and down."""
    return np.asarray(tokens * (6.0 * key.top_k * key.hidden * key.intermediate / key.tp / key.ep))


def _roof(key: ExpertKey, tokens: Float64Array, flops_per_us: float, memory_bytes_per_s: float) -> Float64Array:
    """Microseconds: root of squares of compute and memory."""
    missed = np.multiply.accumulate(np.full(int(tokens.max()), 1.0 - key.top_k / key.experts))
    touched = key.experts / key.ep * (1.0 - missed[tokens.astype(np.int64) - 1])
    one = 3 * sum(matrix_bytes(key.intermediate // key.tp, key.hidden, key.fmt))
    memory = touched * one / (MEMORY_SHARE * memory_bytes_per_s) * 1e6
    compute = _flops(key, tokens) / flops_per_us
    return np.asarray(np.sqrt(compute * compute + memory * memory))
