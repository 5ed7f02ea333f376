"""What a replay answers: distributions, counts, saturation, and the per-request table behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replay.specs import Objective

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True)
class Distribution:
    """A metric over its samples, in seconds. Percentiles are numpy-linear; ITL is pooled over tokens from a log
    histogram (bins <= 0.5 %, mean and maximum exact). ``None`` where there is no sample."""

    n: int
    mean: float | None
    percentiles: dict[float, float]
    max: float | None


@dataclass(frozen=True)
class RequestTable:
    """Per-request outcome in workload order, shape (n,) each. Times in ps from the window's start; -1: never
    happened."""

    arrival_ps: Int64Array
    admitted_ps: Int64Array
    first_token_ps: Int64Array
    last_token_ps: Int64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    replica: Int64Array
    preemptions: Int64Array
    hit_tokens: Int64Array
    status: Int64Array
    """Index into ``STATUSES``."""


STATUSES = (
    "finished",
    "too_long_for_model",
    "too_large_for_kv",
    "prompt_over_batch_budget",
    "reservation_over_kv",
    "over_max_concurrent_requests",
)
RELIEVED_BY_REPLICAS = frozenset({"over_max_concurrent_requests"})
"""Reasons that more replicas remove; the others say that a request can never run."""


@dataclass(frozen=True)
class Histogram:
    """Weighted samples on bins: ``value_s`` (bin representative, ascending) and ``weight`` (tokens), plus exact
    sums."""

    value_s: Float64Array
    weight: Int64Array
    mean_s: float | None
    max_s: float | None

    def percentile(self, q: float) -> float | None:
        """Percentile ``q`` in 0..100 of the pooled samples, to a bin's width."""
        total = int(self.weight.sum())
        if total == 0:
            return None
        rank = q / 100.0 * (total - 1)
        index = int(np.searchsorted(np.cumsum(self.weight), rank, side="right"))
        return float(self.value_s[min(index, len(self.value_s) - 1)])


@dataclass(frozen=True)
class ReplayResult:
    """Result of one replay. Metric definitions are vLLM bench's (TTFT, TPOT, ITL, E2E); see docs/metrics.md."""

    requests: RequestTable
    itl: Histogram
    ttft_s: Float64Array
    """From arrival; finished requests only, as are the next four."""
    ttft_from_admission_s: Float64Array
    tpot_s: Float64Array
    """Requests with at least two output tokens."""
    e2e_s: Float64Array
    queue_s: Float64Array
    finished: int
    rejected: dict[str, int]
    """Requests that could never run or were turned away, by reason; they are in no latency figure."""
    preemptions: int
    steps: int
    replicas: int
    duration_s: float
    """First arrival to last token."""
    output_tokens: int
    prompt_tokens: int
    offered_rps: float | None
    """Requests that can run there, per second of the workload's span; ``None`` for a burst, which has no rate."""
    load_factor: float | None
    """Offered load over capacity: above 1 the deployment cannot keep up however long it runs. ``None`` for a burst."""
    sustainable_rps: float
    """Request rate at load factor 1, same mix."""
    saturated: bool
    prefix_hit_rate: float | None
    """Prompt tokens served from the prefix cache over those looked up; ``None`` where no cache acted."""
    kv_usage_mean: float
    kv_usage_max: float
    batch_mean: float
    """Time-weighted mean of running requests per replica while busy."""
    busy_fraction: float
    loop: str
    """Which engine loop ran: ``general``, ``fast``, or an engine's own: ``static``, ``sglang``, ``trtllm``, ``tgi``."""
    kernel_s: float
    """Seconds inside compiled code."""
    notes: tuple[str, ...] = field(default=())

    def _samples(self, metric: str) -> Float64Array:
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s, "queue": self.queue_s}[metric]

    def distribution(self, metric: str) -> Distribution:
        """The distribution of ``ttft``, ``itl``, ``tpot``, ``e2e`` or ``queue``."""
        if metric == "itl":
            n = int(self.itl.weight.sum())
            if n == 0:
                return Distribution(0, None, {}, None)
            at = {q: value for q in PERCENTILES if (value := self.itl.percentile(q)) is not None}
            return Distribution(n, self.itl.mean_s, at, self.itl.max_s)
        samples = self._samples(metric)
        if len(samples) == 0:
            return Distribution(0, None, {}, None)
        values = np.percentile(samples, PERCENTILES)
        return Distribution(
            len(samples),
            float(samples.mean()),
            dict(zip(PERCENTILES, map(float, values), strict=True)),
            float(samples.max()),
        )

    def value(self, objective: Objective) -> float | None:
        """The figure that ``objective`` gates, in seconds; ``None`` where there is no sample."""
        if objective.metric == "itl":
            return self.itl.mean_s if objective.percentile is None else self.itl.percentile(objective.percentile)
        samples = self._samples(objective.metric)
        if len(samples) == 0:
            return None
        return float(samples.mean() if objective.percentile is None else np.percentile(samples, objective.percentile))
