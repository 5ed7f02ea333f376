"""What a replay answers: distributions, counts, saturation, and the per-request table behind them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replay.specs import Metric, Objective
from replay.workload import Labels

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
_PS_PER_S = 1e12


def ceil_rank(share: float, n: int) -> int:
    """How many of ``n`` make up ``share`` of them: the least count k with k / n >= share."""
    count = max(1, math.ceil(share * n - 1e-9))
    return min(count, n)


@dataclass(frozen=True)
class Distribution:
    """A metric over its samples, in their own unit (latencies: seconds). Percentiles are numpy-linear; ITL is pooled
    over tokens from a log histogram (percentiles to 0.2 %, mean and maximum exact). ``None`` where there is no
    sample."""

    n: int
    mean: float | None
    percentiles: dict[float, float]
    max: float | None


def distribution_of(samples: npt.ArrayLike) -> Distribution:
    """The distribution of numbers, shape (n,)."""
    values = np.asarray(samples, dtype=np.float64)
    if len(values) == 0:
        return Distribution(0, None, {}, None)
    at = dict(zip(PERCENTILES, map(float, np.percentile(values, PERCENTILES)), strict=True))
    return Distribution(len(values), float(values.mean()), at, float(values.max()))


@dataclass(frozen=True)
class RequestTable:
    """Per-request outcome in workload order, shape (n,) each. Times in ps from the window's start; -1: never
    happened. Where a client left (``left_ps``), what happened before is there, and ``last_token_ps`` is -1."""

    arrival_ps: Int64Array
    """When it was sent; -1 for one that follows (closed loop) a request that has not ended."""
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
    tenant: Labels | None = None
    priority: Labels | None = None
    decode_replica: Int64Array | None = None
    """Where prefill and decode are apart: -1 where the first token was the last one; ``replica`` is the prefill one."""
    kv_arrived_ps: Int64Array | None = None
    """When the KV had come to the decode replica."""
    left_ps: Int64Array | None = None
    """When its client gave up (``client_timeout``) or left (``cancelled``); ``None`` where all clients stay."""


CANCELLED = "cancelled"
"""Status of a request whose client left when the trace says so: nobody's fault, so not among the rejected."""
STATUSES = (
    "finished",
    "too_long_for_model",
    "too_large_for_kv",
    "prompt_over_batch_budget",
    "reservation_over_kv",
    "over_max_concurrent_requests",
    "over_max_num_queued_reqs",
    "over_max_num_queued_tokens",
    "client_timeout",
    "no_replica",
    CANCELLED,
)
RELIEVED_BY_REPLICAS = frozenset(
    {"over_max_concurrent_requests", "over_max_num_queued_reqs", "over_max_num_queued_tokens", "client_timeout"}
)
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
        """Percentile ``q`` in 0..100 of the pooled samples: numpy-linear between the two samples around the rank, each
        taken at its bin's middle (0.2 % from anything in the bin), the largest exactly."""
        total = int(self.weight.sum())
        if total == 0:
            return None
        rank = q / 100.0 * (total - 1)
        low = int(rank)
        below, above = self._sample(low, total), self._sample(min(low + 1, total - 1), total)
        return below + (above - below) * (rank - low)

    def _sample(self, k: int, total: int) -> float:
        """The ``k``-th smallest sample, counted from 0."""
        if k == total - 1 and self.max_s is not None:
            return self.max_s
        value = float(self.value_s[np.searchsorted(np.cumsum(self.weight), k, side="right")])
        return value if self.max_s is None else min(value, self.max_s)


@dataclass(frozen=True)
class PoolUse:
    """How one of two pools was used (docs/disaggregation.md). Means are weighted by busy time."""

    name: str
    """``prefill`` or ``decode``."""
    replicas: int
    tp: int
    steps: int
    preemptions: int
    kv_usage_mean: float
    """Share of usable KV blocks; those kept for a transfer, or taken before one, are in use."""
    kv_usage_max: float
    batch_mean: float
    busy_s: float
    """Summed over replicas."""
    sustainable_rps: float
    """Requests per second of the whole mix at which this pool is full."""


@dataclass(frozen=True)
class PoolsOutcome:
    """What a replay over a prefill and a decode pool answers beside the rest."""

    prefill: PoolUse
    decode: PoolUse
    binding: str
    """Which part fills up first: ``prefill``, ``decode`` or ``transfer``."""
    transfer_rps: float
    """Requests per second at which the links are full; infinite where transfers take no time."""
    kv_transfer_s: Float64Array
    """From the end of a prefill until its KV is on the decode replica, waiting included; scored requests with one."""


