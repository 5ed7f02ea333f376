"""Ranks of requests in the waiting queue, for the orders that have one: lower first, ties by arrival."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.engines import EngineConfig
from replay.errors import FieldError, SpecError
from replay.kernels.state import RANKS_A_TOKEN
from replay.workload import Workload

Int64Array = npt.NDArray[np.int64]

_PS_PER_US = 10**6
_LARGEST = float(2**61)
"""Predicted length in ranks; with ageing over 90 days on top int64 still holds it."""


def ranks_of(engine: EngineConfig, workload: Workload) -> Int64Array:
    """The rank of every request at its arrival, shape (n,); (0,) first come first served.

    ``priority``: the trace's. ``sjf`` and ``srpt``: predicted output tokens, in millionths. Ageing ``w`` lowers the
    rank by ``w`` tokens for each second waited. All ranks fall alike, so comparing ``predicted - w * (now - arrival)``
    at any time is comparing ``predicted + w * arrival``, which stays as it is. Under ``srpt`` the loop takes off the
    tokens a request has given whenever it queues it again.

    Raises:
        SpecError: ``priority`` without priorities in the trace.
    """
    policy = engine.scheduling_policy
    if policy == "fcfs":
        return np.zeros(0, np.int64)
    if policy == "priority":
        if workload.priority is None:
            cure = "map a column of whole numbers to priority (lower runs first), or set scheduling_policy to fcfs"
            detail = "scheduling_policy is priority, but the trace's requests have no whole-number priority"
            field = "engine.overrides.scheduling_policy"
            raise SpecError("engine.priority", detail, [FieldError(f"{detail}: {cure}", field=field, cure=cure)])
        return workload.priority
    predicted = workload.output_tokens.astype(np.float64)
    if engine.output_length_sigma > 0:
        rng = np.random.Generator(np.random.PCG64([workload.seed, _PREDICTION_STREAM]))
        predicted *= np.exp(engine.output_length_sigma * rng.standard_normal(workload.n))
    ranks = np.rint(np.minimum(predicted * RANKS_A_TOKEN, _LARGEST)).astype(np.int64)
    if engine.ageing_per_s > 0:
        ranks += np.rint(engine.ageing_per_s * (workload.arrival_ps // _PS_PER_US)).astype(np.int64)
    return ranks


_PREDICTION_STREAM = 1
"""Keeps these draws apart from the workload's own, which start from the same seed."""
