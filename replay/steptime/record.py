"""The step-time record: one flat set of integer tables, the same for every GPU, that turns a batch into picoseconds.

``step_ps = rest[T] + decode_request * R + decode_linear * K + decode_table(R, K // R)``
``        + prefill_step + prefill_linear * A2 + sum over chunks of prefill_table(q, cached)``, plus the host gap.

T: tokens in the step (graph padding is baked into ``rest``). R: decoding requests (chunks of exactly one token). K:
their context tokens, the one being computed included. A2: twice the query-key pairs of the longer chunks, ``sum q *
(2 * cached + q + 1)``; ``prefill_step`` where there is any longer chunk. A linear law has empty tables; one made of
timed kernels has tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Provenance = Literal["measured", "transported", "analytic", "recorded"]


@dataclass(frozen=True)
class StepTime:
    """Integer picoseconds throughout, so that results are the same bytes on every machine."""

    rest_ps: Int64Array
    """Shape (T_max + 1,): everything but attention for T tokens, T = 0 .. T_max = max_num_batched_tokens."""
    decode_request_ps: int
    """Per decoding request: sampling and bookkeeping."""
    decode_linear_ps: int
    """Per decode context token."""
    prefill_linear_ps: int
    """Per unit of A2 (half a query-key pair)."""
    decode_table_ps: Int64Array
    """Shape (I, J) at log-linear knots (``kernels.loglinear``) of batch and mean context; (0, 0): none."""
    prefill_table_ps: Int64Array
    """Shape (I, J) at log-linear knots of chunk length and cached tokens; (0, 0): none."""
    host_ps: int
    """Host work of a step: added to the GPU time in synchronous scheduling, hidden under it (maximum) in
    asynchronous."""
    host_per_request_ps: int
    """The same for each request in the batch."""
    request_overhead_ps: int
    """From sending to the engine's seeing the request (API server, tokeniser): shifts arrivals."""
    provenance: Provenance
    calibration_id: str
    notes: tuple[str, ...] = ()
    prefill_step_ps: int = 0
    """Once in a step with chunks of more than one token whose attention takes any time: what prefill attention costs
    before its first query."""
    stated_error: str = ""
    """A sentence on how far these step times are off, for reports; empty where the provenance says it."""
    graph_tokens: int = 0
    """Tokens of the largest captured CUDA graph; 0: none. Read with data-parallel ranks only."""
    shared_ps: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Of ``rest_ps``, the work on experts that data-parallel ranks do together, where each has T tokens; shape (0,)
    without such ranks."""


def no_table() -> Int64Array:
    """An absent table."""
    return np.zeros((0, 0), dtype=np.int64)
