"""The report document, ``capreplay.report/1``: what people read of a plan or a replay, as one JSON object.

``api/reports`` renders it to HTML and CSV, the REST API serves it, the command line prints a part of it. It holds no
timestamp and no measured wall time, so that equal input gives equal bytes. Units are in the names: ``_s`` seconds,
``_gib`` 2^30 bytes **per GPU**, ``_rps`` requests per second, ``usd_`` US dollars without tax. ``None`` is *not known*
or *no sample*, never zero. No polars, no numba here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from replay.planning.parts import (
    Certainty,
    CurvePoint,
    Goodput,
    MemoryBreakdown,
    Metrics,
    MetricStats,
    ObjectiveOutcome,
    Part,
    RangeEnd,
)
from replay.specs import Scalar, Transform

SCHEMA: Literal["capreplay.report/1"] = "capreplay.report/1"
Provenance = Literal["measured", "transported", "analytic", "recorded"]
PlanStatus = Literal["recommended", "unpriced", "measure_first", "no_feasible_candidate"]


class EngineInfo(Part):
    """Engine preset and the knobs it resolved to, under the engine's own names."""

    preset: str
    version: str
    settings: dict[str, Scalar | None]
    router: str
    weight_dtype: str
    kv_dtype: str


class StepTimeInfo(Part):
    """What turned batches into seconds, and how far it can be trusted."""

    calibration_id: str
    provenance: Provenance
    stated_error: str
    """A sentence with the error on runs not fitted on, or ``not measured``."""
    notes: tuple[str, ...] = ()


class Operating(Part):
    """How a deployment behaved in its replay. Latencies of a saturated run are no operating point."""

    metrics: Metrics
    objectives: tuple[ObjectiveOutcome, ...]
    load_factor: float | None
    """Offered load over capacity; ``None``: one burst, which has no rate."""
    headroom: float | None
    """Load that still fits before the capacity limit: ``1 / load_factor - 1``. Latency limits bind earlier."""
    offered_rps: float | None
    sustainable_rps: float
    saturated: bool
    requests: int
    finished: int
    rejected: dict[str, int]
    cancelled: int = 0
    """Requests whose clients left when the trace says so: neither finished nor rejected."""
    preemptions: int
    prefix_hit_rate: float | None = None
    """Prompt tokens served from the prefix cache over those looked up; ``None`` where no cache acted."""
    kv_usage_mean: float
    kv_usage_max: float
    batch_mean: float
    busy_fraction: float
    steps: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float | None
    loop: str
    notes: tuple[str, ...] = ()
    scored: int | None = None
    """Requests whose latencies count, where a warm-up or a cool-down is trimmed; ``None``: all of them."""
    goodput: Goodput | None = None
    """``None`` where no objective is a limit of single requests."""


class PoolInfo(Part):
    """One of two pools of replicas: what it is and how it was used (docs/disaggregation.md)."""

    replicas: int = Field(ge=1)
    tp: int = Field(ge=1)
    gpus: int = Field(ge=1)
    load_factor: float | None
    """Offered load over what this pool sustains; ``None``: one burst, which has no rate."""
    sustainable_rps: float | None
    """Requests per second of the whole mix at which it is full; ``None``: no request comes here."""
    kv_usage_mean: float
    kv_usage_max: float
    batch_mean: float
    busy_fraction: float
    steps: int
    preemptions: int
    memory: MemoryBreakdown
    engine: EngineInfo
    step_time: StepTimeInfo


class PoolsInfo(Part):
    """Prefill and decode apart. ``kv_transfer_s``: from the end of a prefill until its KV is on the decode replica,
    the wait for blocks and links included."""

    binding: Literal["prefill", "decode", "transfer"]
    """What fills up first as the load grows."""
    first_token_from: Literal["prefill", "decode"]
    kv_transfer_s: MetricStats
    transfer_rps: float | None
    """Requests per second at which the links are full; ``None``: transfers take no time."""
    prefill: PoolInfo
    decode: PoolInfo


