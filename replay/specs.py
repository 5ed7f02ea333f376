"""What a user asks for: transforms, deployments, objectives, replays and plans.

These models are the one definition of a request. The REST API takes them as bodies, the command line builds them, jobs
store them as JSON, and a worker parses them again. No kernels, no polars here: ``api`` imports this module at start.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from replay.errors import FieldError, SpecError
from replay.faults import plain_faults
from replay.specs_base import Spec
from replay.specs_cluster import ColdStart, Failure, check_replicas, downtimes
from replay.specs_transform import Transform as Transform

Metric = Literal["ttft", "itl", "tpot", "e2e", "queue"]
Router = Literal[
    "round_robin",
    "random",
    "session_affinity",
    "least_outstanding",
    "least_outstanding_tokens",
    "least_kv_usage",
    "power_of_two",
    "vllm_dp",
    "prefix_aware",
]
Scalar = bool | int | float | str

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0}
_VALUE = r"\s*(?:<=|=)\s*([0-9.e+-]+)\s*([a-z]+)"
_OBJECTIVE = re.compile(
    rf"^(?:(ttft|itl|tpot|e2e|queue)_(mean|p\d{{1,2}}(?:\.\d+)?){_VALUE}"
    rf"|(ttft|itl|tpot|e2e|queue){_VALUE}\s*@\s*(\d{{1,3}}(?:\.\d+)?)\s*%)$"
)


def default_snapshot_s(router: Router) -> float:
    """How often a router sees the replicas' state unless the user says: vLLM's coordinator publishes every 100 ms."""
    return 0.1 if router == "vllm_dp" else 0.0


def reads_state(router: Router) -> bool:
    """Whether a router reads the replicas' state: then they must run together."""
    return router not in ("round_robin", "random", "session_affinity")


def _check_snapshot(age_s: float | None, info: ValidationInfo) -> float | None:
    router = info.data.get("router", "least_outstanding")  # absent where it is wrong itself
    if age_s is not None and not reads_state(router):
        raise ValueError(f"the router {router} reads no state: leave router_snapshot_s out, or choose another router")
    return age_s


class Objective(Spec):
    """One latency objective: the 99th percentile of TTFT at or below 2 s; or, with ``attainment``, that share of all
    scored requests at or below it, those never served counting as misses."""

    metric: Metric
    percentile: float | None = Field(default=99.0, gt=0, lt=100)
    """``None`` means the mean, or is not read where ``attainment`` is given."""
    threshold_s: float = Field(gt=0)
    attainment: float | None = Field(default=None, gt=0, le=1)
    """Least share of requests within the threshold. Not for ``itl``, which is pooled over tokens: take ``tpot``."""

    @model_validator(mode="after")
    def _of_single_requests(self) -> Objective:
        if self.attainment is not None and self.metric == "itl":
            raise ValueError(
                "attainment counts requests and itl is pooled over tokens: "
                "use tpot for a limit on each request, or a percentile of itl"
            )
        return self

    @property
    def binds_requests(self) -> bool:
        """Whether the threshold is a limit of single requests, as goodput counts them: no mean, and not ITL."""
        return self.metric != "itl" and (self.attainment is not None or self.percentile is not None)

    @property
    def name(self) -> str:
        """``ttft_p99``, ``ttft_mean`` or ``ttft_attain99``: the key of this figure in every table."""
        if self.attainment is not None:
            return f"{self.metric}_attain{100 * self.attainment:.12g}"
        if self.percentile is None:
            return f"{self.metric}_mean"
        return f"{self.metric}_p{repr(self.percentile).removesuffix('.0')}"


