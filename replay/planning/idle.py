"""The best latency any replica count can give: each request alone on an idle replica, its prefix cached if at all.

A lower bound from the step-time record. In company a step may hold more tokens, and timed kernels are faster at some
larger sizes: so a step of T tokens counts as the fastest of T or more, and a prompt cut into more steps as the fastest
per token. Attention tables are left out, which keeps it a bound. An objective under this bound needs no replay to fail.
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
Int64Array = npt.NDArray[np.int64]
_PS = 1e12


def caches_prefixes(workload: Workload, deployment: Deployment) -> bool:
    """Whether prefix caching acts: the engine has it on and the workload says which prefixes are shared."""
    return workload.shares_prompts and deployment.caches_prefixes


def idle_value_s(objective: Objective, workload: Workload, deployment: Deployment) -> float:
    """What ``objective`` gates, with every request alone, in seconds: TTFT or E2E from arrival; 0 for other metrics,
    and where clients leave at times of their own, so that who finishes depends on the deployment."""
    if workload.n == 0 or objective.metric not in ("ttft", "e2e") or workload.leaves is not None:
        return 0.0
    record = deployment.step_time
    part = workload.scored_part
    prompt, output = workload.prompt_tokens[part], workload.output_tokens[part]
    cached = np.zeros_like(prompt)
    if caches_prefixes(workload, deployment):
        cached = np.minimum(workload.reusable_tokens[part], prompt - 1)  # the best that any cache can do
    new = prompt - cached
    rest_ps = _rest_alone_ps(deployment)
    chunk = min(deployment.engine.max_num_batched_tokens, len(rest_ps) - 1)
    fastest = np.minimum.accumulate(rest_ps[:0:-1])[::-1]  # [T - 1]: of T tokens or more
    samples = _prefill_ps(new, chunk, rest_ps, fastest)
    samples += record.prefill_step_ps * (new > 1)
    samples += record.prefill_linear_ps * (new.astype(np.float64) * (2.0 * cached + new + 1.0))
    samples += record.request_overhead_ps
    if objective.metric == "e2e":
        if deployment.decode is not None:
            record = deployment.decode.step_time
            fastest = np.minimum.accumulate(record.rest_ps[:0:-1])[::-1]
        step = 1.0 + deployment.engine.num_speculative_tokens  # tokens of a decode at best: every draft accepted
        decodes = np.ceil((output - 1.0) / step)
        samples += decodes * (fastest[0] + record.decode_request_ps)
        samples += record.decode_linear_ps * (decodes * (prompt + 1.0) + step * decodes * (decodes - 1.0) / 2.0)
    if objective.attainment is not None:
        return float(np.sort(samples)[ceil_rank(objective.attainment, len(samples)) - 1]) / _PS
    value = samples.mean() if objective.percentile is None else np.percentile(samples, objective.percentile)
    return float(value) / _PS


def _rest_alone_ps(deployment: Deployment) -> Int64Array:
    """The record's ``rest_ps``; with data-parallel ranks, that of a step in which all others compute one token."""
    record, ranks = deployment.step_time, deployment.engine.data_parallel_size
    if ranks == 1 or len(record.shared_ps) == 0:
        return record.rest_ps
    tokens = np.arange(len(record.rest_ps))
    mean = np.minimum((tokens + ranks - 1 + ranks - 1) // ranks, tokens)  # as the loop of the ranks shares them
    return record.rest_ps - record.shared_ps + np.minimum(record.shared_ps, record.shared_ps[mean])


def _prefill_ps(new: Int64Array, chunk: int, rest_ps: Int64Array, fastest_ps: Int64Array) -> Float64Array:
    """The least that steps holding ``new`` tokens of a prompt take, apart from attention: one step, or several."""
    per_token = float((rest_ps[1 : chunk + 1] / np.arange(1, chunk + 1)).min())
    several = np.maximum(new * per_token, 2.0 * fastest_ps[0])
    one = fastest_ps[np.minimum(new, chunk) - 1]
    return np.asarray(np.where(new <= chunk, np.minimum(one, several), several), dtype=np.float64)
