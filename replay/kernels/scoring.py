"""Which requests the ITL histogram counts: warm-up and cool-down are replayed and not scored.

Requests are in arrival order, so the scored ones are a range; every loop that counts gaps asks here.
"""

from __future__ import annotations

from replay.kernels.jit import inlined
from replay.kernels.state import SCORED_END, SCORED_FIRST, Int64


@inlined
def is_scored(reg: Int64, r: int) -> bool:
    """Whether the gaps of request ``r`` are counted."""
    return reg[SCORED_FIRST] <= r < reg[SCORED_END]
