"""The timeline of a replay as a part of its report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.planning.document import Timeline
from replay.results import ReplayResult
from replay.timeline import MOST_BINS, KvCapacity, build_timeline

if TYPE_CHECKING:
    from replay.deployment import Deployment

Column = npt.NDArray[np.float64]

METHOD_NOTE = (
    "Derived from each request's own times: prompt tokens are spread evenly from admission to the first token and "
    "output tokens from the first to the last; preempted requests count as running, and preemptions are spread over "
    "the request's time in the engine."
)
KV_NOTE = (
    "KV use is estimated from the tokens of running requests; "
    "the exact mean and maximum are under load, counts and use."
)


GROUPS_NOTE = (
    "KV use over time is not estimated for models whose layers form several groups; "
    "its exact mean and maximum are under load, counts and use."
)


RESERVED_NOTE = (
    "KV use over time is not estimated for engines that reserve blocks for an answer's declared length; "
    "its exact mean and maximum are under load, counts and use."
)
POOLS_NOTE = (
    "KV use over time is not estimated where prefill and decode are apart; "
    "the exact mean and maximum of each pool are in their table."
)
RESERVING = ("orca", "tgi-v2", "tgi-v3")


def timeline_part(result: ReplayResult, deployment: Deployment, bin_s: float | None) -> Timeline:
    """The timeline in bins of ``bin_s`` seconds, or of a width that suits; floats to six significant digits."""
    capacity = None
    reserves = deployment.engine.scheduler in RESERVING
    if deployment.decode is None and deployment.layer_groups is None and not reserves:
        capacity = KvCapacity(deployment.usable_blocks * deployment.engines, deployment.block_size)
    made = build_timeline(result, bin_s, capacity)
    notes = [METHOD_NOTE]
    if made.kv_usage is not None:
        notes.append(KV_NOTE)
    elif capacity is None:
        apart = deployment.decode is not None
        notes.append(POOLS_NOTE if apart else RESERVED_NOTE if reserves else GROUPS_NOTE)
    if bin_s is not None and made.bin_s != bin_s:
        notes.append(f"Bins of {bin_s:g} s would be more than {MOST_BINS}: they are {made.bin_s:g} s wide.")
    pools = [deployment] if deployment.decode is None else [deployment, deployment.decode]
    seats = sum(
        pool.engine.max_num_seqs * count
        for pool, (count, _) in zip(pools, deployment.tensor_parallel_groups, strict=True)
    )
    return Timeline(
        bin_s=made.bin_s,
        start_s=_floats(made.start_s),
        arrived=tuple(made.arrived.tolist()),
        admitted=tuple(made.admitted.tolist()),
        finished=tuple(made.finished.tolist()),
        running=_floats(made.running),
        waiting=_floats(made.waiting),
        batch_utilisation=_floats(made.running / seats),
        prompt_tokens_per_s=_floats(made.prompt_tokens / made.bin_s),
        output_tokens_per_s=_floats(made.output_tokens / made.bin_s),
        finished_per_s=_floats(made.finished / made.bin_s),
        preemptions=_floats(made.preemptions),
        ttft_p50_s=_optional(made.ttft_p50_s),
        ttft_p99_s=_optional(made.ttft_p99_s),
        prefix_hit_rate=None if made.prefix_hit_rate is None else _optional(made.prefix_hit_rate),
        kv_usage=None if made.kv_usage is None else _floats(made.kv_usage),
        notes=tuple(notes),
    )


def _floats(column: Column) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in column.tolist())


def _optional(column: Column) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else float(f"{value:.6g}") for value in column.tolist())
