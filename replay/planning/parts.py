"""Parts of the report document that stand for one thing each: figures, objectives, a replayed count, memory."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field, model_validator

from replay.specs import Metric


class Part(BaseModel):
    """Common behaviour of all parts: immutable, no unknown fields, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True)


class MetricStats(Part):
    """One latency metric over its samples, in seconds; percentiles numpy-linear."""

    n: int = Field(ge=0)
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Metrics(Part):
    """vLLM bench definitions (docs/metrics.md). TTFT counts from arrival; the other from admission by the engine."""

    ttft_s: MetricStats
    ttft_from_admission_s: MetricStats
    itl_s: MetricStats
    tpot_s: MetricStats
    e2e_s: MetricStats
    queue_s: MetricStats


class ObjectiveOutcome(Part):
    """One row of the SLO table. ``margin`` is ``1 - value / threshold``: 0.2 means 20 % below the limit.

    Where ``attainment`` is asked for, ``value_s`` is the time within which that share of the scored requests is."""

    name: str
    metric: Metric
    percentile: float | None
    threshold_s: float
    value_s: float | None
    met: bool
    margin: float | None
    attainment: float | None = None
    """The share of requests that was asked for."""
    attained: float | None = None
    """Share of scored requests at or below the threshold; ``None`` for ITL, which is pooled over tokens."""


class Goodput(Part):
    """Requests that meet every limit, per second: vLLM's goodput. Every objective but those on ITL (pooled over
    tokens) and on means is a limit of each request here; a missing TPOT (one output token) counts as 0."""

    objectives: tuple[str, ...]
    good: int = Field(ge=0)
    scored: int = Field(ge=0)
    share: float | None
    requests_per_s: float | None
    """Over the first arrival to the last token of the scored requests."""


class CurvePoint(Part):
    """One replayed replica count. ``passed``: not saturated, every request served, every objective met."""

    replicas: int = Field(ge=1)
    """Those that serve, of both pools where prefill and decode are apart."""
    prefill_replicas: int | None = None
    """Of these; ``None`` where every replica does both."""
    decode_replicas: int | None = None
    splits_replayed: int | None = None
    """How many splits of this count into prefill and decode were replayed; this is the first that passed, else the
    best."""
    gpus: int = Field(ge=1)
    """Of these and of the replicas that may fail (``survive_failures``), as is ``usd_per_hour``."""
    load_factor: float | None
    """``None``: one burst, which has no rate, so nothing can saturate."""
    saturated: bool
    passed: bool
    objectives: tuple[ObjectiveOutcome, ...]
    preemptions: int = 0
    rejected: dict[str, int] = Field(default_factory=dict)
    finished: int | None = None
    """0: the load takes too long to drain, and latencies were not computed."""
    cancelled: int = 0
    """Requests whose clients left when the trace says so."""
    prefix_hit_rate: float | None = None
    usd_per_hour: float | None = None

    @property
    def worst(self) -> float:
        """The objective that is furthest from its limit, as a share of it; infinite without a sample."""
        return max(math.inf if row.value_s is None else row.value_s / row.threshold_s for row in self.objectives)

    @property
    def distance(self) -> tuple[bool, float]:
        """How far it is from passing. Latencies of a saturated one say nothing: its load does."""
        load = self.load_factor
        return self.saturated, load if self.saturated and load is not None else self.worst

    @property
    def replicas_text(self) -> str:
        """``6 replicas``, or ``2 prefill and 4 decode replicas``."""
        if self.prefill_replicas is not None:
            return f"{self.prefill_replicas} prefill and {self.decode_replicas} decode replicas"
        return f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"


class RangeEnd(Part):
    """One end of the range of a count; its cost is at the answer's ratio of prefill to decode, where they are apart."""

    replicas: int = Field(ge=1)
    gpus: int = Field(ge=1)
    usd_per_hour: float | None = None


class Certainty(Part):
    """The count that the error of step times and KV cache leaves open (docs/planning.md, "How sure")."""

    how_sure: str
    """What the step times rest on, in words."""
    step_time_error: float | None = None
    """Share: what is stated of single steps or of measured runs, the larger; ``None``: not measured, and no range."""
    prefill_error: float | None = None
    """Of steps with prompt tokens, where it is stated apart; ``step_time_error`` is then the larger of the two."""
    decode_error: float | None = None
    """Of steps of decodes alone, where it is stated apart."""
    kv_error: float | None = None
    """Share: half the 90 % interval of the KV cache; 0 where the user sets the blocks."""
    fewest: RangeEnd | None = None
    """With steps shorter and the KV cache larger by the error; ``None``: no range."""
    most: RangeEnd | None = None
    """With steps longer and the KV cache smaller; ``None`` beside ``fewest``: no count was found that passes."""
    replays: int = Field(default=0, ge=0)
    sentence: str
    """The range and why: which objective fails first; or why there is no range."""

    def gpus_text(self, gpus: int) -> str:
        """``5 (4 to 6)``, ``5 (4 or more)``; ``5`` where the error changes nothing or is not known."""
        if self.fewest is None:
            return f"{gpus}"
        if self.most is None:
            return f"{gpus} ({self.fewest.gpus} or more)"
        is_point = self.fewest.gpus == self.most.gpus
        return f"{gpus}" if is_point else f"{gpus} ({self.fewest.gpus} to {self.most.gpus})"

    def usd_text(self) -> str:
        """``8.00 to 12.00``, ``8.00 or more``, ``8.00``: US dollars per hour; ``-`` without a range or a price."""
        if self.fewest is None or self.fewest.usd_per_hour is None:
            return "-"
        low, high = self.fewest.usd_per_hour, self.most and self.most.usd_per_hour
        if high is None:
            return f"{low:.2f} or more"
        return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


class MemoryPart(Part):
    """One slice of the memory stack."""

    name: str
    gib: float


class MemoryBreakdown(Part):
    """GiB per GPU; ``parts`` add up to ``total_gib`` (checked), the KV cache is one of them."""

    parts: tuple[MemoryPart, ...]
    total_gib: float
    kv_blocks: int
    """Blocks that the replay gave to requests."""
    kv_tokens: int
    """Tokens that one replica's KV cache holds."""
    kv_bytes_per_token: float | None = None
    block_size: int
    max_concurrency: float | None = None
    """Requests of ``max_model_len`` tokens that fit at once, as the engine prints it."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _adds_up(self) -> MemoryBreakdown:
        total = sum(part.gib for part in self.parts)
        if abs(total - self.total_gib) > 0.01:
            raise ValueError(f"memory parts add up to {total:.3f} GiB, not to the total of {self.total_gib:.3f} GiB")
        return self