@dataclass(frozen=True)
class ReplayResult:
    """Result of one replay. Metric definitions are vLLM bench's (TTFT, TPOT, ITL, E2E); see docs/metrics.md."""

    requests: RequestTable
    itl: Histogram
    ttft_s: Float64Array
    """From arrival; finished and scored requests only, as are the next four and ``itl``."""
    ttft_from_admission_s: Float64Array
    tpot_s: Float64Array
    """Requests with at least two output tokens."""
    e2e_s: Float64Array
    queue_s: Float64Array
    finished: int
    rejected: dict[str, int]
    """Requests that could never run, were turned away, were given up or were left without a replica, by reason; they
    are in no latency figure, but the tokens that they did get are in ``itl``."""
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
    """This and the next three are of the decode pool where there are two; ``pools`` has both."""
    kv_usage_max: float
    batch_mean: float
    """Time-weighted mean of running requests per replica while busy."""
    busy_fraction: float
    loop: str
    """Which engine loop ran: ``general``, ``fast``, ``disaggregated``, or an engine's own: ``static``, ``vllm-v0``,
    ``sglang``, ..."""
    kernel_s: float
    """CPU seconds of compiled code."""
    notes: tuple[str, ...] = field(default=())
    host_hit_tokens: int = 0
    """Of the tokens found in the prefix cache, those copied back from host memory (``kv_offload_gib``)."""
    scored: tuple[int, int] | None = None
    """First and end of the requests whose latencies count; ``None``: all. Other figures are of the whole replay."""
    pools: PoolsOutcome | None = None
    """``None`` where every replica does both prefill and decode."""

    @property
    def cancelled(self) -> int:
        """Requests whose clients left when the trace says so; neither finished nor rejected."""
        return int((self.requests.status == STATUSES.index(CANCELLED)).sum())

    @property
    def scored_part(self) -> slice:
        """The rows of ``requests`` whose latencies count."""
        return slice(0, len(self.requests.arrival_ps)) if self.scored is None else slice(*self.scored)

    def values_s(self, metric: Metric) -> Float64Array:
        """``ttft``, ``tpot``, ``e2e`` or ``queue`` of every scored request, in order, in seconds; infinite where it was
        never served. TPOT of a single token is 0, as vLLM's goodput has it."""
        table, part = self.requests, self.scored_part
        arrival, admitted = table.arrival_ps[part], table.admitted_ps[part]
        first, last = table.first_token_ps[part], table.last_token_ps[part]
        if metric == "ttft":
            values = (first - arrival) / _PS_PER_S
        elif metric == "e2e":
            values = (last - arrival) / _PS_PER_S
        elif metric == "queue":
            values = (admitted - arrival) / _PS_PER_S
        elif metric == "tpot":
            values = (last - first) / _PS_PER_S / np.maximum(table.output_tokens[part] - 1, 1)
        else:
            raise ValueError("itl is pooled over tokens: a request has no value of it")
        return np.where(last < 0, np.inf, values)

    def waited_s(self, metric: Metric) -> Float64Array:
        """What each scored, cancelled request waited for the first token (``ttft``), admission (``queue``) or its end
        (``e2e``) until that came or its client left, in seconds: its value is no less. 0 of ``tpot``, of which nothing
        is known, and of all other requests."""
        table, part = self.requests, self.scored_part
        rows = np.flatnonzero(table.status[part] == STATUSES.index(CANCELLED))
        waited = np.zeros(len(table.status[part]))
        if metric == "tpot" or table.left_ps is None or len(rows) == 0:
            return waited
        until = table.left_ps[part][rows]
        if metric != "e2e":
            came = (table.first_token_ps if metric == "ttft" else table.admitted_ps)[part][rows]
            until = np.where(came >= 0, came, until)
        waited[rows] = (until - table.arrival_ps[part][rows]) / _PS_PER_S
        return waited

    def uncounted(self, objective: Objective) -> BoolArray:
        """Which scored requests ``objective`` does not count: cancelled ones, but for those that had waited for longer
        than its threshold. Whether the others would have met it nobody knows."""
        cancelled: BoolArray = self.requests.status[self.scored_part] == STATUSES.index(CANCELLED)
        return cancelled & (self.waited_s(objective.metric) <= objective.threshold_s)

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
        return distribution_of(self._samples(metric))

    def value(self, objective: Objective) -> float | None:
        """The figure that ``objective`` gates, in seconds; ``None`` where there is no sample.

        Cancelled requests that had waited for longer than the threshold (``waited_s``) are samples too.

        With an attainment *a* it is the smallest time within which that share of the scored requests is (numpy's
        ``inverted_cdf``): at or below the threshold exactly where the share reaches *a*.
        """
        if objective.attainment is not None:
            values = self.values_s(objective.metric)[~self.uncounted(objective)]
            if len(values) == 0:
                return None
            value = float(np.sort(values)[ceil_rank(objective.attainment, len(values)) - 1])
            return value if np.isfinite(value) else None
        if objective.metric == "itl":
            return self.itl.mean_s if objective.percentile is None else self.itl.percentile(objective.percentile)
        waited = self.waited_s(objective.metric)
        samples = np.concatenate([self._samples(objective.metric), waited[waited > objective.threshold_s]])
        if len(samples) == 0:
            return None
        return float(samples.mean() if objective.percentile is None else np.percentile(samples, objective.percentile))
