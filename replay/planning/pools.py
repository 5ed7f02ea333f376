"""Prefill and decode pools as a part of a replay's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from replay.planning.document import PoolInfo, PoolsInfo
from replay.planning.figures import (
    engine_info,
    figure,
    memory_breakdown,
    metric_stats,
    optional_figure,
    step_time_info,
)
from replay.results import PoolUse, ReplayResult

if TYPE_CHECKING:
    from replay.deployment import Deployment

_BINDING: dict[str, Literal["prefill", "decode", "transfer"]] = {
    name: name for name in ("prefill", "decode", "transfer")
}


def pools_part(result: ReplayResult, deployment: Deployment) -> PoolsInfo | None:
    """Both pools and what lies between them; ``None`` where every replica does both."""
    apart, decode, pools = deployment.spec.disaggregation, deployment.decode, result.pools
    if apart is None or decode is None or pools is None:
        return None
    return PoolsInfo(
        binding=_BINDING[pools.binding],
        first_token_from=apart.first_token_from,
        kv_transfer_s=metric_stats(pools.kv_transfer_s),
        transfer_rps=_finite(pools.transfer_rps),
        prefill=_pool(pools.prefill, deployment, result),
        decode=_pool(pools.decode, decode, result),
    )


def _pool(use: PoolUse, deployment: Deployment, result: ReplayResult) -> PoolInfo:
    load = None if result.offered_rps is None or use.sustainable_rps <= 0 else result.offered_rps / use.sustainable_rps
    return PoolInfo(
        replicas=use.replicas,
        tp=use.tp,
        gpus=use.replicas * use.tp,
        load_factor=optional_figure(load),
        sustainable_rps=_finite(use.sustainable_rps),
        kv_usage_mean=figure(use.kv_usage_mean),
        kv_usage_max=figure(use.kv_usage_max),
        batch_mean=figure(use.batch_mean),
        busy_fraction=figure(use.busy_s / (result.duration_s * use.replicas)) if result.duration_s > 0 else 0.0,
        steps=use.steps,
        preemptions=use.preemptions,
        memory=memory_breakdown(deployment),
        engine=engine_info(deployment),
        step_time=step_time_info(deployment),
    )


def _finite(value: float) -> float | None:
    return figure(value) if np.isfinite(value) else None