class PriceUsed(Part):
    """Which offer priced a deployment. A figure without this is never shown."""

    price_id: str | None
    """``None``: the user's own price."""
    provider: str
    region: str
    term: str
    date: str | None
    """Date of the source table: prices move monthly."""
    instance_type: str
    gpus_per_instance: int = Field(ge=1)
    instances: int = Field(ge=1)
    """Whole instances that hold the GPUs; ``instances * gpus_per_instance`` are paid for."""
    paid_gpus: int = Field(ge=1)
    usd_per_instance_hour: float
    usd_per_gpu_hour: float
    source: str
    notes: str = ""


class Cost(Part):
    """Cost of a deployment; all figures ``None`` with ``price_reason`` where nothing prices it. A month is 730 h."""

    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    usd_per_1m_output_tokens: float | None = None
    usd_per_1m_tokens: float | None = None
    """Per million prompt and output tokens together."""
    per_token_reason: str | None = None
    """Why a priced deployment has no cost per token."""
    price: PriceUsed | None = None
    price_reason: str | None = None


class Evidence(Part):
    """Why this replica count: the smallest that passes, and the one below it that fails."""

    passes: CurvePoint
    fails: CurvePoint | None
    """``None`` only where one replica passes already."""
    one_more: CurvePoint | None
    """What one replica more does, where it was replayed."""
    monotone: bool
    """``False``: among the replayed counts a larger one failed where a smaller one passed."""
    lower_bound_replicas: int
    """Replicas below which the offered work exceeds capacity; under prefix caching as far as replays showed it."""
    replays: int
    sentence: str


class Recommendation(Cost, Operating):
    """One feasible candidate at its smallest replica count that passes, priced. Rank 1 is the cheapest with a range."""

    rank: int = Field(default=1, ge=1)
    status: Literal["feasible"] = "feasible"
    gpu: str
    tp: int
    replicas: int
    data_parallel_size: int = Field(default=1, ge=1)
    """Ranks of a replica that step together, each of ``tp`` GPUs."""
    gpus: int
    survive_failures: int = 0
    """Of these replicas, those that were down in the replay: the figures are of the others."""
    memory: MemoryBreakdown
    engine: EngineInfo
    step_time: StepTimeInfo
    curve: tuple[CurvePoint, ...]
    """Every replica count that was replayed, ascending."""
    evidence: Evidence
    certainty: Certainty | None = None
    """``None`` in documents of earlier versions."""
    pools: PoolsInfo | None = None
    """``None`` where every replica does both. Else ``memory``, ``engine`` and ``step_time`` above are of the prefill
    pool, use of memory and batch of the decode pool."""
    may_be_cheapest: bool | None = None
    """Whether the error leaves it open that this one costs no more than rank 1; ``None``: rank 1 itself, or an end of
    the range or a price is not known."""
    measure_first: bool = False
    """No range: how far its step times are off is not known, or bounds no count. Ranked after all that have one."""

    @property
    def ends(self) -> tuple[RangeEnd | None, RangeEnd | None]:
        """Fewest and most within the error, ``None`` where not known."""
        return (None, None) if self.certainty is None else (self.certainty.fewest, self.certainty.most)

    @model_validator(mode="after")
    def _gpus_add_up(self) -> Recommendation:
        if self.gpus != self.tp * self.data_parallel_size * self.replicas:
            each = f"tp {self.tp} x {self.data_parallel_size} ranks"
            raise ValueError(f"gpus {self.gpus} is not {each} x replicas {self.replicas}")
        return self


class Infeasible(Part):
    """One candidate that is no answer, with the reason: a stable ``code`` and a sentence."""

    gpu: str
    tp: int
    code: str
    reason: str
    best: CurvePoint | None = None
    """The best that was reached, where it was replayed at all."""
    curve: tuple[CurvePoint, ...] = ()
    memory: MemoryBreakdown | None = None


class CandidateResult(Part):
    """What the search found for one candidate: exactly one of the two."""

    gpu: str
    tp: int
    recommendation: Recommendation | None = None
    infeasible: Infeasible | None = None
    step_time: StepTimeInfo | None = None
    """``None`` where no deployment could be made."""
    engine: EngineInfo | None = None
    replays: int = 0

    @model_validator(mode="after")
    def _one_answer(self) -> CandidateResult:
        if (self.recommendation is None) == (self.infeasible is None):
            raise ValueError("a candidate is either feasible or infeasible")
        return self