def _objective_fault(text: str) -> str | None:
    """Which part of an objective's name is not known; ``None`` where the name is fine."""
    name = re.split(r"<?=", text)[0].strip()
    metric, _, statistic = name.partition("_")
    metrics = get_args(Metric)
    if metric not in metrics:
        near = get_close_matches(metric, metrics, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"unknown metric {metric[:40]!r}; {hint}the metrics are {', '.join(metrics)}"
    if statistic and statistic != "mean" and not re.fullmatch(r"p\d{1,2}(\.\d+)?", statistic):
        return (
            f"unknown statistic {statistic[:40]!r}; use mean, or a percentile above p0 and below p100, e.g. p50, p99.9"
        )
    return None


def parse_objective(text: str) -> Objective:
    """Reads ``ttft_p99=2s``, ``itl_p95<=50ms``, ``e2e_mean=8s`` or ``ttft<=2s@99%`` (99 % of requests within 2 s).

    Raises:
        SpecError: naming what is wrong and showing a form that works.
    """
    cure = "write METRIC_STATISTIC=VALUE with a unit, e.g. ttft_p99=2s, itl_p95=50ms, e2e_mean=8s, or ttft<=2s@99%"
    match = _OBJECTIVE.match(text.strip().lower())
    if match is None:
        problem = _objective_fault(text.strip().lower()) or cure
        detail = f"cannot read the objective {text[:100]!r}: {problem}"
        raise SpecError("slo.syntax", detail, [FieldError(detail, field="slo", cure=cure)])
    statistic, share = match[2], match[8]
    metric, number, unit = (match[1], match[3], match[4]) if share is None else (match[5], match[6], match[7])
    if unit not in _UNITS_S:
        raise SpecError("slo.unit", f"unknown unit {unit!r} in {text!r}", [FieldError(cure, field="slo", cure=cure)])
    try:
        return Objective.model_validate(
            {
                "metric": metric,
                "percentile": None if share is not None or statistic == "mean" else float(statistic[1:]),
                "threshold_s": float(number) * _UNITS_S[unit],
                "attainment": None if share is None else round(float(share) / 100, 12),
            }
        )
    except ValueError as error:
        said = plain_faults(error.errors()) if isinstance(error, ValidationError) else []
        what = "; ".join(f"{one.field}: {one.detail}" if one.field else one.detail for one in said)
        detail = f"impossible objective {text[:100]!r}: {what or 'the limit must be a number above 0'}"
        raise SpecError("slo.value", detail, [FieldError(detail, "slo", cure=cure)]) from error


class EngineSpec(Spec):
    """An engine preset and overrides of its knobs, under the engine's own names (``max_num_seqs``, ...)."""

    preset: str = "vllm-0.33"
    overrides: dict[str, Scalar] = Field(default_factory=dict, max_length=40)


class PoolsSpec(Spec):
    """Prefill and decode on replicas of their own, with the KV cache sent from one to the other
    (docs/disaggregation.md); how many of each is left open."""

    kv_transfer_gb_per_s: float = Field(gt=0, le=1_000_000)
    """10^9 bytes a second that one replica sends or receives over all its GPUs' links together: 50 for one network
    card of 400 Gb/s."""
    kv_transfer_latency_s: float = Field(default=0.0, ge=0, le=60)
    """From the end of a transfer's bytes until the decode replica may use them."""
    first_token_from: Literal["prefill", "decode"] = "prefill"  # noqa: S105 - a token of text
    """Which side gives the user's first token: TTFT ends with the prefill, or with the first decode step."""
    decode_router: Router = "least_outstanding"
    """How prefilled requests are spread over the decode replicas; ``router`` spreads the arriving ones."""
    prefill_overrides: dict[str, Scalar] = Field(default_factory=dict, max_length=40)
    """Engine knobs of the prefill replicas alone; they beat the engine's overrides. The same for the decode
    replicas."""
    decode_overrides: dict[str, Scalar] = Field(default_factory=dict, max_length=40)

    @field_validator("decode_router")
    @classmethod
    def _caches_nothing(cls, router: Router) -> Router:
        if router == "prefix_aware":
            raise ValueError("decode replicas cache no prefixes: use another decode_router, e.g. least_outstanding")
        return router


class DisaggregationSpec(PoolsSpec):
    """Prefill and decode on so many replicas of their own."""

    prefill_replicas: int = Field(ge=1, le=4096)
    decode_replicas: int = Field(ge=1, le=4096)
    prefill_tp: int | None = Field(default=None, ge=1, le=64)
    """``None``: the deployment's ``tp``; the same for ``decode_tp``."""
    decode_tp: int | None = Field(default=None, ge=1, le=64)


class DeploymentSpec(Spec):
    """ModelSpec x GpuType x parallelism x precision x engine x replicas x router. Keys are resolved by the
    catalogue."""

    model: str = Field(min_length=1, max_length=300)
    gpu: str = Field(min_length=1, max_length=100)
    tp: int = Field(default=1, ge=1, le=64)
    replicas: int = Field(default=1, ge=1, le=4096)
    engine: EngineSpec = EngineSpec()
    router: Router = "round_robin"
    router_snapshot_s: float | None = Field(default=None, ge=0, le=86_400)
    """How often the router sees the replicas' state; 0: as it is at each arrival. ``None``: 0.1 s for vllm_dp, else
    0."""
    weight_dtype: str | None = None
    """``None``: as the model is published."""
    kv_dtype: str | None = None
    """``None``: the model's activation dtype (bf16)."""
    max_model_len: int | None = Field(default=None, ge=1)
    """``None``: the model's maximum position."""
    disaggregation: DisaggregationSpec | None = None
    """Prefill and decode apart; ``None``: every replica does both."""

    client_timeout_s: float | None = Field(default=None, gt=0, le=7_776_000)
    """Seconds after which a client gives up a request that has not finished; ``None``: it waits."""
    failures: tuple[Failure, ...] = Field(default=(), max_length=1000)
    """Replicas that are lost, and when they are back."""
    cold_starts: tuple[ColdStart, ...] = Field(default=(), max_length=1000)
    """Replicas that start late."""

    _snapshot = field_validator("router_snapshot_s")(_check_snapshot)

    @field_validator("failures", "cold_starts")
    @classmethod
    def _replicas_exist(
        cls, given: tuple[Failure | ColdStart, ...], info: ValidationInfo
    ) -> tuple[Failure | ColdStart, ...]:
        check_replicas(given, info.data.get("replicas", 1))
        return given

    @model_validator(mode="after")
    def _down_once(self) -> DeploymentSpec:
        downtimes(self.failures, self.cold_starts)
        return self

    @model_validator(mode="after")
    def _replicas_of_pools(self) -> DeploymentSpec:
        pools = self.disaggregation
        if pools is not None and self.replicas not in (1, pools.prefill_replicas + pools.decode_replicas):
            raise ValueError("with disaggregation leave replicas out: prefill_replicas and decode_replicas count them")
        return self

    def pools(self) -> tuple[DeploymentSpec, ...]:
        """Each pool as a deployment of its own, prefill first; itself alone where every replica does both."""
        apart = self.disaggregation
        if apart is None:
            return (self,)
        engine = self.engine.overrides
        prefill = {
            "tp": apart.prefill_tp or self.tp,
            "replicas": apart.prefill_replicas,
            "engine": self.engine.model_copy(update={"overrides": {**engine, **apart.prefill_overrides}}),
            "disaggregation": None,
        }
        decode = {
            "tp": apart.decode_tp or self.tp,
            "replicas": apart.decode_replicas,
            "engine": self.engine.model_copy(update={"overrides": {**engine, **apart.decode_overrides}}),
            "router": apart.decode_router,
            "router_snapshot_s": self.router_snapshot_s if reads_state(apart.decode_router) else None,
            "disaggregation": None,
        }
        return self.model_copy(update=prefill), self.model_copy(update=decode)


POOLS = ("prefill", "decode")
"""Names of the pools, in the order of ``DeploymentSpec.pools``."""


class PriceFilter(Spec):
    """Which offers may price a plan; or the user's own price. Empty filter: any on-demand offer of the catalogue."""

    provider: str | None = None
    region: str | None = None
    term: str = "on_demand"
    usd_per_gpu_hour: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The user's own price by GPU key; beats the catalogue."""


class ReplaySpec(Spec):
    """One deployment under one workload."""

    deployment: DeploymentSpec
    transform: Transform = Transform()
    objectives: tuple[Objective, ...] = Field(default=(), max_length=20)
    """Judged and counted as goodput; they change nothing in the replay."""
    timeline_bin_s: float | None = Field(default=None, gt=0)
    """Resolution of the timeline; ``None``: one that suits the span. Widened where it gives more than 600 bins."""
    calibration: str = Field(default="auto", min_length=1, max_length=60)
    """The user's own step times: ``auto`` takes the newest for a deployment, ``shipped`` none, an id that one."""
    seed: int = Field(default=0, ge=0, lt=2**31)

    @field_validator("objectives")
    @classmethod
    def _distinct(cls, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        return _distinct_objectives(objectives)


class PlanSpec(Spec):
    """Candidates GPU types x TP under one workload, gated by objectives, priced and ranked."""

    name: str = Field(default="", max_length=200)
    model: str = Field(min_length=1, max_length=300)
    gpus: tuple[str, ...] = Field(min_length=1, max_length=50)
    tp: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(default=(1, 2, 4, 8), min_length=1, max_length=8)
    objectives: tuple[Objective, ...] = Field(min_length=1, max_length=20)
    transform: Transform = Transform()
    engine: EngineSpec = EngineSpec()
    router: Router = "round_robin"
    router_snapshot_s: float | None = Field(default=None, ge=0, le=86_400)
    """How often the router sees the replicas' state; 0: as it is at each arrival. ``None``: 0.1 s for vllm_dp, else
    0."""
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)
    client_timeout_s: float | None = Field(default=None, gt=0, le=7_776_000)
    """Seconds after which a client gives up a request that has not finished: no answer leaves a single one unserved."""
    survive_failures: int = Field(default=0, ge=0, le=64)
    """Replicas that may be down for the whole window: the objectives are met without them, and they are bought."""
    disaggregation: PoolsSpec | None = None
    """Prefill and decode apart, both at a candidate's ``tp``: how many replicas of each is then searched for.
    ``None``: every replica does both."""
    price: PriceFilter = PriceFilter()
    max_gpus: int | None = Field(default=None, ge=1)
    """Hard cap on GPUs of one recommendation."""
    max_usd_per_hour: float | None = Field(default=None, gt=0)
    """Hard cap on cost."""
    calibration: str = Field(default="auto", min_length=1, max_length=60)
    """The user's own step times: ``auto`` takes the newest for a deployment, ``shipped`` none, an id that one."""
    seed: int = Field(default=0, ge=0, lt=2**31)

    _snapshot = field_validator("router_snapshot_s")(_check_snapshot)

    @field_validator("objectives")
    @classmethod
    def _distinct(cls, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        return _distinct_objectives(objectives)

    @model_validator(mode="after")
    def _of_pools(self) -> PlanSpec:
        if self.disaggregation is None:
            return self
        if self.client_timeout_s is not None:
            raise ValueError("prefill and decode apart are not replayed with client_timeout_s: leave one of them out")
        if self.survive_failures:
            raise ValueError(
                "a plan of prefill and decode pools does not search for replicas to spare: leave survive_failures out, "
                "and replay the deployment that is found with fewer replicas of either pool"
            )
        return self


def _distinct_objectives(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    names = [o.name for o in objectives]
    if len(set(names)) != len(names):
        raise ValueError(f"the same objective is given twice: {sorted(names)}")
    return objectives
