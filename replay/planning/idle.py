"""The best latency any replica count can give: each request alone on an idle replica, its prefix cached if at all.

A lower bound from the step-time record, since a request's chunks and decodes cannot be shorter in company (tables of
attention are left out of the prefill, which keeps it a bound). An objective under this bound needs no replay to fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.results import ceil_rank
from replay.specs import Objective
from replay.workload import Workload

if TYPE_CHECKING:
    from replay.deployment import Deployment

Float64Array = npt.NDArray[np.float64]
_PS = 1e12


def caches_prefixes(workload: Workload, deployment: Deployment) -> bool:
    """Whether prefix caching acts: the engine has it on and the workload says which prefixes are shared."""
    return workload.prefix is not None and deployment.engine.enable_prefix_caching


def idle_value_s(objective: Objective, workload: Workload, deployment: Deployment) -> float:
    """What ``objective`` gates, with every request alone, in seconds: TTFT or E2E from arrival; 0 for other metrics."""
    if workload.n == 0 or objective.metric not in ("ttft", "e2e"):
        return 0.0
    record = deployment.step_time
    part = workload.scored_part
    prompt, output = workload.prompt_tokens[part], workload.output_tokens[part]
    cached = np.zeros_like(prompt)
    if workload.prefix is not None and caches_prefixes(workload, deployment):
        cached = np.minimum(workload.prefix.reusable_tokens[part], prompt - 1)  # the best that any cache can do
    new = prompt - cached
    chunk = min(deployment.engine.max_num_batched_tokens, len(record.rest_ps) - 1)
    whole, rest = new // chunk, new % chunk
    samples: Float64Array = (whole * record.rest_ps[chunk] + record.rest_ps[rest]).astype(np.float64)
    samples += record.prefill_linear_ps * (new.astype(np.float64) * (2.0 * cached + new + 1.0))
    samples += record.request_overhead_ps
    if objective.metric == "e2e":
        step = 1.0 + deployment.engine.num_speculative_tokens  # tokens of a decode at best: every draft accepted
        decodes = np.ceil((output - 1.0) / step)
        samples += decodes * (record.rest_ps[1] + record.decode_request_ps)
        samples += record.decode_linear_ps * (decodes * (prompt + 1.0) + step * decodes * (decodes - 1.0) / 2.0)
    if objective.attainment is not None:
        return float(np.sort(samples)[ceil_rank(objective.attainment, len(samples)) - 1]) / _PS
    value = samples.mean() if objective.percentile is None else np.percentile(samples, objective.percentile)
    return float(value) / _PS
