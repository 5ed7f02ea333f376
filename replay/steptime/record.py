"""The step-time record: one flat set of integer tables, the same for every GPU, that turns a batch into picoseconds.

``step_ps = rest[T] + decode_linear * K + prefill_linear * A2 + decode_table(R, K // R) + sum prefill_table(q, cached)``
plus the host gap. T: tokens in the step (after graph padding where ``rest`` bakes it in); R: decoding requests (chunks of
exactly one token); K: their context tokens, each counted including the token being computed; A2: twice the query-key pairs
of the longer chunks, ``sum q * (2 * cached + q + 1)``. A linear law has empty tables; a measured law has tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Provenance = Literal["measured", "transported", "analytic", "recorded"]


@dataclass(frozen=True)
class StepTime:
    """Integer picoseconds throughout, so that results are the same bytes on every machine.

    ``rest_ps``: shape (T_max + 1,), everything but attention for T tokens, T = 0..T_max = max_num_batched_tokens.
    ``decode_linear_ps``: per decode context token; ``prefill_linear_ps``: per A2 unit (half a query-key pair).
    ``decode_table_ps``: shape (I, J) at log-linear knots (see ``kernels.loglinear``) of batch and mean context, or (0, 0).
    ``prefill_table_ps``: shape (I, J) at log-linear knots of chunk length and cached tokens, or (0, 0).
    ``host_ps`` + ``host_per_request_ps`` * scheduled requests: host work of a step; added to the GPU time in synchronous
    scheduling, hidden under it (maximum) in asynchronous scheduling.
    """

    rest_ps: Int64Array
    decode_linear_ps: int
    prefill_linear_ps: int
    decode_table_ps: Int64Array
    prefill_table_ps: Int64Array
    host_ps: int
    host_per_request_ps: int
    request_overhead_ps: int
    """Time between sending and the engine seeing the request (API server, tokeniser); shifts arrivals."""
    provenance: Provenance
    calibration_id: str
    notes: tuple[str, ...] = ()


def no_table() -> Int64Array:
    """An absent table."""
    return np.zeros((0, 0), dtype=np.int64)
