"""Duration of a step from the aggregates of its batch."""

from __future__ import annotations

from replay.kernels.jit import inlined
from replay.kernels.loglinear import interpolate
from replay.kernels.state import (
    LAW_DECODE_REQUEST,
    LAW_DECODE_TOKEN,
    LAW_HOST,
    LAW_HOST_REQUEST,
    LAW_PREFILL_PAIR,
    LAW_PREFILL_STEP,
    Config,
    StepTimes,
)


@inlined
def attention_of_chunk(times: StepTimes, tokens: int, computed: int) -> int:
    """Prefill attention of one chunk of more than one token behind ``computed`` tokens, ps."""
    ps = times.law[LAW_PREFILL_PAIR] * (tokens * (2 * computed + tokens + 1))
    if times.prefill_table_ps.shape[0] > 0:
        ps += interpolate(times.prefill_table_ps, tokens, computed)
    return ps


@inlined
def decode_attention_ps(times: StepTimes, decodes: int, context_tokens: int) -> int:
    """Attention of ``decodes`` decoding requests that read ``context_tokens`` in all, ps."""
    ps = times.law[LAW_DECODE_TOKEN] * context_tokens
    if decodes > 0 and times.decode_table_ps.shape[0] > 0:
        ps += interpolate(times.decode_table_ps, decodes, context_tokens // decodes)
    return ps


@inlined
def step_ps(
    config: Config, times: StepTimes, tokens: int, decodes: int, context_tokens: int, chunks_ps: int, n: int
) -> int:
    """Time of a step with ``tokens`` tokens of ``n`` requests, of which ``decodes`` read ``context_tokens`` in all.

    Chunks whose attention takes any time pay the fixed time of the prefill kernels once. Host work is added in
    synchronous scheduling and hidden under the GPU in asynchronous scheduling.
    """
    law = times.law
    gpu = times.rest_ps[tokens] + law[LAW_DECODE_REQUEST] * decodes + chunks_ps
    gpu += decode_attention_ps(times, decodes, context_tokens)
    if chunks_ps > 0:
        gpu += law[LAW_PREFILL_STEP]
    host = law[LAW_HOST] + law[LAW_HOST_REQUEST] * n
    if config.batches_in_flight > 1:
        return max(gpu, host)
    return gpu + host
