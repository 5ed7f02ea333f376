"""Which requests the ITL histogram counts: warm-up and cool-down are replayed and not scored.

Requests are in arrival order, so the scored ones are a range; every loop that counts gaps asks here.
"""

from __future__ import annotations

from replay.kernels.jit import inlined
from replay.kernels.state import FAR, SCORED_END, SCORED_FIRST, Int64


@inlined
def is_scored(reg: Int64, r: int) -> bool:
    """Whether the gaps of request ``r`` are counted."""
    return reg[SCORED_FIRST] <= r < reg[SCORED_END]


@inlined
def is_trimmed(reg: Int64) -> bool:
    """Whether any request may be left out: loops without one need not look requests up."""
    return reg[SCORED_FIRST] > 0 or reg[SCORED_END] != FAR
