"""The schedulers that have a loop of their own: the kernel of each, and what it takes from a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from replay.deployment import Deployment
from replay.engine_families import CAPACITY_POLICIES, SGLANG_RATIO_FIRST, SGLANG_RATIO_LEAST
from replay.kernels.lockstep import IDLE_CHECK_STEPS, LockstepOptions, advance_lockstep, new_lockstep
from replay.kernels.sglang import SglangOptions, advance_sglang, new_sglang
from replay.kernels.state import NEVER, Config
from replay.kernels.static import advance_static, static_options
from replay.kernels.tgi import TgiOptions, advance_tgi, new_tgi
from replay.kernels.trtllm import TrtllmOptions, advance_trtllm
from replay.kernels.v0 import advance_v0, v0_options
from replay.kernels.v0_chunked import advance_v0_chunked, new_v0_lists

EVENTS_A_CALL = 1 << 16
STEPS_A_CALL = 1 << 22
"""Batches in one call of a loop by events, such as the general one, and of the fast loop: a second of work at most."""


class Loop(NamedTuple):
    """A scheduler with a loop of its own: its kernel, and its options beyond ``Config`` from a deployment."""

    advance: Callable[..., bool]
    options: Callable[[Deployment], Any]
    limit: int
    """Steps or events in one call: a second of work at most."""
    memory: Callable[[Config, Any], Any] | None = None
    """What the scheduler remembers between steps beside ``State``, from its options."""


def _sglang_options(deployment: Deployment) -> SglangOptions:
    knob = deployment.engine.number
    first = min(1.0, SGLANG_RATIO_FIRST * knob("schedule_conservativeness"))
    chunk = int(knob("chunked_prefill_size"))
    return SglangOptions(
        chunk if chunk > 0 else NEVER,
        int(knob("max_prefill_tokens")),
        first,
        SGLANG_RATIO_LEAST * first,
        lpm=int(deployment.engine.own["schedule_policy"] == "lpm"),
    )


def _trtllm_options(deployment: Deployment) -> TrtllmOptions:
    return TrtllmOptions(CAPACITY_POLICIES.index(str(deployment.engine.own["capacity_scheduler_policy"])))


def _tgi_options(deployment: Deployment) -> TgiOptions:
    knob, chunks = deployment.engine.number, deployment.engine.scheduler == "tgi-v3"
    return TgiOptions(
        int(chunks),
        int(knob("max_batch_prefill_tokens")),
        0 if chunks else int(knob("max_waiting_tokens")),
        0.0 if chunks else knob("waiting_served_ratio"),
    )


def _lockstep_options(deployment: Deployment) -> LockstepOptions:
    record = deployment.step_time
    return LockstepOptions(record.graph_tokens, IDLE_CHECK_STEPS, np.ascontiguousarray(record.shared_ps))


OWN_LOOPS = {
    "static": Loop(advance_static, static_options, STEPS_A_CALL),
    "vllm-v0": Loop(advance_v0, v0_options, EVENTS_A_CALL),
    "vllm-v0-chunked": Loop(
        advance_v0_chunked, v0_options, EVENTS_A_CALL, lambda config, options: new_v0_lists(config)
    ),
    "sglang": Loop(advance_sglang, _sglang_options, EVENTS_A_CALL, new_sglang),
    "trtllm": Loop(advance_trtllm, _trtllm_options, EVENTS_A_CALL),
    "tgi-v3": Loop(advance_tgi, _tgi_options, EVENTS_A_CALL, lambda config, options: new_tgi(config)),
    "lockstep": Loop(advance_lockstep, _lockstep_options, EVENTS_A_CALL, lambda config, options: new_lockstep(config)),
    "tgi-v2": Loop(advance_tgi, _tgi_options, EVENTS_A_CALL, lambda config, options: new_tgi(config)),
}
"""By scheduler. All others run in the general or the fast loop, told apart by their ``Config``."""