class LengthStats(Part):
    """Token lengths over requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


class WorkloadSeries(Part):
    """Offered load over time, in bins of ``bin_s`` seconds from the window's start; equal lengths."""

    bin_s: float = Field(gt=0)
    start_s: tuple[float, ...]
    requests: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    @model_validator(mode="after")
    def _equal_lengths(self) -> WorkloadSeries:
        if len({len(self.start_s), len(self.requests), len(self.prompt_tokens), len(self.output_tokens)}) != 1:
            raise ValueError("the series of the workload differ in length")
        return self


class Timeline(Part):
    """A replay over time, in at most 600 bins of ``bin_s`` seconds from the window's start to the last token; equal
    lengths (docs/metrics.md, "Over time"). ``null``: no sample in the bin."""

    bin_s: float = Field(gt=0)
    start_s: tuple[float, ...] = Field(max_length=600)
    arrived: tuple[int, ...]
    admitted: tuple[int, ...]
    finished: tuple[int, ...]
    running: tuple[float, ...]
    """Requests between admission and last token, mean over the bin, all replicas; preempted ones included."""
    waiting: tuple[float, ...]
    """Requests between arrival and admission, mean over the bin, all replicas."""
    batch_utilisation: tuple[float, ...]
    """``running`` over ``max_num_seqs`` of all replicas."""
    prompt_tokens_per_s: tuple[float, ...]
    output_tokens_per_s: tuple[float, ...]
    finished_per_s: tuple[float, ...]
    preemptions: tuple[float, ...]
    ttft_p50_s: tuple[float | None, ...]
    ttft_p99_s: tuple[float | None, ...]
    prefix_hit_rate: tuple[float | None, ...] | None = None
    """``None`` where no cache acted."""
    kv_usage: tuple[float, ...] | None = None
    """Estimated; ``None`` where requests share blocks or reserve them."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _equal_lengths(self) -> Timeline:
        columns = [value for value in vars(self).values() if isinstance(value, tuple) and value is not self.notes]
        if any(len(column) != len(self.start_s) for column in columns):
            raise ValueError("the columns of the timeline differ in length")
        return self


class SplitRow(Part):
    """The scored requests of one tenant or priority. Percentiles over finished requests; TPOT from two tokens on."""

    name: str
    members: int = Field(ge=1)
    """1, or how many tenants or priorities the row of the others sums up."""
    requests: int
    finished: int
    cancelled: int = 0
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None
    good_share: float | None
    goodput_rps: float | None


class Split(Part):
    """The metrics by one column of the trace: its 20 largest groups, and the others in one last row."""

    by: Literal["tenant", "priority"]
    rows: tuple[SplitRow, ...] = Field(max_length=21)


class WorkloadSummary(Part):
    """What was replayed, after the transform."""

    requests: int = Field(ge=0)
    span_s: float
    mean_rps: float | None
    peak_rps_1s: float | None
    peak_rps_1min: float | None
    """Most requests in any window of that length, over the length; ``None`` where the workload is shorter."""
    burstiness: float | None
    """Index of dispersion of requests per whole second: variance / mean; 1 for Poisson; ``None`` under 10 s."""
    prompt_tokens: int
    output_tokens: int
    prompt_length: LengthStats | None
    output_length: LengthStats | None
    excluded: dict[str, int] = Field(default_factory=dict)
    """Requests of the trace that are not in the workload, by reason."""
    undeclared_outputs: int | None = None
    """Requests without a declared ``max_tokens``; ``None`` in documents of earlier versions."""
    notes: tuple[str, ...] = ()
    series: WorkloadSeries


class WorkloadInfo(WorkloadSummary):
    """The workload with its trace: ingest report (cleaning, profile, assumed units) as the ingest job wrote it."""

    trace_name: str
    transform: Transform
    ingest: dict[str, JsonValue] = Field(default_factory=dict)


class CalibrationRef(Part):
    """One calibration that the document rests on."""

    gpu: str
    calibration_id: str
    provenance: Provenance
    stated_error: str


class ProvenanceInfo(Part):
    """Enough to get the same bytes again."""

    trace_sha256: str
    catalogue_version: str
    kernel_version: str
    engine_preset: str
    engine_version: str
    seed: int
    input_hash: str
    """SHA-256 of the resolved request."""
    calibrations: tuple[CalibrationRef, ...]


class Verdict(Part):
    """The answer in one sentence."""

    status: PlanStatus | Literal["served", "saturated", "some_requests_rejected"]
    """``measure_first``: no candidate has a range."""
    sentence: str


class _Report(Part):
    schema_: Literal["capreplay.report/1"] = Field(default=SCHEMA, alias="schema")
    name: str = ""
    verdict: Verdict
    model: str
    workload: WorkloadInfo
    provenance: ProvenanceInfo
    method: tuple[str, ...]
    """How the figures came about, in plain sentences."""
    limits: tuple[str, ...]
    """What they do not cover, in plain sentences."""
    warnings: tuple[str, ...] = ()


class PlanReport(_Report):
    """The document of a plan."""

    kind: Literal["plan"] = "plan"
    objectives: tuple[str, ...]
    """As sentences: ``ttft_p99 <= 2 s``."""
    constraints: dict[str, Scalar | None] = Field(default_factory=dict)
    """Budget caps and the price filter, as asked."""
    recommendations: tuple[Recommendation, ...]
    infeasible: tuple[Infeasible, ...]


class ReplayReport(_Report):
    """The document of a replay of one deployment."""

    kind: Literal["replay"] = "replay"
    gpu: str
    tp: int
    replicas: int
    gpus: int
    operating: Operating
    cost: Cost
    memory: MemoryBreakdown
    engine: EngineInfo
    step_time: StepTimeInfo
    objectives: tuple[str, ...] = ()
    """As sentences, where any were given."""
    timeline: Timeline | None = None
    """``None`` in documents of earlier versions."""
    splits: tuple[Split, ...] = Field(default=(), max_length=2)
    """By tenant and by priority, each where the trace has the column."""
    pools: PoolsInfo | None = None
    """``None`` where every replica does both prefill and decode. Else ``tp``, ``memory``, ``engine`` and ``step_time``
    above are of the prefill pool, and use of memory and batch under ``operating`` is of the decode pool."""


Report = Annotated[PlanReport | ReplayReport, Field(discriminator="kind")]
_REPORT: TypeAdapter[PlanReport | ReplayReport] = TypeAdapter(Report)


def parse_report(document: object) -> PlanReport | ReplayReport:
    """The typed form of a stored report document.

    Raises:
        pydantic.ValidationError: where it is not a ``capreplay.report/1`` document.
    """
    return _REPORT.validate_python(document)


def dump_report(report: PlanReport | ReplayReport) -> dict[str, JsonValue]:
    """The JSON object of a report."""
    return report.model_dump(mode="json")


def run_answer(report: PlanReport) -> dict[str, JsonValue]:
    """What ``capreplay run --json`` prints: ``trace``, ``recommendations``, ``infeasible``, ``provenance`` and more."""
    full = dump_report(report)
    workload, provenance = full["workload"], full["provenance"]
    if not isinstance(workload, dict) or not isinstance(provenance, dict):
        raise TypeError("a dumped report holds objects for workload and provenance")
    trace = {key: value for key, value in workload.items() if key not in ("series", "ingest")}
    ingest = workload["ingest"] if isinstance(workload["ingest"], dict) else {}
    trace.update({key: ingest[key] for key in ("format", "assumed") if key in ingest})
    cleaning = ingest.get("cleaning")
    if isinstance(cleaning, dict):
        rows = ("rows_read", "rows_kept", "rows_rejected")
        trace.update({key: cleaning[key] for key in rows if key in cleaning})
    trace["sha256"] = provenance["trace_sha256"]
    answer: dict[str, JsonValue] = {"trace": trace}
    for key in ("schema", "verdict", "model", "objectives", "recommendations", "infeasible", "provenance", "warnings"):
        answer[key] = full[key]
    return answer
