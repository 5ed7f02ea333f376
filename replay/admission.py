"""Before a replay: what each request declares as its longest output, and which requests can never run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment
from replay.engine_families import FAMILY_PRESETS
from replay.results import STATUSES
from replay.workload import Workload

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def declared_tokens(workload: Workload, deployment: Deployment) -> Int64Array | None:
    """Longest output that the engine reserves for, shape (n,); ``None`` for engines that do not reserve by it.

    The trace's own where it has one, else the knob ``max_tokens_default``; cut to what the engine's longest request
    leaves; never less than the output itself.
    """
    engine = deployment.engine
    if engine.scheduler == "orca":
        return _declared(workload, engine.max_tokens_default)
    if engine.scheduler not in FAMILY_PRESETS:
        return None
    rest = _longest_request(deployment) - workload.prompt_tokens
    default = int(engine.number("max_tokens_default"))
    declared = np.minimum(_declared(workload, default), rest) if default > 0 else _known_or(workload, rest)
    return np.maximum(declared, workload.output_tokens)


def _known_or(workload: Workload, rest: Int64Array) -> Int64Array:
    """What the trace declares, at most ``rest``; all of that where it says nothing."""
    if workload.max_tokens is None:
        return rest
    return np.where(workload.max_tokens > 0, np.minimum(workload.max_tokens, rest), rest)


def _declared(workload: Workload, default: int) -> Int64Array:
    """As declared, else ``default``; never less than the output itself."""
    declared = np.full(workload.n, default, np.int64)
    if workload.max_tokens is not None:
        declared = np.where(workload.max_tokens > 0, workload.max_tokens, declared)
    return np.maximum(workload.output_tokens, declared)


def judge(workload: Workload, deployment: Deployment, declared: Int64Array | None) -> Int64Array:
    """Index into ``STATUSES`` by request: 0 where it can run. Of several reasons the last of these counts; of two pools
    the prefill pool's, which computes one token of each."""
    if deployment.decode is not None:
        prompts = replace(workload, output_tokens=np.ones_like(workload.output_tokens))
        first = judge(prompts, replace(deployment, decode=None), declared)
        return np.where(first > 0, first, judge(workload, deployment.decode, declared))
    engine = deployment.engine
    total = workload.prompt_tokens + workload.output_tokens
    tokens, usable = total - 1, deployment.usable_blocks
    if engine.num_speculative_tokens > 0:  # the last decode still takes slots for its drafts and for the next ones
        tokens = np.minimum(tokens + 2 * engine.num_speculative_tokens, engine.max_model_len)
    if engine.scheduler == "orca" and declared is not None:
        tokens = np.minimum(workload.prompt_tokens + declared, engine.max_model_len)
    if engine.scheduler == "vllm-v0":
        kept_free = int(engine.watermark * usable)  # a prompt, and one to be recomputed, never gets more
        usable -= (
            max(kept_free, 1) if engine.enable_chunked_prefill else kept_free
        )  # a prompt's next chunk asks for one
    no_room = _blocks(tokens, deployment) > usable
    too_long = total > engine.max_model_len
    if engine.scheduler == "sglang":
        no_room |= total > _longest_request(deployment)
        too_long = total > engine.max_model_len - _SGLANG_SPARE
    status = np.zeros(workload.n, dtype=np.int64)
    if declared is not None and engine.scheduler in FAMILY_PRESETS:
        life = _blocks(_reserved(workload, deployment, declared), deployment)
        status[life > deployment.usable_blocks] = STATUSES.index("reservation_over_kv")
    status[no_room] = STATUSES.index("too_large_for_kv")
    status[_over_budget(workload, deployment)] = STATUSES.index("prompt_over_batch_budget")
    status[too_long] = STATUSES.index("too_long_for_model")
    return status


_SGLANG_SPARE = 2
"""Tokens of its context length that SGLang gives to no request."""


def _longest_request(deployment: Deployment) -> int:
    """Prompt plus output that the engine lets a request have at most. SGLang also keeps a page and a token of its cache
    free."""
    engine = deployment.engine
    if engine.scheduler != "sglang":
        return engine.max_model_len
    pool = deployment.usable_blocks * deployment.block_size
    return min(engine.max_model_len - _SGLANG_SPARE, pool - deployment.block_size - 1)


def _blocks(tokens: Int64Array, deployment: Deployment) -> Int64Array:
    return deployment.most_blocks(tokens)


def _reserved(workload: Workload, deployment: Deployment, declared: Int64Array) -> Int64Array:
    """Tokens that must be free, or reserved, for a request to be admitted on an empty replica."""
    engine, prompt = deployment.engine, workload.prompt_tokens
    if engine.scheduler.startswith("tgi"):
        return prompt + declared - 1
    if engine.own.get("capacity_scheduler_policy") in ("GUARANTEED_NO_EVICT", "STATIC_BATCH"):
        return prompt + declared
    return prompt


def _over_budget(workload: Workload, deployment: Deployment) -> BoolArray:
    """Prompts that no batch can hold, where they are not cut; one that may be recomputed must fit with its output."""
    engine, prompt = deployment.engine, workload.prompt_tokens
    if engine.scheduler == "tgi-v2":
        return prompt > engine.profiled_tokens
    if engine.enable_chunked_prefill:
        return np.zeros(workload.n, np.bool_)
    keeps_memory = engine.own.get("capacity_scheduler_policy", "MAX_UTILIZATION") != "MAX_UTILIZATION"
    longest = prompt if keeps_memory else prompt + workload.output_tokens
    return longest > engine.max_num_batched_tokens
